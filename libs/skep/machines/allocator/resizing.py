"""Growing and shrinking a gang while it trains, on the node that it is on.

    grow     claim GPUs beside its own; Resize; JobChanged once all its ranks train together
    shrink   Resize; JobChanged and then GangNarrowed: the leavers' GPUs are free

The node answers once every rank has changed and whoever is not of the gang has ended, so what is
freed is free. A growth that comes to nothing gives back what it claimed. Whatever ends the attempt
meanwhile ends the change with it, and frees everything it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skep.cells.holds import Placement
from skep.machines.allocator import cellwork, changes, dispatch
from skep.machines.allocator.jobs import JobState
from skep.units import Instant
from skep.wire.changes import Goal, JobChanging, Result
from skep.wire.commands import RankPlan, Resize
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def refusal(job: JobState, workers: int | None) -> tuple[Reason, str] | None:
    """Return why a gang cannot have so many workers (None: those it has), or None."""
    allowed = job.spec.elastic
    if workers is not None and allowed is None:
        return Reason.CANNOT, "resize: its spec has no `elastic`"
    if workers is not None and allowed and not allowed.min <= workers <= allowed.max:
        return Reason.BAD_VALUE, f"it may have {allowed.min} to {allowed.max} workers"
    if len(job.members) > 1:
        return Reason.ONE_NODE_ONLY, f"it is on {len(job.members)}"
    if "resize" not in job.can:
        return Reason.CANNOT, "resize (`skep show` tells what it can)"
    return None


def begin(
    machine: AllocatorMachine,
    job: JobState,
    workers: int | None,
    now: Instant,
    *,
    servers: int | None = None,
) -> tuple[Reason, str]:
    """Begin to change a gang's size; return why not, or REQUESTED if it begins. None: as it is."""
    workers, servers = workers or job.size, servers or job.servers
    assert job.asked is not None, job
    (name,) = job.live
    node = machine.nodes[name]
    # Ranks on parameter servers meet nowhere: they find them where the attempt began.
    port = job.port if servers else node.holdings[job.job, job.attempt].meets or node.port()
    if port is None:
        return Reason.WAITS_FOR_PORT, name
    if workers > job.size:
        where = _place(machine, job, name, workers - job.size)
        if where is None:
            gpus = f"{workers - job.size} x {job.spec.resources.gpus} GPUs"
            return Reason.NO_ROOM, f"{gpus} beside it on {name}"
        _widen(machine, job, where, now)
    member = job.members[name]
    ranks = tuple(RankPlan(rank=member.first_rank + i, local_rank=i, devices=devices)
                  for i, devices in enumerate(member.devices[:workers]))  # fmt: skip
    order = machine.order + 1
    # An order is never used twice, and neither may a generation be.
    resize = Resize(generation=order, world=workers, ranks=ranks, master_port=port,
                    master_address=node.joined.address, servers=servers)  # fmt: skip
    machine.record(JobChanging(job=job.job, attempt=job.attempt, order=order, goal=Goal.RESIZE,
                               change=resize, nodes=(name,), why=Reason.REQUESTED, at=now,
                               ask=job.asked.number, trace=job.trace))  # fmt: skip
    dispatch.command(machine, name, job.job, job.attempt, now)
    return Reason.REQUESTED, ""


def _place(machine: AllocatorMachine, job: JobState, name: str, workers: int) -> Placement | None:
    """Return idle GPUs on a node for further workers, by the right by which it has its own.

    Nobody makes room: who asks for more gets what is free now, or is told that it is not.
    """
    cells = machine.cells
    holder = cellwork.holder(job.job, job.attempt)
    hold = cells.holds.get(holder)
    if hold is None or holder in cells.astray:
        return None
    wanted = msgspec.structs.replace(job.spec.resources, workers=workers)

    def limit(node: str) -> int:
        return machine.nodes[name].workers(wanted) if node == name else 0

    asked = cellwork.request(job, job.attempt, guaranteed=hold.guaranteed)
    asked = asked._replace(
        members=((workers, wanted.gpus),),
        gpu=cells.chains[hold.chain].topology.gpu,
        within="",
        hard=False,
    )
    where = cells.place(asked, limit=limit)
    if where is None or where.chain != hold.chain:
        return None
    return None if where.victims or where.cancels or where.demoted else where


def _widen(machine: AllocatorMachine, job: JobState, where: Placement, now: Instant) -> None:
    (more,) = cellwork.members(machine, where)
    more = msgspec.structs.replace(more, first_rank=job.size)
    machine.record(GangWidened(job=job.job, attempt=job.attempt, member=more, at=now,
                               trace=job.trace))  # fmt: skip


def conclude(machine: AllocatorMachine, job: JobState, refused: str, now: Instant) -> None:
    """End a change of size that the node has answered; `refused`: why everything is as before."""
    change = job.change
    assert change is not None, job
    result, why = (Result.UNDONE, Reason.NOT_TAKEN) if refused else (Result.DONE, change.why)
    changes.close(machine, job, result, why, now, detail=refused)
    for name, member in job.members.items():
        if len(member.devices) > job.size:
            machine.record(GangNarrowed(job=job.job, attempt=job.attempt, node=name, at=now,
                                        workers=job.size, trace=job.trace))  # fmt: skip
