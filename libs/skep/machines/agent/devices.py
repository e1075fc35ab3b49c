"""What is known of a node's devices: which jobs are on one, and what each may use of it.

Jobs are packed (Gandiva, section 3.2) by an order that names the jobs that a part is put beside.
What such an order does not name must not be on the devices: it is then not carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from skep.machines.agent.parts import DEVICE_BUSY, DeviceUse, PartKey, PartState
from skep.wire.commands import BindJob, Resume, Share
from skep.wire.node import Gpu
from skep.wire.reports import DeviceTrouble, RankProgress
from skep.wire.talk import Shared

TROUBLE_MAX = 500
"""Characters of what is wrong with one device: heartbeats are repeated every second."""


def devices_of(part: PartState) -> set[int]:
    """Return the devices that processes of a part are on, or come back to.

    Returns:
        Indices of devices on the node.
    """
    if part.over is not None:
        return set()
    change = part.changing.change if part.changing is not None else None
    if part.released and not isinstance(change, Resume):
        return set()  # Its state is in the host's memory, and its devices are others'.
    elsewhere = {plan.rank: plan for plan in change.ranks} if isinstance(change, Resume) else {}
    plans = (rank.plan for rank in part.ranks.values() if rank.down is None)
    return {device for plan in plans for device in elsewhere.get(plan.rank, plan).devices}


def in_the_way(parts: Mapping[PartKey, PartState], command: BindJob) -> str:
    """Return which other job is on a device of an order that does not name it, or an empty text.

    Args:
        parts: All parts of the node.
        command: An order for a part, with its devices and the jobs that it is put beside.

    Returns:
        A text that begins with `DEVICE_BUSY`; empty: no other job is in the way.
    """
    key = command.job, command.attempt
    wanted = {device for plan in command.ranks for device in plan.devices}
    for (job, attempt), part in parts.items():
        if (job, attempt) == key or job in command.beside:
            continue
        found = sorted(wanted & devices_of(part))
        if found:
            return f"{DEVICE_BUSY}device {found[0]} is in use by {job}, which was not to be there"
    return ""


def also_used(
    parts: Mapping[PartKey, PartState], key: PartKey, devices: Iterable[int]
) -> tuple[int, ...]:
    """Return those of some devices that parts other than `key` are on.

    Args:
        parts: All parts of the node.
        key: The job and the attempt of the part that does not count.
        devices: Indices of devices on the node.

    Returns:
        Those of `devices` that others are on, in the same order.
    """
    others: set[int] = set()
    for each, part in parts.items():
        if each != key:
            others |= devices_of(part)
    return tuple(device for device in devices if device in others)


def share_of(part: PartState, change: object) -> float:
    """Return the share of its devices' memory that a part is to keep to.

    Args:
        part: A part that runs a command.
        change: What is done to it; a `Share` names the share.

    Returns:
        A fraction of the memory; 0: no limit.
    """
    if isinstance(change, Share):
        return change.share
    assert part.command is not None
    return part.command.share


def packed(command: BindJob, share: Share) -> BindJob:
    """Return the command of a part whose partners have changed."""
    return msgspec.structs.replace(command, share=share.share, beside=share.beside)


def excess(message: Shared, devices: Collection[int], gpus: Iterable[Gpu]) -> str:
    """Return that a rank uses more than its share, or an empty text: it is not made to give back.

    What it holds it may keep; what it asks for beyond is refused by its own side.

    Args:
        message: What the rank says it uses, and its share.
        devices: Indices of the rank's devices on the node.
        gpus: The GPUs of the node.
    """
    known = [gpu.memory for gpu in gpus if gpu.index in devices and gpu.memory]
    if not message.share or not known:
        return ""
    most = int(min(known) * message.share)
    if message.used <= most:
        return ""
    return f"rank {message.rank} uses {message.used} bytes of its device, its share are {most}"


def with_use(part: PartState, told: RankProgress, used: Mapping[int, int]) -> RankProgress:
    """Return a rank's progress with the utilisation of its devices, where they tell it.

    Args:
        part: The part that the rank is of.
        told: What the rank reported.
        used: The utilisation of each device, in thousandths; negative: unknown.
    """
    plans = (rank.plan for rank in part.ranks.values() if rank.plan.rank == told.rank)
    every = [used.get(device, -1) for plan in plans for device in plan.devices]
    known = [each for each in every if each >= 0]
    if not known:
        return told
    return msgspec.structs.replace(told, utilisation=sum(known) // len(known))


def troubles(devices: Iterable[DeviceUse]) -> tuple[DeviceTrouble, ...]:
    """Return what devices say is wrong with them, for the cluster."""
    return tuple(
        DeviceTrouble(index=each.index, text="; ".join(each.trouble)[:TROUBLE_MAX])
        for each in devices
        if each.trouble
    )
