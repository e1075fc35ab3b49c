"""YARN's capacity scheduler, with preemption for affinity, as HiveD compares itself with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from skep.policies.parts import arrived, own, queued
from skep.policies.policy import Policy
from skep.policies.preempt import STOPPABLE
from skep.policies.room import Place, Room, make_room
from skep.view.plan import Plan, Preempt, Turn
from skep.view.view import HOLDING, JobView, Phase, VcView
from skep.wire.reasons import Reason


class YarnCs(Policy, frozen=True):
    """Queues with guaranteed parts of the GPUs; who has less than his takes from who has more.

    `queues` are pairs of a name and its weight; a job's queue is its label `label`. A queue may use
    what is idle beyond its part. Each is served in order of arrival. Who is preempted depends on
    the affinity that the job wants, and not on age: where the fewest GPUs have to be cleared, and
    never so many that a queue falls below its part. A higher priority may preempt any lower one.
    """

    name: ClassVar[str] = "yarn-cs"
    source: ClassVar[str] = "HiveD, section 5 (YARN-CS with its refined preemption)"
    queues: tuple[tuple[str, float], ...] = ()
    label: str = "queue"

    def __post_init__(self) -> None:
        """Refuse weights that are not positive."""
        if any(weight <= 0 for _, weight in self.queues):
            reason = "a queue's weight is more than 0"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True: affinity is on nodes."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return a turn for each that fits, or may have room made; the first of a queue blocks."""
        queues = _Queues(self, view)
        turns: list[Turn] = []
        victims: list[JobView] = []
        lines: dict[str, list[JobView]] = {}
        for job in arrived(queued(view)):
            lines.setdefault(self.queue(job), []).append(job)
        while lines:
            queue = min(lines, key=lambda name: queues.rank(lines[name][0]))
            job = lines[queue].pop(0)
            place = queues.place(job)
            if place is None:
                leaving = queues.make_room(job)
                victims.extend(leaving)
                place = queues.place(job)
            if place is None or not lines[queue]:
                del lines[queue]
            if place is None:
                continue
            queues.take(job, place)
            turns.append(Turn(job.job, Reason.ARRIVAL, tuple(node for node, _ in place)))
        return Plan(
            turns=tuple(turns),
            strict=False,
            actions=tuple(Preempt(job.job, Reason.OUTRANKED) for job in victims),
        )

    def queue(self, job: JobView) -> str:
        """Return whose part of the GPUs a job uses."""
        return job.spec.labels.get(self.label, "")


class _Queues:
    """Who has how much of his part, and where there is room."""

    def __init__(self, policy: YarnCs, view: VcView) -> None:
        self._policy = policy
        total = sum(weight for _, weight in policy.queues)
        self._part = {name: int(view.gpus * w / total) for name, w in policy.queues}
        self._has: dict[str, int] = {}
        staying = [
            job for job in own(view) if job.phase in HOLDING and job.phase is not Phase.STOPPING
        ]
        for job in staying:
            self._count(job, job.gpus)
        self._room = Room(view, staying)
        self._running = [job for job in arrived(staying) if job.phase in STOPPABLE]

    def rank(self, job: JobView) -> tuple[int, bool, int]:
        """Return which queue is served next: by the first of its jobs, the lowest rank first."""
        return -job.spec.priority, not self.within(job), job.sequence

    def within(self, job: JobView) -> bool:
        """Return whether a job is within its queue's part."""
        queue = self._policy.queue(job)
        return self._has.get(queue, 0) + job.gpus <= self._part.get(queue, 0)

    def place(self, job: JobView) -> Place | None:
        """Return where a job fits, those that are being stopped being gone."""
        return self._room.fit(job)

    def take(self, job: JobView, place: Place) -> None:
        """Count a job as placed."""
        self._room.take(job, place)
        self._count(job, job.gpus)

    def make_room(self, job: JobView) -> list[JobView]:
        """Return who leaves for a job that is within its queue's part, or more important."""
        within = self.within(job)

        def may_leave(leaving: Sequence[JobView]) -> bool:
            gone: dict[str, int] = {}
            for each in leaving:
                if each.spec.priority < job.spec.priority:
                    continue
                if each.spec.priority > job.spec.priority or not within:
                    return False
                other = self._policy.queue(each)
                gone[other] = gone.get(other, 0) + each.gpus
            return all(
                self._has[other] - gpus >= self._part.get(other, 0) for other, gpus in gone.items()
            )

        leaving = make_room(job, self._room, self._running[::-1], {}, may_leave) or []
        for each in leaving:
            self._room.release(each)
            self._count(each, -each.gpus)
            self._running.remove(each)
        return leaving

    def _count(self, job: JobView, gpus: int) -> None:
        queue = self._policy.queue(job)
        self._has[queue] = self._has.get(queue, 0) + gpus
