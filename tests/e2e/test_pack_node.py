"""Training processes packed on a fake GPU of a node whose agent is real, and dies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.wire.commands import BindJob, ChangeJob, Resume, Share, Suspend
from skep.wire.node import Manner, MemberExited, MemberKnown, Outcome
from skep_services.adapters.devices import CpuSlots, FakeGpus
from tests.kit import stop
from tests.live_node import LiveNode

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

GIB = 2**30
MEMORY = 2 * GIB
"""Of each job on a device of 16 GiB."""


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[LiveNode]:
    devices = FakeGpus(CpuSlots(1, "fake"), tmp_path / "gpus", 16 * GIB)
    live = LiveNode(tmp_path, devices)
    await live.begin()
    try:
        yield live
    finally:
        await live.close()


def job(node: LiveNode, name: str, **more: Any) -> BindJob:
    """Return the command to start a script of the tests with a load on the fake device."""
    load = json.dumps({"step_ms": 20, "utilisation": 0.4, "demand": 0.4, "memory": MEMORY})
    command = node.job("stepper.py", **more)
    env = {**command.env, "SKEP_FAKE_LOAD": load, "STEPS_FILE": f"{node.folder}/{name}"}
    return msgspec.structs.replace(command, job=name, env=env)


def count(node: LiveNode, name: str) -> int:
    """Return how many mini-batches a job has noted."""
    path = node.folder / f"{name}.0"
    return path.read_text().count("\n") if path.exists() else 0


async def trains(node: LiveNode, name: str) -> None:
    wanted = count(node, name) + 3
    await node.until(lambda: count(node, name) >= wanted)


def memory(node: LiveNode) -> list[int]:
    """Return what each process has on the device."""
    (device,) = node.devices.look()
    return sorted(process.memory for process in device.processes)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_partners_come_and_go_while_their_agent_does(node: LiveNode) -> None:
    await node.send(job(node, "j1"))
    known = await node.event(MemberKnown)
    assert "share" in known.can
    await trains(node, "j1")
    told = await node.changed(Share(share=0.5, beside=("j2",)))
    assert (told.manner, told.residue, told.detail) == (Manner.BOUNDARY, MEMORY, "")

    await node.send(job(node, "j2", share=0.5, beside=("j1",)))
    await trains(node, "j2")
    assert memory(node) == [MEMORY, MEMORY]
    # Whoever is not to be there is not begun, and nobody notices.
    await node.send(job(node, "j3", beside=("j1",)))
    refused = await node.event(MemberExited, lambda one: one.job == "j3")
    assert (refused.outcome, "device 0 is in use by j2" in refused.detail) == (
        Outcome.UNKNOWN,
        True,
    )

    # What is in use is more than the share: it is said, by the agent's next process too.
    order = await node.change(Share(share=0.1, beside=("j2",)))
    await node.kill()
    await node.begin()
    await node.send(_again(node, order))
    told = await node.answer(order)
    assert told.manner is Manner.BOUNDARY
    assert (
        told.detail == f"rank 0 uses {MEMORY} bytes of its device, its share are {16 * GIB // 10}"
    )
    await trains(node, "j1")

    done = await node.changed(Suspend(release=True))
    assert done.released
    assert memory(node) == [0, MEMORY]
    await trains(node, "j2")
    done = await node.changed(Resume())
    assert done.manner is Manner.BOUNDARY
    assert memory(node) == [MEMORY, MEMORY], "all of it is back, though it is more than the share"

    node.order += 1
    await node.send(stop("j2", 1, node.order, grace_s=5.0))
    await node.event(MemberExited, lambda one: one.job == "j2")
    await trains(node, "j1")
    assert memory(node) == [MEMORY]
    told = await node.changed(Share())
    assert (told.manner, told.detail) == (Manner.BOUNDARY, "")


def _again(node: LiveNode, order: int) -> Any:
    """Return the command once more, as the allocator repeats it."""
    return ChangeJob(
        order=order,
        epoch=1,
        settled=0,
        node="node-1",
        identity="id-node-1",
        job="j1",
        attempt=1,
        change=Share(share=0.1, beside=("j2",)),
        deadline_ms=60_000,
    )
