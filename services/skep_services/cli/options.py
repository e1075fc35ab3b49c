"""How commands describe themselves to the parser, and what they all share."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NamedTuple

from skep_services.cli.client import PATIENCE_S, Client, find_target

HOME_HELP = "state folder (default SKEP_HOME or ~/.skep; on a server, as root, its own)"


class Command(NamedTuple):
    """One command: how it fills its parser, and what it does. It returns the exit code.

    `takes_rest`: the first argument that is no option begins a command of the user's.
    `takes_command`: so does what follows `--`, which is added to the arguments `command`.
    """

    options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    takes_rest: bool = False
    takes_command: bool = False


def no_options(parser: ArgumentParser) -> None:
    """Add nothing."""


def common(parser: ArgumentParser) -> None:
    """Add what every command takes."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--home", metavar="DIR", help=HOME_HELP)


def job_argument(parser: ArgumentParser) -> None:
    """Add the one job a command is about."""
    parser.add_argument(
        "job", metavar="JOB", help="a job's id, such as j17, or its name if only one has it"
    )


def client_of(arguments: Namespace, patience_s: float = PATIENCE_S) -> Client:
    """Return a client of the cluster the arguments and the environment name."""
    return Client(find_target(arguments.home), patience_s)


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")


def print_raw(data: bytes) -> None:
    """Print a JSON document as the gateway sent it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data.rstrip(b"\n") + b"\n")
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """Tell a person something that is no result: it goes to standard error, at once."""
    print(text, file=sys.stderr, flush=True)
