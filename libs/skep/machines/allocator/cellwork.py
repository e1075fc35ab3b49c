"""Between jobs and cells: what a job asks of them, and what facts about it mean for them.

An attempt is held in the cells under a name of its own (`j3.2`): a lost node may still run an
attempt while the next one is bound elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from skep.cells.decide import bad_cells, placement
from skep.cells.decide.gpu_choice import Loss
from skep.cells.decide.reconfigure import decide_outcome
from skep.cells.holds import OPPORTUNISTIC, Placement, Request, Spot
from skep.cells.install import Carried, as_before
from skep.cells.propose import resolve as resolved
from skep.cells.state import Cells
from skep.ledger.job_state import JobState, State
from skep.machines.allocator.demand import SHAPES_MAX
from skep.units import Instant, after, seconds
from skep.wire import codec
from skep.wire.admin import QuarantineGpu
from skep.wire.bearing import BadCellBound, BadCellReturned, CarriedHold, Fate, RulesRaised, SetLed
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsSet, ClusterRefused, GpuQuarantined, JobFate, Member
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine
from skep.ledger import attempt_names, attempts

JOINS_WITHIN = seconds(0.25)
"""Joins that come within this of one another are told together."""
JOINS_AT_ONCE = 32
"""Up to so many nodes each join is told by itself: all of them together fill 100 kB."""

CELLS_SET_BYTES_MAX = codec.RECORD_BYTES_MAX * 3 // 4
"""What a fact about other cells may fill of a record; the rest is for what follows in it."""


def borrows(job: JobState) -> bool:
    """Return whether a guaranteed job also takes idle GPUs, until its VC's cells are free."""
    return job.spec.over_quota == "opportunistic" and not job.spec.opportunistic


def lends(job: JobState) -> bool:
    """Return whether a job may have idle GPUs while it waits, as it can presumably give them back.

    What its latest attempt could do is known. Before that a script is presumed to train with
    PyTorch, so that it can be suspended; of a command nothing is presumed.
    """
    if job.spec.over_quota != "auto" or job.spec.opportunistic:
        return False
    return job.spec.script is not None if job.gives_back is None else job.gives_back


def short(machine: AllocatorMachine, vc: str) -> bool:
    """Return whether nodes have yet to join before a VC owns all the GPUs it was promised."""
    promised = machine.state.asked.vcs.get(vc)
    owned = sum(
        count * chain.topology.size[level]
        for chain in machine.state.cells.chains.values()
        for (owner, pin), pool in chain.pools.items()
        if owner == vc and not pin
        for level, count in enumerate(pool.total)
    )
    return not machine.state.nodes or (promised is not None and owned < promised.gpus)


def members(machine: AllocatorMachine, where: Placement) -> tuple[Member, ...]:
    """Return a placement as parts of a gang: one for each node, ranks in the order of nodes."""
    shape = machine.state.cells.chains[where.chain].topology
    parts: dict[str, list[Spot]] = {}
    for spot in where.spots:
        parts.setdefault(shape.node(spot.leaves[0]), []).append(spot)
    made: list[Member] = []
    rank = 0
    for node, spots in parts.items():
        devices = tuple(tuple(shape.device(leaf) for leaf in spot.leaves) for spot in spots)
        levels = tuple(spot.level for spot in spots)
        made.append(
            Member(
                node=node,
                identity=machine.state.nodes[node].joined.identity,
                first_rank=rank,
                devices=devices,
                levels=levels if any(levels) else (),
            )
        )
        rank += len(spots)
    return tuple(made)


def gpus_of(job: JobState) -> str:
    """Return the GPUs of what is left of an attempt, in words: `node-1:0,1 node-2:0`."""
    return " ".join(
        f"{name}:{','.join(str(one) for devices in job.members[name].devices for one in devices)}"
        for name in job.live
    )


def owed(machine: AllocatorMachine) -> dict[str, tuple[int, int]]:
    """Return by node the CPUs and memory that reservations will take there, below zero."""
    found: dict[str, tuple[int, int]] = {}
    for job in machine.state.reserved.values():
        hold = machine.state.cells.holds[attempt_names.holder(job.job, job.following)]
        shape, wanted = machine.state.cells.chains[hold.chain].topology, job.spec.resources
        for spot in hold.spots if wanted.cpus or wanted.memory else ():
            node = shape.node(spot.leaves[0])
            cpus, memory = found.get(node, (0, 0))
            found[node] = cpus - wanted.cpus, memory - int(wanted.memory)
    return found


