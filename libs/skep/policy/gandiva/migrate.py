"""Migration (Gandiva, section 4.2.2): put scattered gangs together, and vacate servers for them.

Jobs move only to free GPUs, and only while no waiting job could use these. What a move gains in the
remaining time has to be more than its cost. A scattered gang is moved if its family was measured to
be faster on fewer nodes. Other jobs are moved for it, or for a waiting gang, only if the gang then
fits on the node that they leave.
"""

from __future__ import annotations

from collections.abc import Iterator

from skep.perf.judge import pays
from skep.policy.capacity import Place
from skep.policy.gandiva.rules import ACTIONS_MAX, MILLI, Rules, cooling, families, movable, spent
from skep.policy.gandiva.state import UnitIndex, arrived
from skep.policy.plan import Migrate, Plan
from skep.policy.view import JobView, NodeView, Phase, VcView
from skep.units import Duration, Instant, seconds
from skep.wire.reasons import Reason

PAUSE = seconds(10.0)
"""The assumed cost of a move where none was measured yet."""
SURELY = 1.05
"""The predicted gain of a move has to be this many times what it has to gain."""
KEEPS = 980
"""Thousandths of its rate that a job has to keep if it is moved for another job."""
SERVERS_MAX = 4
"""The number of servers, those with the most free GPUs, that a plan considers vacating."""


def gather(view: VcView, known: UnitIndex, plan: Plan) -> list[Migrate]:
    """Return trials of scattered gangs on fewer nodes.

    Args:
        view: The VC.
        known: Its jobs.
        plan: The plan so far; if it does anything, no gang is moved.
    """
    if plan.turns or plan.actions or not known.scattered:
        return []  # The plan uses the free GPUs.
    capacity = known.capacity(view)
    moves, cold = list[Migrate](), cooling(view, "migrate")
    for job in arrived(known.scattered):
        place = capacity.fit(job) if len(moves) < ACTIONS_MAX else None
        if place is None or families(job) in cold or spent(view, job, "migrate"):
            continue
        needed = needed_gain(job, view.now)
        if gain(job, len(place)) > needed * SURELY:
            capacity.take(job, place)
            moves.append(
                Migrate(
                    job.job,
                    Reason.CLOSER,
                    _node_names(place),
                    trial=True,
                    needed_milli=round(MILLI * needed),
                )
            )
    return moves


def defrag(view: VcView, known: UnitIndex, plan: Plan, rules: Rules) -> list[Migrate]:
    """Return moves that vacate one server, so that a gang fits there as a whole.

    Args:
        view: The VC.
        known: Its jobs.
        plan: The plan so far; if it does anything, no job is moved.
        rules: Options.
    """
    if plan.turns or plan.actions:
        return []
    servers, shapes = _servers(view, rules), set[tuple[object, ...]]()
    for job in _benefit(view, known) if servers else ():
        # The result is the same for all waiting jobs of one shape.
        shape = job.spec.resources, job.gpus, job.workers, job.at_home and job.nodes
        if job.phase is Phase.RUNNING or shape not in shapes:
            shapes.add(shape)
            for server in servers:
                moves = _vacate(view, known, server, job)
                if moves:
                    return moves
    return []


def gain(job: JobView, nodes: int) -> float:
    """Return the predicted speed-up of a gang on so many nodes, as a factor; 0.0: not known.

    Args:
        job: The gang, with its present nodes.
        nodes: Fewer nodes.
    """
    slow = dict(job.slowdown)
    here, there = slow.get(len(job.nodes), 0), slow.get(nodes, 0)
    return here / there if here and there and nodes < len(job.nodes) else 0.0


def _benefit(view: VcView, known: UnitIndex) -> Iterator[JobView]:
    """Yield jobs that would run at once, or run faster, if one node had enough free GPUs."""
    line = [
        job
        for job in known.waiting.values()
        if job.gpus > 1 and not (job.phase is Phase.AWAY and "migrate" not in job.can)
    ]
    yield from sorted(line, key=lambda job: (-job.spec.priority, job.sequence))
    cold = cooling(view, "migrate")
    for job in arrived(known.scattered):
        may = families(job) not in cold and not spent(view, job, "migrate")
        if may and gain(job, 1) > needed_gain(job, view.now) * SURELY:
            yield job


def _servers(view: VcView, rules: Rules) -> list[NodeView]:
    """Return the servers to vacate: not idle, with enough free GPUs; the most free ones first."""
    able = [
        node
        for node in view.nodes
        if node.jobs and node.free and node.free >= rules.defrag_free * node.gpus
    ]
    able.sort(key=lambda node: -node.free)
    return able[:SERVERS_MAX]


def _vacate(view: VcView, known: UnitIndex, server: NodeView, job: JobView) -> list[Migrate]:
    """Return the moves that empty a server for a gang; none if that is not possible or worth it."""
    there = [known.jobs[name] for name, _ in server.jobs if name in known.jobs]
    if any(each.trial for each in there) or server.free >= job.gpus or server.gpus < job.gpus:
        return []  # Jobs leave it already, or the gang does not lack GPUs there.
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
    capacity, moves, costs = known.capacity(view), list[Migrate](), 0
    for each in sorted(leave, key=lambda each: (each.gpus, each.sequence)):
        if len(moves) >= ACTIONS_MAX:
            return []
        place = capacity.fit(each, fuller)
        if place is None or len(place) > 1:
            continue
        capacity.release(each)
        capacity.take(each, place)
        costs += each.gpus * (each.pause or PAUSE)
        moves.append(
            Migrate(
                each.job,
                Reason.MAKES_WHOLE,
                _node_names(place),
                trial=True,
                needed_milli=KEEPS,
                defrag=True,
            )
        )
        fits = capacity.fit(job, (server.node,))
        if fits is not None:
            return moves if job.phase is not Phase.RUNNING or _worth(job, costs, view) else []
    return []


def _worth(job: JobView, costs: int, view: VcView) -> bool:
    """Return whether a gang gains more GPU time than it and the jobs that leave for it lose."""
    remaining = job.remaining(view.now)
    if remaining is None:
        return True
    saved = remaining * (1 - 1 / gain(job, 1)) * job.gpus
    return saved > costs + job.gpus * (job.pause or PAUSE)


def needed_gain(job: JobView, now: Instant) -> float:
    """Return the speed-up from which on a move pays, as a factor.

    Args:
        job: The job.
        now: The time of the view.
    """
    return pays(Duration(job.pause or PAUSE), job.remaining(now))


def _node_names(place: Place) -> tuple[str, ...]:
    return tuple(node for node, _ in place)
