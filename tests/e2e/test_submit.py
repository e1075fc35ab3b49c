"""A spec from a bare NATS client through every service to its end, and what a client may not do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from skep.wire import subjects
from skep.wire.facts import Admitted, JobEnded, Repeated
from tests.e2e.conftest import Gate, Tenant
from tests.support.bare_client import Answer, BareClient, bare_client
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

GPUS = 4
"""Of each tenant."""


def facts_of(cluster: Embedded, stream: str, job: str) -> list[Any]:
    """Return the facts of one job in a service's log."""
    every = asyncio.run(cluster.facts(stream))
    return [fact for _, fact in every if getattr(fact, "job", "") == job]


# --- admitted, run, ended -------------------------------------------------------------------------


def test_a_spec_of_a_bare_client_is_admitted_runs_and_ends_once(
    cluster: Embedded, nlp: Tenant
) -> None:
    answer = nlp.submit(nlp.spec(["/bin/echo", "trained"]))
    assert answer.verdict == {"type": "verdict", "job": answer.job, "accepted": True}
    document = cluster.ended(answer.job)
    assert (document["state"], document["why"]) == ("succeeded", "succeeded")
    (attempt,) = document["attempts"]
    assert document["submitted_at"] < attempt["bound_at"] < attempt["started_at"]
    assert attempt["started_at"] < document["ended_at"]
    assert cluster.log(answer.job) == "trained\n"
    both = until(  # Admitted, and JobOver once admission has heard the allocator.
        lambda: (found := facts_of(cluster, subjects.ADMISSION, answer.job))[1:] and found,
        "admission knows the end",
    )
    assert len(both) == 2
    (ended,) = [
        fact for fact in facts_of(cluster, subjects.ALLOC, answer.job) if isinstance(fact, JobEnded)
    ]
    assert (ended.end, ended.attempts) == ("succeeded", 1)


def test_every_service_is_in_the_one_trace_and_the_events_tell_the_story(
    cluster: Embedded, nlp: Tenant
) -> None:
    job = nlp.accepted(nlp.spec(["true"]))
    trace_id = cluster.ended(job)["trace"].split("-")[1]
    wanted = {"admission", "allocator", "agent", "advisor"}

    def spans() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cluster.get(f"/v1/jobs/{job}/trace")["spans"]
        # Spans are soft, and travel beside the facts: they may arrive a moment later.
        return found if wanted <= {span["service"] for span in found} else []

    assert {span["trace_id"] for span in until(spans, f"the spans of {job}")} == {trace_id}
    kinds = [event["kind"] for event in cluster.get(f"/v1/jobs/{job}/events")["events"]]
    # Each service's stream in its own order; what two services say meanwhile may come either way.
    allocator = ["job-queued", "job-bound", "job-ran", "member-gone", "job-ended"]
    assert [kind for kind in kinds if kind in allocator] == allocator, kinds
    assert kinds[0] == "admitted"