def idle_gpus(machine: AllocatorMachine) -> int:
    """Return the most idle GPUs of a chain, wherever they are."""
    shapes = [(chain.topology, chain.forest) for chain in machine.state.cells.chains.values()]
    return max(
        (
            sum(shape.size[shape.top] - busy for busy in forest.busy[shape.top])
            for shape, forest in shapes
        ),
        default=0,
    )


def idle_on_one_node(machine: AllocatorMachine) -> int:
    """Return the most idle GPUs of a node: no worker with more of them can start now."""
    shapes = [(chain.topology, chain.forest) for chain in machine.state.cells.chains.values()]
    return max(
        (shape.node_size - min(forest.busy[shape.node_level]) for shape, forest in shapes),
        default=0,
    )


def home(machine: AllocatorMachine, job: JobState) -> str | None:
    """Return the chain that has every GPU of a suspended attempt, if all of them are idle."""
    chains: dict[str, None] = {}
    for member in (job.members[name] for name in job.live):
        for device in (device for devices in member.devices for device in devices):
            found = machine.state.cells.find(member.node, device)
            if found is None or not machine.state.cells.chains[found[0]].is_idle(found[1]):
                return None
            chains[found[0]] = None
    return next(iter(chains)) if len(chains) == 1 else None


def _fits_vacant(machine: AllocatorMachine, asked: Request) -> bool:
    """Return whether the cells would hold a request if nothing ran: tried once for its like."""
    soft, cells = machine.soft, machine.state.cells
    if soft.vacant is None or soft.vacant.cluster is not cells.cluster:
        soft.vacant, soft.fits_vacant = Cells(cells.cluster), {}
    known, like = soft.fits_vacant, asked._replace(job="")
    if like not in known:
        if len(known) >= SHAPES_MAX:
            known.clear()
        known[like] = placement.find_placement(soft.vacant, like) is not None
    return known[like]


def fits_own(machine: AllocatorMachine, job: JobState) -> bool:
    """Return whether the cells of its VC would hold a job if nothing else ran."""
    asked = attempts.request(job, job.following, guaranteed=True)
    return _fits_vacant(machine, asked)


def why_not(machine: AllocatorMachine, job: JobState, asked: Request) -> tuple[Reason, str, bool]:
    """Return why a job that could not be placed waits, for what, and whether aside.

    What no cell could hold even if nothing else ran holds up nobody behind it.
    """
    wanted = job.spec.resources
    kinds = wanted.gpu_type or "any type"
    needs = f"{wanted.workers} x {wanted.gpus} GPUs ({kinds})"
    if asked.guaranteed and _fits_vacant(machine, asked):
        return Reason.WAITS_FOR_CELLS, f"{needs} in cells of {job.spec.vc}", False
    spare = asked._replace(priority=OPPORTUNISTIC, pin="")
    if (not asked.guaranteed or borrows(job)) and _fits_vacant(machine, spare):
        return Reason.WAITS_FOR_GPUS, needs, False
    if short(machine, job.spec.vc):
        return Reason.WAITS_FOR_NODES, needs, True
    return Reason.FITS_NO_CELL, needs, True


def follow_join(machine: AllocatorMachine, now: Instant) -> None:
    """Have the cells follow a join: at once, or for all that come together a little later.

    Every change of the cells is told whole, so a thousand of them, one for each join, would be a
    thousand times a thousand nodes.
    """
    soft = machine.soft
    alone = now - soft.joined_at > JOINS_WITHIN
    soft.joined_at = now
    if alone or len(machine.state.nodes) <= JOINS_AT_ONCE:
        resolve(machine, machine.state.asked)
    elif soft.resolve_at is None or soft.resolve_at > after(now, JOINS_WITHIN):
        soft.resolve_at = after(now, JOINS_WITHIN)


