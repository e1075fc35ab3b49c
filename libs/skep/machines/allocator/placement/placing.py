"""Giving one job its place: where, at whose expense, and what it waits for.

A job that must be stopped first is stopped under a reservation: the cells are the job's from the
decision on. Which job is next is decided by `schedule`, or by `policy_plans` where a VC has a
policy.
"""

from __future__ import annotations

from collections.abc import Iterable

from skep import ids
from skep.cells.decide import placement
from skep.cells.decide.cover import find_cover, out_of_reach
from skep.cells.decide.cover_cost import cover_cost
from skep.cells.decide.fair_share import place_yielding
from skep.cells.decide.search import Limit
from skep.cells.holds import CellHold, Placement, Request, Spot
from skep.cells.nodes import NodeState
from skep.ledger import attempts
from skep.ledger.job_state import JobState, Part, State
from skep.ledger.state import ClusterState
from skep.machines.allocator import gpu_suspects
from skep.machines.allocator.changes import (
    making_room,
    migration,
    parameter_servers,
    resume_places,
    rounds,
)
from skep.machines.allocator.outbox import command
from skep.machines.allocator.outcome import BLOCKED, DEFERRED, LEAVING, Done, Outcome, done
from skep.machines.allocator.placement import (
    job_cells,
    kept_nodes,
    near_copies,
    person_limits,
    quota,
)
from skep.machines.allocator.soft import OutOfReach
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import Goal
from skep.wire.commands import Checkpoint
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
from skep.wire.spec import GANG_NODES_MAX, suits

MEMBERS_BOUND_MAX = 150
"""Parts of gangs bound, and victims named or stopped, in one decision: their facts and those of the
event itself fit one record (500 bytes for a job of one part, less for each further part and each
victim). A gang that alone has more comes first in a decision, or in the next one."""


def serve(
    tx: Transaction,
    job: JobState,
    ranked: Reason,
    now: Instant,
    room: int,
    only: tuple[str, ...] | None = None,
    *,
    workers: int = 0,
    per_node: int = 0,
) -> Outcome:
    """Bind a job or reserve cells for it; else say why it waits.

    Args:
        tx: Its cells, nodes and jobs are read; facts and commands are added.
        job: It waits in a queue.
        ranked: Why it comes now.
        now: The time of the decision.
        room: The cost that is left of the decision.
        only: Given at a turn in the plan of the VC's policy: the nodes of the turn, empty for any.
            Then priorities in the VC count for nothing, as its policy says which job yields; and
            the job borrows nothing here, but later (`borrow`).
        workers: With how many workers it is to begin; 0: with those of its spec.
        per_node: How many of them each of these nodes may have; 0: as many as it has room for.

    Returns:
        `Done`, also if the job was put aside; `BLOCKED` or `DEFERRED`.
    """
    soft, attempt = tx.soft, job.following
    full = person_limits.above(tx, job, workers) if tx.state.people.of_vc else ""
    if full:
        wait(tx, job, Reason.PERSON_LIMIT, full)
        return BLOCKED
    mine = not job.spec.opportunistic
    asked = attempts.request(job, attempt, guaranteed=mine, workers=workers)
    if job.spec.vc in soft.planned:
        asked = asked._replace(mixed=False)  # Policies plan a gang in one chain.
    if only is not None:
        asked = asked._replace(priority=0, mixed=False)
    where = _place(tx, job, asked, now, only, per_node or len(asked.sizes))
    if where is None and quota.borrows(job) and only is None:
        where = _place(tx, job, attempts.request(job, attempt, guaranteed=False), now, only)
    made = job_cells.members(tx.state, where) if where is not None else ()
    if where is None or len(made) > GANG_NODES_MAX:
        window = _window(tx, job, asked, now) if tx.state.windows else ""
        if window:
            wait(tx, job, Reason.WAITS_FOR_WINDOW, window)
            soft.passed[job.job] = soft.changes
            return BLOCKED
        why, needs, aside = job_cells.why_not(tx, job, asked)
        wait(tx, job, why, needs, aside=aside)
        if not aside and only is None:
            soft.failed[job.queue] = job.job, soft.changes
        return done(int(aside))
    return _give(tx, job, where, made, ranked, now=now, room=room)


