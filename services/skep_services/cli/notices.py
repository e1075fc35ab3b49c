"""`skep notify`: the targets of jobs, the latest messages, and a test of a target."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column


def options(parser: ArgumentParser) -> None:
    """Add what `notify` takes."""
    parser.add_argument("verb", choices=("ls", "test"), help="what to do")
    parser.add_argument(
        "target", metavar="TARGET", nargs="?", help="test: a name, a mail address or a URL"
    )
    parser.add_argument("--vc", metavar="VC", help="as jobs of this VC may use it (or SKEP_VC)")


def run(arguments: Namespace) -> int:
    """List targets and messages, or send a test.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong.
    """
    client = client_of(arguments)
    vc = arguments.vc or os.environ.get("SKEP_VC", "")
    if arguments.verb == "ls":
        if arguments.target:
            raise CommandError(exits.USAGE, "`skep notify ls` takes no target")
        return _list(arguments, client, f"/v1/notices?vc={quote(vc)}" if vc else "/v1/notices")
    if not arguments.target:
        raise CommandError(exits.USAGE, "which target? (skep notify test NAME)")
    if not vc:
        raise CommandError(exits.USAGE, "for jobs of which VC? give --vc VC (or SKEP_VC)")
    body = json.dumps({"target": arguments.target, "vc": vc}).encode()
    client.send("POST", "/v1/notices/test", body)
    if arguments.json:
        print_json({"target": arguments.target, "vc": vc, "sent": True})
    else:
        print(f"a test was sent to {arguments.target}")
    return exits.OK


def _list(arguments: Namespace, client: Client, path: str) -> int:
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    found = client.get(path)
    targets = found["targets"]
    also = [word for word, key in (("mail addresses", "mail"), ("URLs", "webhooks")) if found[key]]
    if targets:
        render.show_table(
            [
                Column("TARGET", [one["name"] for one in targets]),
                Column("KIND", [one["kind"] for one in targets]),
                Column("VCS", [", ".join(one.get("vcs", ())) or "all" for one in targets]),
            ]
        )
    else:
        say("no targets have a name")
    say(f"jobs may name {' and '.join(also)} of their own" if also else "and nothing else")
    if found["messages"]:
        print()
        _messages(found["messages"])
    return exits.OK


def _messages(messages: list[dict[str, Any]]) -> None:
    render.show_table(
        [
            Column("MESSAGE", [str(one["number"] or "-") for one in messages]),
            Column("STATE", [one["state"] for one in messages]),
            Column("TARGET", [one["target"] for one in messages], narrow=16),
            Column("VC", [one["vc"] for one in messages]),
            Column("AT", [render.clock_time(one["at"], date=True) for one in messages]),
            Column("NOTICES", [str(one["notices"]) for one in messages], right=True),
            Column("TRIES", [str(one["tries"]) for one in messages], right=True),
            Column("JOBS", [", ".join(one["jobs"]) for one in messages], narrow=12),
            Column("TROUBLE", [one.get("trouble", "") for one in messages], narrow=24),
        ]
    )


COMMANDS = {"notify": Command(options, run)}
