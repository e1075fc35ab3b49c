"""Between jobs and cells: why a job waits, which cells follow from the nodes, what is idle."""

from __future__ import annotations

from skep import ids
from skep.cells.decide import placement
from skep.cells.decide.gpu_choice import Loss
from skep.cells.decide.reconfigure import decide_outcome
from skep.cells.holds import OPPORTUNISTIC, Placement, Request, Spot
from skep.cells.install import Carried, as_before
from skep.cells.propose import resolve as resolved
from skep.cells.state import Cells
from skep.ledger import attempts
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator.placement import quota
from skep.machines.allocator.policies.demand import SHAPES_MAX
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, after, seconds
from skep.wire import codec
from skep.wire.admin import QuarantineGpu
from skep.wire.bearing import CarriedHold, Fate, RulesRaised
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsSet, ClusterRefused, GpuQuarantined, JobFate, Member
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

JOINS_WITHIN = seconds(0.25)
"""Joins that come within this of one another are told together."""
JOINS_AT_ONCE = 32
"""Up to so many nodes each join is told by itself: all of them together fill 100 kB."""

CELLS_SET_BYTES_MAX = codec.RECORD_BYTES_MAX * 3 // 4
"""What a fact about other cells may fill of a record; the rest is for what follows in it."""


def short(state: ClusterState, vc: str) -> bool:
    """Return whether nodes have yet to join before a VC owns all the GPUs it was promised.

    Args:
        state: What is asked for and what has joined.
        vc: The VC.
    """
    promised = state.asked.vcs.get(vc)
    owned = sum(
        count * chain.topology.size[level]
        for chain in state.cells.chains.values()
        for (owner, pin), pool in chain.pools.items()
        if owner == vc and not pin
        for level, count in enumerate(pool.total)
    )
    return not state.nodes or (promised is not None and owned < promised.gpus)