def borrow(tx: Transaction, job: JobState, now: Instant, room: int) -> Outcome:
    """Give a waiting job idle GPUs until it has its turn in its VC.

    Args:
        tx: Its cells, nodes and jobs are read; facts and commands are added.
        job: It waits in a queue.
        now: The time of the decision.
        room: The cost that is left of the decision.

    Returns:
        `Done`, `BLOCKED` or `DEFERRED`.
    """
    if tx.state.people.of_vc and person_limits.above(tx, job):
        return BLOCKED
    asked = attempts.request(job, job.following, guaranteed=False)
    where = _place(tx, job, asked, now, ())
    made = job_cells.members(tx.state, where) if where is not None else ()
    if where is None or len(made) > GANG_NODES_MAX:
        return BLOCKED
    return _give(tx, job, where, made, Reason.ARRIVAL, now=now, room=room)


def lend(tx: Transaction, job: JobState, now: Instant, room: int) -> Outcome:
    """Give a waiting job GPUs that are idle now, and no others.

    Args:
        tx: Its cells, nodes and jobs are read; facts and commands are added.
        job: It waits in a queue.
        now: The time of the decision.
        room: The cost that is left of the decision.

    Returns:
        `Done`, `BLOCKED` or `DEFERRED`.
    """
    if tx.state.people.of_vc and person_limits.above(tx, job):
        return BLOCKED
    asked = attempts.request(job, job.following, guaranteed=False)
    where = near_copies.place(tx.state, job, asked, _open_to(tx, job, asked, now), now)
    made = job_cells.members(tx.state, where) if where is not None else ()
    if where is None or len(made) > GANG_NODES_MAX:
        return BLOCKED
    return _give(tx, job, where, made, Reason.LENT_MEANWHILE, now=now, room=room)


def find(tx: Transaction, job: JobState, asked: Request, now: Instant) -> Placement | None:
    """Return where a guaranteed request would go, or None if it has to wait."""
    return _place(tx, job, asked, now, None)


def share(state: ClusterState, vc: str) -> float:
    """Return what a VC has of what is idle, by its weight.

    Returns:
        GPUs per unit of weight: the VC with the lowest number comes first.
    """
    return state.cells.borrowed.get(vc, 0) / state.cells.cluster.vcs[vc].weight


def take_up(
    tx: Transaction, job: JobState, now: Instant, room: int, only: tuple[str, ...]
) -> Outcome:
    """Have a job that borrows go on in its VC's cells, as its turn has come.

    It stays where it is if that is as good to its VC as what it would be given; else it stores its
    state, and begins anew there.

    Args:
        tx: Its cells, nodes and jobs are read; facts and commands are added.
        job: It borrows.
        now: The time of the decision.
        room: The cost that is left of the decision.
        only: The nodes of the turn; empty: any.

    Returns:
        What `serve` returns, or `LEAVING`: then the cells are kept for it, as it would have them if
        it had not borrowed.
    """
    if job.state is State.RESERVED:
        asked = _at_a_turn(job)
        if _place(tx, job, asked, now, only) is None:
            return BLOCKED
        tx.record(ReservationDropped(job=job.job, attempt=job.following, why=Reason.TO_OWN_CELLS))
        return serve(tx, job, Reason.BY_POLICY, now, room, only)
    where = _place(tx, job, _at_a_turn(job), now, only)
    if where is None:
        return BLOCKED
    hold = tx.state.cells.holds.get(ids.attempt_id(job.job, job.attempt))
    if hold is not None and job.state is not State.STOPPING and promote(tx, job, now):
        return Done(1)
    return LEAVING if _leaves(tx, job, now) else BLOCKED


