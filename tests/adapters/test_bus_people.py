"""What a person can say and hear on the bus: as itself in its virtual cluster, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from skep.wire import codec, subjects
from skep_services.adapters.nats_access import (
    ADMISSION_SERVICE,
    OPERATOR,
    SEARCHES,
    Account,
    person_account,
    person_identity,
    vc_identity,
)
from skep_services.adapters.nats_bus import NatsBus
from skep_services.ports import RefusedError
from tests.adapters.worlds import DEADLINE_S, Inbox, RealCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

ANN, BOB, EVE = (
    person_identity(vc, who) for vc, who in (("ml", "ann"), ("ml", "bob"), ("web", "eve"))
)
PASSWORD = "not-a-secret"
OTHERS = (
    *(
        make("ml", person)
        for make in (subjects.submit, subjects.cancel, subjects.ask, subjects.search)
        for person in ("", "bob", "an", "anna", "*", ">")
    ),
    *(
        make("web", "ann")
        for make in (subjects.submit, subjects.cancel, subjects.ask, subjects.search)
    ),
    f"{subjects.submit('ml', 'ann')}.x",
    subjects.reply("ml", "x", "bob"),
    subjects.reply("ml", "x"),
    "_INBOX.vc-ml.bob.x",
    "_INBOX.vc-ml.x",
    "_INBOX.gateway.x",
    subjects.admin("vcs"),
    subjects.ACCESS_ASKED,
    *(subjects.STREAMS[name][0] for name in subjects.FACT_STREAMS),
    subjects.logs("n1"),
    subjects.draft("admission"),
    "$JS.API.STREAM.INFO.SUBMIT",
    "$JS.API.STREAM.MSG.GET.SUBMIT",
    "$JS.API.CONSUMER.CREATE.SUBMIT.admission",
)
"""What ann may not publish on."""
EARS = (
    "skep.v1.>",
    subjects.submit("*", "*"),
    subjects.submit("ml", "bob"),
    subjects.reply("ml", ">"),
    subjects.reply("ml", ">", "bob"),
    "_INBOX.>",
    "_INBOX.vc-ml.>",
    "_INBOX.vc-ml.bob.>",
    subjects.REPLIES,
    subjects.STREAMS[subjects.ALLOC][0],
)
"""Where ann may not listen."""


PEOPLE = (("ml", "ann"), ("ml", "bob"), ("web", "eve"))


def with_people(every: Sequence[Account]) -> tuple[Account, ...]:
    """Return the accounts of a cluster and of its people."""
    return (*every, *(person_account(vc, person, PASSWORD) for vc, person in PEOPLE))


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    made = RealCluster(tmp_path, with_people)
    made.passwords.update(dict.fromkeys((ANN, BOB, EVE), PASSWORD))
    await made.start()
    yield made
    await made.close()


async def heard(cluster: RealCluster, identity: str, subject: str) -> Inbox:
    inbox, bus = Inbox(), await cluster.bus(identity)
    await bus.listen(subject, inbox.deliver)
    return inbox


async def echo(bus: NatsBus) -> None:
    assert await bus.link.echo(DEADLINE_S)


async def test_a_person_asks_as_itself_and_hears_of_it(cluster: RealCluster) -> None:
    ann = await cluster.bus(ANN)
    verdicts = Inbox()
    await ann.listen(subjects.reply("ml", ">", "ann"), verdicts.deliver)
    read = Inbox()
    admission = await cluster.bus(ADMISSION_SERVICE)
    await admission.follow(subjects.SUBMIT, 0, read.deliver)
    searched = Inbox()
    searches = await cluster.bus(SEARCHES)
    await searches.follow(subjects.SUBMIT, 0, searched.deliver, (subjects.SEARCH_REQUESTS,))
    made = (subjects.submit, subjects.cancel, subjects.ask, subjects.search)
    for number, make in enumerate(made, start=1):
        assert await ann.publish(make("ml", "ann"), b"{}", f"k{number}", {}) == number
    got = await read.wait(4)
    events = [
        codec.read(one.subject, one.payload, one.headers, one.sequence, one.at) for one in got
    ]
    assert [getattr(each, "owner", getattr(each, "person", "")) for each in events] == ["ann"] * 4
    assert [one.sequence for one in await searched.wait(1)] == [4]
    await admission.send(subjects.reply("ml", "x", "ann"), b"yes", {})
    await admission.send("_INBOX.vc-ml.ann.x", b"yes", {})
    assert [one.payload for one in await verdicts.wait(1)] == [b"yes"]
    assert not cluster.fatal


async def test_a_person_publishes_on_nobody_elses_subjects(cluster: RealCluster) -> None:
    ann = await cluster.bus(ANN)
    bob = await heard(cluster, BOB, subjects.reply("ml", ">", "bob"))
    theirs = await heard(cluster, BOB, "_INBOX.vc-ml.bob.x")
    operator = await heard(cluster, OPERATOR, "skep.v1.>")
    for subject in OTHERS:
        before = ann.stats.violations
        await ann.link.send(subject, b"{}", {}, "_INBOX.vc-ml.ann.answer")
        await echo(ann)
        assert ann.stats.violations > before, subject
    # What it may say arrives, so all of the above would have arrived by now.
    assert await ann.publish(subjects.submit("ml", "ann"), b"{}", "honest", {}) == 1
    await operator.wait(1)
    assert [one.subject for one in operator.got] == [subjects.submit("ml", "ann")]
    assert bob.got == theirs.got == []


@pytest.mark.parametrize("subject", EARS)
async def test_a_person_hears_nothing_of_others(cluster: RealCluster, subject: str) -> None:
    ann = await cluster.bus(ANN)
    with pytest.raises(RefusedError, match="may not listen"):
        await ann.listen(subject, Inbox().deliver)


@pytest.mark.parametrize(
    "reply",
    [
        "_INBOX.vc-ml.bob.x",
        "_INBOX.vc-ml.x",
        "_INBOX.gateway.x",
        "_INBOX.vc-web.eve.x",
        subjects.ALLOC_FACTS,
        subjects.submit("ml"),
        subjects.submit("ml", "bob"),
        subjects.cancel("ml", "bob"),
        subjects.cancel("web", "eve"),
    ],
)
async def test_the_servers_own_answer_reaches_no_other(cluster: RealCluster, reply: str) -> None:
    """JetStream answers on a message's reply subject, by its own rights: within the account."""
    operator = await heard(cluster, OPERATOR, "skep.v1.>")
    bob = await heard(cluster, BOB, "_INBOX.vc-ml.bob.x")
    eve = await heard(cluster, EVE, "_INBOX.vc-web.eve.x")
    ann = await cluster.bus(ANN)
    for headers in ({}, {"Nats-Expected-Stream": "NOPE"}, {"Nats-Msg-Id": "same"}):
        await ann.link.send(subjects.submit("ml", "ann"), b"{}", headers, reply)
    await echo(ann)
    # Two were stored. If an answer came back as a message, it is among what these are numbered by.
    honest = [await ann.publish(subjects.submit("ml", "ann"), b"x", f"k{n}", {}) for n in range(5)]
    assert honest == [3, 4, 5, 6, 7]
    await operator.wait(7)
    assert {one.subject for one in operator.got} == {subjects.submit("ml", "ann")}
    assert eve.got == []
    assert bob.got == []


async def test_a_vc_as_a_whole_speaks_for_no_person(cluster: RealCluster) -> None:
    """Its credentials are those of a program, which acts as the VC and says so."""
    tenant = await cluster.bus(vc_identity("ml"))
    before = tenant.stats.violations
    await tenant.link.send(subjects.submit("ml", "ann"), b"{}", {}, "_INBOX.vc-ml.x")
    await echo(tenant)
    assert tenant.stats.violations > before
