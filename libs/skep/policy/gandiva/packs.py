"""Packs as units: turns, shares and places belong to a pack as a whole, not to its jobs.

Turns count the GPUs of jobs. Of the jobs on the same GPUs they see only one, the leader, and a
decision for it is meant for the whole pack. So the GPUs count once, and proven partners stay
together: they are suspended together, and resume together without a new trial.

Units are kept from one view to the next, and made again where one of their jobs differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from msgspec.structs import replace

from skep.base.timers import TimerHeap
from skep.policy.gandiva.rules import MILLI, Rules, on_them, turns_give
from skep.policy.gandiva.state import UnitIndex
from skep.policy.incremental import Change, add, changes, set_or_cancel
from skep.policy.plan import Action, Pack, Plan, Suspend
from skep.policy.view import HOLDING, QUEUED, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason

_PHASE_RANK = (Phase.RUNNING, Phase.STARTING, Phase.SUSPENDED, Phase.RESERVED, Phase.STOPPING)
"""The phases of a pack, by rank: while one job runs, GPUs do not come free when another one
leaves."""
_PAIR_PHASES = frozenset({Phase.RUNNING, Phase.STARTING, Phase.AWAY, Phase.STOPPING})
UNDO_MARGIN = 50
"""Thousandths by which a pack that was kept has to fall below what turns give, to be undone. It had
to be better than turns to be kept, so it does not come and go."""
OTHERWISE = 250
"""Thousandths by which a pack's total has to differ from that when it was kept, for it to be
measured again: less than a change of phase that matters, and more than rates vary."""
LATE_SLICES = 6
"""For so many slices at most, counted from its arrival, a new job is protected from trials that
keep GPUs. If it still waits then, it does not wait for those GPUs, and trials go on."""

Members = tuple[JobView, ...]


class Units:
    """A VC in which each pack is one job."""

    def __init__(self, rules: Rules) -> None:
        """Begin without jobs."""
        self.rules = rules
        self._forget()

    def _forget(self) -> None:
        self.known = UnitIndex(self.rules)
        """The units."""
        self.packs: dict[str, Members] = {}
        """By leader: all jobs that share its GPUs, in order of arrival."""
        self.calm: dict[str, Members] = {}
        """The packs of which all jobs run, and none is tried."""
        self.hurting: dict[str, tuple[Members, Instant]] = {}
        """The packs that make less than turns would, and from when that may be judged."""
        self._followers: dict[str, JobView] = {}
        """By leader: the job that is to continue beside it, as it did before."""
        self._ready_followers: dict[str, JobView] = {}
        """Those of them whose leader runs."""
        self._follow_timers = TimerHeap[str]()
        """By leader: when the other job does not follow it any more."""
        self._leader: dict[str, str] = {}
        """By each job of a pack: its leader."""
        self._leader_of_pair: dict[str, str] = {}
        """By each of two jobs, one of which is to continue beside the other: the leader."""
        self._now = Instant(0)
        self._seen: tuple[JobView, ...] = ()
        self._jobs: dict[str, JobView] = {}
        self._named_by: dict[str, dict[str, None]] = {}
        """By job: the jobs that name it as a partner."""
        self._waits: dict[str, dict[int, int]] = {}
        """By pin and priority: how many jobs wait for GPUs."""
        self._highest_waiting: dict[str, float] = {}
        """By pin: the highest priority of waiting jobs; infinite if one of them is late."""
        self._late: dict[str, dict[str, None]] = {}
        """By pin: late jobs. They came a slice ago or more, less than LATE_SLICES ago, and have
        never run."""
        self._late_timers = TimerHeap[str]()
        """When a new job becomes late, and when a late job ceases to be late."""
        self._yield_to_higher: dict[str, dict[str, None]] = {}
        """By pin: units that yield only to higher priorities, and to late jobs."""
        self._trials, self._moves = TimerHeap[str](), TimerHeap[str]()
        """When each job may be in a trial again; when it may be moved again."""
        self._units: dict[str, tuple[JobView, JobView]] = {}
        """Each unit, and as the planning of turns sees it."""
        self._lessened: dict[str, None] = {}
        """Units that the latest plan made smaller."""
        self.changes: dict[str, Change] = {}
        """Units that the planning of turns sees otherwise than before: as before, and as now."""

    def follow(self, view: VcView) -> None:
        """Update the units from a view."""
        if view.now < self._now:
            self._forget()  # A clock was set back: instants that were passed come again.
        self._now = view.now
        stale, self._lessened, self.changes = self._lessened, {}, {}
        changed = [*changes(self._seen, view.jobs)]
        self._seen = view.jobs
        shared, paired, pins = dict[str, None](), dict[str, None](), dict[str, None]()
        for sign, jobs in ((-1, (old for old, _ in changed)), (1, (new for _, new in changed))):
            for job in jobs:
                if job is not None:
                    self._count(job, sign, pins)
                    stale[job.job] = None
                    if job.proven_partner:
                        paired[job.job] = None
                    if job.partners or job.job in self._named_by:
                        shared.update(dict.fromkeys((job.job, *job.partners)))
                        shared.update(self._named_by.get(job.job, ()))
        for old, new in changed:
            self._update_rest(old, new)
        stale.update(self._pack(shared))
        stale.update(self._pair(paired))
        for name in self._late_timers.pop_due(view.now):
            self._update_late(self._jobs[name])
            pins[self._jobs[name].pin] = None
        for pin in pins:
            most = inf if self._late.get(pin) else max(self._waits.get(pin, ()), default=-inf)
            if most != self._highest_waiting.get(pin, -inf):
                self._highest_waiting[pin] = most
                stale.update(self._yield_to_higher.get(pin, {}))
        self.known.follow(view.now)
        self._show({name: self._unit(name) for name in stale})

    def _count(self, job: JobView, sign: int, pins: dict[str, None]) -> None:
        """Add a job (1), or remove it (-1); note its pin in `pins` if it waits, or did."""
        if sign > 0:
            self._jobs[job.job] = job
        else:
            self._jobs.pop(job.job, None)
        for name in job.partners:
            there = self._named_by.setdefault(name, {})
            if sign > 0:
                there[job.job] = None
            else:
                there.pop(job.job, None)
                if not there:
                    del self._named_by[name]
        if job.phase in QUEUED:
            add(self._waits.setdefault(job.pin, {}), job.spec.priority, sign)
            pins[job.pin] = None
            if not job.began_at:
                self._late.get(job.pin, {}).pop(job.job, None)
                at = job.waiting_since + self.rules.slice_ns
                set_or_cancel(self._late_timers, job.job, at, come=sign > 0)

    def _update_late(self, job: JobView) -> None:
        """Mark a new job as late after a slice; end that once trials have not been the reason."""
        ends = job.waiting_since + LATE_SLICES * self.rules.slice_ns
        late = self._late.setdefault(job.pin, {})
        if self._now < ends:
            late[job.job] = None
            self._late_timers.set_timer(job.job, ends)
        else:
            late.pop(job.job, None)

    def _update_rest(self, old: JobView | None, new: JobView | None) -> None:
        """Update the timers of when a job may be tried and moved again."""
        was = (old.trial_after, old.move_after) if old is not None else (0, 0)
        job = new if new is not None else old
        ends = (new.trial_after, new.move_after) if new is not None else (0, 0)
        assert job is not None
        for times, before, at in zip((self._trials, self._moves), was, ends, strict=True):
            if at != before and at > self._now:
                times.set_timer(job.job, at)
            elif at != before:
                times.cancel(job.job)

    def rests(self) -> Iterator[Instant]:
        """Yield the next instants at which a job may be tried or moved again, or becomes late."""
        for times in (self._trials, self._moves, self._late_timers):
            times.pop_due(self._now)
            first = times.first_due()
            if first is not None:
                yield Instant(first)

    # --- which jobs are one -----------------------------------------------------------------------

    def _pack(self, shared: dict[str, None]) -> dict[str, None]:
        """Make the packs of these jobs, and of all that share with them, again; return all jobs."""
        near, more = dict[str, None](), [*shared]
        while more:
            name = more.pop()
            if name not in near:
                near[name] = None
                job = self._jobs.get(name)
                more += (*(job.partners if job is not None else ()), *self._named_by.get(name, ()))
        for name in near:
            for each in self.packs.pop(name, ()):
                self._leader.pop(each.job, None)
            self.calm.pop(name, None)
            self.hurting.pop(name, None)
        jobs = [self._jobs[name] for name in near if name in self._jobs]
        for leads, members in _packs(sorted(jobs, key=lambda job: job.sequence)).items():
            self.packs[leads] = members
            self._leader.update((each.job, leads) for each in members)
            if all(each.phase is Phase.RUNNING and not each.trial for each in members):
                self.calm[leads] = members
                if _slower_than_turns(members, self.rules):
                    slices = Instant(max(each.since for each in members) + self.rules.slice_ns)
                    self.hurting[leads] = members, slices
        return near

    def _pair(self, paired: dict[str, None]) -> dict[str, None]:
        """Find again which job each of these follows; return the jobs whose units may differ."""
        stale = dict[str, None]()
        over = self._follow_timers.pop_due(self._now)
        for name in (*paired, *over):
            first = self._leader_of_pair.get(name)
            if first is not None:
                guest = self._followers.pop(first)
                self._ready_followers.pop(first, None)
                self._follow_timers.cancel(first)
                for each in (first, guest.job):
                    del self._leader_of_pair[each]
                    stale[each] = None
        for name in paired:
            job = self._jobs.get(name)
            other = self._jobs.get(job.proven_partner) if job is not None else None
            if job is None or other is None or name in self._leader_of_pair:
                continue
            couple = _leader_and_follower(job, other, self._now, self.rules)
            if couple is not None:
                leads, guest = couple
                self._followers[leads.job] = guest
                self._leader_of_pair.update({leads.job: leads.job, guest.job: leads.job})
                stale.update({leads.job: None, guest.job: None})
                if leads.phase is Phase.RUNNING:
                    self._ready_followers[leads.job] = guest
                    self._follow_timers.set_timer(leads.job, leads.since + self.rules.slice_ns // 2)
        return stale

    # --- how they are seen ------------------------------------------------------------------------

    def _unit(self, name: str) -> tuple[JobView, JobView] | None:
        """Return a unit, and as the planning of turns sees it; None: it is part of another unit.

        A pack that may yield is shown like a job without partners.
        """
        job, members = self._jobs.get(name), self.packs.get(name)
        hidden = name in self._leader if members is None else False
        if job is None or hidden or self._leader_of_pair.get(name, name) != name:
            return None
        most = self._highest_waiting.get(job.pin, -inf)
        minds = self._yield_to_higher.setdefault(job.pin, {})
        minds.pop(name, None)
        yields, pairs = False, name in self._followers
        if members is not None:
            job, calm, turns = _pack_as_job(job, members)
            yields = calm and (turns or most > job.spec.priority)
            pairs = pairs or _are_partners(members)
            if not turns:
                minds[name] = None
        elif job.trial:
            minds[name] = None
            if most <= job.spec.priority:
                # A job that may wait does not disturb a trial.
                job = replace(job, can=tuple(each for each in job.can if each != "release"))
        if job.proven_milli and not pairs:
            job = replace(job, proven_milli=0)
        return job, replace(job, partners=()) if yields else job

    def _show(self, units: dict[str, tuple[JobView, JobView] | None]) -> None:
        """Set how units are seen."""
        for name, unit in units.items():
            old = self._units.get(name)
            if old == unit:
                continue
            before, now = old[1] if old is not None else None, None
            if old is not None:
                self.known.count(old[0], -1)
                del self._units[name]
            if unit is not None:
                self.known.count(unit[0], 1)
                self._units[name], now = unit, unit[1]
            first = self.changes[name][0] if name in self.changes else before
            self.changes[name] = first, now

    def lessen(self, less: dict[str, JobView]) -> None:
        """Show some jobs smaller to this plan.

        Args:
            less: By job, the view of the smaller job.
        """
        self._show({name: (job, job) for name, job in less.items()})
        self._lessened.update(dict.fromkeys(less))

    def restore(self, jobs: dict[str, JobView]) -> None:
        """Set the units of some jobs to what they are again, for the rest of a plan."""
        for name, job in jobs.items():
            smaller, seen = self._units[name]
            self.known.count(smaller, -1)
            self.known.count(job, 1)
            self._units[name] = job, seen  # Turns see the smaller one until the next plan.

    def unfold(self, plan: Plan) -> Plan:
        """Return a plan for units as a plan for jobs.

        A pack is suspended with all of its jobs, and a job that follows another one joins it.
        """
        actions: list[Action] = []
        for action in plan.actions:
            actions.append(action)
            if isinstance(action, Suspend):
                actions += [
                    Suspend(each.job, action.why, action.owed)
                    for each in self.packs.get(action.job, ())
                    if each.job != action.job and each.phase is Phase.RUNNING
                ]
        gone = {each.job for each in actions}
        joins = [
            (self._jobs[name].sequence, guest.sequence, name)
            for name, guest in self._ready_followers.items()
            if name not in gone
        ]
        for *_, name in sorted(joins, key=lambda each: min(each[:2])):
            actions.append(Pack(self._ready_followers[name].job, name, Reason.BEST_PACKING))
        return replace(plan, actions=tuple(actions)) if actions else plan


def weight(job: JobView) -> float:
    """Return the factor by which a pack has its GPUs for longer than a job alone.

    Two jobs that make 1.6 times what one makes alone have them 1.25 times as long: each of them
    then makes as much as a job that takes turns alone.

    Args:
        job: The leader, with the total of the pack (`proven_milli`).
    """
    return 2 * MILLI / job.proven_milli


def _packs(some: Iterable[JobView]) -> dict[str, Members]:
    jobs = {
        job.job: job for job in some if job.partners and job.phase in HOLDING and not job.borrows
    }
    packs, seen = dict[str, Members](), set[str]()
    for name in jobs:
        if name in seen:
            continue
        found, more = dict[str, None](), [name]
        while more:
            each = more.pop()
            if each not in found:
                found[each] = None
                more += [other for other in jobs[each].partners if other in jobs]
        seen.update(found)
        members = sorted((jobs[each] for each in found), key=lambda job: job.sequence)
        if len(members) > 1:
            leads = min(members, key=lambda job: (_PHASE_RANK.index(job.phase), -job.gpus))
            packs[leads.job] = tuple(members)
    return packs


def _leader_and_follower(
    job: JobView, other: JobView, now: Instant, rules: Rules
) -> tuple[JobView, JobView] | None:
    """Return two jobs as leader and follower, if one is suspended and resumes with the other."""
    able = [
        not (each.partners or each.borrows) and each.phase in _PAIR_PHASES for each in (job, other)
    ]
    if other.proven_partner != job.job or not all(able):
        return None
    leads, guest = (other, job) if _follows(job, other) else (job, other)
    follows = guest.phase is Phase.AWAY and _stay_together(leads, guest, now, rules)
    return (leads, guest) if follows else None


def _follows(job: JobView, other: JobView) -> bool:
    """Return whether a job follows the other: a suspended job follows, else the later one."""
    stands = job.phase is Phase.AWAY, other.phase is Phase.AWAY
    return stands[0] if stands[0] is not stands[1] else job.sequence > other.sequence


def _stay_together(leads: JobView, guest: JobView, now: Instant, rules: Rules) -> bool:
    if (leads.gpus, leads.spec.priority) != (guest.gpus, guest.spec.priority):
        return False
    if not on_them(guest, leads) or leads.trial or guest.trial:
        return False
    # It should follow at once. If something keeps it from that, it gets turns of its own.
    return leads.phase is not Phase.RUNNING or now - leads.since < rules.slice_ns // 2


def _are_partners(members: Sequence[JobView]) -> bool:
    """Return whether a pack is of two proven partners."""
    return len(members) == 2 and members[0].proven_partner == members[1].job


def _pack_as_job(leads: JobView, members: Iterable[JobView]) -> tuple[JobView, bool, bool]:
    """Return a pack as one job, whether all jobs have its phase, and whether it takes turns.

    A pack that is on trial, or that a tenant made, yields to higher priorities and to late jobs.
    """
    members = [each for each in members if each.phase is not Phase.STOPPING or each is leads]
    priority = max(each.spec.priority for each in members)
    spec = leads.spec
    if priority != spec.priority:
        spec = replace(spec, priority=priority)
    able = tuple(each for each in leads.can if all(each in other.can for other in members))
    calm = all(each.phase is leads.phase for each in members)
    turns = _are_partners(members) and not any(each.trial for each in members)
    return replace(leads, spec=spec, can=able), calm, turns


def _slower_than_turns(members: Members, rules: Rules) -> bool:
    """Return whether jobs on the same GPUs make less than they would in turns, as far as known.

    If they make far more or less than in the trial that proved them partners, one of them is in
    another phase. What it makes alone is then unknown, and the sum says nothing.
    """
    total = 0
    for job in members:
        alone = dict(job.rates).get(job.workers, 0)
        if not alone or not job.rate_milli:
            return False
        total += MILLI * job.rate_milli // alone
    if total < min(turns_give(job, rules) for job in members) - UNDO_MARGIN:
        return True
    return _are_partners(members) and abs(total - members[0].proven_milli) > OTHERWISE
