"""Packing (Gandiva, section 4.2.2): under overload, jobs with low utilisation share GPUs.

Jobs run alone first, and are measured. Among measured jobs, the waiting one with the lowest GPU
utilisation is the guest; it is tried on the GPUs of the running job with the lowest utilisation,
the host, if the memory holds both. A pack that is not better than turns is undone and cools down,
and the next one is tried.
"""

from __future__ import annotations

from msgspec.structs import replace

from skep.policy.capacity import FreeCapacity
from skep.policy.gandiva.pack_candidates import idlest
from skep.policy.gandiva.packs import Members, Units
from skep.policy.gandiva.rules import (
    ACTIONS_MAX,
    PACKS_NEED,
    Rules,
    cooling,
    families,
    named,
    on_them,
    tired,
)
from skep.policy.gandiva.state import UnitIndex
from skep.policy.plan import Pack, Plan, Unpack
from skep.policy.view import JobView, NodeView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason
from skep.wire.spec import suits

GANG_STANDS = 4
"""Slices after which a suspended gang keeps trials from its nodes."""


def pack(view: VcView, known: UnitIndex, plan: Plan, rules: Rules) -> list[Pack]:
    """Return packs to try beyond a plan of turns, under overload only.

    There is overload if jobs want more GPUs than there are, or if a server's height is above 1:
    jobs on it may be unable to go elsewhere. Each pack makes up for as many GPUs as its guest has.
    Nothing is tried where a larger gang has been suspended for long: one trial after the other,
    each on some of the GPUs that it needs all at once, would keep them from it.

    Args:
        view: The VC.
        known: Its jobs.
        plan: The plan so far; jobs that it names are not packed.
        rules: Options.
    """
    if view.now < view.trial_after or not known.candidates.guests:
        return []
    over, crowded = known.over(view), dict[str, int]()
    short = [pin for pin, gpus in over.items() if gpus > 0]
    crowded = {} if short else known.crowded(view)
    if not short and not crowded:
        return []
    candidates, gone = known.candidates, named(plan)
    sizes = {node.node: node.gpu_memory for node in view.nodes}
    cold, often = cooling(view, "pack"), tired(view)
    candidates.look((sizes, cold, often))
    tried, alone = list[Pack](), list[JobView]()
    gangs: dict[str, int] | None = None
    nodes: dict[str, NodeView] | None = None
    for guest in candidates.line(short) if short else candidates.standing(crowded):
        if len(tried) >= ACTIONS_MAX:
            break
        ((node, _),) = guest.nodes
        if over.get(guest.pin, 0) <= 0 and crowded.get(node, 0) <= 0:
            continue
        if guest.job in gone:
            continue
        hosts = [
            each
            for each in candidates.hosts(guest)
            if _can_share(guest, each, sizes)
            and families(guest, each) not in cold
            and frozenset((guest.job, each.job)) not in often
        ]
        if not hosts:
            alone.append(guest)
        host = min((each for each in hosts if each.job not in gone), key=idlest, default=None)
        if host is not None:
            gangs = _waiting_gangs(view, known, rules) if gangs is None else gangs
            nodes = {each.node: each for each in view.nodes} if nodes is None else nodes
            if gangs.get(node, 0) > guest.gpus or _fits_beside(known, nodes[node], host, guest):
                continue
            gone.add(host.job)
            over[guest.pin] = over.get(guest.pin, 0) - guest.gpus
            crowded[node] = crowded.get(node, 0) - guest.gpus
            tried.append(
                Pack(guest.job, host.job, Reason.BEST_PACKING, trial=True, needed_milli=PACKS_NEED)
            )
    candidates.block(alone)
    return tried


def _waiting_gangs(view: VcView, known: UnitIndex, rules: Rules) -> dict[str, int]:
    """Return by node the GPUs of the largest gang that has waited long for it.

    A gang that has never run waits for the first nodes that are enough for it.
    """
    found = dict[str, int]()
    for job in known.waiting.values():
        if job.gpus < 2 or view.now - job.waiting_since < GANG_STANDS * rules.slice_ns:
            continue
        names, gpus = [node for node, _ in job.nodes], 0
        for node in view.nodes if not job.nodes else ():
            if gpus < job.gpus and suits(job.spec.resources.gpu_type, node.gpu_type):
                names.append(node.node)
                gpus += node.gpus
        found.update((name, max(found.get(name, 0), job.gpus)) for name in names)
    return found


