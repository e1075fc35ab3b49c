"""Changes of running jobs over HTTP: asked for, followed, shown and explained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.ledger.job_state import OpenChange
from skep.wire.commands import Move, Suspend
from skep.wire.node import Door, Manner, MemberChanged, MemberKnown, MemberLoaded, MemberReady, Tier
from tests.gateway_kit import House, error, opened, submitted
from tests.kit import at

pytestmark = pytest.mark.asyncio

CAN = ("suspend", "release", "migrate")


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


async def running(house: House) -> str:
    """Return a job that runs and has said what it can do."""
    await house.with_nodes()
    job = await submitted(house)
    house.cluster.runs(job)
    (node,) = house.cluster.allocator.machine.state.jobs[job].members
    house.cluster.node(
        MemberKnown(
            node=node,
            identity=f"id-{node}",
            job=job,
            attempt=1,
            can=CAN,
            at=at(4),
            tier=Tier.COOPERATIVE,
        ),
        4,
    )
    await house.caught_up()
    return job


def answer(house: House, job: str, manner: Manner = Manner.BOUNDARY) -> None:
    """Have every node that was told to change its part of a job do so."""
    state = house.cluster.allocator.machine.state.jobs[job]
    change = state.change
    assert isinstance(change, OpenChange)
    released = isinstance(change.change, Suspend) and change.change.release
    for node in list(change.answers):
        house.cluster.node(
            MemberChanged(
                node=node,
                identity=f"id-{node}",
                job=job,
                attempt=state.attempt,
                order=change.order,
                manner=manner,
                at=at(5),
                released=released,
                step=12,
                pause_ns=7_000_000,
            ),
            5,
        )


async def ask(house: House, job: str, name: str, **options: Any) -> int:
    told = await house.op.json("POST", f"/v1/jobs/{job}/{name}", 202, options)
    assert (told["job"], told["ask"], told["accepted"]) == (job, name, True)
    await house.caught_up()
    number: int = told["number"]
    return number


async def test_a_job_is_suspended_with_its_gpus_given_back_and_resumed(house: House) -> None:
    job = await running(house)
    number = await ask(house, job, "suspend", release=True)
    shown = await house.op.get(f"/v1/jobs/{job}")
    assert (shown["tier"], shown["can"]) == ("cooperative", list(CAN))
    assert (shown["changing"]["goal"], shown["changing"]["round"]) == ("suspend", 1)
    path = f"/v1/jobs/{job}?wait=asked&number={number}&timeout_s=30"
    later = asyncio.create_task(house.op.get(path))
    answer(house, job)
    shown = await later
    assert (shown["state"], shown["released"], shown["changing"]) == ("suspended", True, None)
    assert [(one["ask"], one["result"]) for one in shown["asks"]] == [("suspend", "done")]
    gpus = (await house.op.get("/v1/gpus"))["gpus"]
    assert not any(gpu["taken"] for gpu in gpus)
    why = await house.op.get(f"/v1/jobs/{job}/why")
    assert [one["reason"] for one in why["reasons"]] == [
        "suspended",
        "waits-for-its-gpus",
        "in-place",
    ]
    assert why["would_change"] == [f"`skep resume {job}`"]

    await ask(house, job, "resume")
    answer(house, job)
    await house.caught_up()
    shown = await house.op.get(f"/v1/jobs/{job}")
    assert (shown["state"], shown["released"]) == ("running", False)
    gpus = (await house.op.get("/v1/gpus"))["gpus"]
    assert sum(gpu["taken"] for gpu in gpus) == 1
    events = [one["text"] for one in (await house.op.get(f"/v1/jobs/{job}/events"))["events"]]
    assert (
        "suspend done and its GPUs given back at mini-batch 12 after a pause of 7 ms: its "
        "tenant asked for it" in events
    )


async def test_a_moved_job_has_another_attempt(house: House) -> None:
    job = await running(house)
    await ask(house, job, "migrate")
    state = house.cluster.allocator.machine.state.jobs[job]
    assert state.successor is not None
    (node,) = state.successor.members
    who: dict[str, Any] = {"node": node, "identity": f"id-{node}", "job": job, "attempt": 2}
    house.cluster.node(MemberReady(**who, doors=(Door(rank=0, host="h", port=1),), at=at(4)), 4)
    assert state.change is not None
    assert isinstance(state.change.change, Move)
    answer(house, job)
    house.cluster.node(MemberLoaded(**who, step=12, at=at(5)), 5)
    answer(house, job)
    await house.caught_up()
    shown = await house.op.get(f"/v1/jobs/{job}")
    assert (shown["state"], shown["attempt"]) == ("running", 2)
    assert shown["place"].startswith(node)
    assert [one["outcome"] for one in shown["attempts"]] == ["moved", None]
    assert shown["asks"][-1]["result"] == "done"


async def test_what_cannot_be_asked_is_refused(house: House) -> None:
    job = await running(house)
    path = f"/v1/jobs/{job}"
    told = await house.op.json("POST", f"{path}/suspend", 422, {"relese": True})
    assert error(told)[0] == "unknown-key"
    told = await house.op.json("POST", f"{path}/migrate", 422, {"to": "node-9"})
    assert error(told)[0] == "unknown-node"
    assert error(await house.op.json("POST", f"{path}/suspend", 400, [1]))[0] == "not-json"
    await house.op.json("POST", f"{path}/dance", 404, {})
    await house.op.json("POST", "/v1/jobs/j9/suspend", 404, {})
    house.cluster.exits(job)
    await house.caught_up()
    assert error(await house.op.json("POST", f"{path}/suspend", 409))[0] == "already-ended"


async def test_what_the_allocator_refuses_at_once_is_refused_in_the_answer(house: House) -> None:
    job = await running(house)
    told = (await house.op.json("POST", f"/v1/jobs/{job}/checkpoint", 409, {}))["error"]
    assert told["reason"] == "cannot"
    assert "checkpoint" in told["text"]
    waits = await submitted(house)
    while house.cluster.allocator.machine.state.jobs[waits].members:
        waits = await submitted(house)  # Until no GPU is left.
    told = await house.op.json("POST", f"/v1/jobs/{waits}/migrate", 409, {})
    assert error(told)[0] == "not-running"


async def test_a_suspended_job_counts_as_suspended_and_not_as_running(house: House) -> None:
    job = await running(house)
    await ask(house, job, "suspend")
    answer(house, job)
    await house.caught_up()
    vcs = {vc["vc"]: vc for vc in (await house.op.get("/v1/usage"))["vcs"]}
    assert (vcs["nlp"]["running"], vcs["nlp"]["suspended"]) == (0, 1)


async def test_an_ended_job_has_its_tier_and_no_rate(house: House) -> None:
    job = await running(house)
    house.gateway.indexer.fold.active[job].row.rate_milli = 1_500
    house.cluster.exits(job)
    await house.caught_up()
    shown = await house.op.get(f"/v1/jobs/{job}")
    assert (shown["state"], shown["tier"], shown["rate_milli"]) == (
        "succeeded",
        "cooperative",
        None,
    )


async def test_a_unique_name_serves_where_an_id_does(house: House) -> None:
    await house.with_nodes()
    first = await submitted(house, name="train it")
    second = await submitted(house, name="other")
    await house.caught_up()
    assert (await house.op.get("/v1/jobs/train%20it"))["job"] == first
    assert (await house.op.get("/v1/jobs/other/why"))["job"] == second
    assert (await house.op.get("/v1/events?job=other"))["events"]
    third = await submitted(house, name="train it")
    await house.caught_up()
    told = (await house.op.get("/v1/jobs/train%20it", 409))["error"]
    assert told["reason"] == "ambiguous-name"
    assert f"{first}, {third}" in told["text"]
    for job in (first, third):
        house.cluster.runs(job)
    house.cluster.exits(first)
    await house.caught_up()
    assert (await house.op.get("/v1/jobs/train%20it"))["job"] == third
    house.cluster.exits(third)
    await house.caught_up()
    assert error(await house.op.get("/v1/jobs/train%20it", 409))[0] == "ambiguous-name"
    await house.op.json("DELETE", "/v1/jobs/other", 202)
    assert error(await house.op.get("/v1/jobs/nothing", 404))[0] == "unknown-job"


async def test_a_gang_that_grows_and_shrinks_is_shown_as_it_is(house: House) -> None:
    await house.with_nodes()
    job = await submitted(house, elastic={"min": 1, "max": 2})
    house.cluster.runs(job)
    (node,) = house.cluster.allocator.machine.state.jobs[job].members
    house.cluster.node(
        MemberKnown(
            node=node,
            identity=f"id-{node}",
            job=job,
            attempt=1,
            can=("resize",),
            at=at(4),
            tier=Tier.COOPERATIVE,
        ),
        4,
    )
    await house.caught_up()
    await house.op.get("/v1/cells")  # From here on its cells follow.
    refused = await house.op.json("POST", f"/v1/jobs/{job}/resize", 422, {"workers": 3})
    assert error(refused)[0] == "bad-value"
    refused = await house.op.json("POST", f"/v1/jobs/{job}/resize", 422, {"wokers": 2})
    assert error(refused)[0] == "unknown-key"

    async def resized(workers: int, manner: Manner) -> tuple[int, int, int]:
        await ask(house, job, "resize", workers=workers)
        answer(house, job, manner)
        await house.caught_up()
        shown = await house.op.get(f"/v1/jobs/{job}")
        gpus = (await house.op.get("/v1/gpus"))["gpus"]
        [chain] = (await house.op.get("/v1/cells"))["chains"]
        used = sum(cell.get("used", 0) + cell.get("borrowed", 0) for cell in chain["cells"])
        taken = sum(gpu["taken"] for gpu in gpus)
        assert used == taken == len(shown["place"].partition(":")[2].split(","))
        return shown["workers"], shown["gpus"], taken

    assert await resized(2, Manner.UNCHANGED) == (1, 1, 1)
    assert await resized(2, Manner.BOUNDARY) == (2, 2, 2)
    assert await resized(1, Manner.UNCHANGED) == (2, 2, 2)
    assert await resized(1, Manner.BOUNDARY) == (1, 1, 1)
    events = [one["text"] for one in (await house.op.get(f"/v1/jobs/{job}/events"))["events"]]
    assert f"gets {node}:1 beside its own" in events
    assert f"keeps the GPUs of 1 workers on {node}" in events
