"""Jobs that share GPUs, as one: what has turns, shares and a place is the pack, not its jobs.

Turns count GPUs by jobs. Of jobs on the same GPUs they are shown one, which leads, and what they
say of it is meant for all. So the GPUs count once, and jobs that go well together stay together:
when they have to stand for others they stand together, and go on together, without a new trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from msgspec.structs import replace

from skep.policies.introspective.rules import MILLI, Rules, on_them
from skep.units import Instant
from skep.view.plan import Action, Pack, Plan, Suspend
from skep.view.view import HOLDING, JobView, Phase, VcView
from skep.wire.reasons import Reason

_LEADS = (Phase.RUNNING, Phase.STARTING, Phase.SUSPENDED, Phase.RESERVED, Phase.STOPPING)
"""Whose phase is that of the pack: while one runs, another one's leaving frees nothing."""
_APART = frozenset({Phase.RUNNING, Phase.STARTING, Phase.AWAY, Phase.STOPPING})


class Units:
    """A VC in which each pack is one job."""

    def __init__(self, view: VcView, rules: Rules) -> None:
        """Fold the packs of a view."""
        self._waits: dict[str, float] = {}
        self._yields: set[str] = set()
        self.packs = _packs(view)
        """By the job that leads: all that share its GPUs, those that came first before others."""
        self.apart = _apart(view, rules)
        """By the job that leads: who is to go on beside it, as it did before."""
        hidden = {each.job for members in self.packs.values() for each in members}
        hidden.update(each.job for each in self.apart.values())
        self.view = view
        if hidden or any(job.mate_milli or job.trial for job in view.jobs):
            jobs = [self._shown(job, view) for job in view.jobs
                    if job.job in self.packs or job.job not in hidden]  # fmt: skip
            self.view = replace(view, jobs=tuple(jobs))

    def _shown(self, job: JobView, view: VcView) -> JobView:
        members = self.packs.get(job.job)
        if members is not None:
            job, yields = _folded(job, members, self._most(view, job.pin))
            if yields:
                self._yields.add(job.job)
        elif job.trial and not self._most(view, job.pin) > job.spec.priority:
            # What is tried is not disturbed: it yields to higher priorities only.
            job = replace(job, can=tuple(each for each in job.can if each != "release"))
        pairs = job.job in self.apart or (members is not None and _mates(members))
        return replace(job, mate_milli=0) if job.mate_milli and not pairs else job

    def _most(self, view: VcView, pin: str) -> float:
        """Return the highest priority that waits for GPUs."""
        if pin not in self._waits:
            line = [job.spec.priority for job in view.jobs
                    if job.pin == pin and job.phase in (Phase.WAITING, Phase.AWAY)]  # fmt: skip
            self._waits[pin] = max(line, default=-inf)
        return self._waits[pin]

    def turning(self, view: VcView) -> VcView:
        """Return a view of units for those that plan turns: packs that may yield are like jobs."""
        if not self._yields:
            return view
        jobs = tuple(replace(job, partners=()) if job.job in self._yields else job
                     for job in view.jobs)  # fmt: skip
        return replace(view, jobs=jobs)

    def unfold(self, plan: Plan) -> Plan:
        """Return a plan of packs as one of jobs: who leads leaves with all that are beside it."""
        actions: list[Action] = []
        for action in plan.actions:
            actions.append(action)
            if isinstance(action, Suspend):
                actions += [Suspend(each.job, action.why, action.owed)
                            for each in self.packs.get(action.job, ())
                            if each.job != action.job and each.phase is Phase.RUNNING]  # fmt: skip
        gone = {each.job for each in actions}
        jobs = {job.job: job for job in self.view.jobs}
        actions += [Pack(guest.job, name, Reason.BEST_PACKING)
                    for name, guest in self.apart.items()
                    if guest.phase is Phase.AWAY and jobs[name].phase is Phase.RUNNING
                    and name not in gone]  # fmt: skip
        return replace(plan, actions=tuple(actions)) if actions else plan


def weight(job: JobView) -> float:
    """Return for how many times as long as one alone a pack is to have its GPUs.

    Two that make 1.6 times what one makes alone have them for 1.25 times as long: each of them then
    makes as much as who takes turns alone.
    """
    return 2 * MILLI / job.mate_milli


def _packs(view: VcView) -> dict[str, tuple[JobView, ...]]:
    jobs = {job.job: job for job in view.jobs
            if job.partners and job.phase in HOLDING and not job.borrows}  # fmt: skip
    packs, seen = dict[str, tuple[JobView, ...]](), set[str]()
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
            leads = min(members, key=lambda job: (_LEADS.index(job.phase), -job.gpus))
            packs[leads.job] = tuple(members)
    return packs


def _apart(view: VcView, rules: Rules) -> dict[str, JobView]:
    """Return who stands, and goes on as soon as the one does beside which it was."""
    jobs = {job.job: job for job in view.jobs if job.mate and not job.partners
            and not job.borrows and job.phase in _APART}  # fmt: skip
    found: dict[str, JobView] = {}
    for job in jobs.values():
        other = jobs.get(job.mate)
        if other is None or other.mate != job.job or job.job in found:
            continue
        leads, guest = (other, job) if _after(job, other) else (job, other)
        if guest.phase is Phase.AWAY and _together(leads, guest, view.now, rules):
            found[leads.job] = guest
    return found


def _after(job: JobView, other: JobView) -> bool:
    """Return whether a job follows the other: who stands follows, else who came later."""
    stands = job.phase is Phase.AWAY, other.phase is Phase.AWAY
    return stands[0] if stands[0] is not stands[1] else job.sequence > other.sequence


def _together(leads: JobView, guest: JobView, now: Instant, rules: Rules) -> bool:
    if (leads.gpus, leads.spec.priority) != (guest.gpus, guest.spec.priority):
        return False
    if not on_them(guest, leads) or leads.trial or guest.trial:
        return False
    # It was to follow at once. What keeps it from that may last: then it has turns of its own.
    return leads.phase is not Phase.RUNNING or now - leads.since < rules.slice_ns // 2


def _mates(members: Sequence[JobView]) -> bool:
    """Return whether a pack is of two that are known to go well together."""
    return len(members) == 2 and members[0].mate == members[1].job


def _folded(leads: JobView, members: Iterable[JobView], most: float) -> tuple[JobView, bool]:
    """Return a pack as a job, and whether it takes turns: if it would go on together after them.

    One that is tried, or was made by a tenant, yields only to higher priorities.
    """
    members = [each for each in members if each.phase is not Phase.STOPPING or each is leads]
    priority = max(each.spec.priority for each in members)
    spec = leads.spec
    if priority != spec.priority:
        spec = replace(spec, priority=priority)
    able = tuple(each for each in leads.can if all(each in other.can for other in members))
    calm = all(each.phase is leads.phase for each in members)
    turns = _mates(members) and not any(each.trial for each in members)
    return replace(leads, spec=spec, can=able), calm and (turns or most > priority)
