"""`skep report`: GPU hours held and useful, jobs and waits, by VC, person, project, type or day."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column, duration, printable

if TYPE_CHECKING:
    from skep_services.cli.progress import Progress

ABOUT = """\
Useful GPU hours made mini-batches that survive, as `skep blame` tells; lost ones made some that do
not. In idle ones nothing trained: starts, stops, suspensions that keep GPUs. Days are UTC.

  skep report                                   # each virtual cluster, all days
  skep report --by user --from 2026-11-01 --to 2026-11-30
  skep report --by project --vc nlp --csv november.csv
  skep report --by day --svg november.svg       # a picture
  skep report --log week.jsonl.gz               # from an export of `skep replay --export`

A person is the owner of the job, or else its label `user`; a project is its label `project`.
"""
BYS = ("vc", "user", "project", "gpu-type", "day")
HOUR_NS = 3600 * 1_000_000_000
PARTS = ("useful", "lost", "cancelled", "idle")
"""What held GPU time consists of."""
COUNTS = ("submitted", "started", "completed", "failed", "cancelled")
NOBODY = "-"
"""What a line without a name is called."""


def options(parser: ArgumentParser) -> None:
    """Add what `report` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument("--by", choices=BYS, default="vc", help="what a line is about")
    parser.add_argument("--from", dest="first", metavar="DAY", default="", help="the first day")
    parser.add_argument("--to", dest="last", metavar="DAY", default="", help="the last day")
    parser.add_argument("--vc", default="", help="one virtual cluster")
    parser.add_argument("--log", metavar="FILE", type=Path, help="an export, not the cluster")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write the lines into a file")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw them into a file")


def run(arguments: Namespace) -> int:
    """Print the table, or write it.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: A day or the export cannot be read, or the gateway refuses.
    """
    first, last = _day("from", arguments.first), _day("to", arguments.last)
    if first is not None and last is not None and first > last:
        text = f"--from {arguments.first} is behind --to {arguments.last}"
        raise CommandError(exits.USAGE, text)
    if arguments.log is not None:
        answer = _offline(arguments, first, last)
    else:
        path = query(
            "/v1/report",
            by=arguments.by,
            vc=arguments.vc or None,
            to=arguments.last or None,
            **{"from": arguments.first or None},
        )
        answer = client_of(arguments).get(path)
    found = answer["report"]
    if arguments.csv is not None:
        arguments.csv.write_text(csv_of(found), encoding="utf-8")
        say(f"wrote {arguments.csv}")
    if arguments.svg is not None:
        from skep_services.cli.reportplot import picture

        arguments.svg.write_text(picture(found), encoding="utf-8")
        say(f"wrote {arguments.svg}")
    if arguments.json:
        print_json(answer)
    elif arguments.csv is None and arguments.svg is None:
        _tell(found)
    return exits.OK


def _day(name: str, text: str) -> int | None:
    from skep.ledger.report import day_of

    try:
        return day_of(text) if text else None
    except ValueError:
        told = f"--{name} {text}: write a day such as 2026-01-31"
        raise CommandError(exits.USAGE, told) from None


# --- an export ------------------------------------------------------------------------------------


def _offline(arguments: Namespace, first: int | None, last: int | None) -> dict[str, Any]:
    """Return what the gateway would answer, from an export.

    Raises:
        CommandError: The export cannot be read, or has no jobs.
    """
    import msgspec

    from skep.ledger.blame.usage import Usage
    from skep.ledger.report import By, days_of, report
    from skep_services import replaying
    from skep_services.cli.progress import Progress

    path, progress = arguments.log, Progress([str(arguments.log)])
    unended: Usage = {}
    try:
        usage, at = _folded(path, progress, unended)
    except replaying.UNREADABLE as error:
        raise CommandError(exits.FAILED, str(error), "bad-log") from None
    except OSError as error:
        text = f"{path}: {error.strerror}: name an export of `skep replay --export`"
        raise CommandError(exits.FAILED, text, "bad-log") from None
    finally:
        progress.end()
    told = days_of((usage, unended), arguments.vc)
    if told is None:
        whose = f"no job of {arguments.vc}" if arguments.vc else "no job"
        text = f"{path}: {whose} is in the allocator's log there: name another export"
        raise CommandError(exits.FAILED, text, "bad-log")
    by = By(arguments.by)
    first, last = told[0] if first is None else first, told[1] if last is None else last
    made = report((usage, unended), by, first, last, arguments.vc)
    plain: dict[str, Any] = msgspec.to_builtins({"at": at, "report": made})
    return plain


