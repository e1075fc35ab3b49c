"""What the allocator records of arrays: what one waits for as a whole, and that it has ended.

The allocator knows no tasks. It knows an array so that jobs and other arrays can wait for its end,
and so that one place judges what a dependency, a time and a hold mean.
"""

from __future__ import annotations

from skep.units import Instant
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.spec import After


class ArraySeen(Message, frozen=True, tag="array-seen"):
    """An array has tasks that have not ended: what names it in `after` waits for its end.

    `gated`: none of its tasks becomes a job before `ArrayEligible`. `after` is that of its spec. A
    retry makes an array that has ended one that has not: `number` is then that of the request.
    """

    array: str
    vc: str
    gated: bool = False
    after: After | None = None
    number: int = 0


class ArrayDeferred(Message, frozen=True, tag="array-deferred"):
    """An array waits for something before its tasks are jobs. Fields are as in `JobDeferred`."""

    array: str
    why: Reason
    at: Instant
    needs: str = ""
    awaits: tuple[str, ...] = ()
    begin: Instant = Instant(0)
    held: bool = False


class ArrayEligible(Message, frozen=True, tag="array-eligible"):
    """An array waits for nothing more: its tasks become jobs as there is room."""

    array: str
    at: Instant


class ArrayBroken(Message, frozen=True, tag="array-broken"):
    """What an array waits for can never come: admission cancels its tasks. `detail` says what."""

    array: str
    at: Instant
    detail: str


class ArrayEnded(Message, frozen=True, tag="array-ended"):
    """An array has ended, as admission's `ArrayOver` says: what waits for that waits for one less.

    `end` is `succeeded` if all of its tasks have succeeded.
    """

    array: str
    end: str
    at: Instant


GateFact = ArraySeen | ArrayDeferred | ArrayEligible | ArrayBroken | ArrayEnded
