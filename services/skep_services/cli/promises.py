"""`skep promises`: which deadlines are promised, and what became of them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.options import Command, client_of, print_raw, say
from skep_services.cli.render import Column, clock_time

SHOWN = 100


def options_promises(parser: ArgumentParser) -> None:
    """Add what `promises` takes."""
    parser.add_argument("--vc", help="deadlines of one virtual cluster")
    parser.add_argument("--outcome", help="open, kept or broken")
    parser.add_argument(
        "-n", "--limit", type=int, default=SHOWN, metavar="N", help=f"N rows (default {SHOWN})"
    )


def run_promises(arguments: Namespace) -> int:
    """List deadlines by their time, with what was answered, and how many promises were kept.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    path = query(
        "/v1/promises", vc=arguments.vc, outcome=arguments.outcome, limit=max(arguments.limit, 0)
    )
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    answer = client.get(path)
    if not answer["total"] and not answer["totals"]:
        say("no job has a deadline")
        return exits.OK
    if answer["promises"]:
        render.show_table(_columns(answer["promises"]))
        print()
    if answer["totals"]:
        render.show_table(_total_columns(answer["totals"]))
    if len(answer["promises"]) < answer["total"]:
        shown, total = len(answer["promises"]), answer["total"]
        say(f"{shown} of {total} deadlines; -n {total} shows all")
    return exits.OK


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    return [
        Column("JOB", [one["job"] for one in rows]),
        Column("NAME", [one["name"] for one in rows], drop=3),
        Column("VC", [one["vc"] for one in rows]),
        Column("STATE", [one["state"] for one in rows]),
        Column("DUE", [_time(one["due"]) for one in rows]),
        Column("ANSWER", [one["answer"] for one in rows]),
        Column("OUTCOME", [one["outcome"] or "-" for one in rows]),
        Column("ENDS P50", [_time(one["p50"]) for one in rows], drop=2),
        Column("P90", [_time(one["p90"]) for one in rows], drop=2),
        Column("WHY", [one["cause"] or one["why"] for one in rows], narrow=14, drop=4),
    ]


def _total_columns(totals: dict[str, dict[str, int]]) -> list[Column]:
    parts = [_part(counts) for counts in totals.values()]
    return [
        Column("VC", list(totals)),
        *(
            Column(word.upper(), [str(counts[word]) for counts in totals.values()], right=True)
            for word in ("made", "kept", "broken")
        ),
        Column("KEPT", parts, right=True),
    ]


def _part(counts: dict[str, int]) -> str:
    """Return the part of the promises that are over which were kept."""
    over = counts["kept"] + counts["broken"]
    return f"{counts['kept'] / over:.0%}" if over else "-"


def _time(at: int) -> str:
    """Return an instant with its date, for deadlines may be days away."""
    return clock_time(at, date=True).rpartition(":")[0] if at else "-"


COMMANDS = {"promises": Command(options_promises, run_promises)}
