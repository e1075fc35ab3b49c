"""`skep ps`, `cancel`, `retry` and `wait`."""

from __future__ import annotations

import gc
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import PATIENCE_FOLLOWING_S, PATIENCE_S, Client, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.job_table import (
    ALL,
    COLUMNS,
    chosen,
    chosen_columns,
    id_of,
    job_columns,
    tasks_text,
    why_of,
)
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column
from skep_services.cli.stake import lost_by_cancel

ENDED = ("succeeded", "failed", "cancelled", "refused")

POLL_S = 30
"""The gateway answers a long poll after this time at the latest, and the command asks again."""

LAST_LOOKS_EVERY_S = 0.1
POLL_MARGIN_S = 15.0
"""How much later than promised the answer to a long poll may come."""

JOBS_SHOWN_MAX = 20_000


# --- ps -------------------------------------------------------------------------------------------


def options_ps(parser: ArgumentParser) -> None:
    """Add what `ps` takes."""
    parser.add_argument("-a", "--all", action="store_true", help="ended jobs too")
    parser.add_argument(
        "--state",
        metavar="STATE",
        help="states with commas between, or active, ended, all (default: active)",
    )
    parser.add_argument("--vc", help="jobs of one virtual cluster")
    parser.add_argument("--name", help="jobs of one name; * and ? stand for any characters")
    parser.add_argument(
        "-l",
        "--label",
        dest="labels",
        action="append",
        metavar="KEY[=VALUE]",
        help="jobs that have a label (repeatable: all of them)",
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--mine", action="store_true", help="your own jobs")
    whose.add_argument("--owner", metavar="PERSON", help="jobs that one person submitted")
    whose.add_argument(
        "--user", metavar="NAME", help="the same, or whose label `user` says so if no person did"
    )
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        help="sort by a column; or submitted, newest, queue (as jobs come in turn)",
    )
    parser.add_argument("-r", "--reverse", action="store_true", help="--sort: the other way round")
    parser.add_argument(
        "-o",
        "--columns",
        metavar="COLUMNS",
        help=f"columns with commas between, + before them: beside the usual ones; {ALL}: all",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="go on, and show what changes")
    tasks = parser.add_mutually_exclusive_group()
    tasks.add_argument("--tasks", action="store_true", help="the jobs of arrays' tasks, too")
    tasks.add_argument(
        "--array", metavar="JOB", help="the jobs of this array's tasks, and no other"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print job ids only")
    parser.add_argument(
        "-n", "--limit", type=positive, default=JOBS_SHOWN_MAX, metavar="N", help="N rows at most"
    )
    names = [f"  {name:10} {kind.meaning}" for name, kind in COLUMNS.items()]
    parser.epilog = "\n".join(["columns:", *names, "", parser.epilog or ""])


def run_ps(arguments: Namespace) -> int:
    """List jobs.

    Returns:
        The exit code: always 0.
    """
    # Ten thousand rows are a hundred thousand objects that all live until the end: looking for
    # garbage among them again and again would take a third of the time.
    gc.disable()
    names = None if arguments.columns is None else chosen(arguments.columns)
    client = client_of(arguments, PATIENCE_FOLLOWING_S if arguments.watch else PATIENCE_S)
    state = arguments.state or ("all" if arguments.all else "active")
    path = query(
        "/v1/jobs",
        state=state,
        vc=arguments.vc,
        name=arguments.name,
        label=arguments.labels,
        limit=arguments.limit,
        owner=arguments.owner,
        user=arguments.user,
        mine=1 if arguments.mine else None,
        tasks=1 if arguments.tasks else None,
        array=arguments.array,
        order=_order(arguments),
    )

    def columns(rows: list[dict[str, Any]], now_ns: int) -> list[Column]:
        if names is None:
            return job_columns(rows, now_ns)
        return chosen_columns(names, rows, now_ns)

    if arguments.watch:
        return _watch(arguments, client, path, columns)
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    answer = client.get(path)
    rows = answer["jobs"]
    if arguments.quiet:
        print("\n".join([id_of(row) for row in rows])) if rows else None
        return exits.OK
    if not rows:
        text = "no active jobs (`skep ps -a` shows ended ones)" if state == "active" else "no jobs"
        say(text + _unknown_vc(client, arguments.vc))
        return exits.OK
    render.show_table(columns(rows, time.time_ns()))
    total = answer.get("total", len(rows))
    if total > len(rows):
        say(f"{len(rows)} of {total} jobs; -n {total} shows all")
    return exits.OK


def _unknown_vc(client: Client, vc: str | None) -> str:
    """Return a remark where a list is empty because there is no such virtual cluster."""
    if vc is None:
        return ""
    try:
        known = [str(one["vc"]) for one in client.get("/v1/vcs")["vcs"]]
    except CommandError:
        return ""  # It is no more than a remark.
    if vc in known:
        return ""
    import difflib

    close = difflib.get_close_matches(vc, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'none'}"
    return f"; there is no virtual cluster {vc[:60]!r}: {hint}"


def _order(arguments: Namespace) -> str | None:
    """Return how the gateway is to sort.

    Raises:
        CommandError: There is nothing to turn round.
    """
    if not arguments.reverse:
        return arguments.sort or None
    if not arguments.sort or arguments.sort in {"submitted", "newest", "queue"}:
        text = "--reverse is about --sort by a column; `--sort newest` has the newest first"
        raise CommandError(exits.USAGE, text)
    return f"-{arguments.sort}"


def _watch(
    arguments: Namespace,
    client: Client,
    path: str,
    columns: Callable[[list[dict[str, Any]], int], list[Column]],
) -> int:
    from skep_services.cli.news import News
    from skep_services.cli.watch import watch

    if arguments.quiet:
        raise CommandError(exits.USAGE, "-w shows a table, and -q is for scripts: choose one")

    def told(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            print_json(row)
        sys.stdout.flush()

    gc.enable()
    client.get(path)  # What is wrong with the request is said before anything is shown.
    news = News(client.target, vc=arguments.vc)
    watch(client, news, path, columns, told if arguments.json else None)
    return exits.OK


def positive(text: str) -> int:
    """Return a count of at least 1 from the command line.

    Raises:
        ValueError: The text is no whole number from 1 on.
    """
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def gpus(text: str) -> int | float:
    """Return a number of GPUs from the command line: a count of at least 1, or a share of one.

    Which shares there are is said by those who read specs.

    Raises:
        ArgumentTypeError: The text is neither.
    """
    wanted = f"write a number of GPUs, or a share of one such as 0.5, not {text}"
    try:
        share = float(text) if "." in text else positive(text)
    except ValueError:
        raise ArgumentTypeError(wanted) from None
    if isinstance(share, float) and not 0 < share < 1:
        raise ArgumentTypeError(wanted)
    return share


# --- cancel ---------------------------------------------------------------------------------------


def options_cancel(parser: ArgumentParser) -> None:
    """Add what `cancel` takes."""
    parser.add_argument(
        "jobs",
        metavar="JOB",
        nargs="+",
        help="jobs to end, by id or unique name; an array ends as a whole, a task as j7[3] or j7_3",
    )


def run_cancel(arguments: Namespace) -> int:
    """Ask for the end of jobs. The worst outcome among them is the exit code.

    Raises:
        CommandError: The cluster cannot be reached.
    """
    client = client_of(arguments)
    results: list[dict[str, Any]] = []
    worst = exits.OK
    for job in arguments.jobs:
        try:
            lost = _lost(client, job)
            ask_cancel(client, job)
            results.append({"job": job, "accepted": True, "lost": lost})
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                raise
            worst = max(worst, error.code)
            results.append({"job": job, "accepted": False, "error": error.error})
    if arguments.json:
        print_json({"jobs": results})
        return worst
    for result in results:
        if result["accepted"]:
            lost = f"; {result['lost']}" if result["lost"] else ""
            print(f"{result['job']} is being cancelled{lost}")
        else:
            say(f"{result['job']}: {result['error']['text']}")
    return worst


def _lost(client: Client, job: str) -> str:
    """Return what the end of a job loses, as far as the gateway can say."""
    try:
        return lost_by_cancel(client.get(f"/v1/jobs/{quote(job)}"), time.time_ns())
    except (CommandError, KeyError):
        return ""  # It is cancelled all the same, or the refusal says why not.


def ask_cancel(client: Client, job: str) -> None:
    """Ask the gateway to cancel a job.

    Raises:
        CommandError: The gateway cannot be reached, or refuses.
    """
    client.send("DELETE", f"/v1/jobs/{quote(job)}")


# --- retry --------------------------------------------------------------------------------------


def options_retry(parser: ArgumentParser) -> None:
    """Add what `retry` takes."""
    parser.add_argument(
        "jobs", metavar="JOB", nargs="+", help="arrays whose failed tasks are begun anew"
    )


def run_retry(arguments: Namespace) -> int:
    """Begin the failed tasks of arrays anew. The worst outcome among them is the exit code.

    Raises:
        CommandError: The cluster cannot be reached.
    """
    client = client_of(arguments)
    results: list[dict[str, Any]] = []
    worst = exits.OK
    for job in dict.fromkeys(arguments.jobs):
        try:
            results.append(client.post(f"/v1/jobs/{quote(job)}/retry", {}))
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                raise
            worst = max(worst, error.code)
            results.append({"job": job, "accepted": False, "error": error.error})
    if arguments.json:
        print_json({"jobs": results})
        return worst
    for result in results:
        if "error" in result:
            say(f"{result['job']}: {result['error']['text']}")
        else:
            print(f"the failed tasks of {result['job']} are begun anew")
    return worst


# --- wait -----------------------------------------------------------------------------------------


def options_wait(parser: ArgumentParser) -> None:
    """Add what `wait` takes."""
    parser.add_argument(
        "jobs", metavar="JOB", nargs="+", help="jobs to wait for, by id or unique name"
    )
    parser.add_argument(
        "--for",
        dest="until",
        choices=("started", "ended"),
        default="ended",
        help="what to wait for (default: ended)",
    )
    parser.add_argument(
        "-t", "--timeout", type=seconds, metavar="TIME", help="give up after, such as 90s or 15m"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing, only exit")


def run_wait(arguments: Namespace) -> int:
    """Wait until every job has ended (or started).

    Returns:
        The exit code: 0 if no job failed, 1 if one did, 5 if the time was too short.
    """
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    deadline = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    jobs: list[dict[str, Any]] = []
    missing = False
    for job in dict.fromkeys(arguments.jobs):
        row = poll(client, job, arguments.until, deadline)
        missing = missing or not reached(row, arguments.until)
        jobs.append(row)
        if not (arguments.json or arguments.quiet):
            print(ended_text(row), flush=True)
    if arguments.json:
        print_json({"jobs": jobs, "timeout": missing})
    if missing:
        say(f"skep wait: not everything {arguments.until} in time")
        return exits.TIMEOUT
    bad = [row for row in jobs if row["state"] in ENDED and row["state"] != "succeeded"]
    return exits.FAILED if bad else exits.OK


def poll(client: Client, job: str, until: str, deadline: float | None) -> dict[str, Any]:
    """Return the job once it has started (or ended), or as it is at a deadline.

    Args:
        client: The gateway.
        job: The job's id or unique name.
        until: `started` or `ended`.
        deadline: When to give up (monotonic seconds); None waits for ever.
    """
    while True:
        left_s = float(POLL_S) if deadline is None else deadline - time.monotonic()
        # The gateway waits whole seconds; the last part of one is waited for here.
        wait_s = max(0, min(POLL_S, int(left_s)))
        path = query(f"/v1/jobs/{quote(job)}", wait=until, timeout_s=wait_s)
        row: dict[str, Any] = client.get(path, wait_s + POLL_MARGIN_S)
        job = row["job"]  # Another job may get the same name meanwhile.
        if reached(row, until) or (deadline is not None and time.monotonic() >= deadline):
            return row
        if wait_s == 0:
            time.sleep(max(0.0, min(LAST_LOOKS_EVERY_S, left_s)))


def reached(row: dict[str, Any], until: str) -> bool:
    """Return whether a job has started (or ended).

    Args:
        row: The job as the gateway shows it.
        until: `started` or `ended`; what has ended has started, too.
    """
    return row["state"] in ENDED or (until == "started" and row["started_at"] is not None)


def ended_text(row: dict[str, Any]) -> str:
    """Return one line about how a job stands."""
    parts = [id_of(row), row["state"]]
    if row["started_at"] and row["ended_at"]:
        parts.append(f"after {render.duration(row['ended_at'] - row['started_at'])}")
    if row.get("tasks"):
        parts.append(f"({tasks_text(row['tasks'])})")
    elif row["state"] in ("failed", "refused") and row.get("detail"):
        parts.append(f"({render.printable(row['detail'])})")
    elif (reason := why_of(row)) and row["state"] != "succeeded":
        parts.append(f"({reason})")
    return " ".join(parts)


def seconds(text: str) -> float:
    """Return a length of time from the command line in seconds: `90`, `90s`, `15m`, `2h`, `1d`.

    Raises:
        ValueError: The text is no length of time, or one of more than a year.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    unit = units.get(text[-1:])
    length_s = float(text[:-1]) * unit if unit else float(text)
    if not 0 <= length_s <= 365 * 86400:
        raise ValueError(text)
    return length_s


COMMANDS = {
    "ps": Command(options_ps, run_ps),
    "cancel": Command(options_cancel, run_cancel),
    "retry": Command(options_retry, run_retry),
    "wait": Command(options_wait, run_wait),
}
