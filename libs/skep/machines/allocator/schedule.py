"""Who gets GPUs next, where, and at whose expense.

Each VC's guaranteed jobs go to the VC's own cells, in the order of its queue: a small job never
overtakes a large one there, so no gang starves, and no VC waits for another. Who must be stopped
first is stopped under a reservation: the cells are the preemptor's from the decision on. Idle GPUs
go to opportunistic jobs, to the VC with the smallest share of them first (weighted max-min).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

from skep.cells.alike import used_up
from skep.cells.fair import place_yielding
from skep.cells.holds import Hold, Placement, Request, Spot
from skep.cells.nodes import NodeState
from skep.cells.place import Limit
from skep.machines.allocator import cellwork, changing, packing, servers, suspects
from skep.machines.allocator.dispatch import command
from skep.machines.allocator.jobs import JobState, Part, State
from skep.policies.queue import Entry, Head
from skep.units import Instant
from skep.wire.advice import QueueAdvice
from skep.wire.facts import (
    CellsReserved,
    JobBound,
    JobDemoted,
    JobPromoted,
    JobWaits,
    Member,
    ReservationDropped,
)
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_NODES_MAX

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

MEMBERS_BOUND_MAX = 150
"""Parts of gangs bound, and victims named or stopped, in one decision: their facts and those of the
event itself fit one record (500 bytes for a job of one part, less for each further part and each
victim). A gang that alone has more comes first in a decision, or in the next one."""


def advised(machine: AllocatorMachine, event: QueueAdvice, now: Instant) -> None:
    """Let the queues follow an order among equals until it expires."""
    if event.expires_at <= now:
        return
    orders: dict[tuple[str, bool], list[Entry]] = {}
    for advice in event.jobs:
        job = machine.jobs.get(advice.job)
        if job is not None and job.state is State.QUEUED:
            orders.setdefault(job.queue, []).append(job.entry)
    for key, queue in machine.queues.items():
        queue.advise(orders.get(key, ()))
    machine.soft.advice_until = event.expires_at


def schedule(machine: AllocatorMachine, now: Instant) -> None:
    """Bind what has its cells, then guaranteed jobs, then opportunistic ones on what is idle."""
    if 0 < machine.soft.advice_until <= now:
        machine.soft.advice_until = Instant(0)
        for queue in machine.queues.values():
            queue.advise(())
    packing.follow(machine, now)
    bound = _finish(machine, now)
    for opportunistic in (False, True):
        if opportunistic:
            changing.come_back(machine, now)
        turns = [(_turn(machine, vc, head, opportunistic=opportunistic), vc)
                 for (vc, kind), queue in machine.queues.items()
                 if kind is opportunistic and (head := queue.head()) is not None]  # fmt: skip
        heapq.heapify(turns)
        while turns:
            if bound >= MEMBERS_BOUND_MAX:
                machine.soft.check_at = now  # Go on in the next decision.
                return
            vc = turns[0][1]
            queue = machine.queues[vc, opportunistic]
            head = queue.head()
            assert head is not None, vc
            cost = _serve(machine, head, now, MEMBERS_BOUND_MAX - bound)
            bound += cost
            following = queue.head() if cost else None
            if following is None:
                heapq.heappop(turns)
            else:
                turn = _turn(machine, vc, following, opportunistic=opportunistic)
                heapq.heapreplace(turns, (turn, vc))
            for other in _returned(machine, turns, opportunistic=opportunistic):
                heapq.heappush(turns, other)
    _promote(machine)


def _returned(
    machine: AllocatorMachine, turns: list[tuple[tuple[float, Entry], str]], *, opportunistic: bool
) -> list[tuple[tuple[float, Entry], str]]:
    """Return turns for VCs that had theirs before a job came back to their queue.

    It claimed idle GPUs that were then taken for another VC's job. Its own cells may hold it by
    now, and that is not to wait for the next event.
    """
    back = [vc for vc, kind in machine.soft.returned if kind is opportunistic]
    machine.soft.returned.clear()
    heads = {vc: machine.queues[vc, opportunistic].head() for vc in back}
    having = {vc for _, vc in turns}
    return [(_turn(machine, vc, head, opportunistic=opportunistic), vc)
            for vc, head in heads.items() if head is not None and vc not in having]  # fmt: skip


def _turn(
    machine: AllocatorMachine, vc: str, head: Head, *, opportunistic: bool
) -> tuple[float, Entry]:
    """Return what orders the VCs: of opportunistic jobs, what they have of what is idle."""
    if not opportunistic:
        return 0.0, head.claim
    owned = machine.cells.cluster.vcs.get(vc)
    weight = owned.weight if owned is not None else 1.0
    return machine.borrowed_gpus(vc) / weight, head.claim


def _finish(machine: AllocatorMachine, now: Instant) -> int:
    """Bind reservations whose victims are gone; drop those on hardware that went bad.

    Returns how many parts were bound and victims stopped.
    """
    cost, ripe = 0, machine.soft.ripe
    for key in list(ripe):
        if cost >= MEMBERS_BOUND_MAX:
            machine.soft.check_at = now
            break
        del ripe[key]
        job = machine.reserved.get(key)
        if job is None:
            continue
        name = cellwork.holder(job.job, job.following)
        hold = machine.cells.holds[name]
        chain = machine.cells.chains[hold.chain]
        if any(leaf in chain.bad for spot in hold.spots for leaf in spot.leaves):
            machine.record(ReservationDropped(job=job.job, attempt=job.following,
                                              why=Reason.NODE_LOST))  # fmt: skip
        elif not machine.cells.ready(name):
            stopped = _stop_all(machine, job, _users(machine, job), now, MEMBERS_BOUND_MAX - cost)
            cost += stopped
            if stopped:
                ripe[key] = None  # There may be more to stop than one decision does.
        else:
            where = Placement(hold.chain, hold.spots)
            made = cellwork.members(machine, where)
            if not _room(machine, job, made):
                ripe[key] = None
                _more_victims(machine, job, made, now)
                continue
            bound = bind(machine, job, where, made, Reason.CELLS_RESERVED, Reason.ARRIVAL, now)
            cost += bound
            if not bound:
                ripe[key] = None
    return cost


def _serve(machine: AllocatorMachine, head: Head, now: Instant, room: int) -> int:
    """Bind a job or reserve cells for it; else say why it waits.

    Returns how many parts were bound and victims named; 0 if its queue has to wait. What could not
    be placed is not tried again before something came free.
    """
    job = machine.jobs[head.entry.job]
    soft, tried = machine.soft, (job.job, machine.soft.changes)
    if soft.failed.get(job.queue) == tried:
        return 0
    attempt = job.following
    asked = cellwork.request(job, attempt, guaranteed=not job.spec.opportunistic)
    where = _place(machine, job, asked, now)
    if where is None and cellwork.borrows(job):
        where = _place(machine, job, cellwork.request(job, attempt, guaranteed=False), now)
    made = cellwork.members(machine, where) if where is not None else ()
    if where is None or len(made) > GANG_NODES_MAX:
        why, needs, aside = cellwork.why_not(machine, job, asked)
        _wait(machine, job, why, needs, aside=aside)
        if not aside:
            soft.failed[job.queue] = tried
        return int(aside)
    if room < MEMBERS_BOUND_MAX and len(made) + len(where.victims) > room:
        soft.check_at = now
        return 0
    why = Reason.BEST_FIT_ONE_NODE if len(made) == 1 else Reason.FEWEST_NODES
    for name in where.demoted:
        machine.record(JobDemoted(job=cellwork.job_of(name), attempt=cellwork.attempt_of(name),
                                  why=Reason.PREEMPTED, detail=f"for {job.job}"))  # fmt: skip
    for name in where.cancels:
        other = machine.jobs[cellwork.job_of(name)]
        machine.record(ReservationDropped(job=other.job, attempt=other.following,
                                          why=Reason.PREEMPTED))  # fmt: skip
        soft.returned[other.queue] = None
    if where.victims or not _room(machine, job, made):
        return _reserve(machine, job, where, made, head, why, now)
    return bind(machine, job, where, made, why, head.ranked, now)


def _place(
    machine: AllocatorMachine, job: JobState, asked: Request, now: Instant
) -> Placement | None:
    """Return a place; of what is idle, also one that is due to its VC for having less of it."""
    where = suspects.place(machine, job, asked, _limit(machine, job, asked.priority), now)
    if where is None and not asked.guaranteed:
        where = _yielding(machine, job, asked, now)
    return where


def _yielding(
    machine: AllocatorMachine, job: JobState, asked: Request, now: Instant
) -> Placement | None:
    """Return a place for which opportunistic jobs of tenants above their share are stopped."""
    cells = machine.cells
    used = dict.fromkeys(cells.cluster.vcs, 0)
    going = {name: None for name, hold in cells.holds.items()
             if not hold.guaranteed and hold.vc in used and _goes_on(machine, name)}  # fmt: skip
    for name in going:
        used[cells.holds[name].vc] += cells.holds[name].gpus
    if job.spec.vc not in used or sum(used.values()) == used[job.spec.vc]:
        return None
    shares = {vc: (used[vc], each.weight) for vc, each in cells.cluster.vcs.items()}
    for chain in cells.chains.values():
        if asked.gpu in ("", chain.topology.gpu):
            found = place_yielding(chain, cells.holds, asked, shares, machine.loss(now),
                                   _limit(machine, job, asked.priority),
                                   going.__contains__)  # fmt: skip
            if found is not None:
                return found
    return None


def _goes_on(machine: AllocatorMachine, name: str) -> bool:
    """Return whether an attempt runs or is about to, and nobody has asked it to stop."""
    job = machine.jobs.get(cellwork.job_of(name))
    if job is None or job.state is State.STOPPING:
        return False
    attempt = job.following if job.state is State.RESERVED else job.attempt
    return cellwork.holder(job.job, attempt) == name


def bind(
    machine: AllocatorMachine, job: JobState, where: Placement, made: tuple[Member, ...],
    why: Reason, ranked: Reason, now: Instant,
) -> int:  # fmt: skip
    """Give a job its GPUs and tell its nodes; returns its parts, 0 if it has to wait for a port."""
    first = made[0].node
    port = machine.nodes[first].port()
    if port is None:
        # One is free as soon as any job there ends, and the gang keeps its turn.
        machine.soft.failed[job.queue] = job.job, machine.soft.changes
        _wait(machine, job, Reason.WAITS_FOR_PORT, first)
        return 0
    machine.record(
        JobBound(
            job=job.job,
            attempt=job.following,
            order=machine.order + 1,
            members=made,
            master_port=port,
            why=why,
            at=now,
            ranked=ranked,
            trace=job.trace,
            chain=where.chain,
            secret=servers.secret(machine, job),
        )
    )
    for name in job.members:
        command(machine, name, job.job, job.attempt, now)
    return len(made)


def _reserve(
    machine: AllocatorMachine, job: JobState, where: Placement, made: tuple[Member, ...],
    head: Head, why: Reason, now: Instant,
) -> int:  # fmt: skip
    """Claim the cells, then stop whoever still uses them: of very many a part at a time."""
    users = _with_partners(machine, where)
    victims = tuple(cellwork.job_of(name) for name in users)
    needs = f"{len(victims)} jobs to stop" if len(victims) > 1 else "".join(victims)
    if victims == (job.job,):
        needs = "its earlier attempt"  # On a node that was lost, and came back with it.
    _wait(machine, job, Reason.WAITS_FOR_VICTIMS, needs)
    machine.record(CellsReserved(job=job.job, attempt=job.following, chain=where.chain,
                                 members=made, victims=victims, at=now, why=why,
                                 ranked=head.ranked))  # fmt: skip
    cost = len(made) + len(victims)
    _stop_all(machine, job, users, now, max(0, MEMBERS_BOUND_MAX - cost))
    if not _room(machine, job, made):
        _more_victims(machine, job, made, now)
    return cost


def _users(machine: AllocatorMachine, job: JobState) -> list[str]:
    """Return who uses what a job claims."""
    hold = machine.cells.holds[cellwork.holder(job.job, job.following)]
    return machine.cells.users(hold.chain, hold.spots)


def _with_partners(machine: AllocatorMachine, where: Placement) -> list[str]:
    """Return the victims of a placement, and beside each whoever shares those GPUs with it."""
    cells = machine.cells
    users = cells.users(where.chain, where.spots)
    by_hold: dict[str, list[str]] = {name: [] for name in where.victims}
    for name in users:
        hold = cells.hold_of(name)
        assert hold is not None, name
        by_hold[hold.job].append(name)
    return [name for names in by_hold.values() for name in names]


def _stop_all(
    machine: AllocatorMachine, job: JobState, names: Iterable[str], now: Instant, most: int
) -> int:
    """Stop the users of what a job claims; returns how many were. Those beyond `most` follow."""
    stopped = 0
    for name in names:
        if stopped >= most:
            machine.soft.check_at = now
            break
        stopped += _stop_victim(machine, name, job, now)
    return stopped


def _stop_victim(
    machine: AllocatorMachine, name: str, job: JobState, now: Instant, *, memory: bool = False
) -> bool:
    victim = machine.jobs.get(cellwork.job_of(name))
    current = victim is not None and cellwork.holder(victim.job, victim.attempt) == name
    if victim is not None and current:
        return changing.give_way(machine, victim, now, f"for {job.job}", memory=memory)
    if victim is not None and victim.succeeds(cellwork.attempt_of(name)):
        machine.give_up_move(victim, now, f"{job.job} needed the GPUs")
        return True
    return False


def _promote(machine: AllocatorMachine) -> None:
    """Let jobs that borrow GPUs have their VC's cells, where nobody of the VC waits for them."""
    for job in list(machine.borrowed.values()):
        queue = machine.queues.get((job.spec.vc, False))
        head = queue.head() if queue is not None else None
        if (head is not None and head.claim < job.entry) or job.state is State.STOPPING:
            continue
        key = job.job, machine.soft.changes
        if machine.soft.uncovered.get(job.job) == key[1]:
            continue
        hold = machine.cells.holds[cellwork.holder(job.job, job.attempt)]
        spots = _cover(machine, job, hold)
        if spots is None:
            machine.soft.uncovered[job.job] = key[1]
            continue
        machine.record(JobPromoted(job=job.job, attempt=job.attempt,
                                   levels=tuple(spot.level for spot in spots)))  # fmt: skip


