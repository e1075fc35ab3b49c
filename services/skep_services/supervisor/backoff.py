"""How long to wait before a process that ended is started again.

The first end is answered at once, because a service that was killed should be back before anybody
notices. A process that keeps ending soon after its start waits longer and longer.
"""

from __future__ import annotations

SOON_S = 10.0
"""A process that ends within this time of its start did not get far: it may never."""

HEALTHY_S = 30.0
"""A process that lasted this long is forgiven what was before."""

FIRST_DELAY_S = 0.1
DELAY_S_MAX = 10.0

assert SOON_S < HEALTHY_S


class Backoff:
    """The memory of one process's ends."""

    def __init__(self) -> None:
        self._soon = 0

    def delay_s(self, lasted_s: float) -> float:
        """Return how long to wait before the next start (seconds).

        Args:
            lasted_s: How long the process lasted this time (seconds).
        """
        if lasted_s >= HEALTHY_S:
            self._soon = 0
        elif lasted_s < SOON_S:
            self._soon += 1
        if self._soon <= 1:
            return 0.0
        # The exponent is bounded: two to the thousandth is no float.
        return min(FIRST_DELAY_S * 2.0 ** min(self._soon - 2, 16), DELAY_S_MAX)