def _at_a_turn(job: JobState) -> Request:
    """Return what a job asks of its VC's cells at a turn in the plan of the VC's policy.

    Policies plan a gang in one chain.
    """
    asked = attempts.request(job, job.following, guaranteed=True)
    return asked._replace(priority=0, mixed=False)


def stays(job: JobState) -> bool:
    """Return whether a job that borrows cannot store its state, and so goes on where it is."""
    return job.state is State.RUNNING and job.known and "checkpoint" not in job.can


def _leaves(tx: Transaction, job: JobState, now: Instant) -> bool:
    """Have a job leave what it borrows, its state stored; return whether it does, or is about to.

    One that cannot store its state would lose its work: it goes on borrowing.
    """
    if job.state is State.BOUND or job.state is State.STOPPING:
        return True
    if job.state is not State.RUNNING or job.cancelled:
        return False
    if job.change is not None:
        return job.change.why in making_room.MAKES_ROOM
    if not job.known:
        return True
    if "checkpoint" not in job.can:
        return False
    rounds.begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=Reason.TO_OWN_CELLS)
    return True


def _give(
    tx: Transaction,
    job: JobState,
    where: Placement,
    made: tuple[Member, ...],
    ranked: Reason,
    *,
    now: Instant,
    room: int,
) -> Outcome:
    """Bind a job to a place, or reserve it; returns what `serve` does."""
    soft = tx.soft
    if room < MEMBERS_BOUND_MAX and len(made) + len(where.victims) > room:
        soft.check_at = now
        return DEFERRED
    why = Reason.BEST_FIT_ONE_NODE if len(made) == 1 else Reason.FEWEST_NODES
    if any(part.node in job.copies for part in made):
        why = Reason.HOLDS_COPIES
    if where.further:
        why = Reason.MIXED_GANG
    for name in where.demoted:
        tx.record(
            JobDemoted(
                job=ids.job_of(name),
                attempt=ids.number_of(name),
                why=Reason.PREEMPTED,
                detail=f"for {job.job}",
                at=now,
            )
        )
    for name in where.cancels:
        other = tx.state.jobs[ids.job_of(name)]
        tx.record(ReservationDropped(job=other.job, attempt=other.following, why=Reason.PREEMPTED))
        soft.returned[other.queue] = None
    if where.victims or not has_room(tx.state, job, made):
        return Done(_reserve(tx, job, where, made, ranked, why=why, now=now))
    return bind(tx, job, where, made, why, ranked=ranked, now=now)


def _place(
    tx: Transaction,
    job: JobState,
    asked: Request,
    now: Instant,
    only: tuple[str, ...] | None,
    per_node: int = 0,
) -> Placement | None:
    """Return a place; of what is idle, also one that is due to its VC for having less of it."""
    if only and not _have_room(tx.state, only, asked):
        return None  # The usual answer while other jobs are being stopped there.
    limit = _open_to(tx, job, asked, now)
    if only:
        limit = _within(only, limit, per_node or job.size)
    where = near_copies.place(tx.state, job, asked, limit, now)
    if where is None and not asked.guaranteed:
        where = _yielding(tx.state, job, asked, limit, now)
    return where


def _have_room(state: ClusterState, nodes: tuple[str, ...], asked: Request) -> bool:
    """Return whether the GPUs of some nodes that it may be given would suffice for a gang."""
    if asked.priority > 0:
        return True  # Jobs of its VC may yield.
    room = 0
    for chain in state.cells.chains.values():
        shape = chain.topology
        firm = chain.forest.firm[shape.node_level]
        there = [shape.node_index[node] for node in nodes if node in shape.node_index]
        room += sum(shape.node_size - firm[index] for index in there)
    return room >= sum(asked.sizes)


