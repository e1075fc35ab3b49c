"""What only a real server, or a broken connection to one, can do to a bus."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from skep_services.adapters import nats_follow, nats_link, nats_server
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_follow import position_of
from skep_services.adapters.nats_link import LinkOptions
from skep_services.ports import CorruptLogError, FullError, RefusedError
from tests.adapters.worlds import (
    DEADLINE_S,
    PASSWORD,
    Inbox,
    NatsWorld,
    Proxy,
    eventually,
    numbers,
    publish_all,
)

pytestmark = pytest.mark.asyncio


# --- a real server that dies, and connections that break ---------------------------------------


@pytest.mark.adapters
async def test_killed_server_loses_and_repeats_nothing(nats: NatsWorld, inbox: Inbox) -> None:
    """Publish and follow while the server is killed five times in the middle of it."""
    await nats.add_stream("JOBS", ["job.*"])
    publisher, reader = await nats.bus("a"), await nats.bus("b")
    await reader.follow("JOBS", 0, inbox.deliver)
    acked: dict[str, int] = {}
    keys = itertools.count()
    stop = False

    async def publish() -> None:
        while not stop:
            key = f"k{next(keys)}"
            acked[key] = await publisher.publish("job.a", key.encode(), key, {})

    workers = [asyncio.create_task(publish()) for _ in range(8)]
    for _ in range(5):
        enough = len(acked) + 300
        await eventually(lambda enough=enough: len(acked) >= enough)  # type: ignore[misc]
        await nats.restart()
    enough = len(acked) + 100
    await eventually(lambda: len(acked) >= enough)
    stop = True
    await asyncio.wait_for(asyncio.gather(*workers), DEADLINE_S)
    await inbox.wait(len(acked))
    assert inbox.sequences == list(range(1, len(acked) + 1))
    assert {delivery.payload.decode(): delivery.sequence for delivery in inbox.got} == acked
    assert reader.stats.reconnects == 5
    assert reader.stats.follow_restarts >= 1
    assert nats.fatal.empty()


@pytest.mark.adapters
async def test_server_that_is_stopped_in_good_order_is_awaited(
    nats: NatsWorld, inbox: Inbox
) -> None:
    await nats.add_stream("JOBS", ["job.*"])
    bus = await nats.bus("a")
    await bus.follow("JOBS", 0, inbox.deliver)
    for number in range(3):
        await bus.publish("job.a", b"x", f"k{number}", {})
        await nats.server.stop()
        await nats.server.start()
    await inbox.wait(3)
    assert inbox.sequences == [1, 2, 3]
    assert nats.fatal.empty()


@pytest.mark.adapters
async def test_lost_acknowledgement_is_resolved_by_the_key(nats: NatsWorld, proxy: Proxy) -> None:
    await nats.add_stream("JOBS", ["job.*"])
    bus, direct = await nats.bus_at(await proxy.start()), await nats.bus("b")
    assert await bus.publish("job.a", b"1", "k1", {}) == 1
    proxy.swallow()
    publishing = asyncio.create_task(bus.publish("job.a", b"2", "k2", {}))
    await asyncio.wait_for(proxy.swallowed.wait(), DEADLINE_S)
    assert await direct.publish("job.a", b"3", "k3", {}) == 3
    proxy.cut()
    assert await asyncio.wait_for(publishing, DEADLINE_S) == 2


@pytest.mark.adapters
async def test_while_the_server_is_away(nats: NatsWorld, inbox: Inbox) -> None:
    await nats.add_stream("JOBS", ["job.*"])
    bus, other = await nats.bus("a"), await nats.bus("b")
    await bus.listen("x", inbox.deliver)
    await nats.server.kill()
    await eventually(lambda: not bus.link.connected and not other.link.connected)
    # A request is not answered, and is not sent later either.
    assert await other.request("x", b"late", {}, 0.05) is None
    # Sends are kept while there is room, then dropped.
    for _ in range(100):
        await other.send("y", b"x" * 10_000, {})
    assert 70 < other.stats.sends_dropped < 80
    # A publish waits.
    publishing = asyncio.create_task(other.publish("job.a", b"1", "k1", {}))
    await nats.server.start()
    assert await asyncio.wait_for(publishing, DEADLINE_S) == 1
    await eventually(lambda: bus.link.connected)
    await other.send("x", b"again", {})
    await inbox.wait(1)
    assert inbox.payloads == [b"again"]


@pytest.mark.adapters
async def test_follow_survives_the_loss_of_its_consumer(nats: NatsWorld, inbox: Inbox) -> None:
    await nats.add_stream("JOBS", ["job.*"])
    bus = await nats.bus("a")
    await bus.follow("JOBS", 0, inbox.deliver)
    for number in range(1, 4):
        await bus.publish("job.a", b"x", f"k{number}", {})
        await inbox.wait(number)
        await nats.api("CONSUMER.DELETE.JOBS.a")
    await bus.publish("job.a", b"x", "k4", {})
    await inbox.wait(4)
    assert inbox.sequences == [1, 2, 3, 4]
    assert bus.stats.follow_restarts == 3


@pytest.mark.adapters
@pytest.mark.parametrize("count", [2, 3])
async def test_follow_survives_a_thief_of_its_messages(
    nats: NatsWorld, inbox: Inbox, count: int
) -> None:
    """Another process of the same identity pulls from the same consumer.

    The server deals in turns, so the second message is stolen. The gap shows with the third, or
    with the next heartbeat if there is none.
    """
    await nats.add_stream("JOBS", ["job.*"])
    bus, thief = await nats.bus("a"), await nats.bus("b")
    await bus.follow("JOBS", 0, inbox.deliver)
    taken = Inbox()
    await thief.listen("stolen", taken.deliver)
    await thief.link.send("$JS.API.CONSUMER.MSG.NEXT.JOBS.a", b'{"batch":1}', {}, "stolen")
    await thief.link.echo(DEADLINE_S)
    for number in range(count):
        await bus.publish("job.a", b"x", f"k{number}", {})
    await inbox.wait(count)
    assert len(taken.got) == 1
    assert inbox.sequences == list(range(1, count + 1))
    assert bus.stats.follow_restarts >= 1


@pytest.mark.adapters
async def test_follow_notices_silence(
    nats: NatsWorld, proxy: Proxy, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen connection is no error anywhere; only the missing heartbeats tell."""
    monkeypatch.setattr(nats_follow, "SILENCE_S_MAX", 0.7)
    monkeypatch.setattr(nats_follow, "CHECK_EVERY_S", 0.1)
    await nats.add_stream("JOBS", ["job.*"])
    bus, direct = await nats.bus_at(await proxy.start()), await nats.bus("b")
    await bus.follow("JOBS", 0, inbox.deliver)
    await direct.publish("job.a", b"1", "k1", {})
    await inbox.wait(1)
    proxy.freeze()
    await direct.publish("job.a", b"2", "k2", {})
    follow = next(iter(bus._subscriptions.values()))
    assert isinstance(follow, nats_follow.Follow)
    await eventually(lambda: follow._round.over != "")
    assert "silent" in follow._round.over
    proxy.thaw()
    await inbox.wait(2)
    assert inbox.sequences == [1, 2]


