"""What `skep down` does with jobs that run: keeps them in memory, or says what they would lose.

suspended already, or can be suspended ──> its processes stay, and go on at the next `up`
stores its state when it is told to end ──> ends, and begins there
anything else                          ──> loses what it did: `down` asks first
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from skep_services.cli import exits, render
from skep_services.cli.changes import outcome_of
from skep_services.cli.client import Client, Target, quote
from skep_services.cli.exits import CommandError
from skep_services.supervisor import kept
from skep_services.supervisor.kept import Kept

SUSPEND_WITHIN_S = 30.0
"""A job stops between two mini-batches; of those that are longer, too much time would be lost."""
PATIENCE_S = 2.0
"""How long a gateway that does not answer is waited for: a supervisor restarts it in a second."""
LOST_SHOWN = 20


class Lost(NamedTuple):
    """A job that would begin anew: its id, or where it is, and what is known of it."""

    job: str
    text: str


class Leave(NamedTuple):
    """What becomes of the jobs that run: kept in memory, ended with a checkpoint, or lost."""

    kept: Kept
    stored: tuple[str, ...]
    lost: tuple[Lost, ...]


def prepare(home: str, cluster: dict[str, Any], before: Kept) -> tuple[Leave, Client]:
    """Suspend what can be suspended; return what becomes of every job.

    What does not come to its end is undone, also where the command is interrupted. What cannot be
    undone is noted for the next `up`.

    Args:
        home: The state folder.
        cluster: Its `cluster.json`.
        before: What an earlier `down` kept and no `up` has taken back yet.

    Returns:
        What becomes of the jobs, and a client of the cluster with which it can be undone.

    Raises:
        CommandError: The gateway does not answer (`UNREACHABLE`) or refuses the operator, or what
            is to be closed cannot be noted.
    """
    gateway = cluster["gateway"]
    client = Client(Target(gateway["url"], gateway["tokens"]["operator"], home), PATIENCE_S)
    told: dict[str, dict[str, Any]] = {}
    closed: list[str] = []
    try:
        return _suspend(client, home, cluster, before, told, closed), client
    except BaseException:
        if undo(client, Kept((), tuple(told), tuple(closed))) and closed:
            note(home, before)
        raise


def note(home: str, keep: Kept) -> None:
    """Note what is kept, and which nodes are closed.

    Raises:
        CommandError: The note cannot be written.
    """
    if keep == Kept():
        kept.forget(home)
        return
    try:
        kept.write(home, keep)
    except OSError as error:
        text = f"{kept.kept_path(home)} cannot be written: {error.strerror}; make room there"
        raise CommandError(exits.FAILED, text) from None


def _suspend(
    client: Client,
    home: str,
    cluster: dict[str, Any],
    before: Kept,
    told: dict[str, dict[str, Any]],
    closed: list[str],
) -> Leave:
    """Suspend what can be; note in `told` and `closed` what was asked of jobs and nodes."""
    listed = client.get("/v1/jobs?state=active&tasks=1")["jobs"]
    rows = [row for row in listed if not row.get("tasks")]  # Of an array it is its jobs that run.
    running = [row for row in rows if row["state"] == "running"]
    standing = [row["job"] for row in rows if row["state"] == "suspended"]
    if running and _has_devices(cluster):
        # Released GPUs would go to other jobs, only for these to be stopped in their turn.
        nodes = _open_nodes(client)
        note(home, before._replace(undrain=(*before.undrain, *nodes)))
        for node in nodes:
            closed.append(node)
            client.post("/v1/admin/drain", {"node": node, "drain": True})
    undrain = (*before.undrain, *closed)
    stored, lost = [], []
    for row in running:
        job = client.get(f"/v1/jobs/{quote(row['job'])}")
        can = job["can"]
        # Others that can be stored do not do it when they are told to end.
        if "checkpoint" in can and job.get("tier", "cooperative") == "cooperative":
            stored.append(row["job"])
            continue
        try:
            wish = {"release": True} if undrain and "release" in can else {}
            told[row["job"]] = client.post(f"/v1/jobs/{row['job']}/suspend", wish)
        except CommandError as error:
            lost.append(Lost(row["job"], _progress(row, error.error["text"])))
    deadline, suspended = time.monotonic() + SUSPEND_WITHIN_S, []
    for row in running:
        answer = told.get(row["job"])
        if answer is None:
            continue
        answer, code = outcome_of(client, row["job"], answer, deadline)
        if code == exits.OK:
            suspended.append(row["job"])
        elif answer["state"] not in ("succeeded", "failed", "cancelled"):
            why = answer.get("detail") or answer.get("why") or "it is not suspended in time"
            lost.append(Lost(row["job"], _progress(row, why)))
    resume = tuple(dict.fromkeys((*before.resume, *suspended)))
    jobs = tuple(dict.fromkeys((*before.jobs, *standing, *suspended)))
    return Leave(Kept(jobs, resume, undrain), tuple(stored), tuple(lost))


def undo(client: Client, done: Kept) -> bool:
    """Have the jobs go on that were suspended, and open the nodes that were closed.

    A job that has ended since refuses; the others go on all the same.

    Returns:
        Whether the gateway answered.
    """
    asked = [(f"/v1/jobs/{job}/resume", dict[str, Any]()) for job in done.resume]
    asked += [("/v1/admin/drain", {"node": node, "drain": False}) for node in done.undrain]
    for path, wish in asked:
        try:
            client.post(path, wish)
        except CommandError as error:
            sys.stderr.write(f"not undone: {path}: {error.error['text']}\n")
            if error.code == exits.UNREACHABLE:
                return False
    return True


def agree(lost: Sequence[Lost], *, yes: bool, ask: Callable[[str], str] | None) -> bool:
    """Return whether jobs may lose what they did.

    Args:
        lost: the jobs.
        yes: `--yes` was given.
        ask: shows a question and returns the answer; None where no person can answer.
    """
    if yes or not lost:
        return True
    if ask is None:
        return False
    shown = "\n".join(lines(lost))
    told = ask(f"these would lose what they did since they began:\n{shown}\nstop them? [y/N] ")
    return told.strip().lower() in {"y", "yes"}


def lines(lost: Sequence[Lost]) -> list[str]:
    """Return a line for each job that would lose its progress."""
    more = len(lost) - LOST_SHOWN
    shown = [f"  {one.job}  {render.printable(one.text)}" for one in lost[:LOST_SHOWN]]
    return [*shown, *([f"  and {more} more"] if more > 0 else [])]


def asker() -> Callable[[str], str] | None:
    """Return how to ask the person at the terminal; None if there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(question: str) -> str:
        sys.stderr.write(question)
        sys.stderr.flush()
        return sys.stdin.readline()

    return ask


def unknown(folders: Sequence[str]) -> tuple[Lost, ...]:
    """Return what is lost where the cluster does not answer: the jobs of these nodes' folders."""
    text = "the cluster does not answer, so its jobs cannot be suspended"
    return tuple(Lost(f"the jobs of {os.path.basename(path)}", text) for path in folders)


def _has_devices(cluster: dict[str, Any]) -> bool:
    """Return whether nodes have devices with memory of their own, not only CPU slots."""
    return any(node.get("device", "cpu") != "cpu" for node in cluster["nodes"])


def _open_nodes(client: Client) -> list[str]:
    rows = client.get("/v1/nodes")["nodes"]
    return [row["node"] for row in rows if row["state"] != "drained"]


def _progress(row: dict[str, Any], why: str) -> str:
    ran = render.duration(time.time_ns() - row["started_at"]) if row["started_at"] else "0 s"
    steps = f", {row['steps']} mini-batches" if row["steps"] else ""
    return f"{row['name']}, ran {ran}{steps}: {why}"
