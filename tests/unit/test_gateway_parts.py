"""The gateway's small parts: tokens, settings, waiting, the ring of events, the file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from skep.wire import codec, subjects
from skep.wire.admin import DrainNode
from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.gateway import index
from skep_services.gateway import model as model_module
from skep_services.gateway.api import Tokens
from skep_services.gateway.choosing import GROUPS, Choice, states_of
from skep_services.gateway.fold import Fold
from skep_services.gateway.hub import RING_MAX, Hub
from skep_services.gateway.index import Indexer
from skep_services.gateway.model import Batch, EventQuery, JobQuery, Model, Saved
from skep_services.gateway.rows import Job, Row, Spanned, State
from skep_services.gateway.server import listen_address, run_gateway, tokens_of
from skep_services.gateway.watch import Watch
from skep_services.ports import Delivery
from skep_services.service import ConfigurationError, Settings
from tests.gateway_kit import Spans
from tests.kit import T0

EMPTY = Batch([], [], [], [], [], codec.encode(Saved()), [])


# --- tokens and settings --------------------------------------------------------------------------


def settings(**environment: str) -> Settings:
    return Settings(
        service="gateway",
        nats_url="",
        identity="gateway",
        password="",
        state=Path(),
        environment=environment,
    )


def test_a_token_says_who_asks() -> None:
    tokens = Tokens({"a": "operator", "b": "vc-nlp"})
    operator, tenant = tokens.caller("Bearer a"), tokens.caller("bearer  b ")
    assert operator is not None
    assert tenant is not None
    assert (operator.name, operator.may("nlp"), operator.may("")) == ("operator", True, True)
    assert (tenant.vc, tenant.may("nlp"), tenant.may("vision"), tenant.may("")) == (
        "nlp",
        True,
        False,
        False,
    )
    for wrong in ("", "a", "Bearer", "Bearer ", "Bearer ab", "Basic a", "Bearer \udcff"):
        assert tokens.caller(wrong) is None


@pytest.mark.parametrize(
    "text",
    ['{"a": "root"}', '{"a": "vc-"}', '{"a": "vc-a.b"}', '{"": "operator"}', "[]", "{", "\xff"],
)
def test_a_token_file_that_is_wrong_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match="SKEP_TOKENS"):
        tokens_of(settings(SKEP_TOKENS=str(path)))


def test_a_token_file_must_be_named_and_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not set"):
        tokens_of(settings())
    with pytest.raises(ConfigurationError, match="No such file"):
        tokens_of(settings(SKEP_TOKENS=str(tmp_path / "none")))
    path = tmp_path / "tokens.json"
    path.write_text('{"a": "operator"}')
    assert tokens_of(settings(SKEP_TOKENS=str(path))).caller("Bearer a")


def test_where_to_listen() -> None:
    assert listen_address(settings()) == ("127.0.0.1", 8470)
    assert listen_address(settings(SKEP_LISTEN="[::1]:80")) == ("::1", 80)
    for wrong in ("8470", ":8470", "host:", "host:x", "host:70000"):
        with pytest.raises(ConfigurationError, match="HOST:PORT"):
            listen_address(settings(SKEP_LISTEN=wrong))


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_who_waits_for_a_job_looks_again_when_something_is_said() -> None:
    watch, seen = Watch(), [False]
    waiting = [asyncio.create_task(watch.until("j1", lambda: seen[0], 10)) for _ in range(2)]
    await asyncio.sleep(0)
    watch.wake(["j2"])
    watch.wake(["j1"])  # Not what they wait for: they go on.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    seen[0] = True
    watch.wake(["j1"])
    assert await asyncio.gather(*waiting) == [True, True]
    assert not await watch.until("j1", lambda: False, 0.01)
    assert not await watch.until("j1", lambda: False, 0)
    assert watch._waiting == {}


@pytest.mark.asyncio
async def test_who_gives_up_is_forgotten_and_the_others_go_on() -> None:
    watch = Watch()
    first = asyncio.create_task(watch.news("j1", 10))
    second = asyncio.create_task(watch.news("j1", 10))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    watch.wake(["j1"])
    await second
    assert watch._waiting == {}


# --- the ring -------------------------------------------------------------------------------------


def event(seq: int) -> tuple[int, str, str, bytes]:
    return seq, f"j{seq}", "nlp", b"{}"


@pytest.mark.asyncio
async def test_the_ring_has_the_newest_events() -> None:
    hub = Hub(5)
    assert hub.after(5) == hub.after(9) == []
    assert hub.after(4) is None  # Stored by an earlier process.
    hub.show([])
    hub.show([event(6), event(7)])
    assert [shown.seq for shown in hub.after(5) or ()] == [6, 7]
    assert [shown.seq for shown in hub.after(6) or ()] == [7]
    hub.show([event(seq) for seq in range(8, RING_MAX + 8)])
    assert hub.after(6) is None
    assert len(hub.after(7) or ()) == RING_MAX


@pytest.mark.asyncio
async def test_readers_wait_for_more_or_for_the_end() -> None:
    hub = Hub(0)
    assert not await hub.wait(0, 0.01)
    waiting = asyncio.create_task(hub.wait(0, 10))
    await asyncio.sleep(0)
    hub.show([event(1)])
    assert await waiting
    assert await hub.wait(0, 10)
    waiting = asyncio.create_task(hub.wait(1, 10))
    await asyncio.sleep(0)
    hub.close()
    assert await waiting
    assert await hub.wait(1, 10)


# --- the file -------------------------------------------------------------------------------------


def job_line(
    sequence: int, state: State, vc: str = "nlp", owner: str = "", task: str = ""
) -> Batch:
    row = Row(job=f"j{sequence}", vc=vc, state=state, name="n", owner=owner, task=task)
    job = Job(sequence=sequence, row=row)
    phase = 0 if state is State.QUEUED else 1
    docs = codec.encode(row), codec.encode(job)
    return EMPTY._replace(jobs=[(sequence, phase, vc, state.value, "n", *docs, owner, task)])


def test_what_was_written_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "model.sqlite"
    model = Model(path)
    assert model.start.saved == Saved()
    saved = Saved(positions={"ALLOC": 7}, facts=9, event_seq=2)
    model.write(job_line(3, State.QUEUED)._replace(saved=codec.encode(saved)))
    model.write(job_line(2, State.FAILED)._replace(specs=[(2, b"{}")]))
    model.write(EMPTY._replace(saved=codec.encode(saved)))
    model.close()
    again = Model(path)
    assert again.rebuilt == ""
    assert again.start.saved == saved
    assert [job.sequence for job in again.start.jobs] == [3]
    assert again.start.newest == 3
    found = again.job(2)
    assert found is not None
    assert found.row.state is State.FAILED
    assert again.job(9) is None
    assert (again.spec(2), again.spec(3)) == (b"{}", None)
    fold = Fold(again.job)
    fold.restore(again.start.jobs, again.start.heard, again.start.newest)
    assert [name for name in ("j2", "j3", "j4") if fold.find(name)] == ["j2", "j3"]
    again.close()


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    model = Model(tmp_path / "model.sqlite")
    broken = job_line(1, State.FAILED)._replace(specs=[(1, None)])  # type: ignore[list-item]
    with pytest.raises(sqlite3.IntegrityError):
        model.write(broken)
    assert model.job(1) is None
    model.write(job_line(1, State.FAILED))
    assert model.job(1) is not None
    model.close()


def ended(**fields: Any) -> JobQuery:
    """Return the query for ended jobs that a listing chooses."""
    return JobQuery(9, Choice(**{"states": GROUPS["ended"], **fields}).conditions())


@pytest.mark.parametrize("version, columns", [(5, ("task", "owner")), (6, ("task",))])
def test_a_file_of_an_earlier_version_is_taken_over(
    tmp_path: Path, version: int, columns: tuple[str, ...]
) -> None:
    """The streams may no longer have what an earlier version put into its file."""
    path = tmp_path / "model.sqlite"
    model = Model(path)
    model.write(job_line(1, State.FAILED))
    model.close()
    with contextlib.closing(sqlite3.connect(path)) as before:
        before.execute("DROP INDEX jobs_by_task")
        for column in columns:
            before.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        before.execute(f"PRAGMA user_version = {version}")
        before.commit()
    model = Model(path)
    assert not model.rebuilt
    model.write(job_line(2, State.FAILED, owner="ann"))
    assert [line[0] for line in model.ended(JobQuery(9)).lines] == [2, 1]
    assert [line[0] for line in model.ended(ended(owner="ann")).lines] == [2]
    model.close()
    model = Model(path)
    assert not model.rebuilt
    model.close()


def test_ended_jobs_of_several_vcs(tmp_path: Path) -> None:
    model = Model(tmp_path / "model.sqlite")
    for number, vc in enumerate(("nlp", "vision", "speech"), start=1):
        model.write(job_line(number, State.FAILED, vc))
    for vcs, found in ((("nlp", "speech"), [3, 1]), (("vision",), [2]), ((), [])):
        listed = model.ended(ended(vc=vcs))
        assert ([line[0] for line in listed.lines], listed.total) == (found, len(found))
    model.close()


def test_tasks_of_arrays_are_found_and_listed_apart(tmp_path: Path) -> None:
    model = Model(tmp_path / "model.sqlite")
    for number, task in enumerate(("", "j1[0]", "j1[10]", "j1[0]", "j10[0]", "j2[0]"), start=1):
        model.write(job_line(number, State.FAILED, task=task))

    def found(query: JobQuery) -> list[int]:
        return [sequence for sequence, _ in model.ended(query).lines]

    assert found(ended()) == [1]
    assert found(ended(tasks=True)) == [6, 5, 4, 3, 2, 1]
    assert found(ended(array="j1")) == [4, 3, 2]
    assert (model.task("j1[0]"), model.task("j1[1]")) == (4, None)
    model.close()


def test_ended_jobs_are_filtered_and_counted(tmp_path: Path) -> None:
    model = Model(tmp_path / "model.sqlite")
    model.write(job_line(1, State.FAILED))
    model.write(job_line(2, State.SUCCEEDED, "vision"))
    model.write(job_line(3, State.SUCCEEDED))

    def found(query: JobQuery) -> tuple[list[int], int]:
        listed = model.ended(query)
        return [sequence for sequence, _ in listed.lines], listed.total

    assert found(JobQuery(9)) == ([3, 2, 1], 3)
    assert found(JobQuery(1)) == ([3], 3)
    assert found(ended(vc="nlp", states=states_of("succeeded"), name="n")) == ([3], 1)
    assert found(ended(name="other' OR 1 = 1 --")) == ([], 0)
    model.close()


def test_the_newest_events_and_spans_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "EVENTS_KEPT", 3)
    monkeypatch.setattr(model_module, "SPANS_KEPT", 3)
    path = tmp_path / "model.sqlite"
    model = Model(path)
    spans = [("t", start, b"%d" % start) for start in (30, 10, 20)]
    model.write(EMPTY._replace(events=[event(seq) for seq in (1, 2)], spans=spans))
    model.write(EMPTY._replace(events=[event(seq) for seq in (3, 4)], spans=[("t", 5, b"5")]))
    assert [seq for seq, _ in model.events(EventQuery(9, since=0))] == [2, 3, 4]
    assert [seq for seq, _ in model.events(EventQuery(2))] == [3, 4]
    assert [seq for seq, _ in model.events(EventQuery(9, since=2, job="j4", vc="nlp"))] == [4]
    assert model.spans("t") == [b"5", b"10", b"20"]
    assert model.spans("other") == []
    model.close()
    again = Model(path)
    again.write(EMPTY._replace(spans=[("t", 1, b"1")]))
    assert again.spans("t") == [b"1", b"5", b"20"]
    again.close()


def test_a_file_that_cannot_be_opened_is_not_deleted(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        Model(tmp_path / "none" / "model.sqlite")


# --- reading -----------------------------------------------------------------------------------


def admin_message(sequence: int) -> Delivery:
    return Delivery(
        subject=subjects.admin("drain"),
        payload=codec.encode(DrainNode(node="node-1")),
        stream=subjects.ADMIN,
        sequence=sequence,
        at=T0,
    )


@pytest.mark.asyncio
async def test_delivery_waits_for_the_disk_when_too_much_is_unwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "BATCH_MAX", 2)
    model = Model(tmp_path / "model.sqlite")
    hub = Hub(0)
    indexer = Indexer(model, ManualClock(T0), Watch(), hub, Spans())
    for sequence in (1, 2):
        await indexer.deliver(admin_message(sequence))
    third = asyncio.create_task(indexer.deliver(admin_message(3)))
    await asyncio.sleep(0)
    assert (indexer.positions["ADMIN"], hub.newest, third.done()) == (2, 0, False)
    await indexer.flush()
    await third
    assert (indexer.positions["ADMIN"], hub.newest) == (3, 2)
    await indexer.close()
    again = Model(tmp_path / "model.sqlite")
    assert again.start.saved.positions["ADMIN"] == 3
    again.close()


@pytest.mark.asyncio
async def test_a_write_that_fails_for_a_request_ends_the_writing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    indexer = Indexer(Model(tmp_path / "model.sqlite"), ManualClock(T0), Watch(), Hub(0), Spans())
    await indexer.deliver(admin_message(1))
    with monkeypatch.context() as broken:
        broken.setattr(Model, "write", full)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            await indexer.settle()
    # The disk has room again, but what it did not take is missing: nothing later may be written.
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await indexer.run()
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await indexer.close()


@pytest.mark.asyncio
async def test_what_cannot_be_read_is_passed_over_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SLICE", 1)
    indexer = Indexer(Model(tmp_path / "model.sqlite"), ManualClock(T0), Watch(), Hub(0), Spans())
    await indexer.deliver(msgspec.structs.replace(admin_message(1), payload=b"?"))
    assert indexer.fold.unreadable == 1
    assert indexer.positions["ADMIN"] == 1
    await indexer.close()


@pytest.mark.asyncio
async def test_spans_are_bounded_between_two_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SPANS_WAITING_MAX", 1)
    indexer = Indexer(Model(tmp_path / "model.sqlite"), ManualClock(T0), Watch(), Hub(0), Spans())
    span = Spanned(trace_id="t", span_id="s", name="n", service="x", start_ns=1, end_ns=2)
    await indexer.deliver_spans(Delivery(subject="s", payload=codec.encode([span, span])))
    assert len(await indexer.spans("t")) == 1
    assert indexer.spans_dropped == 1
    await indexer.close()


@pytest.mark.asyncio
async def test_an_address_that_is_taken_is_said(tmp_path: Path, free_port: int) -> None:
    clock = ManualClock(T0)
    broker = MemoryBroker(clock)
    for stream, patterns in subjects.STREAMS.items():
        broker.add_stream(stream, patterns)
    broker.add_stream(subjects.SECRETS, subjects.SECRET_SUBJECTS)
    broker.add_stream(subjects.CODE, subjects.CODE_SUBJECTS)
    taker = await asyncio.start_server(lambda *_: None, "127.0.0.1", free_port)
    bus = MemoryBus(broker, "gateway", lambda _: None)
    path = tmp_path / "tokens.json"
    path.write_text('{"a": "operator"}')
    chosen = settings(SKEP_TOKENS=str(path), SKEP_LISTEN=f"127.0.0.1:{free_port}")
    chosen = msgspec.structs.replace(chosen, state=tmp_path)
    with pytest.raises(ConnectionError, match="SKEP_LISTEN: cannot listen on"):
        await run_gateway(chosen, structlog.get_logger(), bus, clock, Spans())
    await bus.close()
    taker.close()
    await taker.wait_closed()


@pytest.mark.asyncio
async def test_a_gateway_whose_disk_fails_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(T0)
    broker = MemoryBroker(clock)
    for stream, patterns in subjects.STREAMS.items():
        broker.add_stream(stream, patterns)
    broker.add_stream(subjects.SECRETS, subjects.SECRET_SUBJECTS)
    broker.add_stream(subjects.CODE, subjects.CODE_SUBJECTS)
    bus = MemoryBus(broker, "gateway", lambda _: None)
    path = tmp_path / "tokens.json"
    path.write_text('{"a": "operator"}')
    chosen = settings(SKEP_TOKENS=str(path), SKEP_LISTEN="127.0.0.1:0")
    chosen = msgspec.structs.replace(chosen, state=tmp_path)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Model, "write", full)
    broker.store(subjects.admin("drain"), admin_message(1).payload, {subjects.KEY_HEADER: "k"})
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await run_gateway(chosen, structlog.get_logger(), bus, clock, Spans())
    await bus.close()
