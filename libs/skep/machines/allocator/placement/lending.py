"""Idle GPUs for jobs that wait, until their turn in their virtual cluster has come.

This is what `over_quota: auto` means in a VC that has no policy of its own. Strict FIFO decides
which job has the VC's cells: a job that does not fit holds up every later one. Meanwhile any of
them may have idle GPUs, whichever VC those belong to, if it can presumably give them back
(`quota.lends`). For guaranteed requests such GPUs count as free.

    queued --JobBound, without levels--> lent --JobPromoted--> guaranteed
       ^                                 |  ^
       +-------- stored, stopped --------+  +-- GpusRegained -- suspended, without GPUs

It leaves when a guaranteed job needs its GPUs, or its turn has come and its VC's cells are
elsewhere.

No job is later for it than under strict FIFO, but for the time that a job takes to leave:

- A job that was lent GPUs keeps its place in the order. At its turn it has its VC's cells, where it
  is if that leaves its VC as much as anywhere else, and else where it is placed anew. Until it has
  left, later jobs of the VC wait, as they would behind a queued one.
- A job that leaves is stored and stopped if it can be, so it goes back to its queue and may be
  placed anywhere. One that can only be suspended (an unmodified script) stands on its node. It goes
  on there when GPUs are idle, and at its turn others that were lent them make room. If its VC's
  cells cannot cover it there then, it begins anew in them: it has lost what strict FIFO would not
  have given it. One that can neither is stopped at once, and is not lent GPUs again.
"""

from __future__ import annotations

import heapq

from skep.ledger import attempts
from skep.ledger.job_state import JobState, State
from skep.ledger.queue import Entry
from skep.machines.allocator import outbox
from skep.machines.allocator.changes import resume_places, resumption, rounds
from skep.machines.allocator.outcome import BLOCKED, DEFERRED, LEAVING, Done, Outcome
from skep.machines.allocator.placement import gpu_shares, job_cells, placing
from skep.machines.allocator.placement.lending_line import Line
from skep.machines.allocator.policies import policy_views
from skep.machines.allocator.policies.demand import SHAPES_MAX
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import Goal
from skep.wire.commands import Checkpoint
from skep.wire.reasons import Reason

LOOKS_MAX = 16
"""Shapes of jobs of one VC that are tried in one decision and find nothing. A look takes about
0.1 ms. Shapes that need more GPUs than are idle are not tried, and a queue seldom has more others;
those beyond wait until the jobs of others have gone."""
assert LOOKS_MAX < SHAPES_MAX


def lend(tx: Transaction, now: Instant, room: int) -> int:
    """Give idle GPUs to jobs that wait in VCs without a policy.

    The VC with the smallest share of what is lent comes first, in it the earliest job that fits.

    Args:
        tx: Facts and commands are added.
        now: The time of the decision.
        room: The parts that the decision may still bind.

    Returns:
        How many parts were bound; `room` too where a gang has to come first in the next decision.
    """
    lines = _lines(tx)
    idle = job_cells.idle_gpus(tx.state) if lines else 0
    on_one_node = job_cells.idle_on_one_node(tx.state) if idle else 0
    turns = [(placing.share(tx.state, vc), vc) for vc in lines]
    heapq.heapify(turns)
    taken = 0
    while turns and idle:
        if taken >= room:
            tx.soft.check_at = now  # Go on in the next decision.
            break
        vc = turns[0][1]
        lent = _lend_one(tx, vc, lines[vc].firsts(tx.state, idle, on_one_node), now, room - taken)
        if lent is DEFERRED:
            return room
        if isinstance(lent, Done):
            taken += lent.cost
            idle, on_one_node = job_cells.idle_gpus(tx.state), job_cells.idle_on_one_node(tx.state)
            heapq.heapreplace(turns, (placing.share(tx.state, vc), vc))
        else:
            heapq.heappop(turns)
    return taken


def _lines(tx: Transaction) -> dict[str, Line]:
    """Return the VCs in which jobs wait that their policy does not place, brought up to date."""
    soft, found = tx.soft, {}
    for (vc, opportunistic), queue in tx.state.queues.items():
        if opportunistic or not queue.entries or policy_views.rules(tx, vc):
            continue
        line = soft.lines.get(vc)
        if line is None:
            line = soft.lines[vc] = Line(queue)
        line.bring_up(tx.state)
        if vc in tx.state.cells.cluster.vcs:
            found[vc] = line
    return found


def _lend_one(
    tx: Transaction, vc: str, firsts: list[tuple[Entry, JobState]], now: Instant, room: int
) -> Outcome:
    """Lend to the earliest job that finds something; `BLOCKED` if none does."""
    unlent, changes = tx.soft.unlent, tx.soft.changes
    looks = 0
    while firsts and looks < LOOKS_MAX:
        job = heapq.heappop(firsts)[1]
        if gpu_shares.awaits(tx, job):
            continue
        shape = vc, job.spec.resources, "lent"
        known = unlent.get(shape)
        if known is not None and known[0] == changes:
            continue
        lent = placing.lend(tx, job, now, room)
        if lent is not BLOCKED:
            return lent
        looks += 1
        if len(unlent) >= SHAPES_MAX:
            unlent.clear()
        unlent[shape] = changes, None
    return BLOCKED


# --- at their turn -------------------------------------------------------------------------------


def take_turn(tx: Transaction, job: JobState, now: Instant) -> Outcome:
    """Give a job that was lent GPUs the cells of its VC, as its turn has come.

    Args:
        tx: Facts and commands are added.
        job: It was lent GPUs, and is the next of its VC.
        now: The time of the decision.

    Returns:
        `Done` if it has them now, `BLOCKED` if they do not hold it, or `LEAVING`.
    """
    soft = tx.soft
    if job.state is State.STOPPING or (job.change is not None and job.state is not State.SUSPENDED):
        return LEAVING
    if soft.failed.get(job.queue) == (job.job, soft.changes):
        return BLOCKED
    asked = attempts.request(job, job.following, guaranteed=True)
    if placing.find(tx, job, asked, now) is None:
        soft.failed[job.queue] = job.job, soft.changes
        return BLOCKED
    if not resume_places.kept(tx).keys().isdisjoint(job.live):
        return BLOCKED  # A suspended job is about to go on there.
    if job.state is State.SUSPENDED and not job.away:  # It is being resumed.
        covered = placing.promote(tx, job, now, home=True)
        return Done(len(job.live)) if covered else BLOCKED
    if job.away:
        return _from_where_it_stands(tx, job, now)
    if placing.promote(tx, job, now):
        return Done(len(job.live))
    if job.state is State.RUNNING and job.known:
        if "checkpoint" in job.can:
            rounds.begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=Reason.TO_OWN_CELLS)
            return LEAVING
        if placing.promote(tx, job, now, home=True):
            return Done(len(job.live))
    outbox.stop(tx, job, Reason.TO_OWN_CELLS, now)
    return LEAVING


def _from_where_it_stands(tx: Transaction, job: JobState, now: Instant) -> Outcome:
    """Have a job that gave its GPUs back go on at its turn: there, or else from the beginning.

    Its node may have other users: those that were lent those GPUs leave them.
    """
    cost = resumption.returns_now(tx, job, now)
    if cost and placing.promote(tx, job, now, home=True):
        return Done(cost)
    if not cost and resumption.reclaim(tx, job, now, policy_views.lines(tx)):
        return LEAVING
    tx.soft.anew[job.job] = None
    outbox.stop(tx, job, Reason.TO_OWN_CELLS, now)
    return LEAVING
