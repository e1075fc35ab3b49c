"""What one person tries on another's jobs: over HTTP, and by what is published on the bus.

The people of a virtual cluster reach the same subjects and the same routes. What keeps them apart
is the subject that the bus lets each publish on, and the table of rights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.machines.base import Record, Send
from skep.wire import codec, subjects
from skep.wire.codec import read
from skep.wire.reasons import Reason
from skep.wire.roles import Role, Standing
from tests.gateway_kit import Client, House, error, opened
from tests.kit import at, spec
from tests.search_kit import tree

pytestmark = pytest.mark.asyncio

ASKS: dict[str, dict[str, Any]] = {
    "suspend": {},
    "resume": {},
    "checkpoint": {},
    "migrate": {},
    "resize": {"workers": 1},
    "unpack": {},
    "priority": {"priority": 1},
}
SECRET = "hunter2-of-ann"


class Victims:
    """Ann, a submitter of `nlp`, has a job and a search; bob and the others are after them."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.job = self.search = ""
        self.people: dict[str, Client] = {}

    async def open(self) -> None:
        house = self.house
        await house.with_nodes()
        for name, roles in (
            ("ann", {"nlp": Role.SUBMITTER}),
            ("bob", {"nlp": Role.SUBMITTER}),
            ("vic", {"nlp": Role.VIEWER}),
            ("eve", {"vision": Role.MANAGER}),
            ("max", {"nlp": Role.MANAGER}),
        ):
            self.people[name] = await house.person(name, **roles)
        self.people["nil"] = await house.person("nil")
        self.people["ops"] = await house.person("ops", operator=True)
        wanted = spec(env={"TOKEN": SECRET})
        answer = await self.people["ann"].json("POST", "/v1/jobs", 201, wanted)
        self.job = answer["job"]
        begun = await self.people["ann"].json("POST", "/v1/searches", 201, tree(sampler="client"))
        self.search = begun["search"]
        await house.caught_up()

    def state(self) -> tuple[Any, ...]:
        """Return what an attempt on the victim's things would change."""
        job = self.house.gateway.indexer.fold.active[self.job]
        search = self.house.gateway.searches.find(self.search)
        assert search is not None
        return job.cancel_asked, len(job.asks), job.row.priority, len(search[0].trials), search[1]


@pytest_asyncio.fixture
async def victims(tmp_path: Path) -> AsyncIterator[Victims]:
    async with opened(tmp_path) as house:
        made = Victims(house)
        await made.open()
        yield made


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attacker, status, reason",
    [
        ("bob", 403, "not-its-owner"),
        ("vic", 403, "role-too-low"),
        ("eve", 404, "unknown-job"),
        ("nil", 403, "no-role"),
    ],
)
async def test_nobody_changes_anothers_job_over_http(
    victims: Victims, attacker: str, status: int, reason: str
) -> None:
    bad, before = victims.people[attacker], victims.state()
    refusals = [await bad.json("DELETE", f"/v1/jobs/{victims.job}", status)]
    for name, options in ASKS.items():
        path = f"/v1/jobs/{victims.job}/{name}"
        refusals.append(await bad.json("POST", path, status, options))
    assert {error(each)[0] for each in refusals} == {reason}
    await victims.house.caught_up()
    assert victims.state() == before


@pytest.mark.parametrize("attacker, status", [("bob", 403), ("vic", 403), ("eve", 404)])
async def test_nobody_reads_what_anothers_job_prints_or_is_given(
    victims: Victims, attacker: str, status: int
) -> None:
    bad, job = victims.people[attacker], victims.job
    for query in ("", "?follow=1", "?rank=0&attempt=1"):
        await bad.get(f"/v1/jobs/{job}/logs{query}", status)
    paths = ["", "/why", "/events", "/trace", "/curve"]
    for path in (*(f"/v1/jobs/{job}{each}" for each in paths), "/v1/jobs", "/v1/events"):
        async with bad.open(path) as answer:
            assert SECRET not in await answer.text(), path
    async with bad.open(f"/v1/searches/{victims.search}") as answer:
        assert SECRET not in await answer.text()


async def test_the_owner_and_its_managers_see_values(victims: Victims) -> None:
    for name in ("ann", "max", "ops"):
        found = await victims.people[name].get(f"/v1/jobs/{victims.job}")
        assert (found["owner"], found["spec"]["env"]["TOKEN"]) == ("ann", SECRET)
    seen = await victims.people["bob"].get(f"/v1/jobs/{victims.job}")
    assert (seen["owner"], seen["spec"]["env"]["TOKEN"]) == ("ann", "(hidden)")


