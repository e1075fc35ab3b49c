"""An opaque job leaves its device by the driver's checkpoint, on a node whose agent is real."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep.units import seconds
from skep.wire.commands import Resume, Suspend
from skep.wire.node import Manner, MemberExited, MemberKnown, Outcome, Tier
from skep.wire.runs import RunStarted
from tests.driver_kit import Host
from tests.live_node import JOBS, LiveNode

pytestmark = pytest.mark.e2e


@pytest_asyncio.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveNode]:
    monkeypatch.setattr("skep.machines.agent.capabilities.KNOWN_AFTER", seconds(0.5))
    live = LiveNode(tmp_path)
    await live.begin()
    try:
        yield live
    finally:
        await live.close()


def allow(node: LiveNode, host: Host) -> None:
    """Let the agent that has just begun use the stand-in."""
    node.calls.driver = host.checkpoint()
    node.machine.changes.abilities.evicts = True


@pytest.mark.asyncio
async def test_an_opaque_job_leaves_its_device_and_returns(node: LiveNode) -> None:
    host = Host(node.folder, 0)
    allow(node, host)
    await node.send(node.job("", argv=(sys.executable, str(JOBS / "counter.py"))))
    known = await node.event(MemberKnown)
    assert (known.tier, known.can) == (Tier.OPAQUE, ("release",))
    (run,) = await node.runtime.runs()
    assert isinstance(run, RunStarted)
    host.is_on_device(run.pid)
    await node.trains()

    host.fails("checkpoint")
    kept = await node.changed(Suspend(release=True))
    assert (kept.manner, kept.released) == (Manner.FROZEN, False)
    assert "cannot checkpoint" in kept.detail
    assert host.calls() == ["lock", "checkpoint", "unlock"]
    host.fails("checkpoint", at=False)
    gone = await node.changed(Suspend(release=True))
    assert (gone.manner, gone.released, gone.moved) == (Manner.FROZEN, True, 600)
    assert host.calls() == ["lock", "checkpoint"]
    steps = len(node.steps())
    await node.kill()
    await node.begin()
    allow(node, host)
    # tidy: allow sleep because there is no event for what does not happen
    await asyncio.sleep(0.2)
    assert len(node.steps()) == steps
    assert (await node.changed(Resume())).manner is Manner.BOUNDARY
    assert host.calls() == ["restore", "unlock"]
    await node.trains()
    node.finish()
    assert (await node.event(MemberExited)).outcome is Outcome.SUCCEEDED
