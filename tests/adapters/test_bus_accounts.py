"""What a tenant or a node can make the bus server say in its own name: nothing to anybody else.

Permissions bound what a user publishes. They do not bound the reply subject of what it publishes,
and JetStream answers every publish there with the server's rights. Accounts bound that.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from skep.wire import subjects
from skep_services.adapters.nats_access import (
    ADMISSION_SERVICE,
    ALLOCATOR,
    BOOTSTRAP,
    GATEWAY,
    OPERATOR,
    Account,
    in_one_account,
)
from skep_services.adapters.nats_api import PubAck, StreamInfo, ask
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import Silence
from skep_services.ports import Delivery, RefusedError
from tests.adapters.signed import SignedCluster
from tests.adapters.worlds import ANYTHING, DEADLINE_S, Inbox, RealCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

TENANT, NODE, PERSON = "vc-ml", "node-n1", "vc-ml.anna"
ATTACKERS = (TENANT, NODE, PERSON)
SAYS = {
    PERSON: (
        subjects.submit("ml", "anna"),
        subjects.cancel("ml", "anna"),
        subjects.ask("ml", "anna"),
        subjects.search("ml", "anna"),
    ),
    TENANT: (
        subjects.submit("ml"),
        subjects.cancel("ml"),
        subjects.ask("ml"),
        subjects.search("ml"),
    ),
    NODE: (
        subjects.node_event("n1", "joined"),
        subjects.report("n1"),
        subjects.heartbeat("n1"),
        subjects.span(NODE),
        subjects.health(NODE),
    ),
}
"""What the identity may say at all."""
STORED = {TENANT: SAYS[TENANT], NODE: SAYS[NODE][:1], PERSON: SAYS[PERSON]}
"""What of it a stream keeps."""

TARGETS = (
    *(subjects.STREAMS[name][0] for name in subjects.FACT_STREAMS),
    subjects.kept(subjects.ALLOC, "whole"),
    subjects.admin("vcs"),
    subjects.submit("web"),
    subjects.cancel("web"),
    subjects.ask("web"),
    subjects.search("web"),
    subjects.submit("ml", "bob"),
    subjects.cancel("ml", "bob"),
    subjects.ask("ml", "bob"),
    subjects.search("ml", "bob"),
    subjects.submit("web", "anna"),
    subjects.ACCESS_ASKED,
    subjects.node_event("n2", "joined"),
    subjects.command("n1"),
    subjects.command("n2"),
    subjects.heartbeat("n2"),
    subjects.report("n2"),
    subjects.span("allocator"),
    subjects.logs("n2"),
    subjects.health("allocator"),
    subjects.draft("allocator"),
    subjects.reply("web", "x"),
    subjects.ADVICE_QUEUE,
    subjects.ADVICE_OUTLOOK,
    subjects.JUDGED,
    subjects.MEASURED,
    subjects.TRIALS_OPEN,
    subjects.served("gateway"),
    subjects.LATE,
    subjects.reply("ml", "x", "bob"),
    "_INBOX.vc-web.x",
    "_INBOX.vc-web.anna.x",
    "_INBOX.vc-ml.bob.x",
    "_INBOX.node-n2.x",
    "_INBOX.operator.answers.n2.x.1",
    "_INBOX.gateway.answers.n2.x.1",
    "_INBOX.operator.x",
    "_INBOX.gateway.x",
    "_INBOX.allocator.x",
    "$JS.API.STREAM.DELETE.ALLOC",
    "$JS.API.STREAM.PURGE.KEPT",
    "$JS.API.STREAM.MSG.GET.ALLOC",
    "$JS.API.CONSUMER.DELETE.ALLOC.gateway",
    "$JS.API.CONSUMER.MSG.NEXT.ALLOC.gateway",
    "$JS.ACK.ALLOC.gateway.1.1.1.1.0",
    "$JSC.R.x",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.ACCOUNT.SKEP.CONNZ",
    "_R_.x",
    "_GR_.x.y",
)
"""Of every kind: what an owner alone writes, what others publish, hear and ask, the server's."""
MISCHIEF: tuple[dict[str, str], ...] = (
    {"Nats-Expected-Stream": "NOPE"},
    {"Nats-Expected-Last-Sequence": "999999"},
    {"Nats-Msg-Id": "the-same"},
    {},
)
"""Headers of a publish that JetStream answers with an error, as a duplicate, or with its place."""


