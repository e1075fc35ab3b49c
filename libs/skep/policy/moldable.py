"""Where moldable jobs start, and in which order: the least GPU time first, a late job behind.

    models, measured --> Speeds --> Task: placements of a job --> Stand: its place in the order
    what other jobs leave free --> Room --> turns, up to the first job that is worth a wait

A moldable job may begin on several numbers of GPUs, and its speeds there are known (`symmetric`).
It is to have the most cost-effective placement with which it is on time, and if there is none, the
most cost-effective of all. Jobs come in the order of the GPU time that they take there: of equal
GPUs that saves the most jobs, and each waits for the least work of others. A job that cannot be on
time any more comes as if it took `late` times as long, so what can still be saved goes before it,
but not for ever: for each `half_s` that a job has waited its GPU time counts half.

The first job starts at its placement, or at any other on-time one that is free now and nearly as
cost-effective (`near`). If none is free, it waits, and all behind it do: what comes free is for it.

Source: Skep. Moore (1968) and Smith (1956) for one machine and jobs of fixed size; the cost of
placements is GENIE's (section 5.2.2).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import ceil, floor
from operator import attrgetter
from typing import NamedTuple

import msgspec

from skep.policy.capacity import NodeCapacity
from skep.policy.incremental import changes
from skep.policy.line import Line, Reading, Stand
from skep.policy.plan import Plan, Turn, Withheld
from skep.policy.schedulers.elasticflow import DEADLINE, deadline
from skep.policy.symmetric import Option, Room, Speeds, Task
from skep.policy.view import JobView, Phase, VcView
from skep.units import Duration, Instant
from skep.wire.reasons import Reason

WHY = Reason.SMALLEST_PRODUCT
_sequence = attrgetter("sequence")
HALVINGS_MAX = 40
"""A job's GPU time counts half so many times at most: then it is before all others."""


class Rule(NamedTuple):
    """The numbers of the order."""

    start: Duration
    """What it takes to begin."""
    late: float
    near: float
    margin: float
    """A job is on time if it would be, were it slower by this part of its time."""
    half: Duration


