"""Packing (Gandiva, section 4.2.2): in overload, who uses GPUs the least goes beside his like.

Jobs run by themselves first. Of those that were measured so, the one with the lowest GPU
utilisation that waits for its slice is tried on the GPUs of the one with the lowest that runs, if
the memory holds both. What is not better than turns is undone, cools down, and the next is tried.
"""

from __future__ import annotations

from msgspec.structs import replace

from skep.policies.introspective.rules import (
    ACTIONS_MAX,
    MILLI,
    PACKS_NEED,
    Rules,
    cooling,
    families,
    named,
    on_them,
    profiled,
    spent,
    turns_give,
    waits,
)
from skep.policies.introspective.units import Units
from skep.policies.room import Place, Room
from skep.policies.turns import loads
from skep.units import Instant
from skep.view.plan import Pack, Plan, Unpack
from skep.view.view import HOLDING, JobView, Phase, VcView
from skep.wire.reasons import Reason

WORSE = 50
"""Thousandths by which a pack that was kept has to fall below what turns give to be undone: it had
to be better than they are to be kept, so it does not come and go."""


def pack(units: Units, plan: Plan, rules: Rules) -> list[Pack]:
    """Return whom to try beside whom, beyond a plan of turns. Only in overload.

    That is where jobs want more GPUs than there are, or a server's height is above 1: those on it
    may be unable to go elsewhere. Each pack makes up for as many GPUs as its guest has.
    """
    view = units.view
    over, crowded = _over(view), dict[str, int]()
    if all(gpus <= 0 for gpus in over.values()):
        crowded = {node: taken - size for node, taken, size in loads(view) if taken > size}
        if not crowded:
            return []
    gone, sizes = named(plan), {node.node: node.gpu_memory for node in view.nodes}
    guests, on = list[JobView](), dict[Place, list[JobView]]()
    for job in view.jobs:
        if not job.measured or spent(view, job, "pack"):
            continue
        if job.phase is Phase.AWAY and _may(job, gone):
            guests.append(job)
        elif job.phase is Phase.RUNNING and _may(job, gone):
            on.setdefault(job.nodes, []).append(job)
    guests.sort(key=_idlest)
    cold = cooling(view, "pack")
    tried: list[Pack] = []
    for guest in guests:
        if len(tried) >= ACTIONS_MAX:
            break
        ((node, _),) = guest.nodes
        if over.get(guest.pin, 0) <= 0 and crowded.get(node, 0) <= 0:
            continue
        hosts = [each for each in on.get(guest.nodes, ()) if _goes(guest, each, sizes)
                 and families(guest, each) not in cold]  # fmt: skip
        host = min(hosts, key=_idlest, default=None)
        if host is not None:
            on[host.nodes].remove(host)
            over[guest.pin] = over.get(guest.pin, 0) - guest.gpus
            crowded[node] = crowded.get(node, 0) - guest.gpus
            tried.append(Pack(guest.job, host.job, Reason.BEST_PACKING, trial=True,
                              needed_milli=PACKS_NEED))  # fmt: skip
    return tried


def part(units: Units, plan: Plan, rules: Rules) -> list[Unpack]:
    """Return whom to take off shared GPUs, one at most, because who is there hurts whom."""
    for leads, members in _calm(units, plan):
        if _hurts(members, rules, units.view.now):
            return [Unpack(_guest(leads, members).job, Reason.INTERFERES)]
    return []


def spread(units: Units, plan: Plan, rules: Rules) -> tuple[list[Unpack], Instant | None]:
    """Return whom to take off shared GPUs, one at most, and when to look again.

    Once there is no overload any more, no job has come for a slice, and one of those that share
    fits on GPUs that are free.
    """
    packs = _calm(units, plan)
    if not packs:
        return [], None
    if plan.actions or plan.turns or waits(units.view):
        return [], None
    room = Room(units.view, [job for job in units.view.jobs
                             if job.phase in HOLDING and not job.borrows])  # fmt: skip
    for leads, members in packs:
        for each in sorted(members, key=lambda job: (job.job == leads, job.sequence)):
            if _fits(each, room):
                calm = Instant(units.view.quiet_since + rules.slice_ns)
                if units.view.now < calm:
                    return [], calm
                return [Unpack(each.job, Reason.OWN_GPUS)], None
    return [], None


def _calm(units: Units, plan: Plan) -> list[tuple[str, tuple[JobView, ...]]]:
    """Return the packs with which nothing is done or tried, each with who leads."""
    gone = named(plan) if units.packs else set[str]()
    return [(leads, members) for leads, members in units.packs.items()
            if all(each.phase is Phase.RUNNING and not each.trial for each in members)
            and leads not in gone]  # fmt: skip


def _over(view: VcView) -> dict[str, int]:
    """Return by pin how many GPUs the VC's jobs have or want beyond those that there are."""
    over = {pin: -gpus for pin, gpus in view.gpus_for().items()}
    for job in view.jobs:
        if not job.borrows and job.phase is not Phase.STOPPING:
            over[job.pin] = over.get(job.pin, 0) + job.gpus
    return over


def _may(job: JobView, gone: set[str]) -> bool:
    """Return whether a job can be in a trial: alone, measured, and nothing else is planned."""
    free = not (job.trial or job.partners or job.mate_milli or job.borrows or job.job in gone)
    return free and len(job.nodes) == 1 and "release" in job.can and profiled(job)


def _idlest(job: JobView) -> tuple[int, int]:
    return job.utilisation, job.sequence


def _goes(guest: JobView, host: JobView, sizes: dict[str, int]) -> bool:
    """Return whether a guest can go on with the GPUs of a host, and their memory holds both.

    Of another size somebody would have GPUs alone of which the test knows nothing.
    """
    if (guest.gpus, guest.pin, guest.spec.priority) != (host.gpus, host.pin, host.spec.priority):
        return False
    return on_them(guest, host) and guest.memory + host.memory <= sizes.get(host.nodes[0][0], 0)


def _hurts(members: tuple[JobView, ...], rules: Rules, now: Instant) -> bool:
    """Return whether jobs on the same GPUs make less than they would in turns, as far as known.

    Rates of who goes on are low at first, as they were measured while he stood: nobody is judged by
    them before the slice is over.
    """
    if any(now - job.since < rules.slice_ns for job in members):
        return False
    total = 0
    for job in members:
        alone = dict(job.rates).get(job.workers, 0)
        if not alone or not job.rate_milli:
            return False
        total += MILLI * job.rate_milli // alone
    return total < min(turns_give(job, rules) for job in members) - WORSE


def _guest(leads: str, members: tuple[JobView, ...]) -> JobView:
    """Return who leaves: who came last, but for who leads."""
    return next(job for job in reversed(members) if job.job != leads)


def _fits(job: JobView, room: Room) -> bool:
    """Return whether a job that left others would have GPUs of its own."""
    if "release" not in job.can or not {"rebind", "migrate"}.intersection(job.can):
        return False
    return room.fit(replace(job, phase=Phase.AWAY)) is not None