@pytest.mark.parametrize("attacker, status", [("bob", 403), ("vic", 403), ("eve", 404)])
async def test_nobody_steers_anothers_search(victims: Victims, attacker: str, status: int) -> None:
    bad, before, path = victims.people[attacker], victims.state(), f"/v1/searches/{victims.search}"
    await bad.json("DELETE", path, status)
    await bad.json("POST", f"{path}/trials", status, {"outside": True})
    await bad.json("POST", f"{path}/trials/1", status, {"over": "done"})
    await bad.json("POST", f"{path}/trials/1/demote", status)
    await victims.house.caught_up()
    assert victims.state() == before


async def test_a_submitter_packs_nothing_beside_anothers_job(victims: Victims) -> None:
    bob = victims.people["bob"]
    mine = (await bob.json("POST", "/v1/jobs", 201, spec()))["job"]
    await victims.house.caught_up()
    asked = {"beside": victims.job}
    refusal = await bob.json("POST", f"/v1/jobs/{mine}/pack", 403, asked)
    assert error(refusal)[0] == "not-its-owner"


async def test_a_manager_may_and_says_so_in_the_facts(victims: Victims) -> None:
    await victims.people["max"].json("POST", f"/v1/jobs/{victims.job}/checkpoint", 202)
    await victims.people["max"].json("DELETE", f"/v1/jobs/{victims.job}", 202)
    await victims.house.caught_up()
    assert [fact.by for fact in recorded(victims, "CancelAsked")] == ["max"]
    assert [fact.by for fact in recorded(victims, "ChangeAsked")] == ["max"]


async def test_no_payload_header_or_query_makes_one_another(victims: Victims) -> None:
    """The owner is the token's person, whatever else is said."""
    bob, house = victims.people["bob"], victims.house
    labels = {"user": "ann", "owner": "ann"}
    headers = {
        "Skep_Person": "ann",
        "Skep_Owner": "ann",
        "X_Forwarded_User": "ann",
        "Skep_Reply": subjects.reply("nlp", "x", "ann"),
    }
    answer = await bob.json(
        "POST", "/v1/jobs?owner=ann&mine=1", 201, spec(labels=labels), **headers
    )
    await house.caught_up()
    assert (await bob.get(f"/v1/jobs/{answer['job']}"))["owner"] == "bob"
    forged = {**tree_of(spec()), "owner": "ann"}
    refused = await bob.json("POST", "/v1/jobs", 422, forged)
    assert error(refused)[0] == "unknown-key"
    mine = await bob.get("/v1/jobs?mine=1")
    assert {row["owner"] for row in mine["jobs"]} == {"bob"}
    assert [row["job"] for row in (await bob.get("/v1/jobs?owner=ann"))["jobs"]] == [victims.job]


async def test_a_key_of_anothers_submission_is_no_way_to_its_job(victims: Victims) -> None:
    ann, bob = victims.people["ann"], victims.people["bob"]
    first = await bob.json("POST", "/v1/jobs", 201, spec(), Idempotency_Key="the-key")
    again = await bob.json("POST", "/v1/jobs", 201, spec(), Idempotency_Key="the-key")
    assert again["job"] == first["job"]
    # The bus remembers a key for a moment, for all together: ann hears of no job of bob's.
    refused = await ann.json("POST", "/v1/jobs", 409, spec(), Idempotency_Key="the-key")
    assert error(refused)[0] == "key-used"
    assert "job" not in refused
    # Admission remembers it for ever, for each person apart.
    headers = {subjects.KEY_HEADER: "the-key"}
    effects = published(victims, subjects.submit("nlp", "ann"), spec(), headers)
    fact = next(each.fact for each in effects if isinstance(each, Record))
    assert (type(fact).__name__, fact.owner) == ("Admitted", "ann")


async def test_a_viewer_submits_nothing_and_changes_no_cluster(victims: Victims) -> None:
    vic = victims.people["vic"]
    assert error(await vic.json("POST", "/v1/jobs", 403, spec()))[0] == "role-too-low"
    assert error(await vic.json("POST", "/v1/searches", 403, tree()))[0] == "role-too-low"
    for name in ("vic", "bob", "max", "nil"):
        bad = victims.people[name]
        for path, body in (
            ("/v1/admin/vcs", {"vcs": {}}),
            ("/v1/admin/drain", {"node": "node-1"}),
            ("/v1/admin/quarantine", {"node": "node-1", "device": 0}),
            ("/v1/cells/plan", {"vcs": {}}),
        ):
            await bad.json("POST", path, 403, body)