def members(state: ClusterState, where: Placement) -> tuple[Member, ...]:
    """Return a placement as parts of a gang: one for each node, ranks in the order of nodes."""
    parts: dict[tuple[str, str], list[Spot]] = {}
    for name, portion in where.portions:
        node_of = state.cells.chains[name].topology.node
        for spot in portion:
            parts.setdefault((name, node_of(spot.leaves[0])), []).append(spot)
    made: list[Member] = []
    rank = 0
    for (name, node), spots in parts.items():
        shape = state.cells.chains[name].topology
        devices = tuple(tuple(shape.device(leaf) for leaf in spot.leaves) for spot in spots)
        levels = tuple(spot.level for spot in spots)
        made.append(
            Member(
                node=node,
                identity=state.nodes[node].joined.identity,
                first_rank=rank,
                devices=devices,
                levels=levels if any(levels) else (),
                chain=name if where.further else "",
                gpu_type=shape.gpu if where.further else "",
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


def owed(state: ClusterState) -> dict[str, tuple[int, int]]:
    """Return by node the CPUs and memory that reservations will take there, below zero.

    Returns:
        By node: CPUs and bytes of memory, neither above 0.
    """
    found: dict[str, tuple[int, int]] = {}
    for job in state.reserved.values():
        hold = state.cells.holds[ids.attempt_id(job.job, job.following)]
        wanted = job.spec.resources
        for node in state.cells.nodes_of(hold) if wanted.cpus or wanted.memory else ():
            cpus, memory = found.get(node, (0, 0))
            found[node] = cpus - wanted.cpus, memory - int(wanted.memory)
    return found


def idle_gpus(state: ClusterState) -> int:
    """Return the most idle GPUs of a chain, wherever they are."""
    most = 0
    for chain in state.cells.chains.values():
        shape = chain.topology
        busy = chain.forest.busy[shape.top]
        most = max(most, len(busy) * shape.size[shape.top] - sum(busy))
    return most


def idle_on_one_node(state: ClusterState) -> int:
    """Return the most idle GPUs of a node: no worker with more of them can start now."""
    shapes = [(chain.topology, chain.forest) for chain in state.cells.chains.values()]
    return max(
        (shape.node_size - min(forest.busy[shape.node_level]) for shape, forest in shapes),
        default=0,
    )


def home(state: ClusterState, job: JobState) -> str | None:
    """Return the chain that has every GPU of a suspended attempt, if all of them are idle.

    Each part of a mixed gang has its own, which must have the GPUs of the part still.

    Args:
        state: Its cells are read.
        job: It is suspended, without GPUs.

    Returns:
        The name of the chain, of a mixed gang its first; None: some are in use or bad, or they are
        in no one chain.
    """
    chains: dict[str, None] = {}
    for member in (job.members[name] for name in job.live):
        for device in (device for devices in member.devices for device in devices):
            found = state.cells.find(member.node, device)
            if found is None or not state.cells.chains[found[0]].is_idle(found[1]):
                return None
            chains[leading_chain(job, member, found[0])] = None
    return next(iter(chains)) if len(chains) == 1 and "" not in chains else None


def leading_chain(job: JobState, member: Member, chain: str) -> str:
    """Return the chain under which a gang's place is recorded, as one of its GPUs shows.

    Args:
        job: The job; a mixed gang's place is recorded under its first chain.
        member: The part that has the GPU.
        chain: The chain in which the GPU is by now.

    Returns:
        Its name; empty: the part is of a mixed gang, and the GPU has left the part's chain.
    """
    if not member.chain:
        return chain
    return job.chain if member.chain == chain else ""


def _fits_vacant(tx: Transaction, asked: Request) -> bool:
    """Return whether the cells would hold a request if nothing ran: tried once for its like."""
    vacant = _vacant(tx)
    known, like = tx.soft.fits_vacant, asked._replace(job=ids.NO_ATTEMPT)
    if like not in known:
        if len(known) >= SHAPES_MAX:
            known.clear()
        known[like] = placement.find_placement(vacant, like) is not None
    return known[like]


def _vacant(tx: Transaction) -> Cells:
    """Return the cells of the cluster as if nothing ran."""
    soft, cluster = tx.soft, tx.state.cells.cluster
    if soft.vacant is None or soft.vacant.cluster is not cluster:
        soft.vacant, soft.fits_vacant = Cells(cluster), {}
    return soft.vacant


def fits_own(tx: Transaction, job: JobState) -> bool:
    """Return whether one chain's cells of its VC would hold a job if nothing else ran."""
    asked = attempts.request(job, job.following, guaranteed=True)
    return _fits_vacant(tx, asked._replace(mixed=False))


def fits_there(tx: Transaction, job: JobState) -> bool:
    """Return whether the cells of its VC would hold a job on its nodes if nothing else ran."""
    asked = attempts.request(job, job.following, guaranteed=True)
    there = {name: len(job.members[name].devices) for name in job.live}
    where = placement.find_placement(_vacant(tx), asked, limit=lambda name: there.get(name, 0))
    return where is not None


def why_not(tx: Transaction, job: JobState, asked: Request) -> tuple[Reason, str, bool]:
    """Return why a job that could not be placed waits, for what, and whether aside.

    Args:
        tx: Its cells are read.
        job: The job.
        asked: What it asks the cells for.

    Returns:
        Why it waits; for what, in words; and whether it is put aside. So is a job that no cell
        could hold even if nothing else ran, or only if it might be mixed, as its VC's policy does
        not allow: it holds up no job behind it.
    """
    wanted = job.spec.resources
    kinds = wanted.gpu_type or "any type"
    needs = f"{wanted.workers} x {wanted.gpus} GPUs ({kinds})"
    if asked.guaranteed and _fits_vacant(tx, asked):
        return Reason.WAITS_FOR_CELLS, f"{needs} in cells of {job.spec.vc}", False
    spare = asked._replace(priority=OPPORTUNISTIC, pin="")
    if (not asked.guaranteed or quota.borrows(job)) and _fits_vacant(tx, spare):
        return Reason.WAITS_FOR_GPUS, needs, False
    if asked.guaranteed and wanted.mixed and _fits_vacant(tx, asked._replace(mixed=True)):
        return Reason.MIXED_UNDER_POLICY, needs, True
    if short(tx.state, job.spec.vc):
        return Reason.WAITS_FOR_NODES, needs, True
    return Reason.FITS_NO_CELL, needs, True


def follow_join(tx: Transaction, now: Instant) -> None:
    """Have the cells follow a join: at once, or for all that come together a little later.

    Every change of the cells is told whole, so a thousand of them, one for each join, would be a
    thousand times a thousand nodes.
    """
    soft = tx.soft
    alone = now - soft.joined_at > JOINS_WITHIN
    soft.joined_at = now
    if alone or len(tx.state.nodes) <= JOINS_AT_ONCE:
        resolve(tx, tx.state.asked)
    elif soft.resolve_at is None or soft.resolve_at > after(now, JOINS_WITHIN):
        soft.resolve_at = after(now, JOINS_WITHIN)


def resolve(tx: Transaction, asked: Cluster, *, may_refuse: bool = False) -> None:
    """Record the cells that follow from what is asked for and which nodes have joined, if new.

    Args:
        tx: A fact is added.
        asked: What operators asked for.
        may_refuse: Whether a change is refused that says more of running jobs than one record
            holds.
    """
    tx.soft.resolve_at = None
    inventory = [node.joined for node in tx.state.nodes.values()]
    cluster = resolved(asked, inventory)
    if cluster == tx.state.cells.cluster and asked == tx.state.asked:
        return
    decided = decide_outcome(tx.state.cells, cluster)
    fates = tuple(
        JobFate(job=ids.job_of(name), fate=each.fate, attempt=ids.number_of(name))
        for each in decided.carried
        if each.fate in (Fate.DEMOTED, Fate.RELEASED)
        for name in tx.state.cells.holds[each.hold].partners or (each.hold,)
    )
    # Only what changes is told: a record could not list all jobs of a large cluster.
    carried = tuple(
        _told(each)
        for each in decided.carried
        if each != as_before(tx.state.cells.holds[each.hold])
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
        tx.record(ClusterRefused(problems=(problem,)))
        return
    tx.record(fact)


def _told(each: Carried) -> CarriedHold:
    """Return what becomes of a hold, as a fact says it."""
    (job, attempt), (leads, number) = (
        ids.job_and_number(each.hold),
        ids.job_and_number(each.leads),
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
        chains=each.chains,
    )


def state_bad_cells(tx: Transaction) -> None:
    """Record which cells VCs bear, where earlier rules chose them and no fact says so."""
    if tx.state.unstated:
        tx.record(RulesRaised(rules=tx.state.rules, bad_cells=tx.state.cells.bound_bad_cells()))


def quarantine(tx: Transaction, event: QuarantineGpu) -> None:
    """Record that a GPU is to count as bad, or as good again, if that is news."""
    node = tx.state.nodes.get(event.node)
    if node is not None and (event.device in node.quarantined) is not event.quarantine:
        tx.record(
            GpuQuarantined(
                node=event.node,
                device=event.device,
                why=Reason.ASKED_FOR,
                quarantine=event.quarantine,
            )
        )


def loss(state: ClusterState, now: Instant) -> Loss:
    """Return how to weigh victims: the GPU-seconds that stopping each would lose.

    Jobs that share GPUs with one would have to be stopped as well.

    Args:
        state: Its jobs are read, whenever the result is called.
        now: The time of the decision.

    Returns:
        The loss by attempt; 0: the attempt is being stopped, or is over.
    """

    def lost(name: ids.AttemptId) -> float:
        shared = state.cells.sets.get(name)
        return sum(alone(each) for each in (shared.partners if shared else (name,)))

    def alone(name: ids.AttemptId) -> float:
        job = state.jobs.get(ids.job_of(name))
        if job is None or job.state is State.STOPPING or not job.bound_at:
            return 0.0
        return job.size * job.spec.resources.gpus * max(0, now - job.bound_at) / 1e9 + 1.0

    return lost
