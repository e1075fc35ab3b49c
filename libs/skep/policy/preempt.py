"""Which jobs should have a VC's GPUs by a preemptive order, and which are preempted for them.

The order ranks running and waiting jobs together. Jobs are selected in this order while the VC's
GPUs suffice. Selected jobs that wait get a turn; a running job that is not selected is stopped only
if that lets a selected one run. A job that is being stopped counts as one that waits for GPUs that
come free, so a plan does not change while it is carried out.

Jobs that hold GPUs before the first job that wants some keep theirs, and are not looked at. Behind
it, jobs are read in their order until no GPU is left for any of them; what asks for more than is
left, or for what had no place already, is skipped as a whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from skep.policy.capacity import FreeCapacity, Place, choose_victims
from skep.policy.plan import Plan, Preempt, Turn, Withheld
from skep.policy.roster import Head, Order, Rank, Ranked, Roster
from skep.policy.view import QUEUED, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason


class Selection(NamedTuple):
    """Which jobs should have the VC's GPUs by an order."""

    turns: list[JobView]
    """Those of them that wait, in the order."""
    behind: list[Ranked]
    """Jobs whose GPUs may be taken, without those before all jobs that want some, in the order."""
    taken: dict[str, None]
    """Those of `behind` that should have GPUs, and of the jobs that are being stopped."""
    gpus: dict[str, int]
    """GPUs of `behind`, by pin."""


def select(view: VcView, order: Order) -> Selection:
    """Return the first jobs of an order that the VC's GPUs hold.

    A job that needs more GPUs than are left is skipped.

    Args:
        view: Gives the number of GPUs by pin.
        order: The jobs; some job waits. Those that keep their GPUs in any case come first, wherever
            they would be in it.
    """
    left = view.gpus_for()
    _less(left, order.fixed_gpus)
    behind = order.behind(order.first())
    before, gpus = dict(order.held_gpus), _sums(behind)
    _less(before, gpus)
    if all(held <= left.get(pin, 0) for pin, held in before.items()):
        _less(left, before)
    else:
        behind, gpus = order.behind(None), dict(order.held_gpus)  # Some hardware is bad.
    turns, taken, reading, held = list[JobView](), dict[str, None](), order.read(), 0
    heads = reading.heads
    while max(left.values()) > 0 and (heads or held < len(behind)):
        until = _next_head(heads, behind, held)
        for _, job, pin in behind[held:until]:
            if job.gpus <= left.get(pin, 0):
                left[pin] -= job.gpus
                taken[job.job] = None
        held = until
        if not heads:
            break
        shape = heads[0][3].shape
        if shape.gpus > left.get(shape.pin, 0):
            reading.leave_larger(lambda pin: left.get(pin, 0))
            continue
        job = reading.read()
        left[shape.pin] -= job.gpus
        if shape.waits:
            turns.append(job)
        else:
            taken[job.job] = None
    return Selection(turns, behind, taken, gpus)


_rank = itemgetter(0)


def _next_head(heads: Sequence[Head], behind: Sequence[Ranked], start: int) -> int:
    """Return the place in `behind`, from `start` on, of the next job that wants GPUs."""
    return bisect_left(behind, heads[0][0], start, key=_rank) if heads else len(behind)


def _sums(jobs: Sequence[Ranked]) -> dict[str, int]:
    """Return the GPUs of jobs by pin."""
    sums = dict[str, int]()
    for _, job, pin in jobs:
        sums[pin] = sums.get(pin, 0) + job.gpus
    return sums


def _less(sums: dict[str, int], others: Mapping[str, int]) -> None:
    """Subtract GPUs by pin."""
    for pin, gpus in others.items():
        sums[pin] = sums.get(pin, 0) - gpus


def preempt_for(
    view: VcView,
    roster: Roster,
    order: Order,
    why: Reason,
    *,
    because: Reason = Reason.OUTRANKED,
    look_at: Instant | None = None,
) -> Plan:
    """Return the plan of a preemptive order.

    If the view has nodes, gangs are placed on them. A gang that would not fit as closely as it has
    to, even if all jobs after it left, is withheld, and no job is stopped for it. Without nodes,
    GPUs are only counted, as if all were of one type.

    Args:
        view: The VC.
        roster: What has followed the views of the VC up to this one.
        order: Its running and waiting jobs, the first to run first.
        why: The reason of turns.
        because: The reason of preemptions.
        look_at: When to plan again if no event comes before.
    """
    if not order.waits:
        return Plan(look_at=look_at)
    selection = select(view, order)
    if not selection.turns:
        return Plan(look_at=look_at)
    if not view.nodes:
        victims = _victims_by_count(view, order, selection)
        turns = tuple([Turn(job.job, why) for job in selection.turns])
        holds: tuple[Withheld, ...] = ()
    else:
        places = _Places(view, roster, order, selection)
        places.find()
        victims = places.victims()
        turns = tuple(
            [
                Turn(job.job, why, tuple([node for node, _ in place]))
                for job, place in places.at.values()
                if job.phase in QUEUED
            ]
        )
        held = [job for job in selection.turns if job.job not in places.at]
        holds = tuple([Withheld(job.job, Reason.WAITS_FOR_AFFINITY) for job in held])
    actions = tuple([Preempt(job.job, because) for job in victims])
    return Plan(turns=turns, strict=False, actions=actions, holds=holds, look_at=look_at)


