"""`skep secret`: keep values that jobs need and nobody else should read."""

from __future__ import annotations

import base64
import getpass
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from skep_services.cli import exits, render
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column


def options(parser: ArgumentParser) -> None:
    """Add what `secret` takes."""
    parser.add_argument("verb", choices=("set", "ls", "rm"), help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the secret's name")
    owner = parser.add_mutually_exclusive_group()
    owner.add_argument("--vc", metavar="VC", help="of a virtual cluster, for the jobs of all of it")
    owner.add_argument("--person", metavar="NAME", help="of one person, for this person's jobs")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="set: the value is what this file holds (-: standard input, as it is)",
    )


def run(arguments: Namespace) -> int:
    """Set, list or take back secrets. A value is never an argument: others could read it.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, or the value cannot be read.
    """
    scope, owner = _owner(arguments)
    client = client_of(arguments)
    path = f"/v1/secrets/{scope}/{quote(owner)}"
    if arguments.verb == "ls":
        if arguments.name:
            raise CommandError(exits.USAGE, "`skep secret ls` takes no name")
        return _list(arguments, client, path)
    if not arguments.name:
        raise CommandError(exits.USAGE, f"which secret? (skep secret {arguments.verb} NAME)")
    path = f"{path}/{quote(arguments.name)}"
    if arguments.verb == "rm":
        client.send("DELETE", path)
        told = "is taken back: jobs that run keep it until they end"
    else:
        _set(client, path, _value(arguments), (scope, owner, arguments.name))
        told = "is kept; a spec names it: secrets: {VARIABLE: " + arguments.name + "}"
    if arguments.json:
        print_json({"scope": scope, "owner": owner, "name": arguments.name})
    else:
        print(f"secret {arguments.name} of {scope} {owner} {told}")
    return exits.OK


def _owner(arguments: Namespace) -> tuple[str, str]:
    if arguments.person:
        return "person", arguments.person
    vc = arguments.vc or os.environ.get("SKEP_VC", "")
    if not vc:
        raise CommandError(exits.USAGE, "whose secret? give --vc VC (or SKEP_VC), or --person NAME")
    return "vc", vc


def _value(arguments: Namespace) -> bytes:
    """Return the value: a file's content, or a line that is typed without an echo.

    Raises:
        CommandError: It cannot be read, is empty or too large.
    """
    from skep.wire.vault import VALUE_BYTES_MAX

    try:
        if arguments.file and arguments.file != "-":
            value = Path(arguments.file).read_bytes()
        elif arguments.file == "-" or not sys.stdin.isatty():
            value = sys.stdin.buffer.read(VALUE_BYTES_MAX + 1)
            if arguments.file != "-":
                value = value.removesuffix(b"\n")
        else:
            value = getpass.getpass(f"value of {arguments.name}: ").encode()
    except OSError as error:
        text = f"{arguments.file or 'the value'} cannot be read: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None
    if not value:
        raise CommandError(exits.USAGE, "the value is empty")
    if len(value) > VALUE_BYTES_MAX:
        text = f"the value has more than {VALUE_BYTES_MAX} bytes: keep it on shared storage"
        raise CommandError(exits.USAGE, text, "too-large")
    return value


def _set(client: Client, path: str, value: bytes, place: tuple[str, str, str]) -> None:
    from skep_services.vault import boxes

    told = client.get("/v1/secrets/key")
    key = base64.b64decode(told["key"])
    # A vault of an earlier version would hand the place out with the value.
    box = boxes.seal_in_place(value, key, place) if told.get("places") else boxes.seal(value, key)
    sealed = base64.b64encode(box).decode()
    body = json.dumps({"sealed": sealed, "key": base64.b64encode(key).decode()}).encode()
    client.send("PUT", path, body)


def _list(arguments: Namespace, client: Client, path: str) -> int:
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    found = client.get(path)["secrets"]
    if not found:
        say("no secrets (skep secret set NAME)")
        return exits.OK
    render.show_table(
        [
            Column("NAME", [one["name"] for one in found]),
            Column("SET", [render.clock_time(one["set_at"], date=True) for one in found]),
            Column("BY", [one["by"] for one in found]),
        ]
    )
    return exits.OK


COMMANDS = {"secret": Command(options, run)}
