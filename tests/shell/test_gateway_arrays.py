"""Arrays over HTTP: one line each, their tasks by name, cancelled and retried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.wire import codec, subjects
from skep.wire.node import Outcome
from skep.wire.snapshot import Chunk, Snapshot, digest_of, encode
from tests.gateway_kit import House, error, opened, submitted
from tests.kit import spec

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A gateway over two nodes of two GPUs each."""
    async with opened(tmp_path) as made:
        await made.with_nodes()
        yield made


async def ended(house: House, task: str, outcome: Outcome = Outcome.SUCCEEDED) -> str:
    """Let the job of a task run to its end; return its id."""
    job = str((await house.op.get(f"/v1/jobs/{task}"))["job"])
    house.cluster.runs(job)
    house.cluster.exits(job, outcome=outcome)
    await house.caught_up()
    return job


async def listed(house: House, query: str) -> list[str]:
    rows = (await house.op.get(f"/v1/jobs?{query}"))["jobs"]
    return [row["task"] or row["job"] for row in rows]


async def counts(house: House, array: str) -> dict[str, int]:
    """Return the counts of an array that are not 0, as its line has them."""
    told: dict[str, Any] = await house.op.get(f"/v1/jobs/{array}")
    numbers = {kind: count for kind, count in told["tasks"].items() if isinstance(count, int)}
    return {kind: count for kind, count in numbers.items() if count}


async def test_an_array_is_one_line_and_its_tasks_have_names(house: House) -> None:
    array = await submitted(house, array="0-4%2", over_quota="wait")
    assert await listed(house, "state=active") == [array]
    assert await counts(house, array) == {"total": 5, "most": 2, "running": 2}
    assert await listed(house, "tasks=1") == [array, f"{array}[0]", f"{array}[1]"]
    assert await listed(house, f"array={array}") == [f"{array}[0]", f"{array}[1]"]

    await ended(house, f"{array}[0]")
    await ended(house, f"{array}_1", Outcome.EXITED)
    assert await counts(house, array) == {
        "total": 5,
        "most": 2,
        "running": 2,
        "succeeded": 1,
        "failed": 1,
    }
    assert await listed(house, f"array={array}&state=ended") == [f"{array}[0]", f"{array}[1]"]
    assert await listed(house, "state=ended") == []
    why = await house.op.get(f"/v1/jobs/{array}/why")
    text = "5 tasks: 2 running, 1 succeeded, 1 failed, 1 to come; at most 2 are jobs at once"
    assert [each["text"] for each in why["reasons"]] == [text]


async def test_an_array_ends_and_its_failed_tasks_are_begun_anew(house: House) -> None:
    array = await submitted(house, array="3,5")
    first = await ended(house, f"{array}[3]", Outcome.EXITED)
    await ended(house, f"{array}[5]")
    told = await house.op.get(f"/v1/jobs/{array}?wait=ended")
    assert (told["state"], told["ended_at"] is None) == ("failed", False)
    await house.restart()

    answer = await house.op.json("POST", f"/v1/jobs/{array}/retry", 202, {})
    assert answer["accepted"]
    await house.caught_up()
    assert (await house.op.get(f"/v1/jobs/{array}"))["state"] == "running"
    again = await ended(house, f"{array}[3]")
    assert again != first
    told = await house.op.get(f"/v1/jobs/{array}")
    assert (told["state"], told["tasks"]["succeeded"], told["tasks"]["failed"]) == (
        "succeeded",
        2,
        0,
    )
    refused = await house.op.json("POST", f"/v1/jobs/{array}/retry", 409, {})
    assert error(refused)[0] == "nothing-failed"
    assert (await house.op.get(f"/v1/jobs/{array}/why"))["would_change"] == []


async def test_an_array_whose_code_is_gone_is_not_begun_anew(house: House) -> None:
    store = house.gateway.code_store
    chunk = Chunk(digest_of(b"[]"), 2)
    snapshot = Snapshot(index_bytes=2, files=0, bytes=0, chunks=(chunk,))
    code = digest_of(encode(snapshot))
    await store.keep("nlp", code, snapshot)
    array = await submitted(house, array="0", code=code)
    await ended(house, f"{array}[0]", Outcome.EXITED)
    await store.collect()
    await house.op.json("POST", f"/v1/jobs/{array}/retry", 202, {})
    await house.caught_up()
    await ended(house, f"{array}[0]", Outcome.EXITED)
    await store._drop("nlp", code)
    refused = await house.op.json("POST", f"/v1/jobs/{array}/retry", 409, {})
    assert error(refused)[0] == "no-code"
    assert refused["error"]["text"] == (
        f"{array}: its code is kept for 7 days after its end at most, and is gone: submit it again "
        "from its folder (`skep submit`, `skep run --array`)"
    )


