"""Keeps the pauses of Python's garbage collector short in a process that decides.

A full collection looks at every object: 50 to 70 ms with the state of a large cluster, in the
middle of a decision. Almost none of these objects is ever garbage, because states have no reference
cycles. So what survives a full collection is frozen, and the next one looks only at what came
since. A cycle that is abandoned after it was frozen stays, until all is looked at again once an
hour.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ALL_AGAIN_S = 3600.0
"""How often a full collection looks at everything again: one long pause an hour bounds what
abandoned cycles can hold."""
OLDEST = 2


class ShortPauses:
    """A callback of the garbage collector (`gc.callbacks`)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Freeze what there is.

        Args:
            clock: Returns seconds.
        """
        self._clock = clock
        self._all_at = clock() + ALL_AGAIN_S
        gc.collect()
        gc.freeze()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Thaw all before a full collection that is to look at it, and freeze what survived."""
        if info["generation"] != OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() >= self._all_at:
            self._all_at = self._clock() + ALL_AGAIN_S
            gc.unfreeze()


@contextmanager
def short_pauses() -> Iterator[None]:
    """Have full collections of this process look only at what came since the one before."""
    pauses = ShortPauses()
    gc.callbacks.append(pauses)
    try:
        yield
    finally:
        gc.callbacks.remove(pauses)
        gc.unfreeze()