def part(units: Units, plan: Plan, now: Instant) -> list[Unpack]:
    """Return the job to take off shared GPUs because its pack is slower than turns; one at most.

    Rates of jobs that have just resumed are low, as they include the time when the jobs stood. So
    no pack is judged by them before the slice is over.

    Args:
        units: The packs.
        plan: The plan so far; a pack that it names stays.
        now: The time of the view.
    """
    gone = named(plan) if units.hurting else set[str]()
    first = [
        (members[0].sequence, leads)
        for leads, (members, at) in units.hurting.items()
        if at <= now and leads not in gone
    ]
    if not first:
        return []
    leads = min(first)[1]
    return [Unpack(_last_member(leads, units.calm[leads]).job, Reason.INTERFERES)]


def spread(view: VcView, units: Units, plan: Plan) -> tuple[list[Unpack], Instant | None]:
    """Return the job to take off shared GPUs because it fits on free ones, and when to look again.

    This is at most one job, and only if all of this holds: there is no overload any more, or every
    waiting job is too large for what is left beside the pack; no job has come for a slice; one of
    the jobs of the pack fits on free GPUs.

    Args:
        view: The VC.
        units: The packs.
        plan: The plan so far; if it does anything, no pack is split.
    """
    if not units.calm or plan.actions or plan.turns:
        return [], None
    known, free = units.known, {node.node: node for node in view.nodes if node.free}
    packs = [
        pack for pack in units.calm.items() if not known.waiting or _wastes_gpus(known, free, pack)
    ]
    capacity = known.capacity(view) if packs else None
    for leads, members in sorted(packs, key=lambda pack: pack[1][0].sequence):
        for each in sorted(members, key=lambda job: (job.job == leads, job.sequence)):
            if capacity is not None and _fits_alone(each, capacity):
                calm = Instant(view.quiet_since + units.rules.slice_ns)
                if view.now < calm:
                    return [], calm
                return [Unpack(each.job, Reason.OWN_GPUS)], None
    return [], None


def _fits_beside(known: UnitIndex, node: NodeView, host: JobView, guest: JobView) -> bool:
    """Return whether a guest can run whenever a host does, each with GPUs of its own."""
    able = {"rebind", "migrate"}.intersection(guest.can)
    if not able and any(
        set(had) & set(dict(host.devices).get(name, ())) for name, had in guest.devices
    ):
        return False  # It can continue only with the GPUs that it had.
    left = known.size(node) - host.gpus
    return guest.gpus <= left and known.spare(node, host) >= 0


def _wastes_gpus(known: UnitIndex, free: dict[str, NodeView], pack: tuple[str, Members]) -> bool:
    """Return whether as many GPUs as a pack's guest needs are idle whenever the pack runs."""
    leads, members = pack
    unit = next(job for job in members if job.job == leads)
    node = free.get(unit.nodes[0][0]) if len(unit.nodes) == 1 else None
    return node is not None and known.spare(node, unit) >= unit.gpus


def _can_share(guest: JobView, host: JobView, sizes: dict[str, int]) -> bool:
    """Return whether a guest can continue on a host's GPUs, and their memory holds both.

    Both have to be of one size: else one would have some GPUs alone, which the trial cannot
    measure.
    """
    if (guest.gpus, guest.pin, guest.spec.priority) != (host.gpus, host.pin, host.spec.priority):
        return False
    return on_them(guest, host) and guest.memory + host.memory <= sizes.get(host.nodes[0][0], 0)


def _last_member(leads: str, members: Members) -> JobView:
    """Return the member that leaves a pack: the one that came last and does not lead."""
    return next(job for job in reversed(members) if job.job != leads)


def _fits_alone(job: JobView, capacity: FreeCapacity) -> bool:
    """Return whether a job that left its pack would have GPUs of its own."""
    if "release" not in job.can or not {"rebind", "migrate"}.intersection(job.can):
        return False
    return capacity.fit(replace(job, phase=Phase.AWAY)) is not None