async def test_a_task_is_cancelled_also_before_it_is_a_job(house: House) -> None:
    array = await submitted(house, array="0-2%1")
    waits = await house.op.get(f"/v1/jobs/{array}[2]", 404)
    assert waits["error"]["text"] == (
        f"{array}[2] is no job: it waits for its turn, or was cancelled before"
    )
    answer = await house.op.json("DELETE", f"/v1/jobs/{array}[2]", 202)
    assert answer == {"job": f"{array}[2]", "accepted": True}
    await house.caught_up()
    assert (await counts(house, array))["cancelled"] == 1
    await house.op.json("DELETE", f"/v1/jobs/{array}", 202)
    await house.caught_up()
    assert (await counts(house, array))["cancelled"] == 2
    assert error(await house.op.json("DELETE", f"/v1/jobs/{array}[9]", 404))[0] == "unknown-job"


@pytest.mark.parametrize(
    "method, path, status, text",
    [
        ("GET", "{array}[7]", 404, "array {array} has no task 7: it has 0-1"),
        ("GET", "{job}[0]", 404, "{job} is no array: it has no task 0"),
        ("GET", "j99[0]", 404, "there is no job j99"),
        ("GET", "{array}/logs", 422, "{array} is an array: name a task of it, such as {array}[0]"),
        ("GET", "{array}/blame", 422, "{array} is an array: name a task of it, such as {array}[0]"),
        ("POST", "{array}/suspend", 422, "{array} is an array, and only its jobs can be changed"),
        ("POST", "{job}/retry", 409, "`nlp` has no array {job} with tasks that failed"),
        ("DELETE", "{job}[0]", 404, "{job} is no array"),
    ],
)
async def test_what_cannot_be(house: House, method: str, path: str, status: int, text: str) -> None:
    names = {"array": await submitted(house, array="0-1"), "job": ""}
    names["job"] = await submitted(house)
    body: dict[str, Any] | None = {} if method == "POST" else None
    answer = await house.op.json(method, f"/v1/jobs/{path.format(**names)}", status, body)
    assert answer["error"]["text"] == text.format(**names)


async def test_an_array_holds_no_gpus_and_is_no_job_of_a_queue(house: House) -> None:
    array = await submitted(house, array="0-9", over_quota="wait")
    (nlp,) = (one for one in (await house.op.get("/v1/vcs"))["vcs"] if one["vc"] == "nlp")
    assert (nlp["running"], nlp["queued"]) == (4, 6)
    assert list(house.gateway.indexer.fold.arrays) == [array]
    await house.restart()
    assert list(house.gateway.indexer.fold.arrays) == [array]
    assert await listed(house, "state=active") == [array]


async def test_a_name_is_that_of_the_array(house: House) -> None:
    array = await submitted(house, name="sweep", array="0-1")
    assert (await house.op.get("/v1/jobs/sweep"))["job"] == array
    assert len(await listed(house, "array=sweep")) == 2
    job = await submitted(house)
    told = await house.op.get(f"/v1/jobs?array={job}", 422)
    assert told["error"]["text"] == f"{job} is no array: it has no tasks"


async def test_an_array_of_another_tenant_is_not_there(house: House) -> None:
    array = await submitted(house, array="0-1")
    for path in (array, f"{array}[0]", f"{array}[9]"):
        told = await house.vision.get(f"/v1/jobs/{path}", 404)
        assert told["error"]["text"] == f"there is no job {array}"
        await house.vision.json("DELETE", f"/v1/jobs/{path}", 404)
    assert error(await house.vision.get(f"/v1/jobs?array={array}", 404))[0] == "unknown-job"


async def test_the_code_of_arrays_is_kept_whose_tasks_wait(house: House) -> None:
    """No job names it: every task is yet to become one."""
    code = "5f" * 32
    held = codec.encode(spec(array="0-1", hold=True, code=code))
    # As if the snapshot were there: the gateway lets only those pass.
    house.cluster.broker.store(subjects.submit("nlp"), held, {subjects.KEY_HEADER: "k"})
    array = "j1"
    await house.caught_up()
    assert house.gateway._named("nlp") == {code}
    assert house.gateway._named("vision") == set()
    await house.restart()
    assert house.gateway._named("nlp") == {code}
    await house.nlp.json("DELETE", f"/v1/jobs/{array}", 202)
    await house.caught_up()
    assert house.gateway._named("nlp") == set()
