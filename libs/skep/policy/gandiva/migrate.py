"""Migration (Gandiva, section 4.2.2): gangs to where they are together, and room for them made.

Only to GPUs that are free, after everybody who waits was offered them. What a move gains in the
time that is left has to be more than it costs: a scattered gang is moved if its family was measured
to be so much faster on fewer nodes, and others are moved for it, or for one that waits, only if it
then fits on the node they leave.
"""

from __future__ import annotations

from collections.abc import Iterator

from skep.perf.judge import pays
from skep.policy.capacity import Place
from skep.policy.gandiva.rules import ACTIONS_MAX, MILLI, Rules, cooling, families, movable, spent
from skep.policy.gandiva.state import Known, arrived
from skep.policy.plan import Migrate, Plan
from skep.policy.view import JobView, NodeView, Phase, VcView
from skep.units import Duration, seconds
from skep.wire.reasons import Reason

PAUSE = seconds(10.0)
"""What a move is taken to cost where none was measured yet."""
SURELY = 1.05
"""How many times more than a move has to gain it is to be predicted to gain."""
KEEPS = 980
"""Thousandths of its rate that a job has to keep that is moved for others."""
SERVERS_MAX = 4
"""Servers that are looked at in a plan to be vacated, those with the most free GPUs."""


def gather(view: VcView, known: Known, plan: Plan) -> list[Migrate]:
    """Return which scattered gangs to try on fewer nodes."""
    if plan.turns or plan.actions or not known.scattered:
        return []  # GPUs that are free are spoken for.
    room = known.room(view)
    moves, cold = list[Migrate](), cooling(view, "migrate")
    for job in arrived(known.scattered):
        place = room.fit(job) if len(moves) < ACTIONS_MAX else None
        if place is None or families(job) in cold or spent(view, job, "migrate"):
            continue
        needed = _needs(job, view)
        if _gain(job, len(place)) > needed * SURELY:
            room.take(job, place)
            moves.append(
                Migrate(
                    job.job,
                    Reason.CLOSER,
                    _on(place),
                    trial=True,
                    needed_milli=round(MILLI * needed),
                )
            )
    return moves


def defrag(view: VcView, known: Known, plan: Plan, rules: Rules) -> list[Migrate]:
    """Return whom to move off a server, so that somebody fits there as a whole."""
    if plan.turns or plan.actions:
        return []
    servers, shapes = _servers(view, rules), set[tuple[object, ...]]()
    for job in _benefit(view, known) if servers else ():
        # Of those that wait the next of a shape finds what the first one did.
        shape = job.spec.resources, job.gpus, job.workers, job.at_home and job.nodes
        if job.phase is Phase.RUNNING or shape not in shapes:
            shapes.add(shape)
            for server in servers:
                moves = _vacate(view, known, server, job)
                if moves:
                    return moves
    return []


def _benefit(view: VcView, known: Known) -> Iterator[JobView]:
    """Yield who would go on at once, or faster, if there was room on one node."""
    line = [
        job
        for job in known.waiting.values()
        if job.gpus > 1 and not (job.phase is Phase.AWAY and "migrate" not in job.can)
    ]
    yield from sorted(line, key=lambda job: (-job.spec.priority, job.sequence))
    cold = cooling(view, "migrate")
    for job in arrived(known.scattered):
        may = families(job) not in cold and not spent(view, job, "migrate")
        if may and _gain(job, 1) > _needs(job, view) * SURELY:
            yield job


def _servers(view: VcView, rules: Rules) -> list[NodeView]:
    """Return the servers that are to be vacated: not idle, with so much free, the most first."""
    able = [
        node
        for node in view.nodes
        if node.jobs and node.free and node.free >= rules.defrag_free * node.gpus
    ]
    able.sort(key=lambda node: -node.free)
    return able[:SERVERS_MAX]


def _vacate(view: VcView, known: Known, server: NodeView, job: JobView) -> list[Migrate]:
    """Return who is to leave a server so that a gang fits there; nobody if that is not to be."""
    there = [known.jobs[name] for name, _ in server.jobs if name in known.jobs]
    if any(each.trial for each in there) or server.free >= job.gpus or server.gpus < job.gpus:
        return []  # Others leave it already; or it is not GPUs that are missing.
    cold = cooling(view, "defrag")
    leave = [
        each
        for each in there
        if movable(each)
        and len(each.nodes) == 1
        and each.job != job.job
        and each.pin == job.pin
        and families(each) not in cold
    ]
    leave = [each for each in leave if each.rate_milli and not spent(view, each, "defrag")]
    if server.free + sum(each.gpus for each in leave) < job.gpus:
        return []
    fuller = [
        node.node
        for node in view.nodes
        if node.jobs and node.free <= server.free and node.node != server.node
    ]
    room, moves, costs = known.room(view), list[Migrate](), 0
    for each in sorted(leave, key=lambda each: (each.gpus, each.sequence)):
        if len(moves) >= ACTIONS_MAX:
            return []
        place = room.fit(each, fuller)
        if place is None or len(place) > 1:
            continue
        room.release(each)
        room.take(each, place)
        costs += each.gpus * (each.pause or PAUSE)
        moves.append(
            Migrate(
                each.job,
                Reason.MAKES_WHOLE,
                _on(place),
                trial=True,
                needed_milli=KEEPS,
                defrag=True,
            )
        )
        fits = room.fit(job, (server.node,))
        if fits is not None:
            return moves if job.phase is not Phase.RUNNING or _worth(job, costs, view) else []
    return []


def _worth(job: JobView, costs: int, view: VcView) -> bool:
    """Return whether a gang gains more, in GPU time, than it and those that leave for it lose."""
    remaining = job.remaining(view.now)
    if remaining is None:
        return True
    saved = remaining * (1 - 1 / _gain(job, 1)) * job.gpus
    return saved > costs + job.gpus * (job.pause or PAUSE)


def _needs(job: JobView, view: VcView) -> float:
    return pays(Duration(job.pause or PAUSE), job.remaining(view.now))


def _gain(job: JobView, nodes: int) -> float:
    """Return how many times as fast a gang is on so many nodes, as predicted; 0.0: not known."""
    slow = dict(job.slowdown)
    here, there = slow.get(len(job.nodes), 0), slow.get(nodes, 0)
    return here / there if here and there and nodes < len(job.nodes) else 0.0


def _on(place: Place) -> tuple[str, ...]:
    return tuple(node for node, _ in place)
