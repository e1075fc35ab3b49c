"""Plays a copy of the allocator on until one job has its GPUs: nodes obey, jobs end as foreseen.

The machine is used up by it. Nothing here decides: which job starts, and which makes room, is
decided by the machine itself, and read from its facts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from skep.ledger.job_state import JobState, Part, State
from skep.machines.allocator.machine import AllocatorMachine
from skep.machines.allocator.policies import job_rates
from skep.machines.base import Record, Send, Tick
from skep.units import Duration, Instant, after, seconds
from skep.wire.changes import Goal, JobChanged, JobChanging
from skep.wire.commands import BindJob, ChangeJob, Move, Resize, StopJob, Suspend
from skep.wire.drafts import Outcome, Start, Touch, Touched
from skep.wire.facts import (
    CellsReserved,
    JobBound,
    JobDemoted,
    JobRan,
    JobStopping,
    ReservationDropped,
)
from skep.wire.moves import SuccessorBound
from skep.wire.node import Manner, MemberChanged, MemberExited, MemberStarted
from skep.wire.node import Outcome as Exit
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason

DECISIONS_MAX = 600
"""Decisions of one look ahead: a job that waits longer than so many events waits for long."""
NOW_MAX = 50
"""Further decisions at the first instant: one places 150 parts at most, a gang has a thousand."""
OTHERS_NAMED = 50
AWAITS_NAMED = 20
MEMBERS_NAMED = 32
"""Nodes of a place that are named: an answer has some twenty places, and fits one message."""
NEVER = Duration(2**61)
NS_PER_MILLI = 1_000_000_000_000
"""Nanoseconds for a thousandth of a rate: mini-batches times this, by a rate, is a duration."""

GOALS: dict[Goal, Touch] = {
    Goal.SUSPEND: Touch.SUSPENDS,
    Goal.CHECKPOINT: Touch.STORES,
    Goal.MIGRATE: Touch.MOVES,
    Goal.RESIZE: Touch.RESIZES,
}
STANDS = (Touch.STOPS, Touch.SUSPENDS)
"""A job that is changed so makes no mini-batches."""


class Ahead:
    """One look ahead, at the job `name`, from `now` on. `left`: what jobs still have to run."""

    def __init__(
        self,
        machine: AllocatorMachine,
        name: str,
        now: Instant,
        left: Mapping[str, int],
        instead: str = "",
    ) -> None:
        """Have the copy wait for nothing that only the real one can hear."""
        self._machine, self._name, self._now = machine, name, now
        self._instead = instead
        machine.settings.node_lost_after = machine.settings.node_check_every = NEVER
        machine.settings.trial_rules.repeated = NEVER
        machine.settings.stores_by_time = False
        machine.tx.soft.check_at = None
        if machine.tx.soft.advice_until > now:
            machine.tx.soft.advice_until = after(now, NEVER)  # It is said again all the time.
        self._facts: list[Any] = []
        self._orders: list[Any] = []
        self._others: dict[str, Touched] = {}
        self._held = frozenset((*machine.state.placed, *machine.state.reserved))
        """Jobs that have GPUs, or a claim on some, before anything is played on."""
        self._decisions = 0
        self._ends: list[tuple[Instant, str]] = []
        self._until: dict[str, int] = {}
        """By job: what service it will have had at its end, in nanoseconds."""
        self._ended: list[str] = []
        self._limits = False
        """Whether a time limit ended one of them."""
        for job in machine.state.jobs.values():
            if job.job in left:
                self._foresee(job, left[job.job])

    def tell(self, event: Any) -> None:
        """Have the copy decide about an event."""
        self._decisions += 1
        for effect in self._machine.decide(event, self._now):
            if isinstance(effect, Record):
                self._facts.append(effect.fact)
                self._follow(effect.fact)
            elif isinstance(effect, Send):
                self._orders.append(effect.message)

    def outcome(self, *, far: bool = True) -> Outcome:
        """Return what became of the job, and of others.

        Args:
            far: Whether to play on until the job has its GPUs, where it has none at once.
        """
        begin, machine = self._now, self._machine
        for _ in range(NOW_MAX):
            if machine.tx.soft.check_at != begin:
                break
            machine.tx.soft.check_at = None
            self.tell(Tick())  # It asked for a further decision at once: one is bounded.
        runs, claimed = self._has(), self._claimed()
        waits = machine.state.jobs[self._name].waits if self._name in machine.state.jobs else None
        # A job that makes room for it lets others in, which may have others make room in turn.
        self._obey(to_the_end=True)
        if runs or claimed or self._has():
            return self._made(Start.NOW if runs else Start.AFTER)
        others = tuple(self._others.values())
        while far and not self._has() and self._decisions < DECISIONS_MAX and self._next():
            self._obey()
        found = self._made(Start.LATER if self._has() else Start.UNKNOWN, others)
        why, needs = waits or (Reason.WAITS_BEHIND, "")
        unknown = (
            0
            if self._has()
            else sum(job.job not in self._until for job in machine.state.placed.values())
        )
        return replace(
            found,
            why=why,
            needs=needs,
            awaits=tuple(self._ended[-AWAITS_NAMED:]),
            unknown=unknown,
            limits=self._limits,
        )

    # --- the job ---------------------------------------------------------------------------------

    def _has(self) -> bool:
        """Return whether the job has its GPUs."""
        job = self._machine.state.jobs.get(self._name)
        waits = (State.QUEUED, State.DEFERRED, State.RESERVED)
        return job is not None and job.state not in waits

    def _claimed(self) -> bool:
        """Return whether GPUs are reserved for the job."""
        job = self._machine.state.jobs.get(self._name)
        return job is not None and job.state is State.RESERVED

    def _made(self, start: Start, others: Iterable[Touched] | None = None) -> Outcome:
        """Return what became of the job, and of others until it had its GPUs or began to wait."""
        touched = tuple(self._others.values() if others is None else others)
        shown, more = touched[:OTHERS_NAMED], max(0, len(touched) - OTHERS_NAMED)
        bound = next(
            (fact for fact in self._facts if isinstance(fact, JobBound) and fact.job == self._name),
            None,
        )
        if bound is None:
            claim = next(
                (
                    fact
                    for fact in reversed(self._facts)
                    if isinstance(fact, CellsReserved) and fact.job == self._name
                ),
                None,
            )
            members = claim.members if claim is not None else ()
            return Outcome(
                start=start,
                why=claim.why if claim is not None else None,
                members=members[:MEMBERS_NAMED],
                nodes=len(members),
                chain=claim.chain if claim is not None else "",
                borrows=_borrows(members),
                others=shown,
                others_more=more,
            )
        job, began = self._machine.state.jobs[self._name], bound.at
        limit, length = job.spec.limits.time, self._length(job)
        return Outcome(
            start=start,
            why=bound.why,
            members=bound.members[:MEMBERS_NAMED],
            nodes=len(bound.members),
            chain=bound.chain,
            borrows=_borrows(bound.members),
            at=began,
            others=shown,
            others_more=more,
            ends_at=after(began, length) if length is not None else None,
            ends_most=after(began, seconds(limit)) if isinstance(limit, int) else None,
        )

    def _length(self, job: JobState) -> Duration | None:
        """Return how long a job that begins will run, by its owner or its family; None: unknown."""
        known = self._until.get(job.job)
        if known is not None:
            return Duration(max(0, known - job.served))
        total, rate = job.spec.size.total(), 0
        if total is not None:
            rates: Any = job_rates.shown(self._machine.tx, job).get("rates", ())
            rate = dict(rates).get(job.size, 0)
        if total is not None and rate:
            return Duration(total * NS_PER_MILLI // rate)
        expected = job.spec.size.run_time
        return seconds(expected) if isinstance(expected, float | int) else None

    # --- others ----------------------------------------------------------------------------------

    def _follow(self, fact: Any) -> None:
        """Note what a fact means for jobs beside the one that is looked at."""
        match fact:
            case JobStopping(why=Reason.TIME_LIMIT) if fact.job != self._name:
                self._ended.append(fact.job)
                self._limits = True
            case JobStopping():
                known = self._others.get(fact.job)
                if known is not None and known.what is Touch.SUSPENDS:
                    del self._others[fact.job]  # Suspended first, and stopped all the same.
                self._touch(fact.job, Touch.STOPS, fact.why)
            case JobChanging(goal=goal) if goal in GOALS and not fact.undoing:
                size = fact.change.world if isinstance(fact.change, Resize) else 0
                self._touch(fact.job, GOALS[goal], fact.why, size)
            case SuccessorBound():
                self._touch(fact.job, Touch.MOVES, None)
            case JobDemoted():
                self._touch(fact.job, Touch.BORROWS, fact.why)
            case ReservationDropped():
                self._touch(fact.job, Touch.UNCLAIMS, fact.why)
            case GpusShared():
                for name, _ in fact.beside:
                    self._touch(name, Touch.SHARES, fact.why)
            case CellsReserved() if fact.job == self._name:
                for name in fact.victims:
                    self._touch(name, Touch.STOPS, Reason.PREEMPTED)
            case JobBound():
                self._touch(fact.job, Touch.STARTS, fact.ranked)
                self._begins(self._machine.state.jobs[fact.job])
            case JobRan() | JobChanged():
                self._expect(fact.job)
            case _:
                pass

    def _touch(self, name: str, what: Touch, why: Reason | None, size: int = 0) -> None:
        """Note what becomes of another job, once."""
        job = self._machine.state.jobs.get(name)
        if job is None or name in (self._name, self._instead):
            return
        if name not in self._held and what is not Touch.STARTS:
            self._others.pop(name, None)  # It waits, before and after: nothing happens to it.
            return
        known = self._others.get(name)
        if known is not None and what in (Touch.STOPS, Touch.MOVES, Touch.STARTS):
            return  # How it began to make room tells more than that it is claimed from, or is back.
        told, rate = self._machine.tx.soft.paces.get(name), None
        if told is not None and job.state not in (State.QUEUED, State.DEFERRED):
            rate = told[0].rate_milli
        then = 0 if what in STANDS else None
        if size:
            rates: Any = job_rates.shown(self._machine.tx, job).get("rates", ())
            then = dict(rates).get(size)
        self._others[name] = Touched(
            job=name,
            vc=job.spec.vc,
            what=what,
            why=why,
            rate_milli=rate,
            then_milli=then,
            gpus=job.size * job.spec.resources.gpus,
        )

    # --- time ------------------------------------------------------------------------------------

    def _foresee(self, job: JobState, left: int) -> None:
        """Take it that a job runs for so long yet."""
        ran = max(0, self._now - job.since) if job.state is State.RUNNING else 0
        self._until[job.job] = job.served + ran + max(0, left)
        self._expect(job.job)

    def _begins(self, job: JobState) -> None:
        """Note when a job that begins is expected to end."""
        if job.job not in self._until:
            length = self._length(job)
            if length is not None:
                self._until[job.job] = job.served + length

    def _expect(self, name: str) -> None:
        """Look at a job again when it is over, if it runs until then."""
        job, until = self._machine.state.jobs.get(name), self._until.get(name)
        if job is not None and until is not None and job.state is State.RUNNING:
            at = Instant(max(self._now, job.since + until - job.served))
            heapq.heappush(self._ends, (at, name))

    def _next(self) -> bool:
        """Go to the next instant at which something happens; False if nothing does any more."""
        wake = self._machine.wake_at()
        if wake is not None and wake - self._now >= NEVER // 2:
            wake = None
        if self._ends and (wake is None or self._ends[0][0] <= wake):
            at, name = heapq.heappop(self._ends)
            self._now = max(self._now, at)
            self._end(name)
            return True
        if wake is None:
            return False
        self._now = max(self._now, wake)
        if (
            self._machine.tx.soft.check_at is not None
            and self._machine.tx.soft.check_at <= self._now
        ):
            self._machine.tx.soft.check_at = None
        self.tell(Tick())
        return True

    def _end(self, name: str) -> None:
        """Have a job end whose time is over, as every one of its nodes would report it."""
        job = self._machine.state.jobs.get(name)
        if job is None or job.state is not State.RUNNING:
            return  # It stands; it is looked at again once it runs.
        if job.served + max(0, self._now - job.since) < self._until[name]:
            self._expect(name)
            return
        self._ended.append(name)
        for node in list(job.live):
            self.tell(self._exited(job, node, Exit.SUCCEEDED))

    def _exited(self, job: JobState, node: str, outcome: Exit) -> MemberExited:
        """Return what a node would report of the end of its part."""
        held = self._machine.state.nodes[node].holdings.get((job.job, job.attempt))
        return MemberExited(
            node=node,
            identity=job.members[node].identity,
            job=job.job,
            attempt=job.attempt,
            outcome=outcome,
            at=self._now,
            order=held.came if held is not None else 0,
        )

    def _obey(self, *, to_the_end: bool = False) -> None:
        """Have nodes do what they were told, and what follows, until the job has its GPUs."""
        while self._orders and self._decisions < DECISIONS_MAX:
            if self._has() and not to_the_end:
                return
            orders, self._orders = self._orders, []
            for order in orders:
                said = self._said(order)
                if said is not None:
                    self.tell(said)
            if self._machine.tx.soft.check_at == self._now:
                self._machine.tx.soft.check_at = None
                self.tell(Tick())

    def _said(self, order: Any) -> Any:
        """Return what a node answers to an order; None where it cannot be told."""
        match order:
            case StopJob():
                return MemberExited(
                    node=order.node,
                    identity=order.identity,
                    job=order.job,
                    attempt=order.attempt,
                    outcome=Exit.STOPPED,
                    at=self._now,
                    order=order.joins,
                )
            case BindJob() if not order.awaits and not order.joins:
                return MemberStarted(
                    node=order.node,
                    identity=order.identity,
                    job=order.job,
                    attempt=order.attempt,
                    at=self._now,
                )
            case ChangeJob():
                job = self._machine.state.jobs.get(order.job)
                if job is None or job.parts.get(order.node, Part.GONE) is Part.GONE:
                    return None
                change = order.change
                stays = isinstance(change, Move | Resize)
                return MemberChanged(
                    node=order.node,
                    identity=order.identity,
                    job=order.job,
                    attempt=order.attempt,
                    order=order.order,
                    at=self._now,
                    manner=Manner.UNCHANGED if stays else Manner.BOUNDARY,
                    released=isinstance(change, Suspend) and change.release,
                )
            case _:
                return None


def _borrows(members: Iterable[Any]) -> bool:
    """Return whether a place is not of its VC's cells."""
    return any(not any(member.levels) for member in members)