def _victims_by_count(view: VcView, order: Order, selection: Selection) -> list[JobView]:
    """Return the jobs to preempt, last first, so that the GPUs suffice for all selected jobs."""
    taken = selection.taken
    free = view.free_for()
    for job in selection.turns:
        free[job.pin] -= job.gpus
    for job in order.stopping:
        if job.job not in taken:
            free[job.pin] = free.get(job.pin, 0) + job.gpus
    victims = []
    for _, job, pin in reversed(selection.behind):
        if free.get(pin, 0) < 0 and job.job not in taken:
            victims.append(job)
            free[pin] += job.gpus
    return victims


class _Places:
    """Where each job would be if the order were carried out with as few moves as possible.

    Waiting jobs are placed one after the other: on free GPUs, or on GPUs that later jobs leave.
    Jobs that were not selected leave first. A preempted job is tried again at its own place in the
    order.
    """

    def __init__(self, view: VcView, roster: Roster, order: Order, selection: Selection) -> None:
        self.at: dict[str, tuple[JobView, Place]] = {}
        """Jobs that wait, or that leave and come back, in their order, and their places."""
        self.leaving: dict[str, JobView] = {}
        self._reading = order.read()
        self._behind, self._taken = selection.behind, selection.taken
        lower, taken = self._behind[::-1], self._taken
        self._lower = [each for each in lower if each[1].job not in taken]
        """Jobs that may leave, the first to leave first."""
        self._lower += [each for each in lower if each[1].job in taken]
        self._coming = selection.gpus
        """GPUs of jobs behind the present one that may leave and have not, by pin."""
        kept = dict(order.fixed_gpus)
        for pin, gpus in order.held_gpus.items():
            kept[pin] = kept.get(pin, 0) + gpus
        self._capacity = FreeCapacity.after(view, order.stopping, kept, roster.nodes)

    def find(self) -> None:
        """Find a place for each job that can have one."""
        reading, behind, held = self._reading, self._behind, 0
        heads = reading.heads
        while heads or (self.leaving and held < len(behind)):
            until = _next_head(heads, behind, held)
            if held < until:
                held = self._pass(held, until)
                continue
            rank, _, at, lane = heads[0]
            if lane.shape.gpus > self._most(lane.shape.pin):
                reading.leave_larger(self._most)
            elif self._find(rank, lane.jobs[at]) or lane.shape.resources is None:
                reading.read()
            else:
                reading.leave()

    def victims(self) -> list[JobView]:
        """Return the jobs that leave, the last of the order first."""
        if not self.leaving:
            return []
        return [job for _, job, _ in reversed(self._behind) if job.job in self.leaving]

    def _most(self, pin: str) -> int:
        """Return how many GPUs the present job could have if all jobs behind it left."""
        return self._capacity.left(pin) + self._coming.get(pin, 0)

    def _pass(self, start: int, end: int) -> int:
        """Go past jobs that have GPUs, up to one that leaves for others and may go on elsewhere.

        Args:
            start: The place of the first of them in `_behind`.
            end: The place behind the last.

        Returns:
            The place behind the last one that was passed.
        """
        for at, (rank, job, pin) in enumerate(self._behind[start:end], start + 1):
            if job.job not in self.leaving:
                self._coming[pin] -= job.gpus
            elif job.gpus <= self._most(pin):
                self._find(rank, job)
                return at  # Jobs in front of `end` may want GPUs again.
        return end

    def _find(self, rank: Rank, job: JobView) -> bool:
        """Find a place for one job; jobs behind it leave for it if that helps.

        Returns:
            Whether it has one.
        """
        place = self._capacity.fit(job)
        if place is None and self._clear(rank, job):
            self._reading.take_up(rank)  # What others leave may serve them, too.
            place = self._capacity.fit(job)
        if place is None:
            return False
        self._capacity.take(job, place)
        self.at[job.job] = job, place
        return True

    def _clear(self, rank: Rank, job: JobView) -> bool:
        """Preempt some of the jobs behind a job, if it fits then; return whether any."""
        if job.phase is Phase.STOPPING:
            return False
        gone = self.leaving
        able = [each for behind, each, _ in self._lower if behind > rank and each.job not in gone]
        cost = {each.job: each.gpus if each.job in self._taken else 0 for each in able}
        victims = choose_victims(job, self._capacity, able, cost) or ()
        for each in victims:
            self.leaving[each.job] = each
            self._coming[each.pin] -= each.gpus
            self._capacity.release(each)
        return bool(victims)
