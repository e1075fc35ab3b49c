"""What agents say about running jobs, as core messages: losing one costs nothing.

Counts are cumulative, so the next report makes up for a lost one; rates are computed by the
introspector.
"""

from __future__ import annotations

from skep.units import Instant
from skep.wire.message import Message


class DeviceTrouble(Message, frozen=True):
    """What a device says is wrong with it, in words: it changes with every further event."""

    index: int
    text: str


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """The agent lives; `incarnation` is that of its latest join, `trouble` its devices' state."""

    node: str
    identity: str
    at: Instant
    incarnation: int = 0
    trouble: tuple[DeviceTrouble, ...] = ()


class RankProgress(Message, frozen=True):
    """One rank's mini-batches so far. Times are the node's wall clock, ns.

    `step_ns` is the median length of the latest mini-batches, `last_step_at` when the latest one
    ended (0 if none), `utilisation` thousandths of the rank's devices in use, `memory` bytes.
    `values` are numbers about the training, such as its loss, as of mini-batch `values_step`.
    `next_at`: when the next mini-batch ends, where that is known (`JobProgress.lasts`); 0: it makes
    none.
    """

    rank: int
    steps: int
    step_ns: int = 0
    last_step_at: Instant = Instant(0)
    utilisation: int = 0
    memory: int = 0
    values: dict[str, float] = {}
    values_step: int = 0
    next_at: Instant = Instant(0)


class JobProgress(Message, frozen=True):
    """The ranks of one attempt on this node that have reported.

    `lasts`: what is said holds until the next report, as if it came again every second: each rank
    goes on with a mini-batch every `step_ns` from `next_at` on. Only a simulation knows that.
    """

    job: str
    attempt: int
    world: int
    ranks: tuple[RankProgress, ...]
    trace: str = ""
    lasts: bool = False


class NodeReport(Message, frozen=True, tag="node-report"):
    """Everything one node saw of its jobs in a second."""

    node: str
    at: Instant
    jobs: tuple[JobProgress, ...]
