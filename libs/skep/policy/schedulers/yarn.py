"""YARN's capacity scheduler with preemption for affinity: HiveD's baseline.

Source: HiveD, section 5 (YARN-CS with its refined preemption).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.capacity import FreeCapacity, Place, choose_victims
from skep.policy.parts import by_arrival, check_unique, own_jobs, portions
from skep.policy.plan import Plan, Preempt, Turn
from skep.policy.powers import Powers
from skep.policy.view import HOLDING, QUEUED, STOPPABLE, JobView, Phase, VcView
from skep.wire.reasons import Reason

Line = tuple[str, str]
"""A queue, and the pinned cell that its jobs name (empty: none), which is shared separately."""


class YarnCs(Policy, frozen=True):
    """Queues with guaranteed parts of the GPUs; a queue below its part preempts jobs of others.

    `queues` are pairs of a name and its weight; a job's queue is its label `label`. A queue may use
    what is idle beyond its part. Each is served in order of arrival. Victims are chosen by the
    affinity that the job wants, not by age: where the fewest GPUs have to be cleared, and never so
    many that a queue falls below its part. A higher priority may preempt any lower one, so what a
    queue has counts against a job only as far as it is of that job's priority or above.

    Of a thousand random plans with preemptions, one or two are followed by a plan that preempts
    further jobs: turns name nodes and not GPUs, so a gang may go to another of its nodes once more
    GPUs have come free.
    """

    name: ClassVar[str] = "yarn-cs"
    source: ClassVar[str] = "HiveD, section 5 (YARN-CS with its refined preemption)"
    queues: tuple[tuple[str, float], ...] = ()
    label: str = "queue"

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: A weight is not positive or named twice, or `label` is empty.
        """
        if any(weight <= 0 for _, weight in self.queues):
            reason = "a queue's weight is more than 0"
            raise ValueError(reason)
        check_unique("queues", (name for name, _ in self.queues))
        if not self.label:
            reason = "label names the label that tells a job's queue: it is empty"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True: affinity depends on nodes."""
        return True

    @property
    def powers(self) -> Powers:
        """Return that queues preempt one another; without queues only higher priorities do."""
        return Powers(suspends=bool(self.queues), priority="takes")

    def plan(self, view: VcView) -> Plan:
        """Return a turn for each job that fits, or for which jobs can be preempted.

        The first job of a queue that cannot be placed blocks its queue. A victim is tried again at
        its own place in its queue, before later jobs: else the next plan would preempt them for it.
        Capacity is reserved for jobs that are being stopped in the same way, so that a plan does
        not change while it is carried out.
        """
        queues = _Queues(self, view)
        turns: list[Turn] = []
        victims: list[JobView] = []
        while (job := queues.next()) is not None:
            place = queues.place(job)
            if place is None and job.phase is not Phase.STOPPING:
                victims.extend(queues.choose_victims(job))
                place = queues.place(job)
            if place is None:
                queues.block(job)
                continue
            queues.take(job, place)
            if job.phase in QUEUED:
                turns.append(Turn(job.job, Reason.ARRIVAL, tuple(node for node, _ in place)))
        return Plan(
            turns=tuple(turns),
            strict=False,
            actions=tuple(Preempt(job.job, Reason.OUTRANKED) for job in victims),
        )

    def line(self, job: JobView) -> Line:
        """Return the queue and pin whose part a job uses.

        Returns:
            The name of the queue, and that of the pin; empty: none.
        """
        return job.label(self.label) or "", job.pin


def _place_in_line(job: JobView) -> tuple[int, int]:
    return -job.spec.priority, job.sequence


class _Queues:
    """How much of its part each queue has, and the free capacity."""

    def __init__(self, policy: YarnCs, view: VcView) -> None:
        self._policy = policy
        self._parts = {
            (name, pin): part
            for pin, gpus in view.gpus_for().items()
            for name, part in portions(gpus, dict(policy.queues)).items()
        }
        self._used: dict[Line, dict[int, int]] = {}
        """By queue and priority: GPUs of its jobs, without jobs that are being stopped."""
        staying = [
            job
            for job in own_jobs(view)
            if job.phase in HOLDING and job.phase is not Phase.STOPPING
        ]
        for job in staying:
            self._count(job, job.gpus)
        self._lines: dict[Line, list[JobView]] = {}
        self._blocked: dict[Line, JobView] = {}
        for job in own_jobs(view):
            if job.phase in QUEUED or job.phase is Phase.STOPPING:
                self._lines.setdefault(policy.line(job), []).append(job)
        for line in self._lines.values():
            line.sort(key=_place_in_line)
        self._capacity = FreeCapacity(view, staying)
        self._running = [job for job in by_arrival(staying) if job.phase in STOPPABLE]

    def next(self) -> JobView | None:
        """Remove the job that is served next from its line, and return it; None: there is none."""
        heads = [
            jobs[0] for line, jobs in self._lines.items() if jobs and line not in self._blocked
        ]
        if not heads:
            return None
        job = min(heads, key=self._rank)
        self._lines[self._policy.line(job)].remove(job)
        return job

    def _rank(self, job: JobView) -> tuple[int, bool, int]:
        return -job.spec.priority, not self.within(job), job.sequence

    def block(self, job: JobView) -> None:
        """Block a job's line: its other jobs wait behind the job."""
        self._blocked[self._policy.line(job)] = job

    def _requeue(self, job: JobView) -> None:
        """Put a preempted job into its line; unblock the line if the blocking job comes later."""
        line = self._policy.line(job)
        jobs, head = self._lines.setdefault(line, []), self._blocked.get(line)
        jobs.append(job)
        if head is not None and _place_in_line(job) < _place_in_line(head):
            jobs.append(self._blocked.pop(line))
        jobs.sort(key=_place_in_line)

    def within(self, job: JobView) -> bool:
        """Return whether a job is within its queue's part."""
        line = self._policy.line(job)
        return self._used_from(line, job.spec.priority) + job.gpus <= self._parts.get(line, 0)

    def _used_from(self, line: Line, priority: int) -> int:
        """Return the GPUs of a queue's jobs of this priority or a higher one.

        Lower priorities leave for them, so their GPUs count as available.
        """
        used = self._used.get(line, {})
        return sum(gpus for each, gpus in used.items() if each >= priority)

    def place(self, job: JobView) -> Place | None:
        """Return where a job fits once jobs that are being stopped are gone."""
        return self._capacity.fit(job)

    def take(self, job: JobView, place: Place) -> None:
        """Count a job as placed."""
        self._capacity.take(job, place)
        self._count(job, job.gpus)

    def choose_victims(self, job: JobView) -> list[JobView]:
        """Return the jobs to preempt for a job that is within its part, or of higher priority."""
        within = self.within(job)

        def may_leave(leaving: Sequence[JobView]) -> bool:
            gone: dict[Line, int] = {}
            for each in leaving:
                if each.spec.priority < job.spec.priority:
                    continue
                if each.spec.priority > job.spec.priority or not within:
                    return False
                other = self._policy.line(each)
                gone[other] = gone.get(other, 0) + each.gpus
            return all(
                self._used_from(other, job.spec.priority) - gpus >= self._parts.get(other, 0)
                for other, gpus in gone.items()
            )

        leaving = choose_victims(job, self._capacity, self._running[::-1], {}, may_leave) or []
        for each in leaving:
            self._capacity.release(each)
            self._count(each, -each.gpus)
            self._running.remove(each)
            self._requeue(each)
        return leaving

    def _count(self, job: JobView, gpus: int) -> None:
        used = self._used.setdefault(self._policy.line(job), {})
        used[job.spec.priority] = used.get(job.spec.priority, 0) + gpus
