"""The facts about GPUs that several jobs use together, by one recorded decision.

    GpusShared --> JobBound        a job that waited is on GPUs that others hold
    GpusShared --> GpusRegained    a suspended one that had given its GPUs back is

Both facts stand in one record. A job that leaves (its end, a release, a move) leaves the GPUs to
those that stay: no fact says so, since it follows from which are left. `wire.commands.Share` tells
a running job what part of each device's memory it may use from then on.
"""

from __future__ import annotations

from enum import StrEnum

from skep.units import Instant
from skep.wire.message import Message
from skep.wire.reasons import Reason


class Mode(StrEnum):
    """How several jobs use one GPU."""

    PACK = "pack"
    """At the same time (Gandiva, section 3.2)."""
    TIME_SLICE = "time-slice"
    """In turn, each suspended while another runs."""


class PackMessage(Message, frozen=True):
    """A fact of the allocator about shared GPUs."""


class GpusShared(PackMessage, frozen=True, tag="gpus-shared"):
    """An attempt is to use GPUs of a node that others hold: `beside` are all attempts on them.

    Attempts are (job, number). `share` is the part of each device's memory that was asked for it;
    0.0: as much as each of the others whose share was not said. `told` is what it begins with.
    """

    mode: Mode
    job: str
    attempt: int
    beside: tuple[tuple[str, int], ...]
    node: str
    devices: tuple[int, ...]
    why: Reason
    at: Instant
    share: float = 0.0
    told: float = 0.0
    trace: str = ""


PackFact = GpusShared
