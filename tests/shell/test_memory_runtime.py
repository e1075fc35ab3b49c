"""The reference of a node's runtime: what outlives an agent, and what a stop does to the frozen."""

import asyncio

import pytest

from skep_services.adapters.memory_runtime import MemoryRuns, MemoryRuntime
from skep_services.ports import NodeRuntime, RunExited, RunPlan

PLAN = RunPlan(token="a", argv=("x",), env={}, workdir="/", log_path="/l", log_bytes_max=1)


async def opened(runs: MemoryRuns) -> tuple[NodeRuntime, asyncio.Queue[RunExited]]:
    ends: asyncio.Queue[RunExited] = asyncio.Queue()
    runtime = MemoryRuntime(runs)
    await runtime.open(ends.put)
    return runtime, ends


@pytest.mark.asyncio
async def test_frozen_runs_outlive_the_agent_and_thaw_when_stopped() -> None:
    runs = MemoryRuns()
    first, _ = await opened(runs)
    run = await first.start(PLAN)
    assert await first.start(PLAN) == run
    assert await first.freeze("a") == await first.freeze("unheard-of") == ""
    await first.close()
    second, ends = await opened(runs)
    assert [(one.token, getattr(one, "frozen", None)) for one in await second.runs()] == [
        ("a", True)
    ]
    assert await second.thaw("a") == ""
    assert await second.runs() == [run]
    await second.freeze("a")
    await second.stop("a", 1.0)
    assert (runs.frozen, runs.stopped) == ({}, {"a": 1.0})
    assert await second.freeze("a") == ""
    assert await second.runs() == [run], "what is ending is not frozen"
    runs.end("a", 7)
    end = await asyncio.wait_for(ends.get(), 60.0)
    assert (end.code, end.asked) == (7, True)
    third, again = await opened(runs)
    assert await asyncio.wait_for(again.get(), 60.0) == end
    await third.forget("a")
    await third.forget("a")
    assert await third.runs() == []
    for runtime in (second, third):
        await runtime.close()


@pytest.mark.asyncio
async def test_a_tree_that_cannot_be_frozen() -> None:
    runs = MemoryRuns()
    runtime, _ = await opened(runs)
    await runtime.start(PLAN)
    runs.refuse_freeze = "no engine"
    assert await runtime.freeze("a") == "no engine"
    runs.end("a", 0)
    assert isinstance(await runtime.start(PLAN), type(await runtime.start(PLAN)))
    await runtime.close()