class Moldable:
    """The moldable jobs of a VC that wait, in their order."""

    def __init__(self, speeds: Speeds, rule: Rule) -> None:
        """Begin without jobs.

        Args:
            speeds: Rates of jobs.
            rule: The numbers of the order.
        """
        self._speeds, self._rule = speeds, rule
        self._line, self._nodes = Line(), NodeCapacity()
        self._forget()

    def _forget(self) -> None:
        self._seen: tuple[JobView, ...] = ()
        self._platform = (0, 0)
        self._parts: dict[bool, list[JobView]] = {False: [], True: []}
        """Whether jobs are moldable and wait; in the order of arrival."""

    def divide(self, view: VcView) -> tuple[VcView, VcView]:
        """Return a view without the moldable jobs that wait, and one with nothing but them.

        A job with an accepted promise is not among them: its GPUs are in the book.
        """
        platform = len(view.nodes), view.node_gpus
        if platform != self._platform:
            self._forget()
        try:
            for old, new in changes(self._seen, view.jobs):
                if old is not None:
                    self._leave(old)
                if new is not None:
                    insort(self._parts[self._moldable(new, view)], new, key=_sequence)
        except BaseException:
            self._forget()  # It may be half changed.
            raise
        self._seen, self._platform = view.jobs, platform
        rest, ours = (tuple(self._parts[which]) for which in (False, True))
        return msgspec.structs.replace(view, jobs=rest), msgspec.structs.replace(view, jobs=ours)

    def _leave(self, job: JobView) -> None:
        for jobs in self._parts.values():
            at = bisect_left(jobs, job.sequence, key=_sequence)
            if at < len(jobs) and jobs[at].sequence == job.sequence:
                del jobs[at]

    def _moldable(self, job: JobView, view: VcView) -> bool:
        if job.phase is not Phase.WAITING:
            return False
        promise = job.spec.promise
        accepted = promise is not None and promise.answer == "accepted"
        return not accepted and self._speeds.task(job, view) is not None

    def add(self, view: VcView, rest: VcView, ours: VcView, made: Plan) -> Plan:
        """Return a plan with the turns of moldable jobs behind those of others.

        Args:
            view: The VC.
            rest: The same without its moldable jobs that wait.
            ours: The same with nothing but these.
            made: The plan for the rest.
        """
        queue = self._line.follow(ours, lambda job: self._stand(job, view))
        if not queue or made.actions:
            return made
        self._nodes.follow(view.nodes)
        room = Room(view, self._nodes)
        jobs = {job.job: job for job in rest.jobs} if made.turns else {}
        for turn in made.turns:
            if not room.place(_asked(jobs[turn.job], turn), None, turn.why):
                return made  # It waits for GPUs that others leave.
        others = len(room.turns)
        holds, look_at = self._serve(queue, room, made, view.now)
        return Plan(
            turns=(*made.turns, *room.turns[others:]),
            strict=False,
            holds=(*made.holds, *holds),
            look_at=look_at,
            behind=Reason.WAITS_BEHIND,
        )

    def _stand(self, job: JobView, view: VcView) -> Stand:
        """Return where a job is to go, and its place in the order, at the time of a view."""
        task, rule, now = self._speeds.task(job, view), self._rule, view.now
        assert task is not None
        due = due_of(job)
        within = 0 if due is None else max(due - now, 0)
        option, timely = task.choose(floor(within / (1 + rule.margin)), rule.start)
        takes = option.split.gpus * task.time(option, rule.start)
        halvings = min(max(now - job.submitted_at, 0) // rule.half, HALVINGS_MAX)
        until = Instant(job.submitted_at + (halvings + 1) * rule.half)
        if timely and due is not None:
            until = min(until, Instant(due - self._safely(task, option) + 1))
        else:
            takes = ceil(takes * rule.late)
        return Stand(
            (-job.spec.priority, takes >> halvings),
            (job.pin, job.spec.resources),
            task,
            option,
            max(until, Instant(now + 1)),
            due if timely else None,
        )

    def _serve(
        self, queue: Reading, room: Room, made: Plan, now: Instant
    ) -> tuple[list[Withheld], Instant | None]:
        """Give the first jobs their turns; return what the next one waits for, and until when."""
        holds, blocked, look_at = list[Withheld](), dict[str, None](), made.look_at
        while queue and room.left:
            job, stand = queue.first()
            if job.pin in blocked:
                queue.leave_lane()
                continue
            waits_for = self._place(job, stand, room, now)
            if waits_for is None:
                queue.go_past()
                continue
            blocked[job.pin] = None
            holds.append(Withheld(job.job, Reason.WAITS_FOR_GPUS, needs(waits_for)))
            if stand.until is not None:
                look_at = stand.until if look_at is None else min(look_at, stand.until)
        return holds, look_at

    def _place(self, job: JobView, stand: Stand, room: Room, now: Instant) -> Option | None:
        """Start a job at its placement, or at one that is nearly as good.

        Returns:
            The placement that it waits for; None: it has its turn, or has no placement at all.
        """
        task, option = stand.task, stand.option
        assert task is not None
        assert option is not None
        ratios = task.options.by_ratio
        for each in ratios[bisect_left(ratios, -option.ratio, key=lambda one: -one.ratio) :]:
            if each.ratio * self._rule.near < option.ratio:
                break
            in_time = stand.ends is None or now + self._safely(task, each) <= stand.ends
            if in_time and room.place(job, each.split, WHY):
                return None
        other = room.possible(task, option, job)
        if other is None or other is option or not room.place(job, other.split, WHY):
            return other
        return None

    def _safely(self, task: Task, option: Option) -> Duration:
        """Return how long a job takes at a placement, and the margin."""
        return Duration(ceil(task.time(option, self._rule.start) * (1 + self._rule.margin)))


def due_of(job: JobView) -> Instant | None:
    """Return when a job is to have ended; None: it has no deadline."""
    promise = job.spec.promise
    if promise is not None and promise.due:
        return Instant(promise.due)
    return deadline(job, DEADLINE)


def needs(option: Option) -> str:
    """Return in words what a placement needs."""
    split = option.split
    return f"{split.each} GPUs on {'each of ' if split.nodes > 1 else ''}{split.nodes} nodes"


def _asked(job: JobView, turn: Turn) -> JobView:
    """Return a job as it will be with the workers of its turn."""
    if not turn.workers or turn.workers == job.workers:
        return job
    each = max(job.spec.resources.gpus, 1)
    return msgspec.structs.replace(job, workers=turn.workers, gpus=turn.workers * each)
