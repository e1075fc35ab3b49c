"""The result of a simulated run: what became of every job, and the cluster over time."""

from __future__ import annotations

import msgspec

from skep.units import Duration
from skep.wire.reasons import Reason
from skep_lab.traces.job import TraceJob

PREEMPTED = "preempted"
MAKES_ROOM = (Reason.PREEMPTED, Reason.PREEMPTED_BY_POLICY)


def stopped_by(why: Reason) -> str:
    """Return what ended a span whose attempt was stopped.

    Args:
        why: The reason of the stop; one that frees GPUs for another job counts as preemption.
    """
    return PREEMPTED if why in MAKES_ROOM else str(why)


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """A time in which a job had the same GPUs and ran. Times count from the beginning of the trace.

    `spread` is the number of its GPUs on each node, largest first. `ended_by` says why it ended:
    ended, preempted, suspended, migrated, resized, packed, cut (the run ended), or the reason for
    which it was stopped otherwise, such as unpacked or node-lost.
    """

    began: Duration
    ended: Duration
    gpus: int
    spread: tuple[int, ...] = ()
    chain: str = ""
    ended_by: str = "ended"
    useful: Duration | None = None
    """How much work the job did in it, at speed 1; None: all of it."""
    packed: bool = False
    borrowed: bool = False
    nodes: tuple[str, ...] = ()
    """The nodes that `spread` is about, in the same order."""
    guest: bool = False
    """Its GPUs belong to another job, which has them all the time."""


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a job. `began` and `ended` are None if it never did."""

    job: TraceJob
    spans: tuple[Span, ...] = ()
    began: Duration | None = None
    ended: Duration | None = None
    waited: Duration = Duration(0)
    """Total time in the queue: before its first run and after every preemption."""
    preempted: int = 0
    suspended: int = 0
    migrated: int = 0
    resized: int = 0
    packed: int = 0
    lost: Duration = Duration(0)
    """Work done twice, at speed 1: since its latest checkpoint."""
    overhead: Duration = Duration(0)
    """Time spent on starting, suspending and moving."""
    hundred: Duration | None = None
    """When its 100th mini-batch was done; None: not known."""
    refused: str = ""
    """Why the cluster refused it; empty: it did not."""


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cluster from one instant until the next sample. GPUs are whole ones.

    `busy` is the sum of what its jobs keep busy, `useful` of what they get done.
    """

    at: Duration
    allocated: int
    busy: float
    useful: float
    waiting: int
    running: int
    free_nodes: int
    """Whole nodes without a job."""
    free: int
    by_vc: dict[str, int] = {}
    """GPUs that each VC's jobs have, if that was asked for."""
    shared_nodes: int = 0
    """Nodes with some GPUs taken and some free (fragmentation)."""
    busy_gpus: float | None = None
    """As `busy`, but a GPU that jobs share is busy once, all of its time at most; None: unknown."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run: equal trace, cluster, policy and seed give the same bytes, except for `cpu_s`."""

    trace: str
    cluster: str
    policy: str
    seed: int
    gpus: int
    node_gpus: int
    """Of the largest node."""
    jobs: tuple[JobOutcome, ...]
    samples: tuple[Sample, ...] = ()
    vc_gpus: dict[str, int] = {}
    nodes: dict[str, int] = {}
    """The GPUs of each node; empty: all nodes are as large as the largest."""
    events: int = 0
    """Starts and ends of jobs, as published simulators count."""
    decisions: str = ""
    """A digest of all decisions in their order."""
    cut: bool = False
    """The run ended before the trace did."""
    cpu_s: float = 0.0
    stuck: bool = False
    """It is `cut` because the jobs that are left wait for what never comes."""