def _cover(machine: AllocatorMachine, job: JobState, hold: Hold) -> tuple[Spot, ...] | None:
    """Return where a job runs as cells of its VC, if that leaves the VC what it would have alone.

    Elsewhere its cells would be broken up by where there happened to be idle GPUs, and its next
    gang would wait for a whole one: such a job goes on borrowing.
    """
    spots = machine.cells.cover(hold)
    if spots is None:
        return None
    asked = cellwork.request(job, job.attempt + 1, guaranteed=True)._replace(priority=0)
    anew = machine.cells.place(asked)
    if anew is None or anew.chain != hold.chain:
        return spots
    chain = machine.cells.chains[hold.chain]
    pool = chain.pools[hold.vc, hold.pin]
    return spots if used_up(chain, pool, spots) <= used_up(chain, pool, anew.spots) else None


def _wait(
    machine: AllocatorMachine, job: JobState, why: Reason, needs: str, *, aside: bool = False
) -> None:
    if job.waits != (why, needs) or aside:
        machine.record(JobWaits(job=job.job, why=why, needs=needs, aside=aside))


# --- CPUs and memory ---------------------------------------------------------------------------


def _limit(machine: AllocatorMachine, job: JobState, priority: int) -> Limit:
    """Return how many workers a node's CPUs and memory serve, if the job asks for any.

    For a guaranteed job what opportunistic ones hold counts as free: they can be stopped. What
    reservations wait for is theirs, as their GPUs are.
    """
    wanted = job.spec.resources
    if not (wanted.cpus or wanted.memory):
        return None
    owed = cellwork.owed(machine)

    def limit(name: str) -> int:
        node = machine.nodes.get(name)
        if node is None:
            return 0
        cpus, memory = owed.get(name, (0, 0))
        if priority >= 0:
            for (other, attempt), holding in node.holdings.items():
                if _yields(machine, other, attempt):
                    cpus, memory = cpus + holding.cpus, memory + holding.memory
        return node.workers(wanted, cpus, memory)

    return limit


