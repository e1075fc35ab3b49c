"""`skep fair` and `skep reserve`: who used how much, and nodes that are kept for a time."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import Any

from skep.units import NS_PER_SECOND
from skep.wire.times import time_s
from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column

WHOLE = "(whole VC)"
SECONDS_PER_HOUR = 3600


def options_fair(parser: ArgumentParser) -> None:
    """Add what `fair` takes."""
    parser.add_argument("--vc", metavar="VC", default="", help="this virtual cluster only")


def run_fair(arguments: Namespace) -> int:
    """Show the people of virtual clusters with fair shares or limits, the next one first.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    path = query("/v1/fair", vc=arguments.vc or None)
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    vcs = client.get(path)["vcs"]
    if not vcs:
        say("no virtual cluster shares by person (`fair_share` in the cluster file)")
    for one in vcs:
        half_life = one["half_life_s"]
        shares = (
            f"half-life {render.duration(half_life * NS_PER_SECOND)}" if half_life else "no shares"
        )
        limits = one["limits"] or {}
        bounds = ", ".join(f"{key} {most}" for key, most in limits.items() if most is not None)
        say(f"{one['vc']}: {shares}" + (f"; each person at most: {bounds}" if bounds else ""))
        render.show_table(_people(one["people"]))
    return exits.OK


def _people(rows: list[dict[str, Any]]) -> list[Column]:
    return [
        Column("ORDER", [str(row["order"]) for row in rows], right=True),
        Column("PERSON", [row["person"] or WHOLE for row in rows]),
        Column("WEIGHT", [f"{row['weight']:g}" for row in rows], right=True),
        Column(
            "USED GPU-H",
            [f"{row['used_gpu_s'] / SECONDS_PER_HOUR:.1f}" for row in rows],
            right=True,
        ),
        Column("USED", [f"{row['used_part']:.1%}" for row in rows], right=True),
        Column("PART", [f"{row['part']:.1%}" for row in rows], right=True),
        Column("TIMES", [_times(row["times"]) for row in rows], right=True),
        Column("JOBS", [str(row["jobs"]) for row in rows], right=True),
        Column("GPUS", [str(row["gpus"]) for row in rows], right=True),
        Column("QUEUED", [str(row["queued"]) for row in rows], right=True),
    ]


def _times(times: float | None) -> str:
    return "-" if times is None else f"{times:.2f}"


# --- windows -------------------------------------------------------------------------------------


def options_reserve(parser: ArgumentParser) -> None:
    """Add what `reserve` takes."""
    parser.add_argument("verb", choices=("ls", "create", "cancel"), help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="cancel: the window")
    parser.add_argument("--nodes", metavar="N1,N2", help="create: the nodes")
    parser.add_argument("--from", dest="begins", metavar="T", default="now", help=BEGINS)
    parser.add_argument("--for", dest="lasts", metavar="LENGTH", help="create: such as 4h")
    parser.add_argument("--vc", metavar="VC", default="", help="create: for this VC's jobs")
    parser.add_argument("--maintenance", action="store_true", help="create: no job is on them")
    parser.add_argument("--reason", metavar="TEXT", default="", help="create: one line")
    parser.add_argument("--name", dest="called", metavar="NAME", help="create: its name")


BEGINS = "create: when it begins, as 2026-12-01T08:00Z, now, or a length from now such as 2h"


def run_reserve(arguments: Namespace) -> int:
    """List windows, book one, or give one up.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong.
    """
    if arguments.verb == "ls":
        return _list(arguments)
    if arguments.verb == "cancel":
        if not arguments.name:
            text = "which window? (skep reserve cancel NAME; `skep reserve ls` lists them)"
            raise exits.CommandError(exits.USAGE, text)
        client_of(arguments).post("/v1/admin/unreserve", {"name": arguments.name})
        if arguments.json:
            print_json({"name": arguments.name, "cancelled": True})
        else:
            print(f"window {arguments.name} is cancelled; its nodes are as before")
        return exits.OK
    window = window_of(arguments, time.time_ns())
    client_of(arguments).post("/v1/admin/reserve", {"window": window})
    if arguments.json:
        print_json(window)
    else:
        what = f"for {window['vc']}" if window["vc"] else "for maintenance"
        nodes = ", ".join(window["nodes"])
        when = f"{_utc(window['begins'])} to {_utc(window['ends'])}"
        print(f"window {window['name']}: {nodes} kept {what}, {when}")
    return exits.OK