def kept(tx: Transaction, job: JobState, made: tuple[Member, ...], now: Instant) -> bool:
    """Return whether a window has come in between a job's claim and the GPUs that it claimed.

    Args:
        tx: Its windows are read.
        job: It has a claim.
        made: The parts of its gang.
        now: The time of the decision.
    """
    closed = kept_nodes.kept_from(tx, job, now)
    return any(part.node in closed for part in made)


def _window(tx: Transaction, job: JobState, asked: Request, now: Instant) -> str:
    """Return the window without which a job that finds no place would have one; empty: none."""
    closed = kept_nodes.kept_from(tx, job, now)
    if not closed:
        return ""
    limit = _limit(tx.state, job, asked.priority)
    where = gpu_suspects.place(tx.state, job, asked, limit, now)
    if where is None:
        return ""
    there = (part.node for part in job_cells.members(tx.state, where))
    return next((closed[name] for name in there if name in closed), "")


def _open_to(tx: Transaction, job: JobState, asked: Request, now: Instant) -> Limit:
    """Return how many workers of a job each node may have, by its CPUs and awaited jobs."""
    limit = _limit(tx.state, job, asked.priority)
    if tx.state.windows:
        limit = kept_nodes.without(kept_nodes.kept_from(tx, job, now), limit, job.size)
    if not asked.guaranteed and (kept := resume_places.kept(tx)):
        limit = _without(kept, limit, job.size)
    return limit


def _within(only: tuple[str, ...], limit: Limit, workers: int) -> Limit:
    """Return a limit that leaves only some nodes, each of them for so many workers."""
    names = dict.fromkeys(only)

    def within(name: str) -> int:
        if name not in names:
            return 0
        return workers if limit is None else min(workers, limit(name))

    return within


def _without(names: dict[str, None], limit: Limit, workers: int) -> Limit:
    """Return a limit that leaves out some nodes."""

    def without(name: str) -> int:
        if name in names:
            return 0
        return workers if limit is None else limit(name)

    return without


def _yielding(
    state: ClusterState, job: JobState, asked: Request, limit: Limit, now: Instant
) -> Placement | None:
    """Return a place for which opportunistic jobs of tenants above their share are stopped."""
    cells = state.cells
    used = dict.fromkeys(cells.cluster.vcs, 0)
    going = {
        hold.job: hold
        for hold in cells.opportunistic
        if hold.vc in used and _goes_on(state, hold.job)
    }
    for hold in going.values():
        used[hold.vc] += hold.gpus
    if job.spec.vc not in used or sum(used.values()) == used[job.spec.vc]:
        return None
    shares = {vc: (used[vc], each.weight) for vc, each in cells.cluster.vcs.items()}
    for chain in cells.chains.values():
        if suits(asked.gpu, chain.topology.gpu):
            found = place_yielding(
                chain,
                cells.holds,
                asked,
                shares,
                job_cells.loss(state, now),
                limit=limit,
                stoppable=going.__contains__,
            )
            if found is not None:
                return found
    return None


def _goes_on(state: ClusterState, name: ids.AttemptId) -> bool:
    """Return whether an attempt runs or is about to, and is not to stop."""
    job = state.jobs.get(ids.job_of(name))
    if job is None or job.state is State.STOPPING:
        return False
    attempt = job.following if job.state is State.RESERVED else job.attempt
    return ids.attempt_id(job.job, attempt) == name


