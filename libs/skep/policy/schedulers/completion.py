"""The schedulers that GENIE is compared with: by expected completion, and by kind of model.

The expected completion of a job is `factor` times its run time after its submission (GENIE,
equation 9). GENIE's urgent and prior users are higher priorities here.

Source: GENIE, section 7.1 (Min-Min, weighted fair and capacity scheduler).
"""

from __future__ import annotations

from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.parts import Queued, by_arrival, check_unique, portions, queued, unknown_last
from skep.policy.plan import Plan, Turn, Withheld
from skep.policy.roster import Key
from skep.policy.view import HOLDING, JobView, VcView
from skep.wire.reasons import Reason


class MinMin(Queued, frozen=True):
    """The earliest expected completion first."""

    name: ClassVar[str] = "min-min"
    source: ClassVar[str] = "GENIE, section 7.1 (Min-Min scheduler)"
    by_run_times: ClassVar[bool] = True
    factor: float = 2

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `factor` is negative.
        """
        _positive(self.factor)

    def key(self, view: VcView) -> Key:
        """Return the expected completion of a job as its sort key."""
        return lambda job: unknown_last(completion(job, self.factor))

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.EARLIEST_COMPLETION


class WeightedFair(Queued, frozen=True):
    """The lowest weighted mean of arrival and expected completion first."""

    name: ClassVar[str] = "weighted-fair"
    source: ClassVar[str] = "GENIE, section 7.1 (weighted fair scheduler)"
    by_run_times: ClassVar[bool] = True
    factor: float = 2
    weight: float = 0.5

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `factor` is negative, or `weight` is not 0 to 1.
        """
        _positive(self.factor)
        if not 0 <= self.weight <= 1:
            reason = f"weight is the part that the arrival has, 0 to 1: not {self.weight}"
            raise ValueError(reason)

    def key(self, view: VcView) -> Key:
        """Return the weighted mean of arrival and expected completion as sort key."""
        return lambda job: unknown_last(self._mean(job))

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.LOWEST_WEIGHTED_AGE

    def _mean(self, job: JobView) -> int | None:
        complete = completion(job, self.factor)
        if complete is None:
            return None
        weight = round(self.weight * 1000)
        return (weight * job.submitted_at + (1000 - weight) * complete) // 1000


class ModelCapacity(Policy, frozen=True):
    """Each kind of model (`size.family`) has its part of the GPUs, and nothing but it.

    `shares` are pairs of a family and its weight; without them, the families that have jobs get
    equal parts. Within its part a family is served in order of arrival. "Each model type can only
    access its own allocated resources": a job that is larger than its family's part never runs,
    even in an empty cluster. It is withheld with that reason, and blocks no job behind it.
    """

    name: ClassVar[str] = "capacity-per-model"
    source: ClassVar[str] = "GENIE, section 7.1 (capacity scheduler)"
    shares: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: A weight is not positive, or a family is named twice.
        """
        if any(weight <= 0 for _, weight in self.shares):
            reason = "a family's weight is more than 0; leave out a family that is to have nothing"
            raise ValueError(reason)
        check_unique("shares", (kind for kind, _ in self.shares))

    def plan(self, view: VcView) -> Plan:
        """Return turns within each family's part; other waiting jobs are withheld."""
        parts = self._parts(view)
        left = dict(parts)
        for job in view.jobs:
            if job.phase in HOLDING and not job.borrows:
                left[family(job)] = left.get(family(job), 0) - job.gpus
        turns, holds = [], []
        blocked: set[str] = set()
        for job in by_arrival(queued(view)):
            kind = family(job)
            part = parts.get(kind, 0)
            if job.gpus > part:
                needs = f"{job.gpus} GPUs, and {part} are for {kind!r}"
                holds.append(Withheld(job.job, Reason.LARGER_THAN_SHARE, needs))
            elif kind in blocked or job.gpus > left.get(kind, 0):
                blocked.add(kind)
                holds.append(
                    Withheld(job.job, Reason.SHARE_USED_UP, f"{job.gpus} GPUs for {kind!r}")
                )
            else:
                left[kind] -= job.gpus
                turns.append(Turn(job.job, Reason.ARRIVAL))
        return Plan(turns=tuple(turns), strict=False, holds=tuple(holds))

    def _parts(self, view: VcView) -> dict[str, int]:
        shares = dict(self.shares) or dict.fromkeys(sorted({family(job) for job in view.jobs}), 1.0)
        return portions(view.gpus, shares)


def _positive(factor: float) -> None:
    if factor < 0:
        reason = f"factor is a multiple of a job's run time, 0 or more: not {factor}"
        raise ValueError(reason)


def completion(job: JobView, factor: float) -> int | None:
    """Return when a job is expected to end (GENIE, equation 9).

    Args:
        job: The job.
        factor: The expected time from submission to end, as a multiple of its run time.

    Returns:
        Nanoseconds; None: its run time is unknown.
    """
    if job.expected is None:
        return None
    return job.submitted_at + round(job.expected * factor)


def family(job: JobView) -> str:
    """Return the kind of model that a job trains; empty if its spec does not say."""
    return job.spec.size.family or ""