async def test_only_a_manager_sets_the_secrets_of_a_vc(victims: Victims) -> None:
    body = {"sealed": "AAAA", "key": "AAAA"}
    for name, status in (("bob", 403), ("vic", 403), ("eve", 403), ("max", 409)):
        bad = victims.people[name]
        for method in ("PUT", "DELETE"):
            expected = status if method == "PUT" or status == 403 else 404
            await bad.json(method, "/v1/secrets/vc/nlp/TOKEN", expected, body)
    for name in ("bob", "vic", "eve", "max"):
        bad = victims.people[name]
        await bad.json("PUT", "/v1/secrets/person/ann/TOKEN", 403, body)
        await bad.json("DELETE", "/v1/secrets/person/ann/TOKEN", 403)
        await bad.get("/v1/secrets/person/ann", 403)
    await victims.people["ann"].get("/v1/secrets/person/ann")


async def test_a_person_of_two_vcs_sees_both_and_no_third(victims: Victims) -> None:
    house = victims.house
    two = await house.person("two", nlp=Role.VIEWER, speech=Role.VIEWER)
    assert [row["job"] for row in (await two.get("/v1/jobs"))["jobs"]] == [victims.job]
    assert [row["vc"] for row in (await two.get("/v1/vcs"))["vcs"]] == ["nlp"]
    assert error(await two.get("/v1/jobs?vc=vision", 403))[0] == "no-role"
    assert error(await two.get("/v1/promises", 400))[0] == "which-vc"
    await two.get("/v1/promises?vc=nlp")
    eve = victims.people["eve"]
    assert (await eve.get("/v1/jobs"))["jobs"] == []
    assert (await eve.get("/v1/events"))["events"] == []
    assert {row["job"] for row in (await eve.get("/v1/gpus"))["gpus"]} == {None}


# --- on the bus -----------------------------------------------------------------------------------


def tree_of(wanted: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(wanted))


def recorded(victims: Victims, kind: str) -> list[Any]:
    """Return the facts of a kind that admission has recorded."""
    stream = victims.house.cluster.broker.stream(subjects.ADMISSION).messages
    found = []
    for one in stream:
        event = read(one.subject, one.payload, one.headers, one.sequence, one.at)
        found += [fact for fact in event.facts if type(fact).__name__ == kind]
    return found


def published(
    victims: Victims, subject: str, body: Any, headers: dict[str, str] | None = None
) -> list[Any]:
    """Return what admission does about a message that the bus has taken on a subject."""
    raw = body if isinstance(body, bytes) else codec.encode(body)
    event = read(subject, raw, headers or {}, 10_000 + len(raw), at(5))
    return list(victims.house.cluster.admission(event, 5))


@pytest.mark.parametrize(
    "attacker, vc, reason",
    [
        ("bob", "nlp", Reason.NOT_ITS_OWNER),
        ("vic", "nlp", Reason.ROLE_TOO_LOW),
        ("nil", "nlp", Reason.NO_ROLE),
        ("eve", "nlp", Reason.NO_ROLE),
        ("eve", "vision", Reason.UNKNOWN_JOB),
        ("nobody-at-all", "nlp", Reason.NO_ROLE),
    ],
)
async def test_admission_refuses_what_the_gateway_would(
    victims: Victims, attacker: str, vc: str, reason: Reason
) -> None:
    inbox = {subjects.REPLY_HEADER: subjects.reply(vc, "x", attacker)}
    wishes = [(subjects.cancel(vc, attacker), {"job": victims.job})]
    for name, options in ASKS.items():
        asked = {"ask": name, "job": victims.job, **options}
        wishes.append((subjects.ask(vc, attacker), asked))
    for subject, body in wishes:
        effects = published(victims, subject, body, inbox)
        assert [effect for effect in effects if isinstance(effect, Record)] == [], body
        (said,) = [effect for effect in effects if isinstance(effect, Send)]
        assert (said.message.accepted, said.message.reason) == (False, reason), body
        assert said.subject == inbox[subjects.REPLY_HEADER]