def bind(
    tx: Transaction,
    job: JobState,
    where: Placement,
    made: tuple[Member, ...],
    why: Reason,
    *,
    ranked: Reason,
    now: Instant,
) -> Outcome:
    """Give a job its GPUs and tell its nodes, unless it has to wait for a port.

    Args:
        tx: A fact and commands are added.
        job: It waits, or has claimed this place.
        where: The place.
        made: The same as parts of a gang, one for each node.
        why: Why it has this place.
        ranked: Why it comes now.
        now: The time of the decision.

    Returns:
        `Done`; `BLOCKED`: its first node has no port for it.
    """
    first = made[0].node
    port = tx.state.nodes[first].port()
    if port is None:
        # One is free as soon as any job there ends, and the gang keeps its turn.
        tx.soft.failed[job.queue] = job.job, tx.soft.changes
        wait(tx, job, Reason.WAITS_FOR_PORT, first)
        return BLOCKED
    tx.record(
        JobBound(
            job=job.job,
            attempt=job.following,
            order=tx.state.order + 1,
            members=made,
            master_port=port,
            why=why,
            at=now,
            ranked=ranked,
            trace=job.trace,
            chain=where.chain,
            secret=parameter_servers.secret(tx, job),
        )
    )
    for name in job.members:
        command(tx, name, job.job, job.attempt, now)
    return Done(len(made))


def _reserve(
    tx: Transaction,
    job: JobState,
    where: Placement,
    made: tuple[Member, ...],
    ranked: Reason,
    *,
    why: Reason,
    now: Instant,
) -> int:
    """Claim the cells, then stop the jobs that still use them; return what that costs."""
    users = _with_partners(tx.state, where)
    victims = tuple(ids.job_of(name) for name in users)
    needs = f"{len(victims)} jobs to stop" if len(victims) > 1 else "".join(victims)
    if victims == (job.job,):
        needs = "its earlier attempt"  # On a node that was lost, and came back with it.
    wait(tx, job, Reason.WAITS_FOR_VICTIMS, needs)
    tx.record(
        CellsReserved(
            job=job.job,
            attempt=job.following,
            chain=where.chain,
            members=made,
            victims=victims,
            at=now,
            why=why,
            ranked=ranked,
        )
    )
    cost = len(made) + len(victims)
    stop_all(tx, job, users, now, max(0, MEMBERS_BOUND_MAX - cost))
    if not has_room(tx.state, job, made):
        more_victims(tx, job, made, now)
    return cost


def users(tx: Transaction, job: JobState) -> list[ids.AttemptId]:
    """Return the attempts that use GPUs which a job claims."""
    hold = tx.state.cells.holds[ids.attempt_id(job.job, job.following)]
    return tx.state.cells.users(hold.portions)


def _with_partners(state: ClusterState, where: Placement) -> list[ids.AttemptId]:
    """Return the victims of a placement, and beside each the jobs that share its GPUs."""
    cells = state.cells
    users = cells.users(where.portions)
    by_hold: dict[ids.AttemptId, list[ids.AttemptId]] = {name: [] for name in where.victims}
    for name in users:
        hold = cells.hold_of(name)
        assert hold is not None, name
        by_hold[hold.job].append(name)
    return [name for names in by_hold.values() for name in names]


def stop_all(
    tx: Transaction, job: JobState, names: Iterable[ids.AttemptId], now: Instant, most: int
) -> int:
    """Stop the users of what a job claims.

    Args:
        tx: Facts and commands are added.
        job: The job that claims it.
        names: The attempts that use it.
        now: The time of the decision.
        most: How many are stopped now; the others follow in a further decision.

    Returns:
        How many leave because of this.
    """
    stopped = 0
    for name in names:
        if stopped >= most:
            tx.soft.check_at = now
            break
        stopped += stop_victim(tx, name, job, now)
    return stopped


def stop_victim(
    tx: Transaction, name: ids.AttemptId, job: JobState, now: Instant, *, memory: bool = False
) -> bool:
    """Have one attempt leave what a job claims.

    Args:
        tx: Facts and commands are added.
        name: The attempt; a successor is given up.
        job: The job that claims its GPUs.
        now: The time of the decision.
        memory: Whether the host's memory is needed too.

    Returns:
        Whether it leaves because of this call; false: it is leaving already, or is over.
    """
    victim = tx.state.jobs.get(ids.job_of(name))
    current = victim is not None and ids.attempt_id(victim.job, victim.attempt) == name
    if victim is not None and current:
        return making_room.give_way(tx, victim, now, f"for {job.job}", memory=memory)
    if victim is not None and victim.succeeds(ids.number_of(name)):
        migration.undo(tx, victim, now, Reason.NOT_TAKEN, f"{job.job} needed the GPUs")
        return True
    return False