def test_a_gang_meets_and_each_rank_has_its_own_log(cluster: Embedded, nlp: Tenant) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT SKEP_DEVICES"
    tell = "; ".join(f'echo "{name}=${name}"' for name in names.split())
    spec = nlp.spec(tell, resources={"workers": 2, "gpus": 2}, env={"COLOUR": "green"})
    other = nlp.spec(tell, resources={"workers": 4, "gpus": 1})
    job, wide = nlp.accepted(spec), nlp.accepted(other)
    for name, workers in ((job, 2), (wide, 4)):
        assert cluster.ended(name)["state"] == "succeeded"
        ranks = [
            dict(line.split("=", 1) for line in cluster.log(name, rank).splitlines())
            for rank in range(workers)
        ]
        assert [rank["RANK"] for rank in ranks] == [str(rank) for rank in range(workers)]
        assert {rank["WORLD_SIZE"] for rank in ranks} == {str(workers)}
        assert {rank["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}
        assert len({rank["MASTER_PORT"] for rank in ranks}) == 1
        assert all(1024 <= int(rank["MASTER_PORT"]) < 65536 for rank in ranks)
        devices = [rank["SKEP_DEVICES"] for rank in ranks]
        assert len(",".join(devices).split(",")) == GPUS


def test_a_gang_over_two_nodes_has_one_world(cluster: Embedded, nlp: Tenant, gate: Gate) -> None:
    holder = nlp.accepted(nlp.spec(gate.wait, service_class="opportunistic"))
    gate.reached()
    spec = {
        **nlp.spec('echo "$RANK $LOCAL_RANK $NODE_RANK $MASTER_PORT"'),
        "resources": {"workers": 2, "gpus": 3},
        "service_class": "opportunistic",
    }
    document = cluster.ended(nlp.accepted(spec))
    assert document["state"] == "succeeded", document
    members = document["attempts"][0]["members"]
    assert sorted(member["node"] for member in members) == ["node-1", "node-2"]
    ranks = [cluster.log(document["job"], rank).split() for rank in range(2)]
    assert [rank[:2] for rank in ranks] == [["0", "0"], ["1", "0"]]
    assert sorted(rank[2] for rank in ranks) == ["0", "1"]
    assert ranks[0][3] == ranks[1][3]
    gate.open()
    assert cluster.ended(holder)["state"] == "succeeded"


# --- the same key ---------------------------------------------------------------------------------


def test_the_same_key_within_the_buss_own_memory_is_acknowledged_as_the_first(
    cluster: Embedded, nlp: Tenant
) -> None:
    async def twice() -> list[dict[str, Any]]:
        async with bare_client(cluster.about, nlp.user) as client:
            inbox = f"_INBOX.{nlp.user}.acknowledged"
            answers = await client.client.subscribe(inbox)
            for _ in range(2):
                # Written together: no clock decides whether the second comes in time.
                await client.client.publish(
                    subjects.submit("nlp"),
                    json.dumps(nlp.spec(["true"])).encode(),
                    reply=inbox,
                    headers={"Nats-Msg-Id": "within"},
                )
            return [json.loads((await answers.next_msg(timeout=120)).data) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert second == {**first, "duplicate": True}
    assert cluster.ended(f"j{first['seq']}")["state"] == "succeeded"


def test_the_same_key_later_is_the_same_job_and_the_verdict_says_which(
    cluster: Embedded, nlp: Tenant
) -> None:
    spec = nlp.spec(["true"])

    async def twice() -> tuple[Answer, Answer]:
        async with bare_client(cluster.about, nlp.user) as client:
            first = await client.submit(spec, "later")
            while (second := await client.submit(spec, "later")).duplicate:
                pass  # The bus still remembers the key by itself.
            return first, second

    first, second = asyncio.run(twice())
    assert second.submission != first.submission
    assert second.job == second.verdict["job"] == first.submission
    assert (second.verdict["accepted"], second.verdict["reason"]) == (True, "repeated")
    document = cluster.ended(first.job)
    assert len(document["attempts"]) == 1
    again = second.submission
    facts = facts_of(cluster, subjects.ADMISSION, again)
    assert facts == [Repeated(job=again, original=first.job, vc="nlp", trace=facts[0].trace)]
    assert facts_of(cluster, subjects.ALLOC, again) == []
    assert cluster.get(f"/v1/jobs/{again}")["job"] == first.job


def test_two_tenants_may_use_the_same_key(cluster: Embedded, nlp: Tenant, vision: Tenant) -> None:
    first = nlp.accepted(nlp.spec(["true"]), "common")
    # The bus's own memory is one for all tenants: for 0.1 s it takes the other's for a repetition,
    # and says so in its acknowledgement.
    while (second := vision.submit(vision.spec(["true"]), "common")).duplicate:
        assert second.job == first
    assert second.job == second.submission != first
    for job in (first, second.job):
        assert cluster.ended(job)["state"] == "succeeded"


# --- refused, cancelled, retried ------------------------------------------------------------------


def test_an_invalid_spec_is_refused_with_path_and_suggestion(
    cluster: Embedded, nlp: Tenant
) -> None:
    spec = nlp.spec(["true"], resources={"gpu": 2}, prioritty=3)
    answer = nlp.submit(spec)
    assert not answer.verdict["accepted"]
    problems = {one["path"]: one for one in answer.verdict["problems"]}
    assert problems["$.resources.gpu"]["reason"] == "unknown-key"
    assert problems["$.resources.gpu"]["suggestion"] == "did you mean `gpus`?"
    assert problems["$.prioritty"]["suggestion"] == "did you mean `priority`?"
    document = cluster.ended(answer.job)
    assert document["state"] == "refused"
    assert document["problems"] == answer.verdict["problems"]
    assert facts_of(cluster, subjects.ALLOC, answer.job) == []


def test_a_queued_and_a_running_job_are_cancelled(
    cluster: Embedded, nlp: Tenant, gates: Callable[[str], Gate]
) -> None:
    gate = gates("running")
    running = nlp.accepted(nlp.spec(gate.wait, resources={"gpus": GPUS}))
    gate.reached()
    queued = nlp.accepted(nlp.spec(["true"], resources={"gpus": GPUS}))

    def waits_for_cells() -> bool:
        reasons = cluster.get(f"/v1/jobs/{queued}/why")["reasons"]
        return bool(reasons[0]["reason"] == "waits-for-cells")

    until(waits_for_cells, f"{queued} waits for cells")
    for job in (queued, running):
        assert nlp.cancel(job) == {"type": "verdict", "job": job, "accepted": True}
        document = cluster.ended(job)
        assert (document["state"], document["why"]) == ("cancelled", "cancelled")
    assert cluster.get(f"/v1/jobs/{queued}")["attempts"] == []
    again = nlp.cancel(running)
    assert (again["accepted"], again["reason"]) == (False, "already-ended")
    unknown = nlp.cancel("j999999")
    assert (unknown["accepted"], unknown["reason"]) == (False, "unknown-job")


def test_a_job_is_retried_as_often_as_it_asked(cluster: Embedded, nlp: Tenant) -> None:
    third = nlp.spec("test $SKEP_GEN = 3", limits={"retries": 5})
    never = nlp.spec("echo $SKEP_GEN; exit 7", limits={"retries": 1})
    signalled = nlp.spec("kill -9 $$", limits={"retries": 1, "retry_on": ["exit"]})
    jobs = [nlp.accepted(spec) for spec in (third, never, signalled)]
    documents = [cluster.ended(job) for job in jobs]
    assert [document["state"] for document in documents] == ["succeeded", "failed", "failed"]
    assert [len(document["attempts"]) for document in documents] == [3, 2, 1]
    reasons = [document["why"] for document in documents]
    assert reasons == ["succeeded", "exited-nonzero", "killed-by-signal"]
    assert "exit status 7" in documents[1]["detail"]
    assert "SIGKILL" in documents[2]["detail"]
    assert cluster.log(jobs[1]) == "2\n"
    first = cluster.ask("GET", f"/v1/jobs/{jobs[1]}/logs?attempt=1")
    assert first.body == "1\n"


def test_a_job_that_takes_too_long_is_ended(cluster: Embedded, nlp: Tenant, gate: Gate) -> None:
    document = cluster.ended(nlp.accepted(nlp.spec(gate.wait, limits={"time": 1})))
    assert (document["state"], document["why"]) == ("failed", "time-limit")
    assert "1 s" in document["detail"]


def test_a_follower_of_the_log_sees_it_grow_and_end(
    cluster: Embedded, nlp: Tenant, gate: Gate
) -> None:
    job = nlp.accepted(nlp.spec(f"{gate.wait}; echo there"))
    gate.reached()
    assert cluster.get(f"/v1/jobs/{job}")["state"] in {"bound", "running"}
    gate.open()
    followed = cluster.ask("GET", f"/v1/jobs/{job}/logs?follow=1")
    assert followed.body == "here\nthere\n"
    assert cluster.ended(job)["state"] == "succeeded"


# --- what one tenant may not do to another --------------------------------------------------------


def test_a_tenant_may_not_speak_or_listen_elsewhere(cluster: Embedded, nlp: Tenant) -> None:
    said = [
        subjects.submit("vision"),
        subjects.cancel("vision"),
        subjects.admin("vcs"),
        subjects.command("node-1"),
        subjects.node_event("node-1", "exited"),
        subjects.heartbeat("node-1"),
        subjects.ALLOC_FACTS,
        subjects.ADVICE_QUEUE,
        "_INBOX.vc-vision.x",
        "$JS.API.STREAM.DELETE.SUBMIT",
        "$JS.API.STREAM.PURGE.SUBMIT",
        "$JS.API.STREAM.INFO.ALLOC",
        "$JS.API.STREAM.MSG.GET.ALLOC",
        "$JS.API.CONSUMER.CREATE.SUBMIT",
        "$JS.API.CONSUMER.MSG.NEXT.SUBMIT.admission",
        "$JS.API.CONSUMER.DELETE.SUBMIT.admission",
    ]
    heard = [
        "_INBOX.vc-vision.>",
        "_INBOX.>",
        "skep.v1.reply.vision.>",
        "skep.v1.>",
        "skep.v1.fact.*",
        subjects.submit("nlp"),
        subjects.command("node-1"),
    ]

    async def try_all(client: BareClient) -> None:
        for subject in said:
            await client.client.publish(subject, b"{}")
        for subject in heard:
            await client.client.subscribe(subject)
        await client.settle()

    async def main() -> list[str]:
        async with bare_client(cluster.about, nlp.user) as client:
            await try_all(client)
            return client.violations

    violations = asyncio.run(main())
    assert len(violations) == len(said) + len(heard)
    for subject, told in zip([*said, *heard], violations, strict=True):
        assert subject.lower() in told.lower()
    assert cluster.get("/v1/health")["ok"]


def test_a_tenants_spec_names_its_own_virtual_cluster(nlp: Tenant, vision: Tenant) -> None:
    problem = nlp.refused(json.dumps(vision.spec(["true"])).encode())
    assert (problem["path"], problem["reason"]) == ("$.vc", "wrong-vc")
    assert "skep.v1.submit.vision" in problem["suggestion"]


def test_a_tenant_sees_and_cancels_only_its_own_jobs(
    cluster: Embedded, nlp: Tenant, vision: Tenant, gate: Gate
) -> None:
    job = vision.accepted(vision.spec(gate.wait))
    gate.reached()
    verdict = nlp.cancel(job)
    assert (verdict["accepted"], verdict["reason"]) == (False, "unknown-job")
    assert cluster.ask("DELETE", f"/v1/jobs/{job}", who="vc-nlp").status == 404
    assert cluster.ask("GET", f"/v1/jobs/{job}", who="vc-nlp").status == 404
    assert cluster.ask("GET", f"/v1/jobs/{job}/logs", who="vc-nlp").status == 404
    listed = cluster.ask("GET", "/v1/jobs?state=all", who="vc-nlp").body["jobs"]
    assert {row["vc"] for row in listed} <= {"nlp"}
    spec = json.dumps(vision.spec(["true"])).encode()
    assert cluster.ask("POST", "/v1/jobs", spec, who="vc-nlp").status == 403
    gate.open()
    assert cluster.ended(job)["state"] == "succeeded"


@pytest.mark.parametrize(
    "reply",
    [
        "_INBOX.vc-vision.stolen",
        "_INBOX.operator.stolen",
        "skep.v1.cmd.node-1",
        "skep.v1.reply.vision.stolen",
        "a b",
    ],
)
def test_a_verdict_goes_to_the_tenants_own_inboxes_only(
    cluster: Embedded, nlp: Tenant, reply: str
) -> None:
    payload = json.dumps(nlp.spec(["true"])).encode()

    async def main() -> tuple[Answer, int]:
        async with (
            bare_client(cluster.about, "vc-vision") as victim,
            bare_client(cluster.about, "operator") as operator,
            bare_client(cluster.about, nlp.user) as client,
        ):
            stolen: list[Msg] = []

            async def take(message: Msg) -> None:
                stolen.append(message)

            await victim.client.subscribe("_INBOX.vc-vision.>", cb=take)
            await victim.client.subscribe("skep.v1.reply.vision.>", cb=take)
            await operator.client.subscribe("_INBOX.operator.stolen", cb=take)
            await victim.settle()
            await operator.settle()
            await client.publish(subjects.submit("nlp"), payload, headers={"Skep-Reply": reply})
            # Admission answers in order, and the bus delivers in order: once the second verdict is
            # here and the victims' connections answer, the first would have been delivered.
            second = await client.submit(nlp.spec(["true"]))
            await victim.settle()
            await operator.settle()
            return second, len(stolen)

    second, stolen = asyncio.run(main())
    assert stolen == 0
    first = f"j{second.sequence - 1}"
    assert any(isinstance(fact, Admitted) for fact in facts_of(cluster, subjects.ADMISSION, first))
    for job in (first, second.job):
        assert cluster.ended(job)["state"] == "succeeded"


def test_the_gateway_takes_the_same_spec_and_the_same_key(cluster: Embedded, nlp: Tenant) -> None:
    body = json.dumps(nlp.spec(["true"])).encode()
    headers = {"Idempotency-Key": "over-http"}
    first = cluster.ask("POST", "/v1/jobs", body, who="vc-nlp", headers=headers)
    assert (first.status, first.body["repeated"]) == (201, False)
    second = cluster.ask("POST", "/v1/jobs", body, who="vc-nlp", headers=headers)
    assert (second.status, second.body["job"]) == (201, first.body["job"])
    assert cluster.ended(first.body["job"])["state"] == "succeeded"


def test_the_command_line_waits_and_says_how_it_ended(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("name: good\nvc: nlp\ncommand: [echo, hello]\n")
    bad.write_text("name: bad\nvc: nlp\ncommand: exit 5\n")
    jobs = [
        json.loads(cluster.skep("submit", "--json", str(path)))["jobs"][0]["job"]
        for path in (good, bad)
    ]
    cluster.skep("wait", jobs[0])
    assert cluster.skep("logs", jobs[0]) == "hello\n"
    with pytest.raises(RuntimeError, match="returned 1"):
        cluster.skep("wait", jobs[1])
