"""`skep version`."""

from __future__ import annotations

import sys
from argparse import Namespace

import skep
from skep_services.cli import exits
from skep_services.cli.options import Command, no_options, print_json


def run_version(arguments: Namespace) -> int:
    """Print Skep's and Python's version.

    Returns:
        The exit code: always 0.
    """
    versions = {"skep": skep.__version__, "python": ".".join(map(str, sys.version_info[:3]))}
    if arguments.json:
        print_json(versions)
    else:
        print(" ".join(f"{name} {version}" for name, version in versions.items()))
    return exits.OK


COMMANDS = {"version": Command(no_options, run_version)}