def promote(tx: Transaction, job: JobState, now: Instant, *, home: bool = False) -> bool:
    """Let a job that borrows GPUs have its VC's cells, if they can cover them.

    One that its policy has go on at `home` has them whatever that breaks up: as long as it borrowed
    them, a job that is at home there too would take them back, and this one from it, again and
    again. No other job has cells on nodes that are kept for jobs that are about to go on there.

    Args:
        tx: A fact is added.
        job: It borrows.
        now: The time of the decision.
        home: Whether its policy has it go on where it was.

    Returns:
        Whether it has the cells now.
    """
    if job.job not in tx.state.borrowed or (not home and known_uncovered(tx, job)):
        return False
    spots = _covered(tx, job, home=home)
    if spots is None:
        _note_uncovered(tx, job)
        return False
    tx.record(
        JobPromoted(
            job=job.job, attempt=job.attempt, levels=tuple(spot.level for spot in spots), at=now
        )
    )
    return True


def known_uncovered(tx: Transaction, job: JobState) -> bool:
    """Return whether its VC's cells could not cover a job, and still cannot for what is known."""
    soft = tx.soft
    if soft.uncovered.get(job.job) == soft.changes:
        return True
    known = soft.out_of_reach.get(job.job)
    if known is None:
        return False
    if job.attempt == known.attempt and known.lasts(tx.state.cells):
        soft.uncovered[job.job] = soft.changes
        return True
    del soft.out_of_reach[job.job]
    return False


def _note_uncovered(tx: Transaction, job: JobState) -> None:
    """Keep that its VC's cells could not cover a job, so that it is not tried again in vain."""
    tx.soft.uncovered[job.job] = tx.soft.changes
    cells, name = tx.state.cells, ids.attempt_id(job.job, job.attempt)
    hold = cells.holds.get(name)
    if hold is None or hold.further:
        return
    chain = cells.chains[hold.chain]
    pool = chain.pools.get((hold.vc, hold.pin))
    if pool is not None and out_of_reach(pool, chain.topology, hold.spots):
        tx.soft.out_of_reach[job.job] = OutOfReach(
            job.attempt, name, cells, hold, hold.spots, pool, pool.bindings
        )


def _covered(tx: Transaction, job: JobState, *, home: bool) -> tuple[Spot, ...] | None:
    """Return the cells of its VC that a job may have where it is; see `promote`."""
    hold = tx.state.cells.holds.get(ids.attempt_id(job.job, job.attempt))
    if hold is None:
        return None
    if not home and (kept := resume_places.kept(tx)) and not kept.keys().isdisjoint(job.live):
        return None
    if home or _returned(job):
        return find_cover(tx.state.cells, hold)
    return _cover(tx, job, hold)


def _returned(job: JobState) -> bool:
    """Return whether an attempt had its VC's cells, was suspended, and is back on its nodes.

    Its processes are there, so it cannot be placed anew: it has the cells that cover it there.
    """
    return job.suspended_at > 0 and job.began_at > 0


def _cover(tx: Transaction, job: JobState, hold: CellHold) -> tuple[Spot, ...] | None:
    """Return where a job runs as cells of its VC, if that leaves the VC what it would have alone.

    Elsewhere its cells would be broken up by where there happened to be idle GPUs, and its next
    gang would wait for a whole one: such a job goes on borrowing.
    """
    spots = find_cover(tx.state.cells, hold)
    if spots is None or hold.further:
        return spots
    asked = attempts.request(job, job.attempt + 1, guaranteed=True)
    asked = asked._replace(priority=0, mixed=False)
    anew = placement.find_placement(tx.state.cells, asked)
    if anew is None or anew.chain != hold.chain:
        return spots
    chain = tx.state.cells.chains[hold.chain]
    pool = chain.pools[hold.vc, hold.pin]
    return spots if cover_cost(chain, pool, spots) <= cover_cost(chain, pool, anew.spots) else None