def _folded(path: Path, progress: Progress, unended: Any) -> tuple[Any, int]:
    """Return what ended jobs had, and the latest instant; add what the others had to `unended`."""
    from skep.ledger.blame.fold import apply, count_unended
    from skep.ledger.blame.state import Blame
    from skep.units import Instant
    from skep.wire import subjects
    from skep_services import replaying
    from skep_services.adapters import exported

    blame, at = Blame(), 0
    messages = exported.each(path, subjects.ALLOC, lambda part: progress.tell([part]))
    for record in replaying.each_record(messages, "allocator"):
        at = max(at, record.at)
        for fact in record.facts:
            apply(blame, fact, record.at)
    for job in blame.lives:
        count_unended(blame, unended, job, Instant(at))
    return blame.usage, at


# --- what is written ------------------------------------------------------------------------------


def csv_of(found: dict[str, Any]) -> str:
    """Return the lines as CSV, without the total: times in hours, and exactly in nanoseconds.

    Args:
        found: The report as the gateway answers it.
    """
    import csv
    import io

    times = [f"{part}_gpu" for part in ("held", *PARTS)] + ["waited", "start_wait"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [
            found["by"],
            "vc",
            *COUNTS,
            *(f"{name}_hours" for name in times),
            *(f"{name}_ns" for name in times),
        ]
    )
    for line in found["lines"]:
        writer.writerow(
            [
                _plain(line["name"]),
                line["vc"],
                *(line[name] for name in COUNTS),
                *(f"{line[f'{name}_ns'] / HOUR_NS:.6f}" for name in times),
                *(line[f"{name}_ns"] for name in times),
            ]
        )
    return file.getvalue()


def _plain(name: str) -> str:
    """Return a name that no spreadsheet takes for a formula: labels are what tenants write."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _tell(found: dict[str, Any]) -> None:
    if not found["lines"]:
        say("no jobs")
        return
    lines = [*found["lines"], found["total"]]
    with_vc = found["by"] in ("user", "project")
    columns = [Column("VC", [line["vc"] for line in lines])] if with_vc else []
    names = [printable(line["name"]) or NOBODY for line in lines]
    columns += [
        Column(found["by"].upper().replace("-", " "), names),
        Column("GPU HOURS", [_hours(line["held_gpu_ns"]) for line in lines], right=True),
        *(
            Column(part.upper(), [_percent(line, part) for line in lines], right=True, drop=drop)
            for part, drop in zip(PARTS, (0, 1, 3, 2), strict=True)
        ),
        Column("JOBS", [str(line["submitted"]) for line in lines], right=True),
        Column("FAILED", [str(line["failed"]) for line in lines], right=True, drop=4),
        Column("MEAN WAIT", [_mean_wait(line) for line in lines], right=True, drop=5),
        *(
            Column(
                f"{each.upper()} WAIT", [_wait(line, each) for line in lines], right=True, drop=6
            )
            for each in found["total"]["start_wait_s"]
        ),
    ]
    print(f"{found['first_day']} to {found['last_day']} (UTC)")
    render.show_table(columns)


def _hours(ns: int) -> str:
    return f"{ns / HOUR_NS:,.1f}" if ns >= HOUR_NS else f"{ns / HOUR_NS:.3f}"


def _percent(line: dict[str, Any], part: str) -> str:
    held = line["held_gpu_ns"]
    return f"{100 * line[f'{part}_gpu_ns'] / held:.1f}%" if held else NOBODY


def _mean_wait(line: dict[str, Any]) -> str:
    started = line["started"]
    return duration(line["start_wait_ns"] // started) if started else NOBODY


def _wait(line: dict[str, Any], quantile: str) -> str:
    seconds = line["start_wait_s"][quantile]
    return f"≤ {duration(seconds * 1_000_000_000)}" if seconds else NOBODY


COMMANDS = {"report": Command(options, run)}
