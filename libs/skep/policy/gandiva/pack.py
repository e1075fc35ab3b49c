"""Packing (Gandiva, section 4.2.2): in overload, who uses GPUs the least goes beside his like.

Jobs run by themselves first. Of those that were measured so, the one with the lowest GPU
utilisation that waits for its slice is tried on the GPUs of the one with the lowest that runs, if
the memory holds both. What is not better than turns is undone, cools down, and the next is tried.
"""

from __future__ import annotations

from msgspec.structs import replace

from skep.policy.capacity import Room
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
from skep.policy.gandiva.state import Known
from skep.policy.plan import Pack, Plan, Unpack
from skep.policy.view import JobView, NodeView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason
from skep.wire.spec import suits

GANG_STANDS = 4
"""Slices after which a gang that stands keeps trials from its nodes."""


def pack(view: VcView, known: Known, plan: Plan, rules: Rules) -> list[Pack]:
    """Return whom to try beside whom, beyond a plan of turns. Only in overload.

    That is where jobs want more GPUs than there are, or a server's height is above 1: those on it
    may be unable to go elsewhere. Each pack makes up for as many GPUs as its guest has. Where a
    larger gang has stood for long nothing is tried: one trial after the other, each on some of the
    GPUs that it needs all at once, would keep it from them.
    """
    if view.now < view.trial_after or not known.couples.guests:
        return []
    over, crowded = known.over(view), dict[str, int]()
    short = [pin for pin, gpus in over.items() if gpus > 0]
    crowded = {} if short else known.crowded(view)
    if not short and not crowded:
        return []
    couples, gone = known.couples, named(plan)
    sizes = {node.node: node.gpu_memory for node in view.nodes}
    cold, often = cooling(view, "pack"), tired(view)
    couples.look((sizes, cold, often))
    tried, alone = list[Pack](), list[JobView]()
    gangs: dict[str, int] | None = None
    nodes: dict[str, NodeView] | None = None
    for guest in couples.line(short) if short else couples.standing(crowded):
        if len(tried) >= ACTIONS_MAX:
            break
        ((node, _),) = guest.nodes
        if over.get(guest.pin, 0) <= 0 and crowded.get(node, 0) <= 0:
            continue
        if guest.job in gone:
            continue
        hosts = [
            each
            for each in couples.hosts(guest)
            if _goes(guest, each, sizes)
            and families(guest, each) not in cold
            and frozenset((guest.job, each.job)) not in often
        ]
        if not hosts:
            alone.append(guest)
        host = min((each for each in hosts if each.job not in gone), key=idlest, default=None)
        if host is not None:
            gangs = _gangs(view, known, rules) if gangs is None else gangs
            nodes = {each.node: each for each in view.nodes} if nodes is None else nodes
            if gangs.get(node, 0) > guest.gpus or _beside(known, nodes[node], host, guest):
                continue
            gone.add(host.job)
            over[guest.pin] = over.get(guest.pin, 0) - guest.gpus
            crowded[node] = crowded.get(node, 0) - guest.gpus
            tried.append(
                Pack(guest.job, host.job, Reason.BEST_PACKING, trial=True, needed_milli=PACKS_NEED)
            )
    couples.block(alone)
    return tried


def _gangs(view: VcView, known: Known, rules: Rules) -> dict[str, int]:
    """Return by node the GPUs of the largest gang that has waited for them for long.

    One that never ran is to have the first nodes that are enough for it.
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
    """Return whom to take off shared GPUs, one at most, because who is there hurts whom.

    Rates of who goes on are low at first, as they were measured while he stood: nobody is judged by
    them before the slice is over.
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
    return [Unpack(_guest(leads, units.calm[leads]).job, Reason.INTERFERES)]


def spread(view: VcView, units: Units, plan: Plan) -> tuple[list[Unpack], Instant | None]:
    """Return whom to take off shared GPUs, one at most, and when to look again.

    Once there is no overload any more, or whoever waits is too large for what is left beside the
    pack, no job has come for a slice, and one of those that share fits on GPUs that are free.
    """
    if not units.calm or plan.actions or plan.turns:
        return [], None
    known, free = units.known, {node.node: node for node in view.nodes if node.free}
    packs = [pack for pack in units.calm.items() if not known.waiting or _idles(known, free, pack)]
    room = known.room(view) if packs else None
    for leads, members in sorted(packs, key=lambda pack: pack[1][0].sequence):
        for each in sorted(members, key=lambda job: (job.job == leads, job.sequence)):
            if room is not None and _fits(each, room):
                calm = Instant(view.quiet_since + units.rules.slice_ns)
                if view.now < calm:
                    return [], calm
                return [Unpack(each.job, Reason.OWN_GPUS)], None
    return [], None


def _beside(known: Known, node: NodeView, host: JobView, guest: JobView) -> bool:
    """Return whether a guest may run whenever a host does, each with GPUs of its own."""
    able = {"rebind", "migrate"}.intersection(guest.can)
    if not able and any(
        set(had) & set(dict(host.devices).get(name, ())) for name, had in guest.devices
    ):
        return False  # It goes on with its very own GPUs, or not at all.
    left = known.size(node) - host.gpus
    return guest.gpus <= left and known.spare(node, host) >= 0


def _idles(known: Known, free: dict[str, NodeView], pack: tuple[str, Members]) -> bool:
    """Return whether GPUs are idle whenever a pack runs, as many as its guest could have."""
    leads, members = pack
    unit = next(job for job in members if job.job == leads)
    node = free.get(unit.nodes[0][0]) if len(unit.nodes) == 1 else None
    return node is not None and known.spare(node, unit) >= unit.gpus


def _goes(guest: JobView, host: JobView, sizes: dict[str, int]) -> bool:
    """Return whether a guest can go on with the GPUs of a host, and their memory holds both.

    Of another size somebody would have GPUs alone of which the test knows nothing.
    """
    if (guest.gpus, guest.pin, guest.spec.priority) != (host.gpus, host.pin, host.spec.priority):
        return False
    return on_them(guest, host) and guest.memory + host.memory <= sizes.get(host.nodes[0][0], 0)


def _guest(leads: str, members: Members) -> JobView:
    """Return who leaves: who came last, but for who leads."""
    return next(job for job in reversed(members) if job.job != leads)


def _fits(job: JobView, room: Room) -> bool:
    """Return whether a job that left others would have GPUs of its own."""
    if "release" not in job.can or not {"rebind", "migrate"}.intersection(job.can):
        return False
    return room.fit(replace(job, phase=Phase.AWAY)) is not None
