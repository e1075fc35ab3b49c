"""Packing a job with one that runs: on GPUs that this one holds, beside it (Gandiva, section 4.1).

    pack     GpusShared and JobBound in one record; the partners are told their new share
    unpack   suspended with release where it can be, else stored and stopped, else stopped

The guest is bound like any job, but takes nothing from the cells: there is one hold, counted once,
for all jobs on those GPUs. So no guarantee changes by it, and it is refused wherever one
would: to other tenants' jobs, to GPUs that a job claims, on nodes that take no further work.
Partners that cannot lower their share go on with what they have: a set is a decision about GPUs,
and what they answered is recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from skep import ids
from skep.cells.decide.gpu_choice import closest_leaves
from skep.cells.holds import CellHold
from skep.cells.nodes import Attempt, NodeState
from skep.cells.topology import Topology
from skep.ledger import sharing
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator import outbox
from skep.machines.allocator.changes import change_ends, resume_places, rounds
from skep.machines.allocator.changes.rounds import Round
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.placement import job_cells, kept_nodes, person_limits
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import AskPack, Goal, GpusRegained, Result
from skep.wire.commands import Resume, Share
from skep.wire.facts import JobBound, Member, ReservationDropped
from skep.wire.packs import GpusShared, Mode
from skep.wire.reasons import Reason
from skep.wire.spec import suits

JOBS_PER_GPU_MAX = 8
"""Jobs that may share one GPU: with more, none makes progress worth its memory."""


class Seat(NamedTuple):
    """GPUs that a guest may have beside others."""

    chain: str
    member: Member
    beside: tuple[Attempt, ...]
    told: float

    @property
    def devices(self) -> tuple[int, ...]:
        """Return the indices of all its GPUs on their node."""
        return tuple(device for devices in self.member.devices for device in devices)


def begin(
    tx: Transaction, job: JobState, wish: AskPack, now: Instant, why: Reason = Reason.REQUESTED
) -> Refused | None:
    """Put a job that waits beside another.

    Args:
        tx: Its nodes, cells and jobs are read; facts and a command are added.
        job: The guest, which waits or is suspended without GPUs.
        wish: Names the host, and may name a share of the memory.
        now: The time of the decision.
        why: Why it is to be there.

    Returns:
        Why that is not done, or None.
    """
    if job.state not in (State.QUEUED, State.RESERVED) and not job.away:
        return Refused(Reason.NOT_WAITING, f"it is {job.state}")
    full = person_limits.above(tx, job) if tx.state.people.of_vc else ""
    if full:
        return Refused(Reason.PERSON_LIMIT, full)
    seat = _seat(tx.state, job, wish)
    if isinstance(seat, Refused):
        return seat
    window = kept_nodes.kept_from(tx, job, now).get(seat.member.node)
    if window is not None:
        return Refused(Reason.WAITS_FOR_WINDOW, window)
    if job.released:
        _regain(tx, job, wish, seat, now, why)
    else:
        port = tx.state.nodes[seat.member.node].port()
        if port is None:
            return Refused(Reason.WAITS_FOR_PORT, seat.member.node)
        _bind(tx, job, wish, seat, port, now=now, why=why)
    for name, _ in seat.beside:
        lower(tx, tx.state.jobs[name], now)
    return None


def answer(
    tx: Transaction, job: JobState, wish: AskPack, now: Instant
) -> tuple[Result, Instant, Reason | None, str]:
    """Put a job that has no GPUs beside another.

    Args:
        tx: Its nodes, cells and jobs are read; facts and a command are added.
        job: The guest.
        wish: Names the host, and may name a share of the memory.
        now: The time of the decision.

    Returns:
        What `change_ends.over` needs: the result, the time, why it was refused, and that in words.
    """
    refused = begin(tx, job, wish, now)
    if refused is None:
        return Result.DONE, now, None, ""
    return Result.REFUSED, now, refused.why, refused.detail


def _bind(
    tx: Transaction,
    job: JobState,
    wish: AskPack,
    seat: Seat,
    port: int,
    *,
    now: Instant,
    why: Reason,
) -> None:
    """Begin an attempt of a waiting job on GPUs that others hold."""
    if job.state is State.RESERVED:
        tx.record(ReservationDropped(job=job.job, attempt=job.following, why=why))
    attempt = job.following
    tx.record(_decision(job, attempt, wish, seat, now, why))
    tx.record(
        JobBound(
            job=job.job,
            attempt=attempt,
            order=tx.state.order + 1,
            members=(seat.member,),
            master_port=port,
            why=Reason.PACKED,
            at=now,
            trace=job.trace,
            chain=seat.chain,
        )
    )
    outbox.command(tx, seat.member.node, job.job, attempt, now)


def _regain(
    tx: Transaction, job: JobState, wish: AskPack, seat: Seat, now: Instant, why: Reason
) -> None:
    """Give a suspended job GPUs that others hold."""
    had = job.members[seat.member.node]
    moved = (
        ()
        if had.devices == seat.member.devices
        else (msgspec.structs.replace(had, levels=(), devices=seat.member.devices),)
    )
    tx.record(_decision(job, job.attempt, wish, seat, now, why))
    tx.record(
        GpusRegained(job=job.job, attempt=job.attempt, chain=seat.chain, at=now, members=moved)
    )
    resumes = Round(Goal.RESUME, Resume(), tuple(job.live), why, change_ends.number(job, why))
    rounds.send(tx, job, resumes, now)


def _decision(
    job: JobState, attempt: int, wish: AskPack, seat: Seat, now: Instant, why: Reason
) -> GpusShared:
    """Return the fact that jobs share GPUs."""
    return GpusShared(
        mode=Mode.PACK,
        job=job.job,
        attempt=attempt,
        beside=seat.beside,
        node=seat.member.node,
        devices=seat.devices,
        why=why,
        at=now,
        share=wish.share,
        told=seat.told,
        trace=job.trace,
    )


# --- whether, and where ------------------------------------------------------------------------


def _seat(state: ClusterState, job: JobState, wish: AskPack) -> Seat | Refused:
    """Return GPUs of the named job for a guest: those with fewest jobs on them; or why not."""
    partner = state.jobs.get(wish.beside)
    if partner is None or partner.spec.vc != job.spec.vc:
        return Refused(Reason.UNKNOWN_JOB, f"{wish.beside} is no unfinished job of {job.spec.vc}")
    if partner.state is not State.RUNNING:
        return Refused(Reason.PARTNER_NOT_RUNNING, f"{partner.job} is {partner.state}")
    if len(partner.members) > 1:
        return Refused(Reason.PARTNER_SPANS_NODES, f"{partner.job} is on {len(partner.members)}")
    name = ids.attempt_id(partner.job, partner.attempt)
    hold = state.cells.hold_of(name)
    node = state.nodes[partner.live[0]]
    if hold is None or name in state.cells.off_chain or not node.usable:
        return Refused(Reason.NODE_CLOSED, node.joined.node)
    shape = state.cells.chains[hold.chain].topology
    refusal = _unfit(state, job, hold, shape, node)
    if refusal is not None:
        return refusal
    theirs = node.holdings[partner.job, partner.attempt].devices
    found = _devices(state, job, node, theirs, hold.chain)
    if isinstance(found, Refused):
        return found
    leaves = [
        leaf for device in found if (leaf := shape.leaf(node.joined.node, device)) is not None
    ]
    gangs = _gangs(job, shape, leaves)
    if gangs is None:
        return Refused(Reason.TIED_ELSEWHERE, "its workers have to be closer to one another")
    return _shared(
        state,
        job,
        wish,
        node,
        hold.chain,
        tuple(tuple(shape.device(leaf) for leaf in each) for each in gangs),
    )


def _unfit(
    state: ClusterState, job: JobState, hold: CellHold, shape: Topology, node: NodeState
) -> Refused | None:
    """Return why a job does not go with a hold, whichever of its GPUs it had; or None."""
    wanted = job.spec.resources
    if not suits(wanted.gpu_type, shape.gpu):
        return Refused(Reason.OTHER_GPU_TYPE, f"{shape.gpu}, and it asks for {wanted.gpu_type}")
    if wanted.pinned and hold.pin != wanted.pinned:
        return Refused(Reason.TIED_ELSEWHERE, f"pinned cell {wanted.pinned}")
    owed = job_cells.owed(state).get(node.joined.node, (0, 0))
    if not job.released and node.workers(wanted, *owed) < wanted.workers:
        return Refused(
            Reason.HOST_FULL,
            f"{node.joined.node} has {node.cpus_free + owed[0]} CPUs and "
            f"{node.memory_free + owed[1]} bytes left",
        )
    return None


def _devices(
    state: ClusterState, job: JobState, node: NodeState, theirs: tuple[int, ...], chain: str
) -> list[int] | Refused:
    """Return the GPUs of a partner that a guest may choose from, or why there are too few."""
    need = job.spec.gpus
    if job.released:
        mine = [device for ranks in job.members[job.live[0]].devices for device in ranks]
        same = set(mine) <= set(theirs)
        if job.live != [node.joined.node] or not (
            same or (resume_places.moves(job) and job.chain == chain)
        ):
            return Refused(Reason.TIED_ELSEWHERE, f"its processes are on {job_cells.gpus_of(job)}")
        theirs, need = tuple(mine) if same else theirs, len(mine)
    if len(theirs) < need:
        return Refused(Reason.PARTNER_TOO_SMALL, f"it needs {need}, and {len(theirs)} are there")
    crowds = {device: sharing.on(node, device) for device in theirs}
    roomy = [device for device in theirs if len(crowds[device]) < JOBS_PER_GPU_MAX]
    if len(roomy) < need:
        most = max(len(crowd) for crowd in crowds.values())
        return Refused(Reason.GPUS_CROWDED, f"{most} jobs are on one of them")
    calm = [
        device
        for device in roomy
        if device not in node.quarantined
        and not _claimed(state, node, device)
        and all(_stays(state, other) for other in crowds[device])
    ]
    if len(calm) < need:
        return Refused(
            Reason.PARTNER_CHANGING,
            " ".join(
                dict.fromkeys(
                    name for device in roomy if device not in calm for name, _ in crowds[device]
                )
            ),
        )
    fewest = sorted(len(crowds[device]) for device in calm)[need - 1]
    return [device for device in calm if len(crowds[device]) <= fewest]


def _claimed(state: ClusterState, node: NodeState, device: int) -> bool:
    """Return whether a GPU is reserved for a job, or in no chain."""
    found = state.cells.find(node.joined.node, device)
    return found is None or found[1] in state.cells.chains[found[0]].claim


def _stays(state: ClusterState, attempt: Attempt) -> bool:
    """Return whether an attempt runs, and nothing is under way with it but a word on its share."""
    job = state.jobs.get(attempt[0])
    if job is None or job.attempt != attempt[1] or job.state is not State.RUNNING:
        return False
    changes = job.change is not None and not isinstance(job.change.change, Share)
    return not (changes or job.asked is not None or job.successor is not None)


def _gangs(job: JobState, shape: Topology, leaves: list[int]) -> list[tuple[int, ...]] | None:
    """Return GPUs for each worker of a guest, close to one another, or None if it is tied more."""
    wanted, topology = job.spec.resources, job.spec.resources.topology
    workers = wanted.workers
    if job.released:
        member = job.members[job.live[0]]
        workers = len(member.devices)
        by_device = {shape.device(leaf): leaf for leaf in leaves}
        if all(device in by_device for devices in member.devices for device in devices):
            return [tuple(by_device[device] for device in devices) for devices in member.devices]
    cells = [sorted(leaves)]
    if topology is not None and topology.hard:
        level = shape.level(topology.within)
        groups: dict[int, list[int]] = {}
        for leaf in cells[0] if level is not None else ():
            groups.setdefault(shape.up(leaf, level or 1), []).append(leaf)
        cells = [each for each in groups.values() if len(each) >= workers * wanted.gpus]
    if not cells:
        return None
    left, made = cells[0], []
    for _ in range(workers):
        made.append(closest_leaves(shape, left, wanted.gpus))
        left = [leaf for leaf in left if leaf not in made[-1]]
    return made


def _shared(
    state: ClusterState,
    job: JobState,
    wish: AskPack,
    node: NodeState,
    chain: str,
    devices: tuple[tuple[int, ...], ...],
) -> Seat | Refused:
    """Return a guest's place with what is left of the devices' memory for it, if anything is."""
    beside: dict[Attempt, None] = {}
    told: list[float] = []
    for device in (device for each in devices for device in each):
        there = sharing.on(node, device)
        beside |= dict.fromkeys(there)
        said = [sharing.said_for(state, each) for each in there] + [wish.share]
        even = said.count(0.0)
        left = round(1.0 - sum(said), sharing.SHARE_DIGITS)
        if left < 0 or (even and left < 1 / 10**sharing.SHARE_DIGITS):
            return Refused(
                Reason.SHARE_TAKEN, f"of GPU {device}: {' + '.join(f'{one:g}' for one in said)}"
            )
        told.append(wish.share or round(left / even, sharing.SHARE_DIGITS))
    member = Member(
        node=node.joined.node, identity=node.joined.identity, first_rank=0, devices=devices
    )
    return Seat(chain, member, tuple(beside), min(told))


# --- what partners are told --------------------------------------------------------------------


def follow(tx: Transaction, now: Instant) -> None:
    """Send their shares to jobs whose partners have come or gone."""
    marked, tx.soft.reshare = tx.soft.reshare, {}
    for name in marked:
        job = tx.state.jobs.get(name)
        if job is not None:
            lower(tx, job, now)


def lower(tx: Transaction, job: JobState, now: Instant) -> bool:
    """Begin to tell a job its share, if it has another than it was told.

    One that does not run, or is being changed, is told after that.

    Args:
        tx: A fact and commands are added.
        job: The job.
        now: The time of the decision.

    Returns:
        Whether it begins.
    """
    if job.state is not State.RUNNING or job.change is not None:
        return False
    share = sharing.due(tx.state, job)
    if (share.share, share.beside) == job.told:
        return False
    why = Reason.PACKED if share.beside else Reason.ALONE
    rounds.send(tx, job, Round(Goal.SHARE, share, tuple(job.live), why), now)
    return True
