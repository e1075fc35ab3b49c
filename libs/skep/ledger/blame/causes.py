"""The causes that time is blamed on: one closed list, and which reasons of waiting mean which."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from skep.wire.reasons import Reason


class Cause(StrEnum):
    """Where a stretch of a job's time went. Codes are stable."""

    UNDECIDED = "undecided"
    WAITS_ALONE = "waits-alone"
    WAITS_BEHIND = "waits-behind"
    WAITS_FOR_ROOM = "waits-for-room"
    WAITS_FOR_NODES = "waits-for-nodes"
    WAITS_FOR_AFFINITY = "waits-for-affinity"
    FITS_NO_CELL = "fits-no-cell"
    HELD_BY_POLICY = "held-by-policy"
    PREEMPTED = "preempted"
    SUSPENDED = "suspended"
    STARTING = "starting"
    RUNNING = "running"
    SLOWED_BY_PACKING = "slowed-by-packing"
    SLOWED_BY_PLACEMENT = "slowed-by-placement"
    SLOWED_BY_SIZE = "slowed-by-size"
    SLOWED_BY_NODE = "slowed-by-node"
    CHANGING = "changing"
    STOPPING = "stopping"
    WORK_LOST = "work-lost"
    DEFERRED = "deferred"


TEXT: Final[dict[Cause, str]] = {
    Cause.UNDECIDED: "it was submitted, and no service had decided on it yet",
    Cause.WAITS_ALONE: "it waited, and no job held GPUs that it could have had",
    Cause.WAITS_BEHIND: "it waited, and these jobs held GPUs that it could have had",
    Cause.WAITS_FOR_ROOM: "GPUs were reserved for it, and these jobs were leaving them",
    Cause.WAITS_FOR_NODES: "it waited for nodes that were away, drained, bad or without a port",
    Cause.WAITS_FOR_AFFINITY: "enough GPUs were idle, but not close enough to one another",
    Cause.FITS_NO_CELL: "no cell that it may have could hold it even if nothing else ran",
    Cause.HELD_BY_POLICY: "the policy of its virtual cluster held it back; these jobs held GPUs",
    Cause.PREEMPTED: "its GPUs were taken for these jobs, and it had none since",
    Cause.SUSPENDED: "its tenant wanted it to stand still",
    Cause.STARTING: "it had GPUs, and its processes were being started",
    Cause.RUNNING: "it trained",
    Cause.SLOWED_BY_PACKING: "it trained longer because it shared GPUs with these jobs",
    Cause.SLOWED_BY_PLACEMENT: "it trained longer on these nodes than it did elsewhere",
    Cause.SLOWED_BY_SIZE: "it trained longer with fewer workers than its spec asks for",
    Cause.SLOWED_BY_NODE: "it trained longer on a node with a GPU that was quarantined",
    Cause.CHANGING: "it stood still while it was moved, resized, stored or resumed",
    Cause.STOPPING: "its attempt was being ended",
    Cause.WORK_LOST: "it trained, and what it made did not survive the attempt",
    Cause.DEFERRED: "it waited for other jobs or for its time, or was held, as it was asked to",
}
"""What each cause means, for people."""

WAITING: Final[dict[Reason, Cause]] = {
    Reason.WAITS_FOR_NODES: Cause.WAITS_FOR_NODES,
    Reason.WAITS_FOR_REPAIR: Cause.WAITS_FOR_NODES,
    Reason.WAITS_FOR_PORT: Cause.WAITS_FOR_NODES,
    Reason.WAITS_FOR_AFFINITY: Cause.WAITS_FOR_AFFINITY,
    Reason.FITS_NO_CELL: Cause.FITS_NO_CELL,
    Reason.MIXED_UNDER_POLICY: Cause.FITS_NO_CELL,
    Reason.HELD_BY_POLICY: Cause.HELD_BY_POLICY,
    Reason.HELD_FOR_LOCALITY: Cause.HELD_BY_POLICY,
    Reason.SHARE_USED_UP: Cause.HELD_BY_POLICY,
    Reason.LARGER_THAN_SHARE: Cause.HELD_BY_POLICY,
}
"""What a recorded reason of waiting means. Every other one: the holders of GPUs are to blame."""

BY_HOLDERS: Final = frozenset((Cause.WAITS_BEHIND, Cause.PREEMPTED, Cause.HELD_BY_POLICY))
"""Causes whose parties are the jobs that held GPUs, each by how many it held and how long."""

TRAINING: Final = frozenset(
    (
        Cause.RUNNING,
        Cause.SLOWED_BY_PACKING,
        Cause.SLOWED_BY_PLACEMENT,
        Cause.SLOWED_BY_SIZE,
        Cause.SLOWED_BY_NODE,
    )
)
"""Time in which mini-batches were made that survive, as far as the facts tell."""
SLOWED: Final = TRAINING - {Cause.RUNNING}
"""The part of it that a faster place would have saved."""
BEFORE_GPUS: Final = frozenset(
    (
        Cause.UNDECIDED,
        Cause.WAITS_ALONE,
        Cause.WAITS_BEHIND,
        Cause.WAITS_FOR_ROOM,
        Cause.WAITS_FOR_NODES,
        Cause.WAITS_FOR_AFFINITY,
        Cause.FITS_NO_CELL,
        Cause.HELD_BY_POLICY,
        Cause.PREEMPTED,
    )
)
"""Time in which a job wants GPUs and has none."""

assert set(TEXT) == set(Cause)
