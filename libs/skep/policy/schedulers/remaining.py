"""Shortest remaining time first, with preemption: time alone, or time multiplied by GPUs.

Source: Tiresias, section 2.2 (`srtf`) and 3.1 (`srsf`); Muri, section 6.1.
"""

from __future__ import annotations

from typing import ClassVar

from skep.policy.parts import Preemptive, unknown_last
from skep.policy.roster import Key
from skep.policy.view import JobView, VcView
from skep.wire.reasons import Reason


class Srtf(Preemptive, frozen=True):
    """Run the jobs with the shortest remaining time, whatever their sizes (SRTF).

    Jobs of unknown length come last, in the order of arrival.
    """

    name: ClassVar[str] = "srtf"
    source: ClassVar[str] = "Tiresias, section 2.2 (time-based SJF); Muri, section 6.1"
    by_run_times: ClassVar[bool] = True

    def key(self, view: VcView) -> Key:
        """Return the remaining time."""
        return lambda job: unknown_last(job.remaining(view.now))

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.SHORTEST_REMAINING


class Srsf(Preemptive, frozen=True):
    """Shortest remaining service first: remaining time multiplied by GPUs (time and space)."""

    name: ClassVar[str] = "srsf"
    source: ClassVar[str] = "Tiresias, section 3.1 (SRSF); Muri, section 6.1"
    by_run_times: ClassVar[bool] = True

    def key(self, view: VcView) -> Key:
        """Return the remaining time multiplied by GPUs."""
        return lambda job: unknown_last(_service(job, view))

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.LEAST_REMAINING_SERVICE


def _service(job: JobView, view: VcView) -> int | None:
    remaining = job.remaining(view.now)
    return None if remaining is None else remaining * job.gpus