def wait(tx: Transaction, job: JobState, why: Reason, needs: str, *, aside: bool = False) -> None:
    """Say why a job waits, if that is news.

    Args:
        tx: A fact is added.
        job: It waits.
        why: Why it waits.
        needs: For what, in words.
        aside: Whether it is put aside, so that no job waits behind it.
    """
    if job.waits != (why, needs) or aside:
        tx.record(JobWaits(job=job.job, why=why, needs=needs, aside=aside))


# --- CPUs and memory ---------------------------------------------------------------------------


def _limit(state: ClusterState, job: JobState, priority: int) -> Limit:
    """Return how many workers a node's CPUs and memory serve, if the job asks for any.

    For a guaranteed job what opportunistic ones hold counts as free: they can be stopped. What
    reservations wait for is theirs, as their GPUs are.
    """
    wanted = job.spec.resources
    if not (wanted.cpus or wanted.memory or wanted.gpu_memory):
        return None
    owed = job_cells.owed(state)

    def limit(name: str) -> int:
        node = state.nodes.get(name)
        if node is None:
            return 0
        cpus, memory = owed.get(name, (0, 0))
        if priority >= 0:
            for (other, attempt), holding in node.holdings.items():
                if _yields(state, other, attempt):
                    cpus, memory = cpus + holding.cpus, memory + holding.memory
        return node.workers(wanted, cpus, memory)

    return limit


def _yields(state: ClusterState, job: str, attempt: int) -> bool:
    """Return whether an attempt uses GPUs that are in no cells of its VC."""
    hold = state.cells.hold_of(ids.attempt_id(job, attempt))
    if hold is None:
        return job in state.away and state.away[job].attempt == attempt
    return not hold.guaranteed


def has_room(state: ClusterState, job: JobState, made: tuple[Member, ...]) -> bool:
    """Return whether the nodes' free CPUs and memory serve the gang's parts now.

    Args:
        state: Its nodes are read.
        job: The job.
        made: The parts of its gang, one for each node.
    """
    wanted = job.spec.resources
    if not (wanted.cpus or wanted.memory):
        return True
    return all(state.nodes[part.node].workers(wanted) >= len(part.devices) for part in made)


def more_victims(tx: Transaction, job: JobState, made: tuple[Member, ...], now: Instant) -> None:
    """Stop more opportunistic jobs, whose CPUs or memory a reservation needs, least loss first."""
    loss = job_cells.loss(tx.state, now)
    for part in made:
        node = tx.state.nodes[part.node]
        coming = _coming(tx.state, node)
        names = [ids.attempt_id(*attempt) for attempt in node.holdings]
        for name in sorted(names, key=loss):
            if node.workers(job.spec.resources, *coming) >= len(part.devices):
                break
            other = tx.state.jobs.get(ids.job_of(name))
            if other is not None and _yields(tx.state, other.job, other.attempt):
                stop_victim(tx, name, job, now, memory=True)
                coming = _coming(tx.state, node)


def _coming(state: ClusterState, node: NodeState) -> tuple[int, int]:
    """Return the CPUs and memory of a node that come free because their jobs are being stopped."""
    cpus = memory = 0
    for (name, _), holding in node.holdings.items():
        other = state.jobs.get(name)
        gone = other is None or other.state is State.STOPPING
        if gone or other is None or other.parts.get(node.joined.node) is Part.GONE:
            cpus, memory = cpus + holding.cpus, memory + holding.memory
    return cpus, memory
