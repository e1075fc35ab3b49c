"""`skep history`: GPUs, waiting jobs and useful time over the last hours."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column, clock_time, duration

HOUR_S = 3600
NS_PER_SECOND = 1_000_000_000
HOURS = 24
SUMMED = ("started", "succeeded", "failed", "cancelled")
MEANS = ("free", "held", "bad", "drained", "lost", "training", "waiting", "used")

Row = dict[str, Any]


def options(parser: ArgumentParser) -> None:
    """Add what `history` takes."""
    parser.epilog = (
        "A line is an hour: means of GPUs and of jobs that wait; --json has every five minutes.\n"
        "HELD are GPUs of all nodes, USED those that the jobs held that were asked for. USEFUL is\n"
        "the part of that GPU time in which they trained and did not lose it.\n\n" + exits.HELP
    )
    parser.add_argument("--vc", metavar="VC", help="the jobs of one virtual cluster")
    parser.add_argument(
        "--hours", type=int, default=HOURS, metavar="N", help=f"the last N (default {HOURS})"
    )


def run(arguments: Namespace) -> int:
    """Print an hour a line.

    Returns:
        The exit code: always 0.
    """
    path = query("/v1/history", hours=arguments.hours, vc=arguments.vc)
    found = client_of(arguments).get(path)
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    if arguments.json:
        print_json({"step_s": found["step_s"], "rows": rows})
        return exits.OK
    if not rows:
        say("nothing has happened yet")
        return exits.OK
    hours: dict[int, list[Row]] = {}
    for row in rows:
        hours.setdefault(row["at"] // NS_PER_SECOND // HOUR_S, []).append(row)
    render.show_table(_columns([_hour(each) for each in hours.values()]))
    return exits.OK


def _hour(rows: list[Row]) -> Row:
    """Return an hour of rows as one."""
    # A gateway of an earlier version does not tell what the jobs of one virtual cluster held.
    rows = [{"used": row["held"], **row} for row in rows]
    told: Row = {name: sum(row[name] for row in rows) / len(rows) for name in MEANS}
    told |= {name: sum(row[name] for row in rows) for name in SUMMED}
    used = sum(row["used"] for row in rows if row["useful"] is not None)
    useful = sum(row["used"] * row["useful"] for row in rows if row["useful"] is not None)
    waits = [row["waited_p90_s"] for row in rows if row["waited_p90_s"] is not None]
    return told | {
        "at": rows[0]["at"],
        "useful": useful / used / 1000 if used else None,
        "wait": max(waits, default=None),
    }


def _columns(rows: list[Row]) -> list[Column]:
    def numbers(name: str, digits: int = 1) -> list[str]:
        return [f"{row[name]:.{digits}f}" for row in rows]

    return [
        Column("FROM", [clock_time(row["at"], date=True).rpartition(":")[0] for row in rows]),
        *(Column(name.upper(), numbers(name), right=True) for name in ("held", "used", "free")),
        Column("BAD", numbers("bad"), right=True, drop=2),
        Column("DRAINED", numbers("drained"), right=True, drop=4),
        Column("LOST", numbers("lost"), right=True, drop=3),
        Column(
            "USEFUL",
            ["-" if row["useful"] is None else f"{row['useful']:.0%}" for row in rows],
            right=True,
        ),
        Column("WAITING", numbers("waiting"), right=True),
        Column("STARTED", numbers("started", 0), right=True),
        Column(
            "WAIT P90",
            [
                "-" if row["wait"] is None else duration(int(row["wait"] * NS_PER_SECOND))
                for row in rows
            ],
            right=True,
        ),
        Column("SUCCEEDED", numbers("succeeded", 0), right=True, drop=1),
        Column("FAILED", numbers("failed", 0), right=True),
    ]


COMMANDS = {"history": Command(options, run)}
