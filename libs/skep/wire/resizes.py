"""The facts about GPUs that a running attempt gets beside its own, or gives back in part.

    GangWidened --> JobChanging(Resize) --> JobChanged(done)
                                        --> JobChanged(undone), GangNarrowed
    JobChanging(Resize) --> JobChanged(done), GangNarrowed

The GPUs are the attempt's own from GangWidened on, so whatever ends it frees them with the rest.
How many ranks train is told by JobChanged alone: before it the old gang, from it on the new one.
Ranks are numbered in the order in which they join, and the last leave first: none is renumbered.
"""

from __future__ import annotations

from skep.units import Instant
from skep.wire.member import Member
from skep.wire.message import Message


class ResizeMessage(Message, frozen=True):
    """A fact of the allocator about the size of a running gang."""


class GangWidened(ResizeMessage, frozen=True, tag="gang-widened"):
    """An attempt gets further GPUs, for ranks that are to join: `member` is only what is new.

    Where the attempt has no part yet, `order` is that of the command that begins one.
    """

    job: str
    attempt: int
    member: Member
    at: Instant
    trace: str = ""
    order: int = 0


class GangNarrowed(ResizeMessage, frozen=True, tag="gang-narrowed"):
    """An attempt keeps the GPUs of its first `workers` ranks on a node; the others are free.

    With 0 it has no part there any more.
    """

    job: str
    attempt: int
    node: str
    workers: int
    at: Instant
    trace: str = ""


ResizeFact = GangWidened | GangNarrowed
