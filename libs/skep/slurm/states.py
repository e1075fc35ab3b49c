"""States of jobs and nodes, and reasons, in Slurm's words."""

from __future__ import annotations

from skep.wire.reasons import Reason

JOBS = {
    "submitted": ("PENDING", "PD"),
    "queued": ("PENDING", "PD"),
    "bound": ("CONFIGURING", "CF"),
    "running": ("RUNNING", "R"),
    "suspended": ("SUSPENDED", "S"),
    "stopping": ("COMPLETING", "CG"),
    "succeeded": ("COMPLETED", "CD"),
    "failed": ("FAILED", "F"),
    "cancelled": ("CANCELLED", "CA"),
    "refused": ("FAILED", "F"),
}
"""Each state of a job, in full and in short."""
TIMEOUT = ("TIMEOUT", "TO")
NODE_FAIL = ("NODE_FAIL", "NF")
ENDED_OTHERWISE: dict[str, tuple[str, str]] = {
    Reason.TIME_LIMIT: TIMEOUT,
    Reason.NODE_LOST: NODE_FAIL,
}
"""Ends that Slurm has a state for, by the code of the reason."""
SHORTS = dict((*JOBS.values(), *ENDED_OTHERWISE.values()))
"""Short names of states by the long ones."""
REASONS: dict[str, str] = {
    Reason.WAITS_FOR_GPUS: "Resources",
    Reason.WAITS_FOR_NODES: "Resources",
    Reason.WAITS_FOR_CELLS: "Resources",
    Reason.WAITS_FOR_VICTIMS: "Resources",
    Reason.WAITS_BEHIND: "Priority",
    Reason.PERSON_LIMIT: "AssocGrpGRES",
    Reason.WAITS_FOR_WINDOW: "ReqNodeNotAvail",
    Reason.WAITS_FOR_JOBS: "Dependency",
    Reason.WAITS_FOR_TIME: "BeginTime",
    Reason.WAITS_FOR_PIPELINE: "JobArrayTaskLimit",
    Reason.HELD: "JobHeldUser",
}
"""Reasons that Slurm has a word for; every other is shown by its code."""


def job_state(state: str, why: str | None) -> tuple[str, str]:
    """Return the state of a job in full and in short.

    Args:
        state: The state as the gateway says it.
        why: The code of its reason, if it has one.
    """
    if state in ("failed", "cancelled") and why in ENDED_OTHERWISE:
        return ENDED_OTHERWISE[why]
    return JOBS.get(state, ("UNKNOWN", "??"))


def reason(why: str | None) -> str:
    """Return why a job waits, in Slurm's word where it has one."""
    return REASONS.get(why or "", why or "None")


def node_state(state: str, gpus: int, free: int) -> str:
    """Return the state of a node, in short.

    Args:
        state: The state as the gateway says it.
        gpus: How many GPUs it has.
        free: How many of these no job holds.
    """
    if state in ("lost", "silent"):
        return "down*"
    if state == "drained":
        return "drain" if free == gpus else "drng"
    if free == gpus:
        return "idle"
    return "mix" if free else "alloc"