@pytest.mark.adapters
async def test_follow_reads_batch_after_batch_and_large_messages(
    nats: NatsWorld, inbox: Inbox
) -> None:
    """Bytes end a batch before its messages do: 100 messages of 100 KiB are 10 MiB."""
    await nats.add_stream("JOBS", ["job.*"], 200_000)
    bus = await nats.bus()
    await asyncio.gather(
        *(bus.publish("job.a", b"x" * 100_000, f"k{number}", {}) for number in range(100))
    )
    await bus.follow("JOBS", 0, inbox.deliver)
    await inbox.wait(100)
    assert inbox.sequences == list(range(1, 101))
    assert bus.stats.follow_restarts == 0


@pytest.mark.adapters
async def test_follow_outlives_its_pull_requests(
    nats: NatsWorld, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_follow, "PULL_EXPIRES_S", 1)
    monkeypatch.setattr(nats_follow, "HEARTBEAT_EVERY_S", 0.4)
    await nats.add_stream("JOBS", ["job.*"])
    bus = await nats.bus()
    await bus.follow("JOBS", 0, inbox.deliver)
    follow = next(iter(bus._subscriptions.values()))
    assert isinstance(follow, nats_follow.Follow)
    asked: list[int] = []
    ask_more = follow._ask_more

    async def counting() -> None:
        before = follow._round.asked
        await ask_more()
        if follow._round.asked != before:
            asked.append(follow._round.asked)

    monkeypatch.setattr(follow, "_ask_more", counting)
    await eventually(lambda: len(asked) >= 2)
    await bus.publish("job.a", b"1", "k1", {})
    await inbox.wait(1)
    assert asked[:2] == [nats_follow.BATCH_MESSAGES] * 2
    assert bus.stats.follow_restarts == 0