def window_of(arguments: Namespace, now_ns: int) -> dict[str, Any]:
    """Return the window that a command line asks for.

    Args:
        arguments: The command line.
        now_ns: The time.

    Raises:
        CommandError: It says too little, or what cannot be.
    """
    if arguments.name:
        raise exits.CommandError(exits.USAGE, f"what is {arguments.name!r}? (--name NAME)")
    nodes = [name.strip() for name in (arguments.nodes or "").split(",") if name.strip()]
    if not nodes:
        raise exits.CommandError(exits.USAGE, "which nodes? (--nodes N1,N2; `skep node ls`)")
    if bool(arguments.vc) is arguments.maintenance:
        raise exits.CommandError(exits.USAGE, "what for? give --vc VC or --maintenance")
    lasts = time_s(arguments.lasts) if arguments.lasts else None
    if not lasts:
        raise exits.CommandError(exits.USAGE, "for how long? (--for 4h, 90m or 2d)")
    begins = _begins(arguments.begins, now_ns)
    name = (
        arguments.called
        or f"w-{datetime.fromtimestamp(begins / 1e9, tz=UTC):%Y%m%d-%H%M}-{nodes[0]}"
    )
    return {
        "name": name[:63],
        "nodes": nodes,
        "begins": begins,
        "ends": begins + lasts * NS_PER_SECOND,
        "vc": arguments.vc,
        "reason": arguments.reason,
    }


def _begins(text: str, now_ns: int) -> int:
    """Return the instant that a person wrote (Unix ns).

    Raises:
        CommandError: It is none, or says no time zone.
    """
    if text == "now":
        return now_ns
    wait = time_s(text)
    if wait is not None:
        return now_ns + wait * NS_PER_SECOND
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        wrong = f"--from {text!r} is no time: write 2026-12-01T08:00Z, 2h or now"
        raise exits.CommandError(exits.USAGE, wrong) from error
    if at.tzinfo is None:
        wrong = f"--from {text} is another instant in each time zone: add Z for UTC, or +01:00"
        raise exits.CommandError(exits.USAGE, wrong)
    return int(at.timestamp()) * NS_PER_SECOND


def _list(arguments: Namespace) -> int:
    if arguments.name:
        raise exits.CommandError(exits.USAGE, "`skep reserve ls` takes no name")
    client = client_of(arguments)
    if arguments.json:
        print_raw(client.get_bytes("/v1/windows"))
        return exits.OK
    rows = client.get("/v1/windows")["windows"]
    if not rows:
        say("no window is booked")
        return exits.OK
    render.show_table(
        [
            Column("NAME", [row["name"] for row in rows]),
            Column("STATE", ["open" if row["open"] else "booked" for row in rows]),
            Column("FOR", [row["vc"] or "maintenance" for row in rows]),
            Column("FROM", [_utc(row["begins"]) for row in rows]),
            Column("TO", [_utc(row["ends"]) for row in rows]),
            Column("NODES", [" ".join(row["nodes"]) for row in rows], narrow=20),
            Column("JOBS", [" ".join(row["jobs"]) or "-" for row in rows], narrow=12, drop=1),
            Column("REASON", [row["reason"] or "-" for row in rows], narrow=20, drop=2),
        ]
    )
    return exits.OK


def _utc(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns / 1e9, tz=UTC):%Y-%m-%d %H:%M}Z"


COMMANDS = {
    "fair": Command(options_fair, run_fair),
    "reserve": Command(options_reserve, run_reserve),
}
