"""SUBMIT is compacted behind those who read it, and nothing that is still needed is taken out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.wire import subjects
from skep_services.adapters.compaction import compact
from skep_services.adapters.nats_access import ADMISSION_SERVICE, GATEWAY, OPERATOR, SEARCHES
from skep_services.adapters.nats_api import Answer, ApiError, StoredMessage, StreamInfo, ask
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import Link
from skep_services.adapters.nats_read import read_stream
from skep_services.ports import CorruptLogError, Delivery, RefusedError
from tests.adapters.worlds import Inbox, RealCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    made = RealCluster(tmp_path)
    await made.start()
    yield made
    await made.close()


async def submit(cluster: RealCluster, count: int, *, search_at: int = 0) -> NatsBus:
    """Store messages in SUBMIT, one of them about a search; return admission's connection."""
    operator = await cluster.bus(OPERATOR)
    for number in range(1, count + 1):
        about = subjects.search if number == search_at else subjects.submit
        await operator.publish(about("ml"), b"x" * 500, f"key-{number}", {})
    return await cluster.bus(ADMISSION_SERVICE)


async def sequences(cluster: RealCluster) -> list[int]:
    bus = await cluster.bus(OPERATOR)
    return [one.sequence for one in await read_stream(bus, subjects.SUBMIT)]


async def test_the_older_half_of_what_is_decided_is_taken_out(cluster: RealCluster) -> None:
    admission = await submit(cluster, 20)
    assert await compact(admission, 20) == 0, "a small stream stays whole"
    assert await compact(admission, 11, above=1_000) == 6
    assert await sequences(cluster) == list(range(7, 21))
    assert await compact(admission, 7, above=1_000) == 0, "the rest is not decided"
    assert await compact(admission, 20, above=1_000) == 13
    follower = Inbox()
    await admission.follow(subjects.SUBMIT, 13, follower.deliver)
    await follower.wait(7)
    operator = await cluster.bus(OPERATOR)
    assert await operator.publish(subjects.submit("ml"), b"x", "later", {}) == 21


async def test_who_begins_later_reads_what_is_left(cluster: RealCluster) -> None:
    admission = await submit(cluster, 10)
    await compact(admission, 10, above=1_000)
    gateway, heard = await cluster.bus(GATEWAY), Inbox()
    await gateway.follow(subjects.SUBMIT, 0, heard.deliver)
    await heard.wait(5)
    assert heard.sequences == [6, 7, 8, 9, 10]


async def test_admission_does_not_go_on_where_it_has_not_decided_all_that_was_taken_out(
    cluster: RealCluster,
) -> None:
    """Its fact log was restored from an older backup: it ends before what was taken out."""
    admission = await submit(cluster, 10)
    await compact(admission, 10, above=1_000)
    with pytest.raises(CorruptLogError, match="begins at 6, but what follows 4 is needed"):
        await admission.follow(subjects.SUBMIT, 4, Inbox().deliver, known=4)
    await (await admission.follow(subjects.SUBMIT, 5, Inbox().deliver, known=5)).close()
    searches = await cluster.bus(SEARCHES)
    await searches.follow(subjects.SUBMIT, 4, Inbox().deliver, (subjects.SEARCH_REQUESTS,), 4)


async def test_without_an_answer_about_searches_nothing_is_taken_out(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = await submit(cluster, 20)

    async def fails(link: Link, verb: str, body: Any, reply: Any) -> Any:
        if verb.startswith("STREAM.MSG.GET."):
            return StoredMessage(error=ApiError(500, 10051, "store failed"))
        return await ask(link, verb, body, reply)

    monkeypatch.setattr("skep_services.adapters.compaction.ask", fails)
    assert await compact(admission, 20, above=1_000) == 0


async def test_what_searches_have_not_stored_stays(cluster: RealCluster) -> None:
    admission = await submit(cluster, 20, search_at=4)
    assert await compact(admission, 20, above=1_000) == 0, "no searches answer"
    searches, stored = await cluster.bus(SEARCHES), {subjects.SUBMIT: 3}

    async def answer(asked: Delivery) -> None:
        await searches.send(asked.reply, msgspec.json.encode({"stored": stored}), {})

    await searches.listen(subjects.health(SEARCHES), answer)
    assert await compact(admission, 20, above=1_000) == 2
    stored[subjects.SUBMIT] = 4
    assert await compact(admission, 20, above=1_000) == 11


async def test_only_admission_may_take_submissions_out(cluster: RealCluster) -> None:
    await submit(cluster, 3)
    for identity in (OPERATOR, GATEWAY, SEARCHES):
        bus = await cluster.bus(identity)
        with pytest.raises((RefusedError, TimeoutError, ConnectionError)):
            await ask(bus.link, f"STREAM.PURGE.{subjects.SUBMIT}", {"seq": 2}, Answer)
    bus = await cluster.bus(OPERATOR)
    info = await ask(bus.link, f"STREAM.INFO.{subjects.SUBMIT}", None, StreamInfo)
    assert info.state.messages == 3
