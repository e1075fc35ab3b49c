"""What the introspective mode asks about the jobs of a VC, kept from one view to the next.

Each of its parts asks another question: which jobs wait, which have grown, which gangs are
scattered. Asking all jobs for every plan would cost more than updating the answers where jobs
change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from skep.base.timers import TimerHeap
from skep.policy.capacity import FreeCapacity
from skep.policy.gandiva.pack_candidates import PackCandidates
from skep.policy.gandiva.rules import Rules, movable
from skep.policy.incremental import add, keep, set_or_cancel
from skep.policy.view import HOLDING, QUEUED, JobView, NodeView, Phase, VcView
from skep.units import Instant, after
from skep.wire.reasons import Reason

UNUSED = 20
"""A job with less GPU utilisation than this, in thousandths, does not use its GPUs."""


class UnitIndex:
    """The units of a VC (jobs, and each pack as one), and sums over them."""

    def __init__(self, rules: Rules) -> None:
        """Begin without jobs."""
        self.now = Instant(0)
        self.jobs: dict[str, JobView] = {}
        self.waiting: dict[str, JobView] = {}
        """Jobs that have no GPUs and want some."""
        self.wanted: dict[str, int] = {}
        """By pin: the GPUs that they want."""
        self.asked: dict[str, int] = {}
        """By pin: GPUs that jobs have or want, without jobs that are being stopped."""
        self.grown: dict[str, JobView] = {}
        self.growing: dict[str, JobView] = {}
        """Jobs that could try more workers."""
        self.scattered: dict[str, JobView] = {}
        """Gangs on several nodes that can be moved and whose slowdown is known."""
        self.candidates = PackCandidates()
        self._rules = rules
        self._kept: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._lines: dict[str, int] = {}
        self._sizes: dict[str, dict[int, int]] = {}
        """By node: how many units are there, suspended ones included, by their GPUs there."""
        self._fresh: dict[str, dict[int, int]] = {}
        """By pin: how many waiting jobs have no nodes yet, by their GPUs."""
        self._hangs: dict[str, TimerHeap[str]] = {}
        """By pin: when each job without progress, or with unused GPUs, is to lose its GPUs."""
        self._hung: dict[str, Reason] = {}

    def count(self, job: JobView, sign: int) -> None:
        """Add a unit (sign 1), or remove it as it was (sign -1)."""
        come = sign > 0
        keep(self.jobs, job, come)
        if job.borrows:
            return
        holds = job.phase in HOLDING
        if job.phase is not Phase.STOPPING:
            add(self.asked, job.pin, sign * job.gpus)
            if holds:
                add(self._kept, job.pin, sign * job.gpus)
        for node, gpus in job.nodes:
            add(self._taken, node, sign * gpus)
            add(self._sizes.setdefault(node, {}), gpus, sign)
            if holds:
                add(self._held, node, sign * gpus)
        if job.phase in QUEUED:
            keep(self.waiting, job, come)
            add(self.wanted, job.pin, sign * job.gpus)
            add(self._lines, job.pin, sign)
            if not job.nodes:
                add(self._fresh.setdefault(job.pin, {}), job.gpus, sign)
        elif job.phase is Phase.RUNNING:
            self._runs(job, come)
        self.candidates.count(job, come, self.now)

    def _runs(self, job: JobView, come: bool) -> None:
        if _elastic(job):
            if _has_grown(job):
                keep(self.grown, job, come)
            if movable(job, "resize") and job.rate_milli > 0 and len(job.nodes) == 1:
                keep(self.growing, job, come)
        if len(job.nodes) > 1 and job.slowdown and job.rate_milli and movable(job):
            keep(self.scattered, job, come)
        known = _hangs(job, self._rules) if movable(job, "release") else None
        if known is not None:
            set_or_cancel(
                self._hangs.setdefault(job.pin, TimerHeap[str]()), job.job, known[1], come
            )
            self._hung.pop(job.job, None)

    def follow(self, now: Instant) -> None:
        """Set the time."""
        self.now = now
        self.candidates.follow(now)

    # --- what is asked ----------------------------------------------------------------------------

    def pins(self, apart: Iterable[str]) -> list[str]:
        """Return the pins of waiting jobs, without the jobs in `apart`."""
        lines = {**self._lines}
        for name in apart:
            if name in self.waiting:
                add(lines, self.waiting[name].pin, -1)
        return list(lines)

    def hung(
        self, pins: Collection[str], apart: Collection[str]
    ) -> tuple[list[tuple[JobView, Reason]], Instant | None]:
        """Return the jobs that make no use of their GPUs, and when the next one is found.

        Args:
            pins: Only jobs with these pins.
            apart: Jobs to leave out.

        Returns:
            The jobs in order of arrival, each with the reason; the instant of the next one, or
            None.
        """
        looks = []
        for pin in pins:
            times = self._hangs.get(pin)
            if times is None:
                continue
            for name in times.pop_due(self.now):
                finding = _hangs(self.jobs[name], self._rules)
                assert finding is not None, name
                self._hung[name] = finding[0]
            looks.append(times.first_due(apart))
        found = [
            (self.jobs[name], why)
            for name, why in self._hung.items()
            if name not in apart and self.jobs[name].pin in pins
        ]
        found.sort(key=lambda each: each[0].sequence)
        soonest = min((at for at in looks if at is not None), default=None)
        return found, None if soonest is None else Instant(soonest)

    def over(self, view: VcView) -> dict[str, int]:
        """Return by pin how many more GPUs the VC's jobs have or want than there are."""
        over = {pin: -gpus for pin, gpus in view.gpus_for().items()}
        for pin, gpus in self.asked.items():
            over[pin] = over.get(pin, 0) + gpus
        return over

    def crowded(self, view: VcView) -> dict[str, int]:
        """Return by node how many more GPUs are allocated there than it has, if any."""
        found = {}
        for node in view.nodes:
            taken = self._taken.get(node.node, 0)
            size = max(self.size(node), 1)
            if taken > size:
                found[node.node] = taken - size
        return found

    def size(self, node: NodeView) -> int:
        """Return how many GPUs a node has for the VC: free ones, and those that its jobs hold."""
        free = node.free + sum(gpus for _, gpus in node.pins)
        return free + self._held.get(node.node, 0)

    @property
    def comes(self) -> bool:
        """Return whether a job waits that has no nodes yet."""
        return any(self._fresh.values())

    def spare(self, node: NodeView, unit: JobView) -> int:
        """Return how many GPUs of a node no other unit needs while a unit has its own there.

        A unit that needs more than is left beside it, such as a gang of the whole node, is
        suspended then in any case.

        Args:
            node: The node.
            unit: A unit on it.

        Returns:
            Below 0: that many GPUs are missing.
        """
        size = self.size(node)
        left = size - unit.gpus
        there, comes = self._sizes.get(node.node, {}), self._fresh.get(unit.pin, {})
        wanted = sum(gpus * many for gpus, many in there.items() if gpus <= left)
        # A job that has no nodes yet, and needs several, may get what is left here.
        wanted += sum(gpus * many for gpus, many in comes.items() if gpus <= left or gpus > size)
        return left - wanted + (unit.gpus if unit.gpus <= left else 0)

    def capacity(self, view: VcView, *, stopping: bool = False) -> FreeCapacity:
        """Return the free capacity while all jobs keep what they have.

        Args:
            view: The VC.
            stopping: Whether GPUs of jobs that are being stopped count as free.
        """
        leaving = (
            [job for job in self.jobs.values() if job.phase is Phase.STOPPING and not job.borrows]
            if stopping
            else ()
        )
        return FreeCapacity.after(view, leaving, self._kept)


def arrived(jobs: dict[str, JobView]) -> list[JobView]:
    """Return jobs in the order of arrival."""
    return sorted(jobs.values(), key=lambda job: job.sequence)


def _elastic(job: JobView) -> bool:
    elastic = job.spec.elastic
    return elastic is not None and elastic.min <= job.workers <= elastic.max


def _has_grown(job: JobView) -> bool:
    """Return whether a job has more workers than its spec asks for, and can give them back."""
    more = job.workers > job.spec.resources.workers and "resize" in job.can
    return more and len(job.nodes) == 1 and not job.partners


def _hangs(job: JobView, rules: Rules) -> tuple[Reason, Instant] | None:
    """Return why and when a job is to lose its GPUs if nothing changes; None: it keeps them.

    Measurements hold from when they were last reported, as a change would be reported.
    """
    since = max(job.since, job.steps_at)
    if not job.steps or not job.steps_at:
        return None
    if rules.stalled and not job.rate_milli:
        return Reason.NO_PROGRESS, after(since, rules.stalled)
    if rules.idle and 0 <= job.utilisation < UNUSED:
        return Reason.GPUS_UNUSED, after(since, rules.idle)
    return None