class Ears:
    """Everything that anybody but the attacker hears on its own connection."""

    def __init__(self, attacker: str) -> None:
        self.attacker = attacker
        self.heard: list[str] = []
        self._buses: list[NatsBus] = []

    async def listen(self, cluster: Cluster) -> None:
        """Listen on all subjects of Skep and in the inboxes of the others."""
        for identity, what in (
            (OPERATOR, "skep.v1.>"),
            (OPERATOR, "_INBOX.operator.x"),
            (OPERATOR, "_INBOX.operator.answers.>"),
            (GATEWAY, "_INBOX.gateway.x"),
            (GATEWAY, "_INBOX.gateway.answers.>"),
            (ALLOCATOR, "_INBOX.allocator.x"),
            ("vc-web", "_INBOX.vc-web.x"),
            ("vc-web", subjects.reply("web", ">")),
            ("vc-web.anna", "_INBOX.vc-web.anna.x"),
            ("vc-ml.bob", "_INBOX.vc-ml.bob.x"),
            ("vc-ml.bob", subjects.reply("ml", ">", "bob")),
            ("node-n2", "_INBOX.node-n2.x"),
            ("node-n2", subjects.command("n2")),
            ("node-n2", subjects.logs("n2")),
        ):
            bus = await cluster.bus(identity)
            self._buses.append(bus)
            await bus.listen(what, self._note)

    async def _note(self, delivery: Delivery) -> None:
        self.heard.append(delivery.subject)

    async def strange(self) -> list[str]:
        """Return what was heard so far and is not what the attacker may say."""
        for bus in self._buses:
            assert await bus.link.echo(DEADLINE_S)
        return sorted({one for one in self.heard if one not in SAYS[self.attacker]})


async def stored(cluster: Cluster) -> dict[str, int]:
    """Return how many messages were ever stored in each stream."""
    bus = await cluster.bus(BOOTSTRAP)
    found = {}
    for stream in (*subjects.STREAMS, subjects.KEPT):
        info = await ask(bus.link, f"STREAM.INFO.{stream}", None, StreamInfo)
        assert info.error is None
        found[stream] = info.state.last_seq
    return found


async def attack(cluster: Cluster, attacker: str) -> None:
    """Have the server answer to every target, and return once it has answered."""
    bus = await cluster.bus(attacker)
    for target in TARGETS:
        for subject, headers in itertools.product(SAYS[attacker], MISCHIEF):
            await bus.link.send(subject, b"{}", headers, target)
        for subject in SAYS[attacker]:
            trace = {"Nats-Trace-Dest": target, "Nats-Trace-Only": "true"}
            await bus.link.send(subject, b"{}", trace, f"_INBOX.{attacker}.x")
        # Some reply subjects cost the connection; the next attempts are made on another.
        assert await bus.link.echo(DEADLINE_S) or await bus.link.wait_up(DEADLINE_S)
    # The server answers a stream's publishes in order: those before this one have their answers.
    for subject in STORED[attacker]:
        answer = await bus.link.call(subject, b"{}", {}, DEADLINE_S)
        assert not isinstance(answer, Silence)
        assert msgspec.json.decode(answer.data, type=PubAck).error is None


Cluster = RealCluster | SignedCluster
MODES = {"passwords": RealCluster, "signed": SignedCluster}
"""How identities prove themselves; what they may is the same."""


@pytest_asyncio.fixture(params=sorted(MODES))
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    made: Cluster = MODES[request.param](tmp_path)
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize("attacker", ATTACKERS)
async def test_no_reply_subject_has_the_server_write_or_speak_elsewhere(
    cluster: Cluster, attacker: str
) -> None:
    own = subjects.NODE if attacker == NODE else subjects.SUBMIT
    ears = Ears(attacker)
    await ears.listen(cluster)
    before = await stored(cluster)
    await attack(cluster, attacker)
    after = await stored(cluster)
    assert {name: count for name, count in after.items() if name != own} == {
        name: count for name, count in before.items() if name != own
    }
    assert after[own] > before[own], "what it may say is stored"
    assert await ears.strange() == []


