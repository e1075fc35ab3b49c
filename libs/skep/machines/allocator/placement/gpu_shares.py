"""Jobs that ask for a share of a GPU (`gpus: 0.5`) are put on one GPU together.

A share is a permission and a wish: to use a GPU with other jobs of the VC that ask for shares, as
long as the shares come to no more than one GPU and its memory holds all of them. The cells know
whole GPUs alone. The first job of a GPU gets it as any job of one GPU does, and each other one
joins it as a guest (`changes.packing`), which takes nothing from the cells. So a guest needs no
turn, keeps no job from a GPU, and no guarantee changes.

    first job waits --JobBound--> starts --JobRan--> runs
    second waits; aside, while the first starts;      GpusShared, JobBound: beside it, once it runs

Where the rate alone of the first is known, the pack is tried (`policies.trials`): it is undone if
the first makes less than its share of that; or, where the rate of both is known, if they make no
more together than in turns. A job that was taken off has its next GPU to itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from skep.ledger import sharing
from skep.ledger.job_state import JobState, State
from skep.machines.allocator.changes import packing
from skep.machines.allocator.policies import job_rates, trials
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import AskPack
from skep.wire.reasons import Reason
from skep.wire.spec import suits
from skep.wire.trials import Kind

WHOLE = 1000
"""A GPU, in thousandths."""
LOOKS_MAX = 200
"""Waiting jobs that are looked at in one decision: the earliest. Most are alike."""
TRIES_MAX = 4
"""GPUs that are tried for one job: what is against one of them is often against the others."""
NEEDED_MILLI = 1000
"""What two jobs have to make together, in thousandths of what they make alone: more than in
turns."""

Gpu = tuple[str, int]
"""A node, and the index of a device."""


class Room(NamedTuple):
    """A GPU of which a part is left."""

    gpu: Gpu
    jobs: tuple[JobState, ...]
    share: int
    """What is left of it, in thousandths."""
    memory: float
    """What is left of its memory, 0 to 1."""
    starts: bool
    """Whether one of its jobs is starting: until it runs, no other can join it."""

    def takes(self, tx: Transaction, job: JobState, claimed: int = 0, held: float = 0.0) -> bool:
        """Return whether a job can join those on the GPU.

        Args:
            tx: Its nodes and cells are read.
            job: It asks for a share.
            claimed: What others that are to join have of the GPU, in thousandths.
            held: What they have of its memory, 0 to 1.
        """
        wanted, first = job.spec.resources, self.jobs[0]
        if wanted.share > self.share - claimed or _kin(job) != _kin(first):
            return False
        chain = tx.state.cells.chains.get(first.chain)
        if chain is None or not suits(wanted.gpu_type, chain.topology.gpu):
            return False
        memory = sharing.memory_part(wanted, tx.state.nodes[self.gpu[0]], self.gpu[1])
        return memory < 1 and round(memory + held, sharing.SHARE_DIGITS) <= self.memory


def seat(tx: Transaction, now: Instant, room: int) -> int:
    """Put waiting jobs on GPUs that have room for their shares, the earliest first.

    Args:
        tx: Facts and commands are added.
        now: The time of the decision.
        room: The cost that is left of the decision.

    Returns:
        What it took of the decision.
    """
    state, soft = tx.state, tx.soft
    open_to = [each for each in _rooms(tx) if not each.starts]
    known = (
        soft.changes,
        state.last_queued,
        len(state.unshared),
        tuple((each.gpu, each.share, len(each.jobs)) for each in open_to),
    )
    if known == soft.seated:
        return 0
    taken, first = 0, list[JobState]()
    if open_to:
        waiting = (job for job in state.unshared.values() if _may_join(job))
        first = heapq.nsmallest(LOOKS_MAX, waiting, key=lambda job: job.entry)
    for job in first:
        if taken >= room:
            soft.check_at = now
            return taken
        if _seat(tx, job, open_to, now):
            soft.pairs.pop(job.job, None)
            taken += packing.JOBS_PER_GPU_MAX
            open_to = [each for each in _rooms(tx) if not each.starts]
    if not taken:
        soft.seated = known
    return taken


def awaits(tx: Transaction, job: JobState) -> str:
    """Return a job that is starting, and that a waiting one is to share a GPU with; empty: none.

    What is found stays so until that job runs, or does not: the room is kept for the one that
    waits.
    """
    if not job.spec.resources.share or not _may_join(job):
        return ""
    pairs, placed = tx.soft.pairs, tx.state.sharers.values()
    if job.job not in pairs and all(each.state is not State.BOUND for each in placed):
        return ""
    starting = {each.gpu: each for each in _rooms(tx) if each.starts}
    mine = pairs.get(job.job)
    if mine is not None and mine not in starting:
        del pairs[job.job]
        tx.soft.changes += 1  # Others may have been kept from what it can have now.
        mine = None
    if mine is None:
        mine = next((gpu for gpu, each in starting.items() if _left(tx, each, job)), None)
        if mine is not None:
            pairs[job.job] = mine
    if mine is None:
        return ""
    return next(each.job for each in starting[mine].jobs if each.state is State.BOUND)


def _left(tx: Transaction, room: Room, job: JobState) -> bool:
    """Return whether a GPU has room for a job beside those that wait for it already."""
    waiting = tx.state.unshared
    others = [
        waiting[name] for name, gpu in tx.soft.pairs.items() if gpu == room.gpu and name in waiting
    ]
    if len(room.jobs) + len(others) >= packing.JOBS_PER_GPU_MAX:
        return False
    node = tx.state.nodes[room.gpu[0]]
    held = sum(sharing.memory_part(each.spec.resources, node, room.gpu[1]) for each in others)
    return room.takes(tx, job, sum(each.spec.resources.share for each in others), held)


def _may_join(job: JobState) -> bool:
    """Return whether a job waits, and is not to have its next GPU to itself."""
    return job.state is State.QUEUED and not job.apart and not job.cancelled


def _kin(job: JobState) -> tuple[str, bool, int, str]:
    """Return what jobs on one GPU have in common: they yield to the same jobs."""
    spec = job.spec
    return spec.vc, spec.opportunistic, spec.priority, spec.resources.pinned


def _rooms(tx: Transaction) -> list[Room]:
    """Return the GPUs that only jobs with shares use, and have a part left; fullest first."""
    by_gpu: dict[Gpu, list[JobState]] = {}
    for job in tx.state.sharers.values():
        if job.state not in (State.BOUND, State.RUNNING) or job.successor is not None:
            continue
        for member in job.members.values():
            by_gpu.setdefault((member.node, member.devices[0][0]), []).append(job)
    found = (_room(tx, gpu, jobs) for gpu, jobs in by_gpu.items())
    return sorted(
        (each for each in found if each is not None), key=lambda room: (room.share, room.gpu)
    )


def _room(tx: Transaction, gpu: Gpu, jobs: list[JobState]) -> Room | None:
    """Return what is left of a GPU; None: nothing, or other jobs use it, or are leaving it."""
    jobs.sort(key=lambda job: job.sequence)
    share = WHOLE - sum(job.spec.resources.share for job in jobs)
    if share <= 0 or len(jobs) >= packing.JOBS_PER_GPU_MAX:
        return None
    node = tx.state.nodes[gpu[0]]
    there = sharing.on(node, gpu[1])
    if len(there) != len(jobs) or not node.usable or gpu[1] in node.quarantined:
        return None
    memory = 1.0 - sum(sharing.said_for(tx.state, each) for each in there)
    starts = any(job.state is State.BOUND for job in jobs)
    return Room(gpu, tuple(jobs), share, round(memory, sharing.SHARE_DIGITS), starts)


def _seat(tx: Transaction, job: JobState, rooms: Iterable[Room], now: Instant) -> bool:
    """Put a job on the fullest GPU that has room for it; return whether there was one."""
    fitting = [each for each in rooms if each.takes(tx, job)]
    return any(_join(tx, job, each, now) for each in fitting[:TRIES_MAX])


def _join(tx: Transaction, job: JobState, room: Room, now: Instant) -> bool:
    """Put a job on a GPU, on trial if that can be judged; return whether that was done."""
    host = room.jobs[0]
    against = trials.refusal(tx, Kind.PACK, (job, host), now, (host,))
    if against is not None and against.why in (Reason.TRIAL_COOLS, Reason.TRIAL_OPEN):
        return False
    others = room.jobs[1:]
    if any(trials.cools(tx, Kind.PACK, (job, other), now) is not None for other in others):
        return False
    tried = None
    if against is None and len(room.jobs) == 1:
        both = bool(job_rates.solo(tx, job))
        needed = NEEDED_MILLI if both else host.spec.resources.share
        tried = trials.pack(tx, job, host, needed, now, why=Reason.SHARES_FIT)
    memory = sharing.memory_part(job.spec.resources, tx.state.nodes[room.gpu[0]], room.gpu[1])
    wish = AskPack(job=job.job, beside=host.job, share=memory)
    if packing.begin(tx, job, wish, now, Reason.SHARES_FIT) is not None:
        return False
    if tried is not None:
        tx.record(tried)
    return True