@pytest.mark.adapters
async def test_messages_removed_before_they_were_read_are_an_error(
    nats: NatsWorld, inbox: Inbox
) -> None:
    await nats.add_stream("JOBS", ["job.*"])
    await publish_all(nats, numbers(5))
    await nats.api("STREAM.PURGE.JOBS", {"seq": 4})
    bus = await nats.bus()
    with pytest.raises(CorruptLogError, match="begins at 4"):
        await bus.follow("JOBS", 1, inbox.deliver)
    await bus.follow("JOBS", 3, inbox.deliver)
    await inbox.wait(2)
    assert inbox.sequences == [4, 5]


@pytest.mark.adapters
async def test_messages_that_later_ones_replaced_are_not_missed(
    nats: NatsWorld, inbox: Inbox
) -> None:
    """Only the latest of each subject is kept: a reader that is new or was away finds a gap."""
    config = {"name": "LATEST", "subjects": ["latest.*"], "max_msgs_per_subject": 1}
    await nats.api("STREAM.CREATE.LATEST", config)
    bus = await nats.bus()
    for number, subject in enumerate(("latest.a", "latest.b", "latest.a", "latest.b"), 1):
        await bus.publish(subject, b"x", f"k{number}", {})
    await (await bus.follow("LATEST", 1, Inbox().deliver)).close()
    await bus.follow("LATEST", 0, inbox.deliver)
    await inbox.wait(2)
    assert inbox.sequences == [3, 4]


@pytest.mark.adapters
async def test_full_stream_is_refused(nats: NatsWorld) -> None:
    await nats.api(
        "STREAM.CREATE.SMALL",
        {"name": "SMALL", "subjects": ["small"], "max_bytes": 1000, "discard": "new"},
    )
    bus = await nats.bus()
    await bus.publish("small", b"x" * 500, "k1", {})
    with pytest.raises(FullError, match="maximum bytes"):
        await bus.publish("small", b"x" * 500, "k2", {})


# --- the connection itself -----------------------------------------------------------------------


@pytest.mark.adapters
async def test_wrong_password_is_refused_at_once(nats: NatsWorld) -> None:
    options = LinkOptions(servers=(nats.server.url,), identity="a", password="guess")
    with pytest.raises(RefusedError, match="login of 'a'"):
        await NatsBus.connect(options, nats.fatal.put_nowait)


