"""Changes of jobs that are asked for: `skep suspend`, `resume`, `checkpoint`, `migrate`, `resize`.

`pack`, `unpack`, `set-priority`, `hold` and `release` as well.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import ENDED, LAST_LOOKS_EVERY_S, POLL_MARGIN_S, POLL_S, seconds
from skep_services.cli.options import Command, client_of, print_json, say

DOING = {
    "suspend": "is asked to stand still",
    "resume": "is asked to go on",
    "checkpoint": "is asked to store its state",
    "migrate": "is asked to go on elsewhere",
    "resize": "is asked to change its size",
    "pack": "is asked to run beside another",
    "unpack": "is asked to leave the GPUs it shares",
    "priority": "is given another priority",
    "hold": "is asked not to start",
    "release": "is released",
}
DONE = {
    "suspend": "stands still",
    "resume": "goes on",
    "checkpoint": "has stored its state",
    "migrate": "goes on elsewhere",
    "resize": "has changed its size",
    "pack": "runs beside another",
    "unpack": "has left the GPUs it shared",
    "priority": "waits with its new priority",
    "hold": "is held",
    "release": "is not held",
}


def options_change(parser: ArgumentParser, targets: str = "jobs that run") -> None:
    """Add what all of them take.

    Args:
        parser: The command's parser; it is changed.
        targets: The help text of the jobs.
    """
    parser.add_argument("jobs", metavar="JOB", nargs="+", help=targets)
    parser.add_argument(
        "-w", "--wait", action="store_true", help="wait until it is done, or is known not to be"
    )
    parser.add_argument(
        "-t",
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="with --wait: give up waiting after, such as 90s or 15m",
    )


def options_suspend(parser: ArgumentParser) -> None:
    """Add what `suspend` takes."""
    options_change(parser)
    parser.add_argument(
        "--release",
        action="store_true",
        help="move its state into the host's memory and give its GPUs to others",
    )


def options_migrate(parser: ArgumentParser) -> None:
    """Add what `migrate` takes."""
    options_change(parser)
    parser.add_argument(
        "--to",
        metavar="NODE[,NODE...]",
        default="",
        help="which nodes it may go on on (default: any that it is not on)",
    )


def options_resize(parser: ArgumentParser) -> None:
    """Add what `resize` takes."""
    options_change(parser)
    parser.add_argument(
        "-n",
        "--workers",
        type=int,
        metavar="N",
        help="how many workers to have, within what the spec calls `elastic`",
    )
    parser.add_argument(
        "--servers",
        type=int,
        metavar="M",
        help="how many parameter servers to have, within what the spec calls `ps`",
    )


def options_pack(parser: ArgumentParser) -> None:
    """Add what `pack` takes."""
    options_change(parser, "jobs that wait for GPUs")
    parser.add_argument(
        "--with",
        metavar="OTHER",
        required=True,
        dest="beside",
        help="the running job of the same VC whose GPUs it is to share",
    )
    parser.add_argument(
        "--share",
        type=float,
        metavar="F",
        default=0.0,
        help="part of each GPU's memory it may use, such as 0.3 (default: an even share)",
    )


def options_priority(parser: ArgumentParser) -> None:
    """Add what `set-priority` takes."""
    options_change(parser, "jobs that wait for GPUs")
    parser.add_argument("priority", metavar="N", type=int, help="the priority, 0 to 1000")


def options_hold(parser: ArgumentParser) -> None:
    """Add what `hold` and `release` take."""
    options_change(parser, "jobs that have no GPUs")


def run_suspend(arguments: Namespace) -> int:
    """Ask for a suspension.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "suspend", {"release": True} if arguments.release else {})


def run_resume(arguments: Namespace) -> int:
    """Ask for a suspended job's return.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "resume", {})


def run_checkpoint(arguments: Namespace) -> int:
    """Ask for a checkpoint.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "checkpoint", {})


def run_migrate(arguments: Namespace) -> int:
    """Ask for a move.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "migrate", {"to": arguments.to} if arguments.to else {})


def run_resize(arguments: Namespace) -> int:
    """Ask for another size.

    Returns:
        The exit code: the largest among the jobs'.
    """
    sizes = {"workers": arguments.workers, "servers": arguments.servers}
    return _run(arguments, "resize", {name: n for name, n in sizes.items() if n is not None})


def run_pack(arguments: Namespace) -> int:
    """Ask that jobs run on GPUs that another holds.

    Returns:
        The exit code: the largest among the jobs'.
    """
    share = {"share": arguments.share} if arguments.share else {}
    return _run(arguments, "pack", {"beside": arguments.beside, **share})


def run_unpack(arguments: Namespace) -> int:
    """Ask that jobs leave GPUs that they share.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "unpack", {})


