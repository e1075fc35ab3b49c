"""Jobs that share GPUs, as one: what has turns, shares and a place is the pack, not its jobs.

Turns count GPUs by jobs. Of jobs on the same GPUs they are shown one, which leads, and what they
say of it is meant for all. So the GPUs count once, and jobs that go well together stay together.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from skep.view.plan import Action, Plan, Suspend
from skep.view.view import HOLDING, JobView, Phase, VcView

_LEADS = (Phase.RUNNING, Phase.STARTING, Phase.SUSPENDED, Phase.RESERVED, Phase.STOPPING)
"""Whose phase is that of the pack: while one runs, another one's leaving frees nothing."""


class Units:
    """A VC in which each pack is one job."""

    def __init__(self, view: VcView) -> None:
        """Fold the packs of a view."""
        self.packs = _packs(view)
        """By the job that leads: all that share its GPUs, those that came first before others."""
        self._shown = view
        hidden = {each.job for members in self.packs.values() for each in members}
        if not hidden:
            self.view = view
            return
        most = _most(view)
        jobs = []
        for job in view.jobs:
            members = self.packs.get(job.job)
            if members is not None:
                jobs.append(_folded(job, members, most.get(job.pin, job.spec.priority)))
            elif job.job not in hidden:
                jobs.append(job)
        self.view = replace(view, jobs=tuple(jobs))

    def unfold(self, plan: Plan) -> Plan:
        """Return a plan of packs as one of jobs: who leads leaves with all that are beside it."""
        if not self.packs:
            return plan
        actions: list[Action] = []
        for action in plan.actions:
            actions.append(action)
            if not isinstance(action, Suspend):
                continue
            members = self.packs.get(action.job, ())
            actions += [Suspend(each.job, action.why, action.owed) for each in members
                        if each.job != action.job and each.phase is Phase.RUNNING]  # fmt: skip
        return replace(plan, actions=tuple(actions))


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


def _most(view: VcView) -> dict[str, int]:
    """Return by pin the highest priority that waits."""
    most: dict[str, int] = {}
    for job in view.jobs:
        if job.phase in (Phase.WAITING, Phase.AWAY):
            most[job.pin] = max(most.get(job.pin, job.spec.priority), job.spec.priority)
    return most


def _folded(leads: JobView, members: Iterable[JobView], most: int) -> JobView:
    """Return a pack as a job. It yields to who comes before it, and else stays what it is."""
    members = [each for each in members if each.phase is not Phase.STOPPING or each is leads]
    priority = max(each.spec.priority for each in members)
    spec = leads.spec
    if priority != spec.priority:
        spec = replace(spec, priority=priority)
    able = tuple(each for each in leads.can if all(each in other.can for other in members))
    calm = all(each.phase is leads.phase for each in members)
    yields = calm and most > priority
    return replace(leads, spec=spec, can=able, partners=() if yields else leads.partners)