@pytest.mark.adapters
async def test_password_that_stops_working_ends_the_process(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nats.bus("a")
    plain = nats_server.config_text

    def changed(**arguments: Any) -> str:
        return plain(**arguments).replace(PASSWORD, "something else")

    monkeypatch.setattr(nats_server, "config_text", changed)
    await nats.restart()
    error = await asyncio.wait_for(nats.fatal.get(), DEADLINE_S)
    assert isinstance(error, RefusedError)


async def test_no_server_is_an_error_in_time(free_port: int) -> None:
    options = LinkOptions(
        servers=(f"nats://127.0.0.1:{free_port}",),
        identity="a",
        password=PASSWORD,
        connect_within_s=0.3,
    )
    with pytest.raises(ConnectionError, match=r"within 0\.3 s"):
        await NatsBus.connect(options, lambda _: None)


async def test_a_cancellation_that_the_library_loses_is_repeated(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    async def stubborn(link: nats_link.Link) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.append(link.identity)
        await asyncio.Event().wait()

    async def closed(_: nats_link.Link) -> None:
        pass

    monkeypatch.setattr(nats_link.Link, "_connect_client", stubborn)
    monkeypatch.setattr(nats_link.Link, "_close_client", closed)
    options = LinkOptions(
        servers=(f"nats://127.0.0.1:{free_port}",),
        identity="a",
        password=PASSWORD,
        connect_within_s=0.1,
    )
    with pytest.raises(ConnectionError, match="no bus at"):
        await asyncio.wait_for(NatsBus.connect(options, lambda _: None), DEADLINE_S)
    assert lost == ["a"]


@pytest.mark.adapters
async def test_watchdog_revives_a_dead_reader(
    nats: NatsWorld, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library believes itself connected after its read loop died."""
    monkeypatch.setattr(nats_link, "WATCH_EVERY_S", 0.05)
    monkeypatch.setattr(nats_link, "WATCH_TIMEOUT_S", 0.1)
    await nats.add_stream("JOBS", ["job.*"])
    bus, other = await nats.bus("a"), await nats.bus("b")
    await bus.follow("JOBS", 0, inbox.deliver)
    reader = bus.link._client._reading_task
    assert reader is not None
    reader.cancel()
    await asyncio.wait((reader,))
    assert bus.link.connected
    await other.publish("job.a", b"1", "k1", {})
    await inbox.wait(1)
    assert bus.stats.reconnects == 1
    assert nats.fatal.empty()


@pytest.mark.adapters
async def test_watchdog_ends_a_process_whose_connection_stays_dead(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "WATCH_EVERY_S", 0.02)
    bus = await nats.bus("a")

    async def deaf(_: float = 0) -> bool:
        return False

    async def useless() -> None:
        pass

    monkeypatch.setattr(bus.link, "echo", deaf)
    monkeypatch.setattr(bus.link, "_abort", lambda: None)
    monkeypatch.setattr(bus.link._client, "force_reconnect", useless)
    error = await asyncio.wait_for(nats.fatal.get(), DEADLINE_S)
    assert "stays dead" in str(error)


@pytest.mark.adapters
async def test_frozen_connection_is_replaced(
    nats: NatsWorld, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "WATCH_EVERY_S", 0.05)
    monkeypatch.setattr(nats_link, "WATCH_TIMEOUT_S", 0.1)
    monkeypatch.setattr(nats_link, "CONNECT_TIMEOUT_S", 0.3)
    bus = await nats.bus_at(await proxy.start())
    proxy.freeze()
    answering = asyncio.create_task(bus.link.echo(0.1))
    assert not await answering
    await eventually(lambda: not bus.link.connected)
    proxy.thaw()
    await eventually(lambda: bus.stats.reconnects == 1)
    assert await bus.link.echo(DEADLINE_S)


@pytest.mark.adapters
async def test_lost_reconnect_task_ends_the_process(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "WATCH_EVERY_S", 0.05)
    bus = await nats.bus("a")
    await nats.server.kill()
    await eventually(lambda: not bus.link.connected)
    reconnecting = bus.link._client._reconnection_task
    assert reconnecting is not None
    reconnecting.cancel()
    error = await asyncio.wait_for(nats.fatal.get(), DEADLINE_S)
    assert "is not made again" in str(error)


@pytest.mark.adapters
async def test_hanging_reconnect_ends_the_process(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "WATCH_EVERY_S", 0.02)
    monkeypatch.setattr(nats_link, "RECONNECT_STUCK_S", 0.1)
    bus = await nats.bus("a")
    monkeypatch.setattr(bus.link, "_next_server", lambda *_: None)
    hang = asyncio.Event()

    async def hanging(*_: object) -> None:
        await hang.wait()

    monkeypatch.setattr(bus.link._client, "_connect_to_server", hanging)
    await nats.server.kill()
    error = await asyncio.wait_for(nats.fatal.get(), DEADLINE_S)
    assert "hangs" in str(error)


@pytest.mark.adapters
async def test_connection_closed_by_the_server_ends_the_process(
    nats: NatsWorld, proxy: Proxy
) -> None:
    await nats.bus_at(await proxy.start())
    proxy.say(b"-ERR 'Maximum Subscriptions Exceeded'\r\n")
    error = await asyncio.wait_for(nats.fatal.get(), DEADLINE_S)
    assert isinstance(error, ConnectionError)


@pytest.mark.adapters
async def test_closed_bus_fails_what_waits(nats: NatsWorld, inbox: Inbox) -> None:
    bus = await nats.bus("a")
    await bus.listen("silent", inbox.deliver)
    asking = asyncio.create_task(bus.request("silent", b"", {}, DEADLINE_S))
    await inbox.wait(1)
    await bus.close()
    with pytest.raises(ConnectionError):
        await asking
    with pytest.raises(ConnectionError):
        await bus.request("silent", b"", {}, DEADLINE_S)
    await bus.send("silent", b"", {})
    assert bus.stats.sends_dropped == 1
    assert nats.fatal.empty()


async def test_positions_are_read_from_both_forms_of_reply() -> None:
    old = "$JS.ACK.JOBS.a.1.12.7.1700000000000000001.3"
    domain = "$JS.ACK.hub.ACCHASH.JOBS.a.1.12.7.1700000000000000001.3"
    for reply in (old, domain, f"{domain}.rAnDoM"):
        assert position_of(reply) == (12, 7, 1700000000000000001)
