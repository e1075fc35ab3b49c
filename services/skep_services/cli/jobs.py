"""`skep ps`, `cancel`, `retry` and `wait`."""

from __future__ import annotations

import gc
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column

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
        "--state", help="one state, or active, ended, all (default: active)", metavar="STATE"
    )
    parser.add_argument("--vc", help="jobs of one virtual cluster")
    parser.add_argument("--name", help="jobs of one name")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--mine", action="store_true", help="your own jobs")
    whose.add_argument("--owner", metavar="PERSON", help="jobs of one person")
    tasks = parser.add_mutually_exclusive_group()
    tasks.add_argument("--tasks", action="store_true", help="the jobs of arrays' tasks, too")
    tasks.add_argument(
        "--array", metavar="JOB", help="the jobs of this array's tasks, and no other"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print job ids only")
    parser.add_argument(
        "-n", "--limit", type=positive, default=JOBS_SHOWN_MAX, metavar="N", help="N rows at most"
    )


def run_ps(arguments: Namespace) -> int:
    """List jobs.

    Returns:
        The exit code: always 0.
    """
    # Ten thousand rows are a hundred thousand objects that all live until the end: looking for
    # garbage among them again and again would take a third of the time.
    gc.disable()
    client = client_of(arguments)
    state = arguments.state or ("all" if arguments.all else "active")
    path = query(
        "/v1/jobs",
        state=state,
        vc=arguments.vc,
        name=arguments.name,
        limit=arguments.limit,
        owner=arguments.owner,
        mine=1 if arguments.mine else None,
        tasks=1 if arguments.tasks else None,
        array=arguments.array,
    )
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    answer = client.get(path)
    rows = answer["jobs"]
    if arguments.quiet:
        print("\n".join([id_of(row) for row in rows])) if rows else None
        return exits.OK
    if not rows:
        say("no active jobs (`skep ps -a` shows ended ones)" if state == "active" else "no jobs")
        return exits.OK
    render.show_table(job_columns(rows, time.time_ns()))
    total = answer.get("total", len(rows))
    if total > len(rows):
        say(f"{len(rows)} of {total} jobs; -n {total} shows all")
    return exits.OK


def job_columns(rows: list[dict[str, Any]], now_ns: int) -> list[Column]:
    """Return the table of jobs, one list per column.

    Args:
        rows: The jobs as the gateway lists them.
        now_ns: The time (ns since 1970), to which jobs that have not ended are counted.
    """

    def ran(row: dict[str, Any]) -> str:
        return duration((row["ended_at"] or now_ns) - row["started_at"])

    duration, rate, progress = render.duration, render.rate, render.progress
    # A call costs more than everything else here, so what most rows lack is not asked for.
    ages = [duration(now_ns - at) if (at := row["submitted_at"]) else "-" for row in rows]
    runs = [ran(row) if row["started_at"] else "-" for row in rows]
    rates = [rate(speed) if (speed := row["rate_milli"]) else "-" for row in rows]
    steps = [
        progress(row["steps"], total) if (total := row["total_steps"]) else str(row["steps"] or "-")
        for row in rows
    ]
    etas = ["-" if (left := row["eta_s"]) is None else eta(left) for row in rows]
    ends = [ends_of(row, now_ns) for row in rows]
    whys = [
        tasks_text(counts)
        if (counts := row.get("tasks"))
        else why(row["state"], row["why"], row["needs"])
        for row in rows
    ]
    owners = [row.get("owner") or "-" for row in rows]
    # A cluster without people has no such column.
    owned = any(owner != "-" for owner in owners)
    return [
        Column("JOB", [row.get("task") or row["job"] for row in rows]),
        Column("NAME", [row["name"] for row in rows], narrow=8),
        Column("VC", [row["vc"] for row in rows], narrow=4, drop=3),
        *([Column("OWNER", owners, narrow=6, drop=4)] if owned else []),
        Column("STATE", [row["state"] for row in rows], coloured=True),
        Column("GPUS", [str(row["gpus"]) for row in rows], right=True, drop=4),
        Column("PRI", [str(row["priority"]) for row in rows], right=True, drop=8),
        Column("AGE", ages, right=True, drop=6),
        Column("RUN", runs, right=True, drop=5),
        Column("TRY", [str(row["attempt"] or "-") for row in rows], right=True, drop=9),
        Column("RATE", rates, right=True, drop=2),
        Column("STEPS", steps, right=True, drop=7),
        Column("ETA", etas, right=True, drop=1),
        Column("ENDS", ends, drop=5),
        Column("PLACE", [place(row) for row in rows], narrow=12, drop=10),
        Column("WHY", whys, narrow=14, drop=11),
    ]


def id_of(row: dict[str, Any]) -> str:
    """Return what a job is called: a task by its array and index, such as `j7[3]`."""
    return str(row.get("task") or row["job"])


def tasks_text(counts: dict[str, int]) -> str:
    """Return how the tasks of an array stand: `100 tasks: 8 running, 92 to come`.

    Args:
        counts: The counts as the gateway has them.
    """
    kinds = ("running", "queued", "succeeded", "failed", "cancelled")
    parts = [f"{counts[kind]} {kind}" for kind in kinds if counts[kind] > 0]
    left = counts["total"] - sum(counts[kind] for kind in kinds)
    if left > 0:
        parts.append(f"{left} to come")
    return f"{counts['total']} tasks: {', '.join(parts)}"


def place(row: dict[str, Any]) -> str:
    """Return where a job runs, and with which jobs it shares its GPUs: `node-1:0 with j5`."""
    others = " ".join(row.get("beside") or ())
    return (row["place"] or "-") + (f" with {others}" if others else "")


def eta(left_s: float | None) -> str:
    """Return the predicted time to the end, if there is a prediction.

    Args:
        left_s: The time that is left (seconds); None: no prediction.
    """
    return "-" if left_s is None else render.duration(int(left_s * 1_000_000_000))


def ends_of(row: dict[str, Any], now_ns: int) -> str:
    """Return when a job ends, five times in ten and from one to nine times in ten.

    Args:
        row: The job as the gateway lists it.
        now_ns: The time (ns since 1970).
    """
    estimate = row.get("estimate")
    return render.between(estimate["end"], now_ns) if estimate else "-"


def why(state: str, reason: str | None, needs: str) -> str:
    """Return the reason behind a job's state, and what it waits for.

    Args:
        state: The state.
        reason: The code of the reason; None: there is none.
        needs: What the job waits for; empty: nothing that has a name.

    Returns:
        One line; empty: the state says it all.
    """
    if not reason or state == reason:
        return ""
    return f"{reason}: {needs}" if needs else reason


def why_of(row: dict[str, Any]) -> str:
    """Return the same for a job's row."""
    return why(row["state"], row["why"], row["needs"])


def positive(text: str) -> int:
    """Return a count of at least 1 from the command line.

    Raises:
        ValueError: The text is no whole number from 1 on.
    """
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


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
            ask_cancel(client, job)
            results.append({"job": job, "accepted": True})
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
            print(f"{result['job']} is being cancelled")
        else:
            say(f"{result['job']}: {result['error']['text']}")
    return worst


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
