"""Growing and shrinking a gang while it trains.

    grow     claim GPUs beside its own; Resize; JobChanged once all its ranks train together
    shrink   Resize; JobChanged and then GangNarrowed: the leavers' GPUs are free

A node answers once every rank has changed and every rank that is not of the gang has ended, so what
is freed is free. A growth that comes to nothing gives back what it claimed. Whatever ends the
attempt meanwhile ends the change with it, and frees everything it holds. Here is what any change of
size has in common; one that several nodes take part in is done by `resizing_across_nodes`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skep import ids
from skep.cells.chain import ChainState
from skep.cells.decide import placement
from skep.cells.holds import Placement
from skep.ledger import attempts
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.machines.allocator.changes import change_ends, ranks, resizing_across_nodes, rounds
from skep.machines.allocator.changes.rounds import Round
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.placement import job_cells, kept_nodes, person_limits
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import Goal
from skep.wire.commands import Resize
from skep.wire.facts import Member
from skep.wire.reasons import Reason
from skep.wire.resizes import GangWidened
from skep.wire.spec import GANG_NODES_MAX

SHOWN_MAX = 12
"""Sizes that a refusal names."""


def refusal(job: JobState, workers: int | None) -> Refused | None:
    """Return why a gang cannot have so many workers, or None.

    Args:
        job: It runs.
        workers: Workers; None: as many as it has.
    """
    allowed = job.spec.elastic
    if workers is not None and allowed is None:
        return Refused(Reason.CANNOT, "resize: its spec has no `elastic`")
    if workers is not None and allowed and not allowed.min <= workers <= allowed.max:
        return Refused(Reason.BAD_VALUE, f"it may have {allowed.min} to {allowed.max} workers")
    if job.servers and len(job.members) > 1:
        return Refused(
            Reason.ONE_NODE_ONLY, f"it is on {len(job.members)}, and has parameter servers"
        )
    if len(job.live) < len(job.parts):
        return Refused(Reason.NOT_RUNNING, "some of its ranks have ended")
    if "resize" not in job.can:
        return Refused(Reason.CANNOT, "resize (`skep show` tells what it can)")
    if workers is not None and job.sizes and workers not in job.sizes:
        return Refused(Reason.SIZE_NOT_OFFERED, f"{workers} workers; ask for {one_of(job.sizes)}")
    return None


def one_of(sizes: tuple[int, ...]) -> str:
    """Return sizes in words: the first ones, if there are many."""
    shown = [str(size) for size in sizes[:SHOWN_MAX]]
    if len(sizes) > SHOWN_MAX:
        return f"{', '.join(shown)} or one of {len(sizes) - SHOWN_MAX} more"
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)


def begin(
    tx: Transaction,
    job: JobState,
    workers: int | None,
    now: Instant,
    *,
    servers: int | None = None,
    why: Reason = Reason.REQUESTED,
) -> Refused | None:
    """Begin to change the size of a gang.

    Args:
        tx: Its nodes, cells and jobs are read; facts and a command are added.
        job: It runs, and can be resized.
        workers: How many workers it is to have, None for as many as it has.
        now: The time of the decision.
        servers: How many parameter servers it is to have, None for as many as it has.
        why: Why it is to change.

    Returns:
        Why it does not begin, or None.
    """
    workers, servers = workers or job.size, servers or job.servers
    name = next(name for name in job.live if job.members[name].first_rank == 0)
    node = tx.state.nodes[name]
    # Ranks on parameter servers meet nowhere: they find them where the attempt began.
    port = job.port if servers else node.holdings[job.job, job.attempt].meets or node.port()
    if port is None:
        return Refused(Reason.WAITS_FOR_PORT, name)
    if workers > job.size:
        further = (workers - job.size) * job.spec.resources.gpus
        full = person_limits.above_with(tx, job, further) if tx.state.people.of_vc else ""
        if full:
            return Refused(Reason.PERSON_LIMIT, full)
        more = _place(tx.state, job, workers - job.size, kept_nodes.kept_from(tx, job, now))
        if not more:
            gpus = f"{workers - job.size} x {job.spec.resources.gpus} GPUs"
            return Refused(Reason.NO_ROOM, f"{gpus} beside it")
        _widen(tx, job, more, now)
    if len(job.live) > 1:
        resizing_across_nodes.begin(tx, job, name, workers, port, now=now, why=why)
        return None
    resize = Resize(
        generation=tx.state.order + 1,  # An order is never used twice, neither may a generation be.
        world=workers,
        master_port=port,
        servers=servers,
        ranks=ranks.plans(job.members[name], workers),
        master_address=node.joined.address,
    )
    begins = Round(Goal.RESIZE, resize, (name,), why, change_ends.number(job, why))
    rounds.send(tx, job, begins, now)
    return None


def _place(
    state: ClusterState, job: JobState, workers: int, kept: dict[str, str]
) -> tuple[Member, ...]:
    """Return idle GPUs for further workers, by the right by which the gang has its own.

    As close to it as there are any: on its own nodes, else in the cell that its spec wants all
    workers to share, else (unless it insists) anywhere in its chain. No job makes room: a tenant
    that asks for more gets what is free now, or is told that it is not.
    """
    cells = state.cells
    holder = ids.attempt_id(job.job, job.attempt)
    hold = cells.holds.get(holder)
    if hold is None or holder in cells.off_chain:
        return ()
    chain = cells.chains[hold.chain]
    wanted = msgspec.structs.replace(job.spec.resources, workers=workers)
    asked = attempts.request(job, job.attempt, guaranteed=hold.guaranteed)
    within, hard = asked.within, asked.hard
    asked = asked._replace(
        members=((workers, wanted.gpus),), gpu=chain.topology.gpu, within="", hard=False
    )
    for near in _nearness(chain, job, within, hard=hard):

        def limit(name: str, near: dict[str, None] | None = near) -> int:
            node, mine = state.nodes[name], job.live
            there = (job.job, job.attempt) in node.holdings
            if name in kept and name not in mine:
                return 0
            if (there and name not in mine) or (near is not None and name not in near):
                return 0
            return node.workers(wanted)

        where = placement.find_placement(cells, asked, limit=limit)
        if where is None or where.chain != hold.chain:
            continue
        if where.victims or where.cancels or where.demoted:
            continue
        if within and hard and not _shares(chain, job, where, within):
            continue
        more = job_cells.members(state, where)
        if len({**job.members, **dict.fromkeys(one.node for one in more)}) <= GANG_NODES_MAX:
            return more
    return ()


def _nearness(
    chain: ChainState, job: JobState, within: str, *, hard: bool
) -> Iterator[dict[str, None] | None]:
    """Yield the nodes on which to look for room, one choice after the other; None: any."""
    shape = chain.topology
    yield dict.fromkeys(job.live)
    if job.servers:
        return  # They are beside the first worker, for workers of its node.
    level = shape.level(within) if within else None
    if level is not None and level > shape.node_level:
        cells = dict.fromkeys(shape.up(leaf, level) for leaf in _leaves(chain, job))
        yield dict.fromkeys(shape.node(leaf) for cell in cells for leaf in shape.span(level, cell))
    if not hard or level is None:
        yield None


def _shares(chain: ChainState, job: JobState, where: Placement, within: str) -> bool:
    """Return whether all GPUs of a gang would be in one cell of a level."""
    shape = chain.topology
    level = shape.level(within)
    leaves = [*_leaves(chain, job), *(leaf for spot in where.spots for leaf in spot.leaves)]
    return level is None or len(dict.fromkeys(shape.up(leaf, level) for leaf in leaves)) == 1


def _leaves(chain: ChainState, job: JobState) -> list[int]:
    """Return the GPUs of a gang as leaves of a chain."""
    return [
        leaf
        for name in job.live
        for devices in job.members[name].devices
        for device in devices
        if (leaf := chain.topology.leaf(name, device)) is not None
    ]


def _widen(tx: Transaction, job: JobState, more: tuple[Member, ...], now: Instant) -> None:
    """Give a gang further GPUs; its new ranks are numbered behind those it has."""
    for part in more:
        first = job.size + part.first_rank
        new = part.node not in job.members
        tx.record(
            GangWidened(
                job=job.job,
                attempt=job.attempt,
                at=now,
                trace=job.trace,
                member=msgspec.structs.replace(part, first_rank=first),
                order=tx.state.order + 1 if new else 0,
            )
        )
