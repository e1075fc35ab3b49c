"""`skep alerts`: what needs a look, and what to do about it."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column, duration, printable

SEVERITIES = ("critical", "warning", "info")
"""The worst first."""


def options(parser: ArgumentParser) -> None:
    """Add what `alerts` takes."""
    parser.epilog = (
        "Alerts are about bad GPUs, lost or silent nodes, services that do not answer, slow or\n"
        "stalled jobs, blamed nodes, promises that are broken or in danger, disks and limits\n"
        "that are near.\n\n" + exits.HELP
    )
    parser.add_argument("--vc", metavar="VC", help="those that this virtual cluster sees")
    parser.add_argument("--severity", choices=SEVERITIES, help="those that are as bad, or worse")


def run(arguments: Namespace) -> int:
    """List what is wrong, the worst first, with what to do.

    Returns:
        The exit code: always 0.
    """
    found = client_of(arguments).get(query("/v1/state", tables="alerts", vc=arguments.vc))
    table = found["tables"]["alerts"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    shown = SEVERITIES.index(arguments.severity or SEVERITIES[-1])
    rows = [row for row in rows if _rank(row) <= shown]
    rows.sort(key=lambda row: (_rank(row), row["since"], row["alert"]))
    if arguments.json:
        print_json({"alerts": rows})
        return exits.OK
    if not rows:
        say("there are no alerts")
        return exits.OK
    render.show_table(_columns(rows))
    return exits.OK


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    now = time.time_ns()
    return [
        Column("SEVERITY", [row["severity"] for row in rows]),
        Column("FOR", [duration(max(0, now - row["since"])) for row in rows]),
        Column("WHAT", [printable(row["text"]) for row in rows], narrow=30),
        Column("DO", [printable(row["todo"]) for row in rows], narrow=20, drop=1),
        Column("CODE", [row["code"] for row in rows], drop=2),
    ]


def _rank(row: dict[str, Any]) -> int:
    """Return where a severity stands; one that is not known comes first."""
    severity = row["severity"]
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


COMMANDS = {"alerts": Command(options, run)}
