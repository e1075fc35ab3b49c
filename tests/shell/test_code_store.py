"""The store of code: what is there, what is taken out, and what is refused."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.units import NS_PER_SECOND, Duration
from skep.wire import subjects
from skep.wire.snapshot import Chunk, Snapshot, digest_of, encode
from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.gateway import code_store
from skep_services.gateway.code_store import CHUNK, LIST, CodeFullError, CodeStore
from skep_services.ports import Delivery

pytestmark = pytest.mark.asyncio

HOUR = Duration(3600 * NS_PER_SECOND)


class JetStream:
    """Answers what is asked of the stream CODE: messages and subjects, and deletes."""

    def __init__(self, broker: MemoryBroker, bus: MemoryBus) -> None:
        self.kept = broker.stream(subjects.CODE).messages
        self.gone: set[int] = set()
        self.bus = bus

    def there(self) -> dict[str, Delivery]:
        latest = {one.subject: one for one in self.kept}
        return {name: one for name, one in latest.items() if one.sequence not in self.gone}

    async def get(self, asked: Delivery) -> None:
        found = self.there().get(msgspec.json.decode(asked.payload)["last_by_subj"])
        answer: dict[str, Any] = {"error": {"code": 404, "err_code": 10037}}
        if found is not None:
            data = base64.b64encode(found.payload).decode()
            time = datetime.fromtimestamp(found.at / 1e9, UTC).isoformat()
            answer = {"message": {"seq": found.sequence, "data": data, "time": time}}
        await self.bus.send(asked.reply, msgspec.json.encode(answer), {})

    async def delete(self, asked: Delivery) -> None:
        self.gone.add(msgspec.json.decode(asked.payload)["seq"])
        await self.bus.send(asked.reply, b"{}", {})

    async def info(self, asked: Delivery) -> None:
        state = {"state": {"subjects": dict.fromkeys(self.there(), 1)}}
        await self.bus.send(asked.reply, msgspec.json.encode(state), {})


class Place:
    """A store of code on a bus in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock)
        self.broker.add_stream(subjects.CODE, subjects.CODE_SUBJECTS)
        self.bus = MemoryBus(self.broker, "gateway", print)
        self.stream = JetStream(self.broker, self.bus)
        self.named: set[str] = set()

    async def open(self) -> CodeStore:
        api = "$JS.API.STREAM"
        for verb, answer in (
            (f"MSG.GET.{subjects.CODE}", self.stream.get),
            (f"MSG.DELETE.{subjects.CODE}", self.stream.delete),
            (f"INFO.{subjects.CODE}", self.stream.info),
        ):
            await self.bus.listen(f"{api}.{verb}", answer)
        return await self.another()

    async def another(self) -> CodeStore:
        """Return the store as another gateway has it."""
        store = CodeStore(self.bus, self.clock, lambda vc: self.named if vc == "a" else set())
        self.heard = asyncio.Condition()

        async def deliver(delivery: Delivery) -> None:
            await store.deliver(delivery)
            async with self.heard:
                self.heard.notify_all()

        await self.bus.follow(subjects.CODE, 0, deliver, (subjects.SNAPSHOTS,))
        return store

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what the store that was opened last has heard makes something true."""
        async with asyncio.timeout(5), self.heard:
            await self.heard.wait_for(condition)


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    await made.bus.close()


def snapshot(*chunks: bytes) -> Snapshot:
    size = sum(map(len, chunks))
    listed = tuple(Chunk(digest_of(one), len(one)) for one in chunks)
    return Snapshot(index_bytes=2, files=1, bytes=size - 2, chunks=listed)


async def keep(store: CodeStore, vc: str, *chunks: bytes) -> str:
    one = snapshot(*chunks)
    await store.put_chunks(vc, list(chunks))
    assert store.missing(vc, one) == []
    await store.keep(vc, digest_of(encode(one)), one)
    return digest_of(encode(one))


async def test_what_one_vc_has_is_not_another_s(place: Place) -> None:
    store = await place.open()
    digest = await keep(store, "a", b"xx", b"one")
    assert store.missing("a", snapshot(b"xx", b"two")) == [digest_of(b"two")]
    assert store.missing("b", snapshot(b"xx", b"one")) == [digest_of(b"xx"), digest_of(b"one")]
    assert store.find("b", digest) is None
    assert await store.chunk("a", digest_of(b"one")) == b"one"
    other = await place.another()
    await place.until(lambda: other.find("a", digest) is not None)
    assert other.bytes_of("a") == 5


async def test_a_chunk_that_is_corrupt_or_lost_is_asked_for_again(place: Place) -> None:
    store = await place.open()
    await keep(store, "a", b"xx", b"one")
    subject = subjects.snapshot(CHUNK, "a", digest_of(b"one"))
    await place.bus.publish(subject, b"bad", "", {})
    assert await store.chunk("a", digest_of(b"one")) is None
    assert store.missing("a", snapshot(b"xx", b"one")) == [digest_of(b"one")]
    await store.put_chunks("a", [b"one"])
    assert store.missing("a", snapshot(b"xx", b"one")) == []
    assert await store.chunk("a", digest_of(b"one")) == b"one"


async def test_what_no_job_names_goes_in_time_and_what_is_shared_stays(place: Place) -> None:
    store = await place.open()
    named = await keep(store, "a", b"xx", b"one")
    await keep(store, "a", b"xx", b"two")
    await store.put_chunks("a", [b"never handed in"])
    place.named = {named}
    place.clock.advance(Duration(code_store.KEEP_S * NS_PER_SECOND + 1))
    assert await store.collect() == 0  # The unnamed one is dropped; what is its own is doomed.
    place.clock.advance(Duration(2 * HOUR))
    await store.collect()
    assert set(place.stream.there()) == {
        subjects.snapshot(LIST, "a", named),
        subjects.snapshot(CHUNK, "a", digest_of(b"xx")),
        subjects.snapshot(CHUNK, "a", digest_of(b"one")),
    }


async def test_a_chunk_that_was_sent_anew_is_not_taken_out_by_another_gateway(place: Place) -> None:
    store = await place.open()
    other = await place.another()
    await store.put_chunks("a", [b"xx", b"one"])
    place.clock.advance(Duration(2 * HOUR))
    await other.collect()  # Doomed from here on.
    place.clock.advance(Duration(2 * HOUR))
    await store.put_chunks("a", [b"xx", b"one"])
    assert await other.collect() == 0
    assert await store.chunk("a", digest_of(b"one")) == b"one"


async def test_a_full_vc_drops_what_no_job_names_and_refuses_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "VC_BYTES_MAX", 10)
    store = await place.open()
    first = await keep(store, "a", b"xx", b"1111")
    place.clock.advance(HOUR)
    second = await keep(store, "a", b"yy", b"2222")
    assert store.find("a", first) is None  # No job names it.
    place.named = {second}
    place.clock.advance(HOUR)
    with pytest.raises(CodeFullError, match="VC a has 0 MiB of code that its unfinished jobs name"):
        await keep(store, "a", b"zz", b"3333")
    assert store.find("a", second) is not None
    await keep(store, "b", b"zz", b"3333")


async def test_a_vc_cannot_fill_the_store_with_chunks_that_no_snapshot_names(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "VC_BYTES_MAX", 10)
    store = await place.open()
    await store.put_chunks("a", [b"12345678"])
    with pytest.raises(CodeFullError, match="that no snapshot names"):
        await store.put_chunks("a", [b"123"])
    await store.put_chunks("b", [b"123"])
    place.clock.advance(Duration(2 * HOUR))
    await store.put_chunks("a", [b"123"])


async def test_a_list_that_cannot_be_read_is_passed_over(place: Place) -> None:
    store = await place.open()
    for payload in (b"{", b'{"v":2}', encode(snapshot(b"xx", b"1"))):
        await place.bus.publish(subjects.snapshot(LIST, "a", "0" * 64), payload, "", {})
    digest = await keep(store, "a", b"xx", b"one")
    other = await place.another()
    await place.until(lambda: other.find("a", digest) is not None)
    assert list(other.listed("a")) == [digest]
