"""Ranks whose command starts several training processes: they stop, give back and go on as one."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep.wire.commands import Resume, Suspend
from skep.wire.node import Manner, MemberExited, MemberKnown, Outcome, Tier
from tests.live_node import JOBS, LiveNode

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[LiveNode]:
    live = LiveNode(tmp_path)
    await live.begin()
    try:
        yield live
    finally:
        await live.close()


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_torchrun_in_one_rank_is_suspended_at_one_step(node: LiveNode) -> None:
    await node.send(node.job("", argv=(*TORCHRUN, str(JOBS / "stepper.py"))))
    # On a machine that is far too busy it is first taken for opaque.
    known = await node.event(MemberKnown, lambda one: bool(one.can))
    assert (known.tier, known.can) == (Tier.OBSERVED, ("release", "suspend"))
    for change in (Suspend(), Suspend(release=True)):
        for process in range(2):
            await node.trains(process)
        done = await node.changed(change)
        assert (done.manner, done.detail) == (Manner.BOUNDARY, "")
        assert done.released is change.release
        # They stand within the optimizer's last call, before the script notes that.
        assert [len(node.steps(process)) for process in range(2)] == [done.step - 1] * 2
        await node.kill()
        await node.begin()
        # tidy: allow sleep because there is no event for what does not happen
        await asyncio.sleep(0.3)
        assert [len(node.steps(process)) for process in range(2)] == [done.step - 1] * 2
        resumed = await node.changed(Resume())
        assert (resumed.manner, resumed.detail) == (Manner.BOUNDARY, "")
    for process in range(2):
        await node.trains(process)
    node.finish()
    over = await node.event(MemberExited)
    assert over.outcome is Outcome.SUCCEEDED, over
    for process in range(2):
        numbers = [int(words[1]) for words in node.steps(process)]
        assert numbers == list(range(1, len(numbers) + 1)), "each mini-batch once"
