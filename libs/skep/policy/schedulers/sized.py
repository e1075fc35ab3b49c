"""The schedulers that GENIE is compared with: an order, and how many GPUs a task gets.

    FIFO               order arrival,  size all          Min-Min        order deadline, size all
    Capacity           the same, by_model                Weighted Fair  order weighted, size all
    Tetris+Perf        order arrival,  size performance  Tetris+CER     order arrival,  size cost

The paper does not say what "simply allocates the available resources" comes to. All that is free,
one node and one GPU are three readings, and Tetris' order is another choice: these are options.

Source: GENIE (TPDS 2020), section 7.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from skep.perf.model.genie import THETA, Split
from skep.policy.api import Planner, Policy
from skep.policy.capacity import NodeCapacity
from skep.policy.line import NEVER, Line, Reading, Stand, plain_lane
from skep.policy.parts import portions
from skep.policy.plan import Plan, Withheld
from skep.policy.powers import Powers
from skep.policy.schedulers.elasticflow import DEADLINE
from skep.policy.schedulers.genie import due
from skep.policy.symmetric import MeasuredRow, ModelRow, Option, Room, Speeds, Task
from skep.policy.view import HOLDING, JobView, VcView
from skep.units import Duration, in_seconds, seconds
from skep.wire.reasons import Reason

WHY = {
    "arrival": Reason.ARRIVAL,
    "deadline": Reason.EARLIEST_COMPLETION,
    "weighted": Reason.LOWEST_WEIGHTED_AGE,
    "shortest": Reason.SHORTEST_JOB,
}


class Sized(Policy, frozen=True, kw_only=True):
    """An order of the waiting tasks, and a rule for how many GPUs each gets.

    `order`: by arrival; by expected completion time, as of `genie` (`deadline`); by the mean of
    both, in which the arrival has the part `weight` (`weighted`); or by the length at the size that
    it gets (`shortest`). `size`: the largest symmetric placement of what is free when its turn
    comes (`all`), a `node`, a `gpu`, the placement with the most samples per second
    (`performance`), or with the most of them for their cost (`cost`, with weight `theta`).

    With `by_model` each model (the first part of `size.family`, before a `/`) has an equal part of
    the GPUs and nothing but it, in an order of its own. With `strict` the first task that has no
    room blocks the others of the queue. `models`, `measured`, `start_s` and `label` are those of
    `genie`. A task whose rates are not known has the GPUs of its spec.
    """

    name: ClassVar[str] = "sized"
    source: ClassVar[str] = "GENIE (TPDS 2020), section 7.1 (baselines)"
    order: Literal["arrival", "deadline", "weighted", "shortest"] = "arrival"
    size: Literal["all", "node", "gpu", "performance", "cost"] = "all"
    by_model: bool = False
    strict: bool = True
    models: tuple[ModelRow, ...] | Literal["learned"] = ()
    measured: tuple[MeasuredRow, ...] = ()
    start_s: float = 0
    theta: float = THETA
    weight: float = 0.5
    label: str = DEADLINE

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: A number is negative or too large, or `label` is empty.
        """
        if self.start_s < 0 or self.theta < 0:
            reason = "start_s is seconds and theta a weight, both 0 or more"
            raise ValueError(reason)
        if not 0 <= self.weight <= 1:
            reason = f"weight is the part that the arrival has, 0 to 1: not {self.weight}"
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
        """Return those of an order of the queue; urgent tasks come first where deadlines count."""
        first = self.order in ("deadline", "weighted")
        return Powers(
            passes=not self.strict,
            run_times=self.order != "arrival",
            priority="first" if first else "ignored",
        )

    def plan(self, view: VcView) -> Plan:
        """Return turns for the first tasks of the order that have room."""
        return self.planner()(view)

    def planner(self) -> Planner:
        """Return a function that keeps the order of waiting jobs from one view to the next."""
        speeds, start = Speeds(self.models, self.measured, self.theta), seconds(self.start_s)
        line, nodes = Line(), NodeCapacity()

        def plan(view: VcView) -> Plan:
            nodes.follow(view.nodes)
            queue = line.follow(view, lambda job: self._stand(job, speeds.task(job, view), start))
            return self._serve(view, queue, Room(view, nodes))

        return plan

    def _stand(self, job: JobView, task: Task | None, start: Duration) -> Stand:
        """Return the place of a job in the order, and its placement if that does not depend."""
        option = None if task is None else self._option(task)
        key, kind = self._key(job, task, option, start), self._kind(job)
        if task is None:
            return Stand(key, (kind, plain_lane(job)))
        # What is taken of all that is free is at least what the smallest placement needs.
        split = option.split if option is not None else _smallest(task).split
        return Stand(key, (kind, split, job.pin, job.spec.resources), task, option)

    def _key(self, job: JobView, task: Task | None, option: Option | None, start: Duration) -> int:
        if self.order == "arrival":
            return 0
        if self.order == "shortest":
            if task is not None:
                return task.time(option or task.options.fastest, start)
            return NEVER if job.expected is None else job.expected
        if task is not None:
            alone_s = task.samples / task.options.alone + in_seconds(start)
        elif job.expected is not None:
            alone_s = in_seconds(job.expected)
        else:
            return NEVER
        ends = due(job, alone_s, self.label)
        if self.order == "deadline":
            return ends
        part = round(self.weight * 1000)
        return (part * job.submitted_at + (1000 - part) * ends) // 1000

    def _option(self, task: Task) -> Option | None:
        """Return the placement of a task; None: it depends on what is free."""
        match self.size:
            case "performance":
                return task.options.fastest
            case "cost":
                return task.options.best[0]
            case "gpu":
                return _smallest(task)
            case "node":
                inside = [each for each in task.options.by_ratio if each.split.nodes == 1]
                return max(inside or task.options.by_ratio, key=lambda each: each.split.gpus)
            case "all":
                return None

    def _serve(self, view: VcView, queue: Reading, room: Room) -> Plan:
        holds: list[Withheld] = []
        parts = self._parts(view)
        blocked = dict[str, None]()
        while queue and room.left and len(blocked) < len(parts):
            job, stand = queue.first()
            kind = self._kind(job)
            taken = 0 if kind in blocked else self._place(job, stand, room, parts[kind])
            if taken:
                parts[kind] -= taken
                queue.go_past()
                continue
            if self.strict and kind not in blocked:
                other = self._other(job, stand, room)
                if other is not None:
                    parts[kind] -= other
                    queue.go_past()
                    continue
                blocked[kind] = None
                holds.append(Withheld(job.job, self._why_not()))
            queue.leave_lane()
        return Plan(
            turns=tuple(room.turns), strict=False, holds=tuple(holds), behind=self._behind()
        )

    def _why_not(self) -> Reason:
        return Reason.SHARE_USED_UP if self.by_model else Reason.WAITS_FOR_GPUS

    def _behind(self) -> Reason:
        return Reason.WAITS_BEHIND if self.strict else Reason.WAITS_FOR_GPUS

    def _place(self, job: JobView, stand: Stand, room: Room, left: int) -> int:
        """Give a job its turn; return the GPUs that it takes, 0: it has no room.

        Args:
            job: It waits.
            stand: Where it stands.
            room: What is free.
            left: GPUs that its queue may still have.
        """
        why = WHY[self.order]
        if stand.task is None:
            return job.gpus if job.gpus <= left and room.place(job, None, why) else 0
        for split in self._tried(stand.task, stand.option, left):
            if room.place(job, split, why):
                return split.gpus
        return 0

    def _other(self, job: JobView, stand: Stand, room: Room) -> int | None:
        """Return the GPUs that a job takes elsewhere, as its own placement is impossible.

        Args:
            job: It has no room.
            stand: Where it stands.
            room: What is free.

        Returns:
            0: it can be nowhere, and blocks no other; None: it waits for its placement.
        """
        if self.by_model or stand.task is None or stand.option is None:
            return None
        option = room.possible(stand.task, stand.option, job)
        if option is None:
            return 0
        if option is stand.option or not room.place(job, option.split, WHY[self.order]):
            return None
        return option.split.gpus

    def _tried(self, task: Task, option: Option | None, left: int) -> Iterable[Split]:
        """Return the placements that a task would take, the first one first."""
        if option is not None:
            return (option.split,) if option.split.gpus <= left else ()
        found = [each.split for each in task.options.by_ratio if each.split.gpus <= left]
        return sorted(found, key=lambda split: (-split.gpus, split.nodes))

    def _kind(self, job: JobView) -> str:
        return (job.spec.size.family or "").partition("/")[0] if self.by_model else ""

    def _parts(self, view: VcView) -> dict[str, int]:
        """Return by queue the GPUs that it may still have."""
        if not self.by_model:
            return {"": view.gpus}
        rows = () if isinstance(self.models, str) else self.models
        named = [row[0] for row in rows] + [row[0] for row in self.measured]
        kinds = {kind.partition("/")[0]: 1.0 for kind in named}
        kinds |= {self._kind(job): 1.0 for job in view.jobs}
        parts = portions(view.gpus, {kind: kinds[kind] for kind in sorted(kinds)})
        for job in view.jobs:
            if job.phase in HOLDING and not job.borrows:
                parts[self._kind(job)] -= job.gpus
        return parts


def _smallest(task: Task) -> Option:
    return min(task.options.by_ratio, key=lambda each: each.split.gpus)
