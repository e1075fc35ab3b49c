"""Idle GPUs for jobs that wait, until their turn in their virtual cluster has come.

This is what `over_quota: auto` means in a VC that has no policy of its own. Strict FIFO decides who
has the VC's cells: a job that does not fit holds up every later one. Meanwhile any of them may have
idle GPUs, whichever VC those belong to, if it can presumably give them back (`cellwork.lends`). For
guaranteed requests such GPUs count as free.

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
from typing import TYPE_CHECKING

from skep.ledger import attempts
from skep.ledger.job_state import JobState, State
from skep.ledger.queue import Entry, JobQueue
from skep.machines.allocator import cellwork, changing, dispatch, placing, returns, views
from skep.machines.allocator.demand import SHAPES_MAX
from skep.machines.allocator.outcome import BLOCKED, DEFERRED, LEAVING, Done, Outcome
from skep.units import Instant
from skep.wire.changes import Goal
from skep.wire.commands import Checkpoint
from skep.wire.reasons import Reason
from skep.wire.spec import Resources

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

LOOKS_MAX = 16
"""Shapes of jobs of one VC that are tried in one decision and find nothing. A look takes about
0.1 ms. Shapes that need more GPUs than are idle are not tried, and a queue seldom has more others;
those beyond wait until the jobs of others have gone."""
assert LOOKS_MAX < SHAPES_MAX


class Line:
    """The jobs of a queue that may have idle GPUs, by what they ask for: earliest first."""

    def __init__(self, queue: JobQueue) -> None:
        """Begin with every job that waits."""
        self._queue = queue
        self._heaps: dict[Resources, list[Entry]] = {}
        self._new = True

    def bring_up(self, machine: AllocatorMachine) -> None:
        """Take in the jobs that came since the last time."""
        came = self._queue.came()
        came, self._new = (list(self._queue.entries) if self._new else came), False
        for entry in came:
            job = machine.state.jobs.get(entry.job)
            if job is not None and job.state is State.QUEUED and cellwork.lends(job):
                heapq.heappush(self._heaps.setdefault(job.spec.resources, []), entry)

    def firsts(
        self, machine: AllocatorMachine, idle: int, on_one_node: int
    ) -> list[tuple[Entry, JobState]]:
        """Return the earliest job of each shape that so many idle GPUs may hold, as a heap."""
        found = []
        for shape in list(self._heaps):
            if shape.gpus * shape.workers <= idle and shape.gpus <= on_one_node:
                job = self._first(machine, shape)
                if job is not None:
                    found.append((job.entry, job))
        heapq.heapify(found)
        return found

    def _first(self, machine: AllocatorMachine, shape: Resources) -> JobState | None:
        heap = self._heaps[shape]
        while heap:
            job = machine.state.jobs.get(heap[0].job)
            if job is not None and self._queue.holds(heap[0]) and cellwork.lends(job):
                return job
            heapq.heappop(heap)
        del self._heaps[shape]
        return None


def lend(machine: AllocatorMachine, now: Instant, room: int) -> int:
    """Give idle GPUs to jobs that wait in VCs without a policy.

    The VC with the smallest share of what is lent comes first, in it the earliest job that fits.

    Returns:
        How many parts were bound.
    """
    lines = _lines(machine)
    idle = cellwork.idle_gpus(machine) if lines else 0
    on_one_node = cellwork.idle_on_one_node(machine) if idle else 0
    turns = [(placing.share(machine, vc), vc) for vc in lines]
    heapq.heapify(turns)
    taken = 0
    while turns and idle:
        if taken >= room:
            machine.soft.check_at = now  # Go on in the next decision.
            break
        vc = turns[0][1]
        lent = _lend_one(
            machine, vc, lines[vc].firsts(machine, idle, on_one_node), now, room - taken
        )
        if lent is DEFERRED:
            return room
        if isinstance(lent, Done):
            taken += lent.cost
            idle, on_one_node = cellwork.idle_gpus(machine), cellwork.idle_on_one_node(machine)
            heapq.heapreplace(turns, (placing.share(machine, vc), vc))
        else:
            heapq.heappop(turns)
    return taken


def _lines(machine: AllocatorMachine) -> dict[str, Line]:
    """Return the VCs in which jobs wait that their policy does not place, brought up to date."""
    soft, found = machine.soft, {}
    for (vc, opportunistic), queue in machine.state.queues.items():
        if opportunistic or not queue.entries or views.rules(machine, vc):
            continue
        line = soft.lines.get(vc)
        if line is None:
            line = soft.lines[vc] = Line(queue)
        line.bring_up(machine)
        if vc in machine.state.cells.cluster.vcs:
            found[vc] = line
    return found


def _lend_one(
    machine: AllocatorMachine,
    vc: str,
    firsts: list[tuple[Entry, JobState]],
    now: Instant,
    room: int,
) -> Outcome:
    """Lend to the earliest job that finds something; `BLOCKED` if none does."""
    unlent, changes = machine.soft.unlent, machine.soft.changes
    looks = 0
    while firsts and looks < LOOKS_MAX:
        job = heapq.heappop(firsts)[1]
        shape = vc, job.spec.resources, "lent"
        known = unlent.get(shape)
        if known is not None and known[0] == changes:
            continue
        lent = placing.lend(machine, job, now, room)
        if lent is not BLOCKED:
            return lent
        looks += 1
        if len(unlent) >= SHAPES_MAX:
            unlent.clear()
        unlent[shape] = changes, None
    return BLOCKED


# --- at their turn -------------------------------------------------------------------------------


def take_turn(machine: AllocatorMachine, job: JobState, now: Instant) -> Outcome:
    """Give a job that was lent GPUs the cells of its VC, as its turn has come.

    Returns:
        `Done` if it has them now, `BLOCKED` if they do not hold it, or `LEAVING`.
    """
    soft = machine.soft
    if job.state is State.STOPPING or (job.change is not None and job.state is not State.SUSPENDED):
        return LEAVING
    if soft.failed.get(job.queue) == (job.job, soft.changes):
        return BLOCKED
    asked = attempts.request(job, job.following, guaranteed=True)
    if placing.find(machine, job, asked, now) is None:
        soft.failed[job.queue] = job.job, soft.changes
        return BLOCKED
    if not returns.kept(machine).keys().isdisjoint(job.live):
        return BLOCKED  # A suspended job is about to go on there.
    if job.state is State.SUSPENDED and not job.away:  # It is being resumed.
        covered = placing.promote(machine, job, now, home=True)
        return Done(len(job.live)) if covered else BLOCKED
    if job.away:
        return _from_where_it_stands(machine, job, now)
    if placing.promote(machine, job, now):
        return Done(len(job.live))
    if job.state is State.RUNNING and job.known:
        if "checkpoint" in job.can:
            changing.begin(machine, job, Goal.CHECKPOINT, Checkpoint(), now, Reason.TO_OWN_CELLS)
            return LEAVING
        if placing.promote(machine, job, now, home=True):
            return Done(len(job.live))
    dispatch.stop(machine, job, Reason.TO_OWN_CELLS, now)
    return LEAVING


def _from_where_it_stands(machine: AllocatorMachine, job: JobState, now: Instant) -> Outcome:
    """Have a job that gave its GPUs back go on at its turn: there, or else from the beginning.

    Its node may have other users: those that were lent those GPUs leave them.
    """
    cost = changing.returns_now(machine, job, now)
    if cost and placing.promote(machine, job, now, home=True):
        return Done(cost)
    if not cost and changing.reclaim(machine, job, now, views.lines(machine)):
        return LEAVING
    machine.soft.anew[job.job] = None
    dispatch.stop(machine, job, Reason.TO_OWN_CELLS, now)
    return LEAVING