def run_priority(arguments: Namespace) -> int:
    """Ask that waiting jobs have another priority.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "priority", {"priority": arguments.priority})


def run_hold(arguments: Namespace) -> int:
    """Ask that jobs do not start before they are released.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "hold", {})


def run_release(arguments: Namespace) -> int:
    """Ask that jobs that are held may start.

    Returns:
        The exit code: the largest among the jobs'.
    """
    return _run(arguments, "release", {})


def _run(arguments: Namespace, ask: str, options: dict[str, Any]) -> int:
    """Ask for a change of every job. The worst outcome among them is the exit code.

    Raises:
        CommandError: The cluster cannot be reached.
    """
    client = client_of(arguments, *((PATIENCE_FOLLOWING_S,) if arguments.wait else ()))
    deadline = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    results: list[dict[str, Any]] = []
    worst = exits.OK
    for job in dict.fromkeys(arguments.jobs):
        try:
            answer = client.post(f"/v1/jobs/{quote(job)}/{ask}", options)
            code = exits.OK
            if arguments.wait:
                answer, code = outcome_of(client, job, answer, deadline)
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                raise
            told = {
                "result": "refused",
                "why": error.error["reason"],
                "detail": error.error["text"],
            }
            answer = {"job": job, "ask": ask, "accepted": False, **told, "error": error.error}
            code = error.code
        results.append(answer)
        worst = max(worst, code)
        if not arguments.json:
            _tell(answer, ask)
    if arguments.json:
        print_json({"jobs": results})
    return worst


def outcome_of(
    client: Client, job: str, answer: dict[str, Any], deadline: float | None
) -> tuple[dict[str, Any], int]:
    """Wait for the end of a change; return what came of it, and the exit code that says so.

    Args:
        client: The gateway.
        job: The job's id.
        answer: What the gateway answered to the request.
        deadline: When to give up (monotonic seconds); None waits for ever.

    Returns:
        The answer with the change's `result` (None: not in time) and the job's `state`; and the
        exit code 0 where the change is done, 1 where it is not, 5 after the deadline.
    """
    number = answer["number"]
    while True:
        left_s = float(POLL_S) if deadline is None else deadline - time.monotonic()
        wait_s = max(0, min(POLL_S, int(left_s)))
        path = query(f"/v1/jobs/{quote(job)}", wait="asked", number=number, timeout_s=wait_s)
        row: dict[str, Any] = client.get(path, wait_s + POLL_MARGIN_S)
        told: dict[str, Any] = next((one for one in row["asks"] if one["number"] == number), {})
        if told.get("result") is not None:
            done = told["result"] == "done"
            return {**answer, **told, "state": row["state"]}, exits.OK if done else exits.FAILED
        if row["state"] in ENDED:
            over = {"result": "overtaken", "why": "already-ended", "detail": row["state"]}
            return {**answer, **over, "state": row["state"]}, exits.FAILED
        if deadline is not None and time.monotonic() >= deadline:
            return {**answer, "result": None, "state": row["state"]}, exits.TIMEOUT
        if wait_s == 0:
            time.sleep(max(0.0, min(LAST_LOOKS_EVERY_S, left_s)))


def _tell(answer: dict[str, Any], ask: str) -> None:
    job = answer["job"]
    if answer["accepted"] is False:
        say(f"{job}: {answer['error']['text']}")
    elif "result" not in answer:
        print(f"{job} {DOING[ask]}", flush=True)
    elif answer["result"] == "done":
        print(f"{job} {DONE[ask]}", flush=True)
    elif answer["result"] is None:
        say(f"{job}: not in time; it is still under way")
    else:
        detail = f": {answer['detail']}" if answer.get("detail") else ""
        say(f"{job}: {ask} {answer['result']} ({answer['why']}{detail})")


COMMANDS = {
    "suspend": Command(options_suspend, run_suspend),
    "resume": Command(options_change, run_resume),
    "checkpoint": Command(options_change, run_checkpoint),
    "migrate": Command(options_migrate, run_migrate),
    "resize": Command(options_resize, run_resize),
    "pack": Command(options_pack, run_pack),
    "unpack": Command(options_change, run_unpack),
    "set-priority": Command(options_priority, run_priority),
    "hold": Command(options_hold, run_hold),
    "release": Command(options_hold, run_release),
}
