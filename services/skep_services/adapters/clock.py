"""The real clock: wall time that never runs backwards."""

from __future__ import annotations

import asyncio
import time

from skep.units import Instant, in_seconds

NAP_SECONDS_MAX = 1.0
"""The longest single sleep, so that a wall clock set forward is noticed within a second."""


class SystemClock:
    """Wall-clock time of this machine.

    While the machine's clock stands behind a time already given (it was set back), time goes on at
    half speed until the machine has caught up: timers come late by a factor, but they come.
    """

    def __init__(self) -> None:
        self._given = time.time_ns()
        self._given_at = time.monotonic_ns()

    def now(self) -> Instant:
        wall, monotonic = time.time_ns(), time.monotonic_ns()
        if wall < self._given:
            wall = self._given + (monotonic - self._given_at) // 2
        if wall > self._given:
            self._given, self._given_at = wall, monotonic
        return Instant(self._given)

    async def sleep_until(self, instant: Instant) -> None:
        while (left := instant - self.now()) > 0:  # noqa: ASYNC110 - no event is set for time
            await asyncio.sleep(min(in_seconds(left), NAP_SECONDS_MAX))