def resolve(machine: AllocatorMachine, asked: Cluster, *, may_refuse: bool = False) -> None:
    """Record the cells that follow from what is asked for and which nodes have joined, if new.

    With `may_refuse`, a change that says more of running jobs than one record holds is refused.
    """
    machine.soft.resolve_at = None
    inventory = [node.joined for node in machine.state.nodes.values()]
    cluster = resolved(asked, inventory)
    if cluster == machine.state.cells.cluster and asked == machine.state.asked:
        return
    decided = decide_outcome(machine.state.cells, cluster)
    fates = tuple(
        JobFate(
            job=attempt_names.job_of(name), fate=each.fate, attempt=attempt_names.attempt_of(name)
        )
        for each in decided.carried
        if each.fate in (Fate.DEMOTED, Fate.RELEASED)
        for name in machine.state.cells.holds[each.hold].partners or (each.hold,)
    )
    # Only what changes is told: a record could not list all jobs of a large cluster.
    carried = tuple(
        _told(each)
        for each in decided.carried
        if each != as_before(machine.state.cells.holds[each.hold])
    )
    fact = CellsSet(
        cluster=cluster, asked=asked, fates=fates, carried=carried, bad_cells=decided.bad_cells
    )
    if may_refuse and (size := len(codec.encode(fact))) > CELLS_SET_BYTES_MAX:
        text = (
            f"it changes the cells of {len(carried)} running jobs at once ({size} bytes; at most "
            f"{CELLS_SET_BYTES_MAX}): change one chain or tenant at a time"
        )
        problem = Problem(path="$", reason=Reason.TOO_LARGE, text=text)
        machine.record(ClusterRefused(problems=(problem,)))
        return
    machine.record(fact)


def _told(each: Carried) -> CarriedHold:
    """Return what becomes of a hold, as a fact says it."""
    (job, attempt), (leads, number) = (
        attempt_names.named(each.hold),
        attempt_names.named(each.leads),
    )
    other = each.leads != each.hold
    return CarriedHold(
        job=job,
        attempt=attempt,
        chain=each.chain,
        levels=each.levels,
        fate=each.fate,
        leads=leads if other else "",
        leads_attempt=number if other else 0,
    )


def follows(step: bad_cells.Step) -> BadCellBound | BadCellReturned | SetLed:
    """Return the fact of what has to follow for the cells."""
    match step:
        case bad_cells.Bear(cell):
            return BadCellBound(cell=cell)
        case bad_cells.Relieve(cell):
            return BadCellReturned(cell=cell)
        case bad_cells.Lead(name, leader):
            (job, attempt), (before, earlier) = (
                attempt_names.named(leader),
                attempt_names.named(name),
            )
            return SetLed(job=job, attempt=attempt, before=before, attempt_before=earlier)
        case _:
            assert_never(step)


def state_bad_cells(machine: AllocatorMachine) -> None:
    """Record which cells VCs bear, where earlier rules chose them and no fact says so."""
    if machine.state.unstated:
        machine.record(
            RulesRaised(rules=machine.state.rules, bad_cells=machine.state.cells.bound_bad_cells())
        )


def quarantine(machine: AllocatorMachine, event: QuarantineGpu) -> None:
    """Record that a GPU is to count as bad, or as good again, if that is news."""
    node = machine.state.nodes.get(event.node)
    if node is not None and (event.device in node.quarantined) is not event.quarantine:
        machine.record(
            GpuQuarantined(
                node=event.node,
                device=event.device,
                why=Reason.ASKED_FOR,
                quarantine=event.quarantine,
            )
        )


def loss(machine: AllocatorMachine, now: Instant) -> Loss:
    """Return how to weigh victims: the GPU-seconds that stopping each would lose.

    Whoever shares GPUs with one would have to be stopped as well.
    """

    def lost(name: str) -> float:
        shared = machine.state.cells.sets.get(name)
        return sum(alone(each) for each in (shared.partners if shared else (name,)))

    def alone(name: str) -> float:
        job = machine.state.jobs.get(attempt_names.job_of(name))
        if job is None or job.state is State.STOPPING or not job.bound_at:
            return 0.0
        return job.size * job.spec.resources.gpus * max(0, now - job.bound_at) / 1e9 + 1.0

    return lost
