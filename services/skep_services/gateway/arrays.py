"""What the gateway makes of arrays: one row with counts, kept by what is said of their tasks.

Counts follow the rows of the tasks' jobs, so they are right in whatever order the streams come.
What was never a job is counted by admission's facts, and they say that the array has ended.
"""

from __future__ import annotations

from typing import Any

from skep.units import Instant
from skep.wire.array import (
    ARRAY_KEYS,
    ArrayAdmitted,
    ArrayOver,
    TasksCancelled,
    TasksRetried,
    from_ranges,
)
from skep.wire.array import tasks_of as parsed
from skep.wire.array_gate import ArrayBroken, ArrayDeferred, ArrayEligible, GateFact
from skep.wire.reasons import TEXT, Reason
from skep_services.gateway.rows import PLACED, Job, State, TaskCounts

COUNTED = {
    State.QUEUED: "queued",
    **dict.fromkeys(PLACED, "running"),
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
"""As what a task counts whose job is in a state."""

ArrayFact = ArrayAdmitted | TasksCancelled | TasksRetried | ArrayOver


def counts_of(array: Job) -> TaskCounts:
    """Return the counts of an array, made if nothing was heard of it before."""
    if array.row.tasks is None:
        array.row.tasks = TaskCounts()
    return array.row.tasks


def is_task(job: Job) -> bool:
    """Return whether a job is a task of an array, or is to become one by what is known of it.

    Its key says so before admission does. Of what is refused the key says nothing.
    """
    return bool(job.row.task) or (
        job.row.state is State.SUBMITTED and job.key.startswith(ARRAY_KEYS)
    )


def take(array: Job, fact: ArrayFact | GateFact) -> None:
    """Take over what admission says of an array, or the allocator of what it waits for."""
    counts = counts_of(array)
    match fact:
        case ArrayAdmitted():
            array.array = fact.spec.array or ""
            tasks = parsed(array.array)
            counts.total, counts.most = tasks.count, tasks.most
            counts.indices = array.array
        case TasksCancelled():
            counts.cancelled += sum(1 for _ in from_ranges(fact.tasks))
            counts.skipped = ",".join(filter(None, (counts.skipped, fact.tasks)))
            array.cancel_asked = array.cancel_asked or fact.whole
            array.detail = fact.detail or array.detail
        case TasksRetried():
            counts.failed -= sum(1 for _ in from_ranges(fact.tasks))
            counts.indices, counts.skipped = fact.tasks, ""
            array.array_end, array.row.ended_at, array.cancel_asked = "", None, False
        case ArrayOver():
            array.array_end, array.row.ended_at = fact.end, fact.at
            array.deferred, array.row.needs = False, ""
        case ArrayDeferred():
            array.row.why, array.row.needs, array.deferred = fact.why, fact.needs, True
        case ArrayEligible() | ArrayBroken():
            array.row.needs, array.deferred = "", False
        case _:
            pass  # What others wait for.


def moved(array: Job, before: State, task: Job) -> None:
    """Take over that the job of a task went from one state to another."""
    counts, after = counts_of(array), task.row.state
    for state, change in ((before, -1), (after, 1)):
        kind = COUNTED.get(state)
        if kind is not None:
            setattr(counts, kind, getattr(counts, kind) + change)
    for name in ("bound_at", "started_at"):
        at = _earliest(getattr(array.row, name), getattr(task.row, name))
        setattr(array.row, name, at)


def state_of(array: Job) -> State:
    """Return the state of an array as a whole."""
    if array.array_end:
        return State(array.array_end)
    return State.RUNNING if counts_of(array).running > 0 else State.QUEUED


def why_of(array: Job) -> Reason | None:
    """Return the reason behind the state of an array."""
    match state_of(array):
        case State.SUCCEEDED:
            return Reason.SUCCEEDED
        case State.CANCELLED:
            return Reason.DEPENDENCY_NEVER_SATISFIED if array.detail else Reason.CANCELLED
        case State.QUEUED:
            waits = array.row.why if array.deferred else None
            return Reason(waits) if waits else Reason.WAITS_BEHIND
        case _:
            return None


def explain(
    array: Job, waits_for: tuple[list[dict[str, str]], list[str]] = ([], [])
) -> dict[str, Any]:
    """Return the answer of `/v1/jobs/{job}/why` for an array.

    Args:
        array: The array.
        waits_for: What it waits for before its tasks begin, and what would change that.
    """
    row, counts = array.row, counts_of(array)
    text = counts.text()
    if counts.most and counts.waiting:
        text += f"; at most {counts.most} are jobs at once"
    reasons = [*waits_for[0], {"reason": Reason.TASKS.value, "text": text, "needs": ""}]
    hint = waits_for[1]
    if row.why == (never := Reason.DEPENDENCY_NEVER_SATISFIED):
        reasons.insert(0, {"reason": never.value, "text": TEXT[never], "needs": array.detail})
    elif hint:
        pass
    elif not array.array_end:
        hint = [f"`skep ps --array {row.job}` lists its jobs; each of them says why it waits"]
    elif counts.failed > 0:
        hint = [f"`skep retry {row.job}` begins the failed tasks anew"]
    return {"job": row.job, "state": row.state, "reasons": reasons, "would_change": hint}


def _earliest(one: int | None, other: int | None) -> Instant | None:
    known = [each for each in (one, other) if each is not None]
    return Instant(min(known)) if known else None