def _yields(machine: AllocatorMachine, job: str, attempt: int) -> bool:
    hold = machine.cells.hold_of(cellwork.holder(job, attempt))
    if hold is None:
        return job in machine.away and machine.away[job].attempt == attempt
    return not hold.guaranteed


def _room(machine: AllocatorMachine, job: JobState, made: tuple[Member, ...]) -> bool:
    """Return whether the nodes' free CPUs and memory serve the gang's parts now."""
    wanted = job.spec.resources
    return all(machine.nodes[part.node].workers(wanted) >= len(part.devices) for part in made)


def _more_victims(
    machine: AllocatorMachine, job: JobState, made: tuple[Member, ...], now: Instant
) -> None:
    """Stop more opportunistic jobs, whose CPUs or memory a reservation needs, least loss first."""
    loss = machine.loss(now)
    for part in made:
        node = machine.nodes[part.node]
        coming = _coming(machine, node)
        names = [cellwork.holder(*attempt) for attempt in node.holdings]
        for name in sorted(names, key=loss):
            if node.workers(job.spec.resources, *coming) >= len(part.devices):
                break
            other = machine.jobs.get(cellwork.job_of(name))
            if other is not None and _yields(machine, other.job, other.attempt):
                _stop_victim(machine, name, job, now, memory=True)
                coming = _coming(machine, node)


def _coming(machine: AllocatorMachine, node: NodeState) -> tuple[int, int]:
    """Return the CPUs and memory of a node that come free because their jobs are being stopped."""
    cpus = memory = 0
    for (name, _), holding in node.holdings.items():
        other = machine.jobs.get(name)
        gone = other is None or other.state is State.STOPPING
        if gone or other is None or other.parts.get(node.joined.node) is Part.GONE:
            cpus, memory = cpus + holding.cpus, memory + holding.memory
    return cpus, memory
