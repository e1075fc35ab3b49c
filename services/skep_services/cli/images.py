"""`--image` and `--pull`: what has a command line's job run as containers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from skep_services.cli import exits
from skep_services.cli.exits import CommandError


def options_image(parser: ArgumentParser) -> None:
    """Add what names an image."""
    parser.add_argument("--image", metavar="IMAGE", help="run in containers of this image")
    parser.add_argument(
        "--pull", action="store_true", help="have a node fetch the image if it is not there"
    )


def runtime_of(arguments: Namespace) -> dict[str, str]:
    """Return the `runtime` of a spec; empty: processes.

    Raises:
        CommandError: What is said does not go together.
    """
    if arguments.image is None:
        if arguments.pull:
            raise CommandError(exits.USAGE, "--pull: name what to fetch: --image IMAGE")
        return {}
    return {"image": arguments.image, **({"pull": "missing"} if arguments.pull else {})}
