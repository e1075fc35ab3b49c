"""The gateway's view: kept over restarts, and rebuilt from the streams whenever it must be."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.ledger.snapshot import keep
from skep.units import seconds
from skep.wire import codec, subjects
from skep.wire.advice import QueueAdvice
from skep.wire.facts import JobRan
from skep.wire.node import Outcome
from skep_services.adapters.memory import MemoryBroker
from skep_services.gateway import index
from tests.gateway_kit import DEADLINE_S, House, opened, submitted
from tests.kit import TRACE, at, spec

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


# --- the view is rebuilt --------------------------------------------------------------------------


async def everything(house: House) -> Any:
    jobs = (await house.op.get("/v1/jobs?state=all"))["jobs"]
    shown = [await house.op.get(f"/v1/jobs/{row['job']}") for row in jobs]
    return shown, await house.op.get("/v1/gpus"), await house.op.get("/v1/vcs")


async def lived(house: House) -> None:
    """Let some jobs live."""
    await house.with_nodes()
    await submitted(house)
    await submitted(house, gpus=2)
    house.cluster.runs("j1")
    house.cluster.exits("j1", outcome=Outcome.EXITED, detail="status 3")
    house.cluster.runs("j2")
    await house.op.json("POST", "/v1/jobs", 422, {"name": "x", "vc": "nlp"})
    await house.caught_up()


async def test_a_restart_goes_on_where_it_was(house: House) -> None:
    await lived(house)
    before = await everything(house)
    await house.stop()
    house.cluster.exits("j2")
    await house.start()
    await house.caught_up()
    shown, _, _ = await everything(house)
    assert [job["state"] for job in shown] == ["failed", "succeeded", "refused"]
    assert shown[0] == before[0][0]
    indexed = [about["job"] for name, _, about in house.spans.spans if name == "gateway index"]
    assert indexed == ["j1", "j2"]


async def test_a_file_that_is_gone_is_rebuilt(house: House) -> None:
    await lived(house)
    before = await everything(house)
    await house.stop()
    house.path.unlink()
    house.cluster.clock.advance(seconds(60))
    house.spans.spans.clear()
    await house.start()
    await house.caught_up()
    assert await everything(house) == before
    assert house.spans.spans == []  # What ended long ago was told in its trace then.


@pytest.mark.parametrize("damage", ["schema", "garbage", "tables", "document"])
async def test_a_file_that_cannot_be_used_is_rebuilt(house: House, damage: str) -> None:
    await lived(house)
    before = await everything(house)
    await house.stop()
    match damage:
        case "garbage":
            house.path.write_bytes(b"not a database, but long enough to look like one" * 9)
        case _:
            with sqlite3.connect(house.path) as base:
                base.execute(
                    {
                        "schema": "PRAGMA user_version = 999",
                        "tables": "DROP TABLE jobs",
                        "document": "UPDATE jobs SET doc = '{}'",
                    }[damage]
                )
            base.close()
    await house.start()
    await house.caught_up()
    assert await everything(house) == before


async def test_a_bus_that_was_set_back_wins_over_the_view(house: House) -> None:
    await lived(house)
    await house.stop()
    old = house.cluster.broker
    house.cluster.broker = MemoryBroker(house.cluster.clock)
    for stream, patterns in subjects.STREAMS.items():
        house.cluster.broker.add_stream(stream, patterns)
    house.cluster.broker.add_stream(subjects.SECRETS, subjects.SECRET_SUBJECTS)
    house.cluster.broker.add_stream(subjects.CODE, subjects.CODE_SUBJECTS)
    for message in old.stream("ALLOC").messages[:3]:
        house.cluster.broker.store(message.subject, message.payload, message.headers)
    await house.start()
    await house.caught_up()
    assert (await house.op.get("/v1/jobs?state=all"))["total"] == 0
    assert len((await house.op.get("/v1/nodes"))["nodes"]) == 2


async def test_a_disk_that_fails_ends_the_gateway_and_the_next_one_has_all(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(house.gateway.indexer.model, "write", full)
        house.cluster.set_vcs(nlp=1)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(sqlite3.OperationalError, match="full"):
                await house.serving
        assert (await house.op.get("/v1/health"))["services"]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await house.stop()
    await house.start()
    await house.caught_up()
    assert [one["vc"] for one in (await house.op.get("/v1/vcs"))["vcs"]] == ["nlp"]


async def test_a_listing_of_thousands_of_jobs_reads_them_once(house: House) -> None:
    await house.with_nodes(nodes=1)
    advice = QueueAdvice(at=at(0), expires_at=at(1), jobs=())
    await house.bus.send(subjects.ADVICE_QUEUE, codec.encode(advice), {})
    headers = {subjects.TRACE_HEADER: TRACE}
    for number in range(2_000):
        given = {**headers, subjects.KEY_HEADER: f"n{number}"}
        house.cluster.broker.store(subjects.submit("nlp"), codec.encode(spec()), given)
    house.cluster.deaf = True
    await house.caught_up()
    listed = await house.op.get("/v1/jobs")
    assert listed["total"] == 2_000


# --- the state of the ledger ----------------------------------------------------------------------


def state_of(house: House) -> list[bytes]:
    """Return the state that the gateway has folded, in pieces."""
    return [codec.encode(piece) for piece in keep(house.gateway.indexer.fold.state)]


async def test_a_restart_folds_what_came_after_the_kept_state(house: House) -> None:
    await house.with_nodes()
    await house.gateway.indexer.flush()
    kept_at = house.gateway.indexer.state_at
    await lived(house)
    before, shown = state_of(house), await everything(house)
    await house.stop()
    await house.start()
    indexer = house.gateway.indexer
    assert 0 < indexer.model.start.saved.kept_at <= kept_at < indexer.state_at
    assert (state_of(house), await everything(house)) == (before, shown)
    assert [piece for piece in before if b"j2" in piece], "a job runs"
    assert (indexer.fold.misfits, indexer.passed_over) == (0, 0)


@pytest.mark.parametrize("change", ["DROP TABLE kept", "UPDATE kept SET doc = '{}'"])
async def test_a_file_without_a_kept_state_is_read_with_the_whole_log(
    house: House, change: str
) -> None:
    await lived(house)
    before, shown = state_of(house), await everything(house)
    await house.stop()
    with sqlite3.connect(house.path) as file:
        file.execute(change)
    await house.start()
    assert house.gateway.indexer.model.rebuilt == ""
    assert (state_of(house), await everything(house)) == (before, shown)


async def test_the_state_is_kept_again_after_so_many_facts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "KEEP_EVERY", 5)
    await lived(house)
    await house.restart()
    indexer = house.gateway.indexer
    assert indexer.model.start.saved.kept_at > 5
    assert len(indexer.model.start.kept) > 4


async def test_a_fact_that_does_not_fit_the_state_leaves_the_rows(house: House) -> None:
    await lived(house)
    recorded = JobRan(job="j77", attempt=1, at=at(9))
    house.cluster.store_record(f"{subjects.PREFIX}.fact.allocator", [recorded], at(9))
    await house.caught_up()
    assert house.gateway.indexer.fold.misfits == 1
    assert (await house.op.get("/v1/jobs/j2"))["state"] == "running"
    assert (await house.op.get("/v1/jobs/j77"))["state"] == "running"
