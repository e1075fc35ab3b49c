"""`skep server notify`: gives a server the file of targets, with which it runs the notifier."""

from __future__ import annotations

import contextlib
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from skep_services.cli import exits
from skep_services.cli.client import Client, find_target
from skep_services.cli.exits import CommandError
from skep_services.cli.options import print_json

RESTART = "systemctl restart skep-server"
LOOK_S = 2.0
"""For how long gateways are asked whether there is a notifier: none may be up yet."""


def options(parser: ArgumentParser) -> None:
    """Add what `server notify` takes beside the file."""
    parser.add_argument(
        "--off", action="store_true", help="notify: this server runs the notifier no longer"
    )


def run(arguments: Namespace, home: str, act_as_owner: Callable[[str], None]) -> int:
    """Take a file of targets, or give it up.

    Args:
        arguments: The command line.
        home: The state folder.
        act_as_owner: Goes on as the account of the state folder: after the file was read, which
            root alone may be able to.

    Returns:
        The exit code.

    Raises:
        CommandError: The command line is wrong, or another server runs the notifier.
        FilesError: There is no server, or the file cannot be used.
    """
    from skep_services.servers import files, targets

    if arguments.off == bool(arguments.place):
        told = "give the file of targets or --off: skep server notify FILE"
        raise CommandError(exits.USAGE, told)
    text = b"" if arguments.off else targets.content(os.path.abspath(arguments.place))
    act_as_owner(home)
    server = files.read_server(home)
    if arguments.off:
        changed = targets.remove(home)
    else:
        if not targets.has(home) and server.size > 1 and _one_answers(home):
            told = (
                "another server of this cluster runs the notifier, and two would send all twice: "
                "`skep server notify --off` there first, and restart it"
            )
            raise CommandError(exits.FAILED, told, "already-notifying")
        targets.put(home, text)
        changed = True
    on = not arguments.off
    if arguments.json:
        print_json({"server": server.name, "notifier": on, "changed": changed})
    elif not changed:
        print(f"{server.name} has no file of targets: nothing to do")
    else:
        begins = "starts" if on else "is gone"
        print(f"the notifier of {server.name} {begins} with: {RESTART} (jobs run on)")
    return exits.OK


def _one_answers(home: str) -> bool:
    """Return whether a notifier of the cluster answers; no: also where no gateway does."""
    with contextlib.suppress(CommandError):
        Client(find_target(home), LOOK_S).get("/v1/notices")
        return True
    return False
