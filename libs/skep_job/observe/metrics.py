"""Numbers about the training on their way to the agent: few, small, and seldom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

NAMES_MAX = 32
"""Different numbers of one job; further ones are left out, and that is said once."""
NAME_CHARACTERS_MAX = 64
EVERY_S = 1.0
"""At most one message in this time: a loss curve needs no more, and no agent is flooded."""

SUMS = ("tokens", "samples")
"""What is given per report and counts in sum; of everything else the latest value counts."""

Say = Callable[..., None]


class Metrics:
    """The latest value of each name. For the training thread."""

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        """`say` gets `step` and `values` (name to finite number)."""
        self._say = say
        self._clock = clock
        self._latest: dict[str, Any] = {}
        self._sums: dict[str, float] = {}
        self._next = 0.0
        self._changed = False
        self._step = 0
        self.left_out = 0
        """Numbers that were not taken, for their name's sake or for being too many."""

    def take(self, values: dict[str, Any], step: int) -> None:
        """Remember `values`, and send what is known if it is time to.

        Args:
            values: Numbers by name, or tensors of one element.
            step: The mini-batch that they are about.
        """
        for name, value in values.items():
            known = name in self._latest or name in self._sums
            if len(name) > NAME_CHARACTERS_MAX or (not known and self._count() >= NAMES_MAX):
                self.left_out += 1
            elif name in SUMS:
                self._sums[name] = self._sums.get(name, 0) + _number(value)
            else:
                # Kept as it is: to ask a tensor on a device for its number waits for the device.
                self._latest[name] = value.detach() if hasattr(value, "detach") else value
        self._changed = True
        self._step = step
        if self._clock() >= self._next:
            self.send()

    @property
    def sums(self) -> dict[str, float]:
        """What counts in sum so far, of this process and of those it succeeded."""
        return dict(self._sums)

    def go_on_from(self, sums: dict[str, float]) -> None:
        """Go on from another process's sums."""
        self._sums.update(sums)

    def send(self) -> None:
        """Send what is known, if any of it has changed since."""
        if not self._changed:
            return
        self._changed = False
        self._next = self._clock() + EVERY_S
        values = {name: _number(value) for name, value in self._latest.items()} | self._sums
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._say("metrics", step=self._step, values=finite)

    def _count(self) -> int:
        return len(self._latest) + len(self._sums)


def _number(value: Any) -> float:
    return value if isinstance(value, int) and abs(value) < 2**53 else float(value)