@pytest.mark.parametrize("attacker", ATTACKERS)
async def test_in_one_account_the_same_attempts_reach_every_stream(
    tmp_path: Path, attacker: str
) -> None:
    """Show that the attempts are real: without the accounts they do what they are meant to."""
    cluster = RealCluster(tmp_path, in_one_account)
    await cluster.start()
    try:
        ears = Ears(attacker)
        await ears.listen(cluster)
        before = await stored(cluster)
        await attack(cluster, attacker)
        unreached = set(before)
        async with asyncio.timeout(
            DEADLINE_S
        ):  # A server's answers are stored later than they are sent.
            while unreached:
                after = await stored(cluster)
                unreached = {name for name in after if after[name] == before[name]}
        assert subjects.command("n2") in await ears.strange()
    finally:
        await cluster.close()


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_a_users_permissions_are_no_part_of_what_the_accounts_hold(
    tmp_path: Path, mode: str
) -> None:
    """With every right in its own account, a tenant still reaches its own subjects only."""

    def any_right(every: tuple[Account, ...]) -> tuple[Account, ...]:
        return tuple(
            msgspec.structs.replace(
                account,
                users=tuple(msgspec.structs.replace(one, grants=ANYTHING) for one in account.users),
            )
            for account in every
        )

    cluster: Cluster = MODES[mode](tmp_path, any_right)
    await cluster.start()
    try:
        before = await stored(cluster)
        heard = Inbox()
        await (await cluster.bus(OPERATOR)).listen("skep.v1.>", heard.deliver)
        for attacker in ATTACKERS:
            bus = await cluster.bus(attacker)
            for target in TARGETS:
                await bus.link.send(target, b"{}", {}, "")
            assert await bus.link.echo(DEADLINE_S)
        tenant = await cluster.bus(TENANT)
        assert await tenant.publish(subjects.submit("ml"), b"{}", "honest", {}) == 1
        await heard.wait(1)
        assert [delivery.subject for delivery in heard.got] == [subjects.submit("ml")]
        assert await stored(cluster) == {**before, subjects.SUBMIT: 1}
    finally:
        await cluster.close()


async def test_what_is_said_across_accounts_arrives(cluster: Cluster) -> None:
    """Verdicts, commands, reports, logs and health cross the accounts, each its own way."""
    tenant, other, agent, gateway, allocator, admission = [
        await cluster.bus(name)
        for name in (TENANT, "vc-web", NODE, GATEWAY, ALLOCATOR, ADMISSION_SERVICE)
    ]
    verdicts, others, commands, reports = (Inbox() for _ in range(4))
    await tenant.listen(subjects.reply("ml", ">"), verdicts.deliver)
    await other.listen(subjects.reply("web", ">"), others.deliver)
    await agent.listen(subjects.command("n1"), commands.deliver)
    told = {
        subjects.report("n1"): subjects.REPORTS,
        subjects.heartbeat("n1"): subjects.HEARTBEATS,
        subjects.span(NODE): subjects.SPANS,
    }
    for heard in told.values():
        await gateway.listen(heard, reports.deliver)

    async def answer(delivery: Delivery) -> None:
        await agent.send(delivery.reply, b"well", {})

    for subject in (subjects.logs("n1"), subjects.health(NODE)):
        await agent.listen(subject, answer)
        for asker in (gateway, agent) if subject == subjects.health(NODE) else (gateway,):
            got = await asker.request(subject, b"", {}, DEADLINE_S)
            assert got is not None
            assert got.payload == b"well"
    await admission.send(subjects.reply("ml", "x"), b"admitted", {})
    await allocator.send(subjects.command("n1"), b"bind", {})
    for said in told:
        await agent.send(said, b"report", {})
    await verdicts.wait(1)
    await commands.wait(1)
    await reports.wait(len(told))
    assert others.got == []
    assert not cluster.fatal


async def test_verdicts_come_to_the_person_that_asked(cluster: Cluster) -> None:
    """Bob is in the same VC; the other Anna has the same name in another one."""
    anna, bob, other = [await cluster.bus(one) for one in (PERSON, "vc-ml.bob", "vc-web.anna")]
    admission = await cluster.bus(ADMISSION_SERVICE)
    heard, strange = Inbox(), Inbox()
    await anna.listen(subjects.reply("ml", ">", "anna"), heard.deliver)
    await anna.listen("_INBOX.vc-ml.anna.x", heard.deliver)
    for bus, vc, person in ((bob, "ml", "bob"), (other, "web", "anna")):
        await bus.listen(subjects.reply(vc, ">", person), strange.deliver)
        await bus.listen(f"{subjects.inbox(vc, person)}x", strange.deliver)
    for subject in (subjects.reply("ml", ">", "anna"), f"{subjects.inbox('ml', 'anna')}>"):
        with pytest.raises(RefusedError, match="may not listen"):
            await bob.listen(subject, strange.deliver)
    await admission.send(subjects.reply("ml", "x", "anna"), b"admitted", {})
    await admission.send("_INBOX.vc-ml.anna.x", b"admitted", {})
    await heard.wait(2)
    for bus in (bob, other):
        assert await bus.link.echo(DEADLINE_S)
    assert strange.got == []


async def test_a_tenants_connections_are_bounded(cluster: Cluster) -> None:
    """A tenant that opens too many is refused; the others are not."""
    (limit,) = {
        account.connections_max
        for account in cluster.accounts
        if account.name == TENANT and account.connections_max
    }
    for _ in range(limit):
        await cluster.bus(TENANT)
    with pytest.raises(RefusedError, match="'vc-ml' has as many connections as it may have"):
        await cluster.bus(TENANT)
    other = await cluster.bus("vc-web")
    assert await other.publish(subjects.submit("web"), b"{}", "k", {}) == 1
