"""`skep cache`: the environments that nodes keep, listed and removed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from skep_services.cli import exits, render
from skep_services.cli.client import decoded, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column, clock_time, duration, printable

NS_PER_SECOND = 1_000_000_000
KEY_SHOWN = 12
"""Digits of a key that are shown, and may be given."""


def options_cache(parser: ArgumentParser) -> None:
    """Add what `cache` takes."""
    parser.add_argument("verb", choices=("ls", "rm"))
    parser.add_argument(
        "environments",
        metavar="NODE/KEY",
        nargs="*",
        help="what is removed, as `ls` names it; a key alone is removed on every node",
    )


def run_cache(arguments: Namespace) -> int:
    """List or remove environments.

    Returns:
        The exit code: 1 if one could not be removed, else 0.

    Raises:
        CommandError: Nothing is named that is to be removed, or it is not there.
    """
    if arguments.verb == "ls":
        return _list(arguments)
    if not arguments.environments:
        raise CommandError(exits.USAGE, "skep cache rm NODE/KEY: name what `skep cache ls` lists")
    return _remove(arguments)


def _list(arguments: Namespace) -> int:
    found = client_of(arguments).get("/v1/caches")
    if arguments.json:
        print_json(found)
        return exits.OK
    rows = [(one["node"], each) for one in found["nodes"] for each in one["environments"]]
    if rows:
        render.show_table(
            [
                Column("ENVIRONMENT", [f"{node}/{one['key'][:KEY_SHOWN]}" for node, one in rows]),
                Column("VC", [printable(one["vc"]) for _, one in rows]),
                Column("OWNER", [printable(one["owner"] or "-") for _, one in rows]),
                Column("OF", [printable(f"{one['kind']} {one['path']}") for _, one in rows]),
                Column("SIZE", [render.size(one["bytes"]) for _, one in rows], right=True),
                Column("BUILT IN", [_took(one) for _, one in rows], right=True),
                Column(
                    "USED",
                    [
                        clock_time(int(one["used_at"] * NS_PER_SECOND), date=True)
                        if one["used_at"]
                        else "-"
                        for _, one in rows
                    ],
                ),
                Column("JOBS", [" ".join(one["jobs"]) or "-" for _, one in rows]),
            ]
        )
    for one in found["nodes"]:
        if one["away"]:
            say(f"{one['node']} does not answer: what it keeps is not listed")
    if not rows:
        say("no node keeps an environment (`environment:` of a job names one)")
    return exits.OK


def _took(one: dict[str, float]) -> str:
    return "building" if one["building"] else duration(int(one["took_s"] * NS_PER_SECOND))


def _remove(arguments: Namespace) -> int:
    client = client_of(arguments)
    nodes = client.get("/v1/caches")["nodes"]
    removed = []
    failed = False
    for named in arguments.environments:
        node, _, key = named.rpartition("/")
        found = [
            (one["node"], each["key"])
            for one in nodes
            if node in ("", one["node"])
            for each in one["environments"]
            if key and each["key"].startswith(key)
        ]
        if not found or len({each for _, each in found}) > 1:
            why = "names several" if found else "there is no such environment"
            raise CommandError(exits.FAILED, f"{named}: {why} (skep cache ls)", "no-environment")
        for place, each in found:
            try:
                _, data = client.send("DELETE", f"/v1/caches/{quote(place)}/{quote(each)}")
                removed.append(decoded(data))
            except CommandError as error:
                if error.code == exits.UNREACHABLE:
                    raise
                failed = True
                say(f"{place}/{each[:KEY_SHOWN]}: {error.text}")
    if arguments.json:
        print_json({"removed": removed})
    else:
        for one in removed:
            print(f"{one['node']}/{one['key'][:KEY_SHOWN]} removed, {render.size(one['bytes'])}")
    return exits.FAILED if failed else exits.OK


COMMANDS = {"cache": Command(options_cache, run_cache)}
