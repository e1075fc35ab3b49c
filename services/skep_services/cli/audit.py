"""`skep audit`: who changed what, from where, why, and what was refused."""

from __future__ import annotations

import re
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column

NS_PER_S = 1_000_000_000
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def options(parser: ArgumentParser) -> None:
    """Add what `audit` takes."""
    for name in ("actor", "action", "target", "vc", "source"):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"only this {name}")
    parser.add_argument("--refused", action="store_true", help="only what was refused")
    parser.add_argument(
        "--since", metavar="TIME", help="not before: 90m, 12h, 7d, or 2026-11-26[T10:00]"
    )
    parser.add_argument("--limit", metavar="N", type=int, default=200, help="the latest N lines")


def run(arguments: Namespace) -> int:
    """Show lines of the audit log: an operator sees all, a manager those of its VCs.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, or the gateway refuses.
    """
    path = query(
        "/v1/audit",
        actor=arguments.actor,
        action=arguments.action,
        target=arguments.target,
        vc=arguments.vc,
        source=arguments.source,
        outcome="refused" if arguments.refused else None,
        since=since(arguments.since, time.time()) if arguments.since else None,
        limit=max(0, arguments.limit),
    )
    answer = client_of(arguments).get(path)
    if arguments.json:
        print_json(answer)
        return exits.OK
    lines = answer["lines"]
    if not lines:
        say("nothing was changed")
        return exits.OK
    render.show_table(
        [
            Column("TIME", [_clock(line["at"]) for line in lines]),
            Column("ACTOR", [line["actor"] or "-" for line in lines]),
            Column("FROM", [line.get("source") or "-" for line in lines], drop=2),
            Column("ACTION", [line["action"] for line in lines]),
            Column("TARGET", [line["target"] or "-" for line in lines], narrow=16),
            Column("VC", [line.get("vc") or "-" for line in lines], drop=1),
            Column("OUTCOME", [_outcome(line) for line in lines]),
            Column("REASON", [line.get("reason") or "-" for line in lines], narrow=16, drop=3),
        ]
    )
    if answer["left_out"] or answer["older"]:
        say(
            f"{answer['left_out'] + answer['older']} earlier lines are not shown (--limit, --since)"
        )
    return exits.OK


def since(text: str, now_s: float) -> int:
    """Return the instant that a text names: a time ago, or a date in this time zone.

    Raises:
        CommandError: It is neither.
    """
    if found := re.fullmatch(r"(\d{1,9})([smhdw])", text, re.ASCII):
        return max(0, int((now_s - int(found[1]) * UNITS[found[2]]) * NS_PER_S))
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            return max(0, int(time.mktime(time.strptime(text, form)) * NS_PER_S))
        except (ValueError, OverflowError):
            continue
    raise CommandError(exits.USAGE, f"--since is {text!r}: say 90m, 12h, 7d or 2026-11-26")


def _clock(instant: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(instant / NS_PER_S))


def _outcome(line: dict[str, Any]) -> str:
    more = f" (+{line['missed']})" if line.get("missed") else ""
    return f"{line['outcome']}: {line['why']}{more}" if line.get("why") else str(line["outcome"])


COMMANDS = {"audit": Command(options, run)}
