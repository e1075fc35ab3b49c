"""Hold: no job is spread over more nodes than it needs, until it has waited for very long.

A job that is spread takes longer, and so does every job that waits for its GPUs. Once many are
spread the cluster is slower than its load, and stays so: nodes never become empty again. A rule
that would rather leave GPUs idle for a moment does not fall into that.

Source: Skep; what is learned in SCHED² (section IV) is mostly this.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from skep.policy.api import Policy
from skep.policy.capacity import FreeCapacity, Place, fewest_nodes, fit_close
from skep.policy.parts import check_one_or_more, queued
from skep.policy.plan import Plan, Turn, Withheld
from skep.policy.powers import Powers
from skep.policy.sizes import UNKNOWN, fewest_workers, gpus_per_worker, offered
from skep.policy.view import HOLDING, JobView, VcView
from skep.units import Duration, Instant, seconds
from skep.wire.reasons import Reason


class Hold(Policy, frozen=True):
    """Shortest job first (time multiplied by GPUs), each on as few nodes as possible.

    A job that fits only on more nodes is held back, and those behind it are tried. It may be spread
    once it has waited for `relax` times its ideal time, and for `drain` times as long as all GPUs
    would take for the queue: what is spread in a burst makes the burst longer. It is not held if it
    is slower there by `slower` at most, as measured or by the P90 of what is predicted
    (`JobView.slowdown_high`). With `narrower` an elastic job begins with fewer workers, if that is
    how it fits close together.

    One that has waited for `wait_max_s` comes before all others, and blocks those with its pin. No
    job is stopped. Unknown lengths count as an hour.
    """

    name: ClassVar[str] = "hold"
    source: ClassVar[str] = "Skep; SCHED², section IV"
    relax: float = 5
    drain: float = 1
    slower: float = 0.05
    narrower: bool = False
    wait_max_s: float = 86400

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: One of them is negative, or `wait_max_s` too short.
        """
        check_one_or_more("wait_max_s", self.wait_max_s, "seconds")
        if min(self.relax, self.drain, self.slower) < 0:
            reason = "relax, drain and slower are 0 or more"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True: it chooses nodes."""
        return True

    @property
    def sees_rates(self) -> bool:
        """Return True: jobs that are not slower on more nodes are not held."""
        return True

    @property
    def powers(self) -> Powers:
        """Return those of an order of the queue that goes by lengths and rates."""
        return Powers(passes=True, run_times=True, rates=True)

    def plan(self, view: VcView) -> Plan:
        """Return a turn on its nodes for each job that fits close enough; the others are held."""
        waiting = sorted(queued(view), key=lambda job: self._place(job, view.now))
        capacity = FreeCapacity(
            view, [job for job in view.jobs if job.phase in HOLDING and not job.borrows]
        )
        drain = round(self.drain * _drain(waiting, view))
        turns, holds, looks = list[Turn](), list[Withheld](), list[Instant]()
        behind = dict[str, None]()  # Pins: jobs with another one want other GPUs.
        for job in waiting:
            if job.pin in behind:
                holds.append(Withheld(job.job, Reason.WAITS_BEHIND))
                continue
            relaxes = Instant(job.waiting_since + round(self.relax * ideal(job)) + drain)
            found = self._fit(job, view, capacity, relaxed=relaxes <= view.now)
            if found is not None:
                begins, place = found
                capacity.take_gpus(begins, begins.gpus, place)
                workers = begins.workers if begins is not job else 0
                nodes = tuple(node for node, _ in place)
                turns.append(Turn(job.job, Reason.SMALLEST_PRODUCT, nodes, workers=workers))
                continue
            aged = Instant(job.waiting_since + seconds(self.wait_max_s))
            if aged <= view.now:
                behind[job.pin] = None
            fits = job.gpus <= capacity.left(job.pin)
            why = Reason.HELD_FOR_LOCALITY if fits else Reason.WAITS_FOR_GPUS
            holds.append(Withheld(job.job, why))
            looks += [each for each in (relaxes, aged) if each > view.now]
        return Plan(
            turns=tuple(turns), strict=False, holds=tuple(holds), look_at=min(looks, default=None)
        )

    def _place(self, job: JobView, now: Instant) -> tuple[int, ...]:
        """Return the place of a waiting job in their order, the lowest first."""
        young = now - job.waiting_since < seconds(self.wait_max_s)
        return (-job.spec.priority, young, young * ideal(job) * job.gpus, job.sequence)

    def _fit(
        self, job: JobView, view: VcView, capacity: FreeCapacity, *, relaxed: bool
    ) -> tuple[JobView, Place] | None:
        """Return a job as it can begin, and where; None: it has to wait.

        Args:
            job: It waits.
            view: The VC.
            capacity: What is free.
            relaxed: Whether it may be spread.
        """
        fewest = fewest_nodes(job, view)
        close = fit_close(job, capacity, fewest)
        if close is not None:
            return job, close
        if self.narrower and fewest_workers(job):
            each = gpus_per_worker(job)
            for workers in reversed(offered(job, fewest_workers(job), job.workers - 1)):
                less = msgspec.structs.replace(job, workers=workers, gpus=workers * each)
                close = fit_close(less, capacity, fewest_nodes(less, view))
                if close is not None:
                    return less, close
        spread = capacity.fit(job)
        if spread is None or not (relaxed or self._indifferent(job, len(spread))):
            return None
        return job, spread

    def _indifferent(self, job: JobView, nodes: int) -> bool:
        """Return whether a job is hardly slower on so many nodes, as predicted."""
        slowdown = job.slowdown_high or job.slowdown
        slower = [thousandths for count, thousandths in slowdown if count <= nodes]
        known = bool(slower) and slowdown[-1][0] >= nodes  # Those measured may all be on more.
        return known and slower[-1] <= 1000 * (1 + self.slower)


def ideal(job: JobView) -> Duration:
    """Return how long a job runs where its speed is 1; an hour if nothing says it."""
    known = job.expected if job.expected is not None else job.left
    return Duration(UNKNOWN) if known is None else known


def _drain(waiting: list[JobView], view: VcView) -> float:
    """Return how long all GPUs would take for the jobs that wait."""
    return sum(ideal(job) * job.gpus for job in waiting) / max(view.gpus, 1)
