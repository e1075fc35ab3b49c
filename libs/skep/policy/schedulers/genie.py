"""GENIE: each task at the placement that pays best and ends in time, the shortest allowance first.

A task's waiting allowance is its expected completion time, less how long it runs, less the present
time (equation 13). Time passes for all tasks alike, so their order changes only when one of them
can no longer end in time where it would go: then it is to go elsewhere, and its allowance is
another. `Line` keeps the waiting jobs in their order, and the instants of such changes.

Source: GENIE (TPDS 2020), sections 5.2 to 5.4, algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from skep.perf.model.genie import THETA, Qos, ect_s
from skep.policy.api import Planner, Policy
from skep.policy.capacity import NodeCapacity
from skep.policy.line import NEVER, Line, Reading, Stand, plain_lane
from skep.policy.plan import Plan, Withheld
from skep.policy.powers import Powers
from skep.policy.schedulers.elasticflow import DEADLINE, deadline
from skep.policy.symmetric import MeasuredRow, ModelRow, Option, Room, Speeds, Task
from skep.policy.view import JobView, VcView
from skep.units import NS_PER_SECOND, Duration, Instant, in_seconds, seconds
from skep.wire.reasons import Reason

URGENT, PRIOR = 2, 1
"""The priorities from which on a job is of these classes; the rest are normal."""
FREE_TRIED_MAX = 64
"""Jobs whose placements are looked for among what is free in one plan, if the queue does not
block: the first of the order."""


class Genie(Policy, frozen=True, kw_only=True):
    """Shortest waiting allowance first, each task at the most cost-effective placement in time.

    A task's class is its priority: 2 and more is urgent, 1 is prior, else it is normal. Its
    expected completion time is in the label `label` of its spec, seconds from its submission; if it
    has none, it is its submission for urgent, and once or twice its time on one GPU later for prior
    and normal tasks (equation 9; for a task that has no placement on one GPU its smallest is taken
    as if it scaled in proportion). Of the placements with which it ends by then it has the one with
    the highest ratio of samples per second to cost (equations 10 and 11, weight `theta`), and if
    there is none, the one with the highest ratio of all: so it is with urgent tasks always.

    `models` are what profiles found: by kind of task (`size.family`), k0, k1, k2, gamma and lambda
    (equations 7 and 8), in samples per second; with `learned` they are what the advisor measured
    and predicts of each job; `measured` are rates that count more: kind, batch
    size, nodes, GPUs of each, samples per second. `start_s` is what it takes to begin. A task needs
    `size.batch_size` and `size.mini_batches` as well. Any other job has the placement of its spec;
    its length is what its owner says, and if it says nothing, it comes last.

    As printed, a task that is too late comes first, and the first task that has no room blocks all
    others. With `backfill` the next ones are tried. With `late` `last` tasks that cannot end in
    time any more come after all others; urgent ones, which never can, are not among them. With
    `placements` `free` a task whose turn it is has the best placement of those that are free then.
    """

    name: ClassVar[str] = "genie"
    source: ClassVar[str] = "GENIE (TPDS 2020), sections 5.2 to 5.4, algorithm 1"
    models: tuple[ModelRow, ...] | Literal["learned"] = ()
    measured: tuple[MeasuredRow, ...] = ()
    start_s: float = 0
    theta: float = THETA
    backfill: bool = False
    late: Literal["first", "last"] = "first"
    placements: Literal["all", "free"] = "all"
    label: str = DEADLINE

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `start_s` or `theta` is negative, or `label` is empty.
        """
        if self.start_s < 0 or self.theta < 0:
            reason = "start_s is seconds and theta a weight, both 0 or more"
            raise ValueError(reason)
        if not self.label:
            reason = "label names the label of a spec that has its deadline: not empty"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    @property
    def powers(self) -> Powers:
        """Return those of an order of the queue that goes by lengths."""
        return Powers(passes=self.backfill, run_times=True)

    def plan(self, view: VcView) -> Plan:
        """Return turns at their placements for the first tasks of the order that have room."""
        return self.planner()(view)

    def planner(self) -> Planner:
        """Return a function that keeps the order of waiting jobs from one view to the next."""
        speeds, start = Speeds(self.models, self.measured, self.theta), seconds(self.start_s)
        line, nodes = Line(), NodeCapacity()

        def plan(view: VcView) -> Plan:
            nodes.follow(view.nodes)
            queue = line.follow(view, lambda job: self._stand(job, view, speeds, start))
            return self._serve(queue, Room(view, nodes), view.now, start)

        return plan

    def _stand(self, job: JobView, view: VcView, speeds: Speeds, start: Duration) -> Stand:
        """Return where a job is to go, and its place in the order, at the time of a view."""
        task = speeds.task(job, view)
        if task is None:
            return self._plain(job, view.now)
        ends = self._due(job, task, start)
        option, timely = task.choose(ends - view.now, start)
        last = ends - task.time(option, start)
        late = not timely and self.late == "last" and qos(job) is not Qos.URGENT
        lane = None if self.placements == "free" else (option.split, job.pin, job.spec.resources)
        until = Instant(last + 1) if timely else None
        return Stand((late, last), lane, task, option, until, ends)

    def _plain(self, job: JobView, now: Instant) -> Stand:
        """Return the place of a job of which no rates are known."""
        lane = plain_lane(job)
        if job.expected is None:
            return Stand((self.late == "last", NEVER), lane)
        length = job.remaining(now) or Duration(0)
        ends = due(job, in_seconds(job.expected), self.label)
        late = ends - length < now
        until = None if late else Instant(ends - length + 1)
        behind = late and self.late == "last" and qos(job) is not Qos.URGENT
        return Stand((behind, ends - length), lane, until=until, ends=ends)

    def _due(self, job: JobView, task: Task, start: Duration) -> Instant:
        """Return the expected completion time of a task."""
        return due(job, task.samples / task.options.alone + in_seconds(start), self.label)

    def _serve(self, queue: Reading, room: Room, now: Instant, start: Duration) -> Plan:
        """Return the turns of the first jobs that have room."""
        holds, tried = [], 0
        while queue and room.left:
            job, stand = queue.first()
            if self._place(job, stand, room, now, start):
                queue.go_past()
                continue
            if not self.backfill:
                waits = self._waits(job, stand, room)
                if waits is None:
                    queue.go_past()
                    continue
                holds.append(waits)
                break
            if stand.lane is not None:
                queue.leave_lane()
            elif (tried := tried + 1) < FREE_TRIED_MAX:
                queue.go_past()
            else:
                break
        behind = Reason.WAITS_FOR_GPUS if self.backfill else Reason.WAITS_BEHIND
        return Plan(turns=tuple(room.turns), strict=False, holds=tuple(holds), behind=behind)

    def _waits(self, job: JobView, stand: Stand, room: Room) -> Withheld | None:
        """Return what a job waits for that has no room; None: it has another placement, or none.

        Args:
            job: It waits.
            stand: Where it stands.
            room: What is free.
        """
        if stand.task is None or stand.option is None:
            return Withheld(job.job, Reason.WAITS_FOR_GPUS)
        option = room.possible(stand.task, stand.option, job)
        if option is None:
            return None
        if option is not stand.option and room.place(job, option.split, Reason.SHORTEST_ALLOWANCE):
            return None
        return Withheld(job.job, Reason.WAITS_FOR_GPUS, needs(option))

    def _place(self, job: JobView, stand: Stand, room: Room, now: Instant, start: Duration) -> bool:
        task, option, why = stand.task, stand.option, Reason.SHORTEST_ALLOWANCE
        if task is None or option is None or stand.ends is None:
            return room.place(job, None, why)
        if self.placements == "all":
            return room.place(job, option.split, why)
        later: list[Option] = []
        for each in task.options.by_ratio:
            if now + task.time(each, start) > stand.ends:
                later.append(each)
            elif room.place(job, each.split, why):
                return True
        return any(room.place(job, each.split, why) for each in later)


def qos(job: JobView) -> Qos:
    """Return the class of a job: its priority says it, as long as its spec has no key for it."""
    if job.spec.priority >= URGENT:
        return Qos.URGENT
    return Qos.PRIOR if job.spec.priority >= PRIOR else Qos.NORMAL


def due(job: JobView, alone_s: float, label: str) -> Instant:
    """Return the expected completion time of a job (equation 9, from its submission).

    Args:
        job: The job.
        alone_s: How long it runs on one GPU, in seconds.
        label: The label of its spec that has its deadline.
    """
    said = deadline(job, label)
    if said is not None:
        return said
    return Instant(job.submitted_at + round(ect_s(qos(job), alone_s) * NS_PER_SECOND))


def needs(option: Option) -> str:
    """Return in words what a placement needs."""
    split = option.split
    return f"{split.each} GPUs on {'each of ' if split.nodes > 1 else ''}{split.nodes} nodes"
