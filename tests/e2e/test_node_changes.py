"""Real training processes on a node whose agent is real, and dies: suspended, stored, moved."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep.machines.agent.change_progress import Phase
from skep.wire.commands import Checkpoint, Move, Resize, Resume, Suspend, Target
from skep.wire.node import (
    Manner,
    MemberExited,
    MemberKnown,
    MemberLoaded,
    MemberReady,
    Outcome,
    Tier,
)
from skep.wire.part_facts import Stand
from skep.wire.runs import RunStarted
from tests.kit import plans, stop
from tests.live_node import LiveNode

pytestmark = [pytest.mark.torch, pytest.mark.e2e]


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[LiveNode]:
    live = LiveNode(tmp_path)
    await live.begin()
    try:
        yield live
    finally:
        await live.close()


def each_once(node: LiveNode, rank: int = 0) -> None:
    """Assert that a rank made every mini-batch, and none twice."""
    numbers = [int(words[1]) for words in node.steps(rank)]
    assert numbers == list(range(1, len(numbers) + 1))


async def stands_still(node: LiveNode, ranks: int) -> list[int]:
    """Assert that nobody trains: for a while, in which each would have made ten mini-batches."""
    before = [len(node.steps(rank)) for rank in range(ranks)]
    # tidy: allow sleep because there is no event for what does not happen
    await asyncio.sleep(0.3)
    assert [len(node.steps(rank)) for rank in range(ranks)] == before
    return before


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_gang_is_suspended_while_its_agent_comes_and_goes(node: LiveNode) -> None:
    await node.send(node.job("stepper.py", ranks=2))
    known = await node.event(MemberKnown)
    assert known.tier is Tier.OBSERVED
    assert {"suspend", "release"} <= set(known.can)
    await node.trains()
    done = await node.changed(Suspend(release=True))
    assert (done.manner, done.detail) == (Manner.BOUNDARY, "")
    # It stands within the optimizer's last call, before the script notes that.
    assert await stands_still(node, 2) == [done.step - 1] * 2, "both at the same step"
    await node.kill()
    await node.begin()
    assert node.machine.parts["j1", 1].stand is Stand.SUSPENDED
    await stands_still(node, 2)
    done = await node.changed(Resume())
    assert (done.manner, done.detail) == (Manner.BOUNDARY, "")
    for rank in range(2):
        await node.trains(rank)

    # It dies in the middle of the next one, with what it had told the ranks unanswered.
    order = await node.change(Suspend())
    await node.until(lambda: node.machine.parts["j1", 1].changing is not None)
    await node.kill()
    await node.begin()
    done = await node.answer(order)
    assert done.manner is Manner.BOUNDARY
    assert await stands_still(node, 2) == [done.step - 1] * 2
    assert (await node.changed(Resume())).manner is Manner.BOUNDARY
    for rank in range(2):
        await node.trains(rank)
    node.finish()
    over = await node.event(MemberExited)
    assert over.outcome is Outcome.SUCCEEDED, over
    each_once(node, 0)
    each_once(node, 1)


@pytest.mark.asyncio
async def test_a_suspended_job_that_is_killed_or_stopped_ends(node: LiveNode) -> None:
    await node.send(node.job("stepper.py", ranks=1))
    await node.event(MemberKnown)
    await node.trains()
    assert (await node.changed(Suspend())).manner is Manner.BOUNDARY
    node.order += 1
    await node.send(stop("j1", 1, node.order, grace_s=30.0))
    over = await node.event(MemberExited)
    assert [one.code for one in over.ranks] == [-signal.SIGTERM], "it had its grace, and saw it"


@pytest.mark.asyncio
async def test_an_opaque_job_is_frozen_wherever_it_is(node: LiveNode) -> None:
    script = Path(__file__).parent / "jobs" / "counter.py"
    await node.send(node.job("", argv=("python3", str(script))))
    await node.trains()
    done = await node.changed(Suspend())
    assert (done.manner, done.detail) == (Manner.FROZEN, "the job knows no boundary")
    (steps,) = await stands_still(node, 1)
    assert steps > 0
    await node.kill()
    await node.begin()
    assert (await node.changed(Resume())).manner is not Manner.UNCHANGED
    await node.trains()
    node.finish()
    assert (await node.event(MemberExited)).outcome is Outcome.SUCCEEDED
    each_once(node)


@pytest.mark.asyncio
async def test_a_job_is_stored_and_moved_to_another_process(node: LiveNode) -> None:
    await node.send(node.job("mover.py", ranks=1))
    known = await node.event(MemberKnown, lambda one: "migrate" in one.can)
    assert known.tier is Tier.COOPERATIVE
    await node.trains()
    stored = await node.changed(Checkpoint())
    assert stored.manner is Manner.BOUNDARY, stored
    folder = node.shared / "checkpoints" / "j1"
    assert stored.moved > 0
    assert [path.name for path in folder.glob("*.safetensors")]

    await node.send(node.job("mover.py", first=1, attempt=2, awaits="secret"))
    ready = await node.event(MemberReady)
    await node.trains()
    (door,) = ready.doors
    target = Target(rank=0, host=door.host, port=door.port, token="secret")
    moved = await node.changed(Move(targets=(target,)))
    assert moved.manner is Manner.BOUNDARY, moved
    loaded = await node.event(MemberLoaded)
    assert (loaded.attempt, loaded.step) == (2, moved.step)
    assert await stands_still(node, 1) == [moved.step]
    node.order += 1
    await node.send(stop("j1", 1, node.order, grace_s=10.0))
    resumed = await node.changed(Resume(), attempt=2)
    assert resumed.manner is Manner.BOUNDARY, resumed
    await node.trains()
    node.finish()
    over = await node.event(MemberExited, lambda one: one.attempt == 2)
    assert over.outcome is Outcome.SUCCEEDED
    each_once(node)
    assert {words[0] for words in node.steps()} == {"1", "2"}
    await node.until(lambda: not folder.exists())  # The job has ended.


@pytest.mark.asyncio
async def test_a_rank_that_dies_while_its_part_is_suspended_ends_it(node: LiveNode) -> None:
    await node.send(node.job("stepper.py", ranks=2))
    await node.event(MemberKnown)
    await node.trains()
    assert (await node.changed(Suspend())).manner is Manner.BOUNDARY
    alive = [run for run in await node.runtime.runs() if isinstance(run, RunStarted)]
    victim = next(run.pid for run in alive if run.token == "j1.1.1")
    os.kill(victim, signal.SIGKILL)
    over = await node.event(MemberExited)
    assert over.outcome is Outcome.SIGNALLED
    assert await node.runtime.runs() == []


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_gang_grows_and_shrinks_while_it_trains(node: LiveNode) -> None:
    await node.send(node.job("growing.py", ranks=1))
    await node.event(MemberKnown, lambda one: "resize" in one.can)
    await node.trains()
    both = plans((0,), (1,))
    grow = Resize(generation=1, world=2, ranks=both, master_address="127.0.0.1", master_port=21050)
    grown = await node.changed(grow, deadline_ms=110_000)
    assert grown.manner is Manner.BOUNDARY, grown
    for rank in range(2):
        await node.trains(rank)
    shrink = Resize(
        generation=2, world=1, ranks=both[:1], master_address="127.0.0.1", master_port=21050
    )
    shrunk = await node.changed(shrink, deadline_ms=110_000)
    assert shrunk.manner is Manner.BOUNDARY, shrunk
    await node.trains()
    worlds = [int(words[2]) for words in node.steps()]
    assert [world for world, _ in itertools.groupby(worlds)] == [1, 2, 1]
    node.finish()
    over = await node.event(MemberExited)
    assert over.outcome is Outcome.SUCCEEDED, over
    each_once(node)


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_gang_has_one_size_when_its_agent_dies_while_it_grows(node: LiveNode) -> None:
    await node.send(node.job("growing.py", ranks=1))
    await node.event(MemberKnown, lambda one: "resize" in one.can)
    await node.trains()
    grow = Resize(
        generation=1,
        world=2,
        ranks=plans((0,), (1,)),
        master_address="127.0.0.1",
        master_port=21051,
    )
    order = await node.change(grow, deadline_ms=110_000)

    def works() -> bool:
        drive = node.machine.changes.soft.drives.get(("j1", 1))
        return drive is not None and drive.phase is Phase.WORK

    await node.until(works)
    await node.kill()
    await node.begin()
    done = await node.answer(order)
    part = node.machine.parts["j1", 1]
    size = 2 if done.manner is Manner.BOUNDARY else 1
    assert (len(part.ranks), part.command and part.command.world) == (size, size), done
    for rank in range(size):
        await node.trains(rank)
    assert int(node.steps()[-1][2]) == size
    node.finish()
    assert (await node.event(MemberExited)).outcome is Outcome.SUCCEEDED
    each_once(node)
