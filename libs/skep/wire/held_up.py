"""Ranks that hold their gangs up: what they report, what is found, and what is blamed for it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import Attempt, JobName, Moment, Nanoseconds, Rank, Short, Token
from skep.wire.message import Message
from skep.wire.reasons import Reason

RANKS_MAX = 8
"""Ranks of a gang that are named at one time: while more are slow, none of them is, as it is the
script or what they share."""
JOBS_MAX = 32
"""Jobs kept that speak against one node, and jobs that a blame names: the latest."""
TIMES_MAX = 8
"""Findings kept of one job on one node, one for each attempt."""
PLACES_MAX = 1000
"""Nodes kept that something speaks against, and places kept that were blamed: the latest."""


class OwnTime(Message, frozen=True):
    """What of a mini-batch a rank spends on its own, and not on waiting for others.

    Medians of its latest ones, in nanoseconds; `load_ns` is what its data loader takes of that.
    """

    own_ns: Nanoseconds
    load_ns: Nanoseconds = 0


class GangSlowed(Message, frozen=True, tag="gang-slowed"):
    """A rank's own time is far beyond that of its gang, on `skep.v1.finding.gang-slowed`.

    Said when that has lasted, again while it lasts, and when it is `over`. `usual_ns` is the median
    of the gang's own times, `step_ns` what a mini-batch takes; `loads`: it is the data loader.
    """

    at: Moment
    job: JobName
    attempt: Attempt
    rank: Rank
    node: Token
    own_ns: Nanoseconds
    usual_ns: Nanoseconds
    step_ns: Nanoseconds
    loads: bool = False
    over: bool = False
    trace: Short = ""


class GangHeldUp(Message, frozen=True, tag="gang-held-up"):
    """A rank holds its gang up (or, with `over`, does so no more).

    `why` is `rank-slow`, `loader-slow` or `rank-hung`. The times are those of `GangSlowed`, 0 for a
    rank that hung. `tenant` is the job's owner, or `vc` and its virtual cluster where it has none;
    `vc` is its virtual cluster in any case.
    """

    job: str
    attempt: int
    rank: int
    node: str
    devices: tuple[int, ...]
    why: Reason
    at: Instant
    tenant: str
    own_ns: int = 0
    usual_ns: int = 0
    step_ns: int = 0
    over: bool = False
    trace: str = ""
    vc: str = ""

    @property
    def slower_milli(self) -> int:
        """Return by what factor the gang is slower for it, in thousandths; 0 if unknown."""
        return slower_milli(self.own_ns, self.usual_ns, self.step_ns)


class PlaceBlamed(Message, frozen=True, tag="place-blamed"):
    """A node, or one GPU of it, held up gangs of several tenants; until `until`, or taken back.

    `device` is -1 for the whole node. `jobs` are those whose ranks were slow or hung there.
    """

    node: str
    device: int
    blamed: bool
    why: Reason
    at: Instant
    until: Instant = Instant(0)
    jobs: Annotated[tuple[str, ...], Meta(max_length=JOBS_MAX)] = ()
    findings: int = 0
    tenants: int = 0

    @property
    def place(self) -> str:
        """Return the node's name, or `node/device`."""
        return self.node if self.device < 0 else f"{self.node}/{self.device}"


HeldUpFact = GangHeldUp | PlaceBlamed


class Sign(msgspec.Struct):
    """What a job's ranks say against the node that they were slow, or hung, on."""

    tenant: str
    times: list[Instant]
    """When that was found of each attempt, the latest last."""
    devices: list[int]
    """The GPUs of the ranks of the latest attempt of which that was found."""
    attempt: int = 0
    """That attempt; 0 in what was kept before attempts were."""
    vc: str = ""
    """The virtual cluster of the job."""


class HeldUp(msgspec.Struct):
    """Which gangs are held up now, and what that says about nodes."""

    now: dict[str, dict[int, GangHeldUp]] = {}
    """By job and rank: what holds its gang up at the moment."""
    signs: dict[str, dict[str, Sign]] = {}
    """By node and job."""
    blamed: dict[str, PlaceBlamed] = {}
    """By place."""


def slower_milli(own_ns: int, usual_ns: int, step_ns: int) -> int:
    """Return by what factor a gang is slower for its slowest rank, in thousandths; 0: unknown.

    Args:
        own_ns: The own time of that rank in a mini-batch.
        usual_ns: The median of its gang's own times.
        step_ns: What a mini-batch takes. All that is beyond the median is taken to be lost.
    """
    without = step_ns - (own_ns - usual_ns)
    if step_ns <= 0 or own_ns <= usual_ns:
        return 0
    return step_ns * 1000 // max(without, usual_ns, 1)