@pytest.mark.parametrize("person", ["vic", "nil", "eve", "nobody-at-all"])
async def test_admission_takes_no_jobs_of_those_who_may_have_none(
    victims: Victims, person: str
) -> None:
    effects = published(victims, subjects.submit("nlp", person), spec())
    (fact,) = [effect.fact for effect in effects if isinstance(effect, Record)]
    assert (type(fact).__name__, fact.owner) == ("Refused", person)
    assert fact.problems[0].reason in {Reason.NO_ROLE, Reason.ROLE_TOO_LOW}


async def test_a_disabled_person_may_do_nothing(victims: Victims) -> None:
    standing = Standing(granted={"nlp": Role.MANAGER}, disabled=True)
    await victims.house.cluster.grant("ann", standing)
    effects = published(victims, subjects.submit("nlp", "ann"), spec())
    (fact,) = [effect.fact for effect in effects if isinstance(effect, Record)]
    assert fact.problems[0].reason is Reason.PERSON_DISABLED
    inbox = {subjects.REPLY_HEADER: subjects.reply("nlp", "x", "ann")}
    (said,) = published(victims, subjects.cancel("nlp", "ann"), {"job": victims.job}, inbox)
    assert said.message.reason is Reason.PERSON_DISABLED


@pytest.mark.parametrize(
    "reply",
    [
        "_INBOX.vc-nlp.ann.x",
        "_INBOX.vc-nlp.x",
        "_INBOX.vc-nlp.bob",
        "_INBOX.vc-nlp.bobby.x",
        "_INBOX.gateway.x",
        "_INBOX.operator.x",
        "skep.v1.reply.nlp.ann.x",
        "skep.v1.reply.nlp.gateway-1.1",
        "skep.v1.reply.vision.bob.x",
        "skep.v1.cmd.node-1",
    ],
)
async def test_admission_speaks_into_no_inbox_but_the_askers(victims: Victims, reply: str) -> None:
    headers = {subjects.REPLY_HEADER: reply}
    for subject, body in (
        (subjects.submit("nlp", "bob"), spec()),
        (subjects.cancel("nlp", "bob"), {"job": "j9999"}),
        (subjects.ask("nlp", "bob"), {"ask": "suspend", "job": "j9999"}),
    ):
        effects = published(victims, subject, body, headers)
        assert [effect for effect in effects if isinstance(effect, Send)] == []
    event = read(subjects.search("nlp", "bob"), b"{}", headers, 20_000, at(5))
    assert victims.house.cluster.searches(event, 5) == []


@pytest.mark.parametrize(
    "name", ["$SYS", "*", ">", "a b", "a\x00b", "-x", "_x", "a/b", "a" * 64, "å", "ann\n", "ann@x"]
)
async def test_odd_names_of_people_are_nobodys(victims: Victims, name: str) -> None:
    for kind in ("submit", "cancel", "ask", "search"):
        event = read(f"skep.v1.{kind}.nlp.{name}", b"{}", {}, 30_000, at(5))
        assert isinstance(event, codec.Unreadable), event


async def test_a_search_takes_no_trial_from_another_person(victims: Victims) -> None:
    """Bob submits a job that calls itself a trial of ann's search, with the key of one."""
    cluster = victims.house.cluster
    asked = {"do": "ask", "search": victims.search}
    event = read(subjects.search("nlp", "ann"), codec.encode(asked), {}, 40_000, at(6))
    sends = [each for each in cluster.searches(event, 6) if isinstance(each, Send)]
    (trial,) = [each for each in sends if each.subject.startswith(subjects.submit("nlp"))]
    assert trial.subject == subjects.submit("nlp", "ann")
    headers = dict(trial.headers)
    raw = codec.encode(trial.message)
    effects = published(victims, subjects.submit("nlp", "bob"), raw, headers)
    fact = next(each.fact for each in effects if isinstance(each, Record))
    assert (type(fact).__name__, fact.owner) == ("Admitted", "bob")
    told = codec.Facts(service="admission", at=at(6), facts=(fact,))
    assert not [each for each in cluster.searches(told, 6) if isinstance(each, Record)]
    own = published(victims, subjects.submit("nlp", "ann"), raw + b" ", headers)
    fact = next(each.fact for each in own if isinstance(each, Record))
    told = codec.Facts(service="admission", at=at(6), facts=(fact,))
    assert [each for each in cluster.searches(told, 6) if isinstance(each, Record)]
