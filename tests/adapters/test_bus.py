"""One suite for every bus."""

from __future__ import annotations

import asyncio

import pytest

from skep_services.adapters import memory, nats_listen
from skep_services.ports import CorruptLogError, Delivery, MissingStreamError, RefusedError
from tests.adapters.worlds import DEADLINE_S, Inbox, World, numbers, publish_all

pytestmark = pytest.mark.asyncio


# --- publish ---------------------------------------------------------------------------------


async def test_publish_returns_the_sequence_and_one_key_is_stored_once(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    assert await bus.publish("job.a", b"one", "k1", {}) == 1
    assert await bus.publish("job.b", b"two", "k2", {}) == 2
    assert await bus.publish("job.a", b"one", "k1", {}) == 1
    assert await bus.publish("job.a", b"three", "k3", {}) == 3


async def test_publishes_in_flight_together_are_each_stored_once(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    sequences = await asyncio.gather(
        *(bus.publish("job.a", b"x", f"k{number % 700}", {}) for number in range(1400))
    )
    assert sorted(set(sequences)) == list(range(1, 701))
    assert sequences[:700] == sequences[700:]


async def test_publish_that_no_repetition_helps_is_refused(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    with pytest.raises(RefusedError, match=r"job\.a"):
        await bus.publish("job.a", b"x" * 5000, "k", {})
    with pytest.raises(RefusedError):
        await bus.publish("job.a b", b"x", "k", {})
    with pytest.raises(MissingStreamError, match=r"nobody\.keeps"):
        await bus.publish("nobody.keeps", b"x", "k", {})


async def test_publishes_without_a_key_are_different_ones(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    assert [await bus.publish("job.a", b"x", "", {}) for _ in range(3)] == [1, 2, 3]


# --- follow ----------------------------------------------------------------------------------


async def test_follow_delivers_what_is_stored_and_what_comes(world: World, inbox: Inbox) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    await bus.publish("job.a", b"1", "k1", {"Trace": "t1"})
    await bus.follow("JOBS", 0, inbox.deliver)
    await inbox.wait(1)
    await bus.publish("job.b", b"2", "k2", {})
    first, second = await inbox.wait(2)
    assert first.subject == "job.a"
    assert first.payload == b"1"
    assert first.headers["Trace"] == "t1"
    assert first.headers["Nats-Msg-Id"] == "k1"
    assert first.stream == "JOBS"
    assert first.sequence == 1
    assert first.at > 1_600_000_000_000_000_000
    assert (second.subject, second.payload, second.sequence) == ("job.b", b"2", 2)


async def test_follow_begins_behind_the_position_it_is_given(world: World, inbox: Inbox) -> None:
    await world.add_stream("JOBS", ["job.*"])
    await publish_all(world, numbers(5))
    bus = await world.bus()
    await bus.follow("JOBS", 3, inbox.deliver)
    await inbox.wait(2)
    assert inbox.sequences == [4, 5]


async def test_follow_filters_by_one_subject_or_several(world: World) -> None:
    await world.add_stream("JOBS", ["job.>"])
    bus, other = await world.bus("a"), await world.bus("b")
    for number, subject in enumerate(["job.a.x", "job.b.x", "job.c.x", "job.a.y"], start=1):
        await bus.publish(subject, str(number).encode(), f"k{number}", {})
    one, several = Inbox(), Inbox()
    await bus.follow("JOBS", 0, one.deliver, ["job.*.x"])
    await other.follow("JOBS", 0, several.deliver, ["job.a.*", "job.c.x"])
    await one.wait(3)
    await several.wait(3)
    assert one.sequences == [1, 2, 3]
    assert several.sequences == [1, 3, 4]


async def test_follow_waits_for_a_slow_reader_and_loses_nothing(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    go, got = asyncio.Event(), Inbox()

    async def deliver(delivery: Delivery) -> None:
        await go.wait()
        await got.deliver(delivery)

    bus = await world.bus()
    await bus.follow("JOBS", 0, deliver)
    await asyncio.gather(*(bus.publish("job.a", b"x", f"k{number}", {}) for number in range(600)))
    assert got.got == []
    go.set()
    await got.wait(600)
    assert got.sequences == list(range(1, 601))


async def test_follow_of_a_missing_stream_is_refused(world: World, inbox: Inbox) -> None:
    bus = await world.bus()
    with pytest.raises(MissingStreamError, match="NOTHERE"):
        await bus.follow("NOTHERE", 0, inbox.deliver)


async def test_follow_behind_the_end_means_lost_data(world: World, inbox: Inbox) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    with pytest.raises(CorruptLogError, match="7"):
        await bus.follow("JOBS", 7, inbox.deliver)


async def test_a_closed_follow_delivers_no_more_and_can_begin_again(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    first, second = Inbox(), Inbox()
    follow = await bus.follow("JOBS", 0, first.deliver)
    await bus.publish("job.a", b"1", "k1", {})
    await first.wait(1)
    await follow.close()
    await bus.publish("job.a", b"2", "k2", {})
    await bus.follow("JOBS", 1, second.deliver)
    await second.wait(1)
    assert first.payloads == [b"1"]
    assert second.payloads == [b"2"]


async def test_a_follow_can_close_itself_while_it_delivers(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    closed = asyncio.Event()

    async def deliver(_: Delivery) -> None:
        await follow.close()
        closed.set()

    follow = await bus.follow("JOBS", 0, deliver)
    await bus.publish("job.a", b"1", "k1", {})
    await asyncio.wait_for(closed.wait(), DEADLINE_S)


async def test_a_reader_that_raises_ends_the_process(world: World) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()

    async def deliver(delivery: Delivery) -> None:
        raise ValueError(delivery.payload.decode())

    await bus.follow("JOBS", 0, deliver)
    await bus.publish("job.a", b"boom", "k1", {})
    error = await asyncio.wait_for(world.fatal.get(), DEADLINE_S)
    assert isinstance(error, ValueError)


async def test_a_stream_that_vanishes_ends_its_followers(world: World, inbox: Inbox) -> None:
    await world.add_stream("JOBS", ["job.*"])
    bus = await world.bus()
    await bus.publish("job.a", b"1", "k1", {})
    await bus.follow("JOBS", 0, inbox.deliver)
    await inbox.wait(1)
    await world.drop_stream("JOBS")
    error = await asyncio.wait_for(world.fatal.get(), DEADLINE_S)
    assert isinstance(error, MissingStreamError)


# --- core messages ---------------------------------------------------------------------------


async def test_listen_hears_what_falls_under_its_subject(world: World) -> None:
    one, all_of_it = Inbox(), Inbox()
    listener, sender = await world.bus("a"), await world.bus("b")
    await listener.listen("report.n1", one.deliver)
    await listener.listen("report.>", all_of_it.deliver)
    await sender.send("report.n1", b"1", {"H": "v"})
    await sender.send("report.n2.more", b"2", {})
    await sender.send("reports", b"3", {})
    await all_of_it.wait(2)
    await one.wait(1)
    assert all_of_it.payloads == [b"1", b"2"]
    assert one.payloads == [b"1"]
    assert one.got[0].headers == {"H": "v"}
    assert (one.got[0].stream, one.got[0].sequence, one.got[0].at) == ("", 0, 0)


async def test_listen_can_be_closed(world: World, inbox: Inbox) -> None:
    bus, sender = await world.bus("a"), await world.bus("b")
    silent, marker = await bus.listen("x", inbox.deliver), Inbox()
    await silent.close()
    await bus.listen("x", marker.deliver)
    await sender.send("x", b"1", {})
    await marker.wait(1)
    assert inbox.got == []


async def test_listen_drops_the_oldest_when_its_reader_is_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LISTEN_MESSAGES_MAX", 10)
    monkeypatch.setattr(nats_listen, "LISTEN_MESSAGES_MAX", 10)
    bus, sender = await world.bus("a"), await world.bus("b")
    busy, go, got, marker = asyncio.Event(), asyncio.Event(), Inbox(), Inbox()

    async def deliver(delivery: Delivery) -> None:
        busy.set()
        await go.wait()
        await got.deliver(delivery)

    slow = await bus.listen("x", deliver)
    await bus.listen("end", marker.deliver)
    await sender.send("x", b"first", {})
    await asyncio.wait_for(busy.wait(), DEADLINE_S)
    for payload in numbers(100):
        await sender.send("x", payload, {})
    await sender.send("end", b"", {})
    await marker.wait(1)
    go.set()
    await got.wait(11)
    assert got.payloads == [b"first", *numbers(10, first=91)]
    assert slow.dropped == 90  # type: ignore[attr-defined]


async def test_a_listener_that_raises_ends_the_process(world: World) -> None:
    bus = await world.bus()

    async def deliver(delivery: Delivery) -> None:
        raise ValueError(delivery.payload.decode())

    await bus.listen("x", deliver)
    await bus.send("x", b"boom", {})
    assert isinstance(await asyncio.wait_for(world.fatal.get(), DEADLINE_S), ValueError)


async def test_request_returns_the_answer(world: World) -> None:
    server, client = await world.bus("a"), await world.bus("b")

    async def deliver(delivery: Delivery) -> None:
        await server.send(delivery.reply, delivery.payload.upper(), {"H": delivery.headers["H"]})

    await server.listen("shout", deliver)
    answer = await client.request("shout", b"hello", {"H": "v"}, DEADLINE_S)
    assert answer is not None
    assert answer.payload == b"HELLO"
    assert answer.headers == {"H": "v"}


async def test_request_without_an_answer_returns_none(world: World, inbox: Inbox) -> None:
    bus = await world.bus()
    assert await bus.request("nobody.there", b"", {}, DEADLINE_S) is None
    await bus.listen("silent", inbox.deliver)
    assert await bus.request("silent", b"", {}, 0.05) is None
    await inbox.wait(1)


async def test_send_refuses_what_no_server_takes(world: World) -> None:
    bus = await world.bus()
    with pytest.raises(RefusedError, match="x"):
        await bus.send("x", b"x" * 2_000_000, {})
    with pytest.raises(RefusedError):
        await bus.send("x y", b"", {})
