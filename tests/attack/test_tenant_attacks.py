"""What a hostile tenant tries with its credentials of bus and API: each attempt is refused.

After all of them no service has ended, the other tenant's job runs on as it was, and both tenants
can work (`Target.check_intact`). Reply subjects are attacked in `test_bus_accounts`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from skep.wire import subjects
from tests.attack.conftest import Target, stored, violations
from tests.support.bare_client import bare_client

TENANT = "vc-nlp"
MAY_NOT_SAY = (
    *(subjects.STREAMS[name][0] for name in subjects.FACT_STREAMS),
    subjects.kept(subjects.ALLOC, "whole"),
    subjects.admin("vcs"),
    subjects.admin("drain"),
    subjects.admin("quarantine"),
    subjects.submit("vision"),
    subjects.cancel("vision"),
    subjects.ask("vision"),
    subjects.search("vision"),
    subjects.submit("no-such-vc"),
    subjects.node_event("node-1", "joined"),
    subjects.node_event("node-1", "exited"),
    subjects.command("node-1"),
    subjects.heartbeat("node-1"),
    subjects.report("node-1"),
    subjects.logs("node-1"),
    subjects.outputs("node-1"),
    subjects.code("node-1", subjects.ANY_GATEWAY),
    subjects.snapshot("chunk", "nlp", "0" * 64),
    subjects.health("allocator"),
    subjects.draft("allocator"),
    subjects.ACCESS_ASKED,
    subjects.span("allocator"),
    subjects.ADVICE_QUEUE,
    subjects.ADVICE_OUTLOOK,
    subjects.finding("rate"),
    subjects.JUDGED,
    subjects.MEASURED,
    subjects.TRIALS_OPEN,
    subjects.reply("vision", "x"),
    subjects.reply("nlp", "x"),
    "_INBOX.vc-vision.x",
    "_INBOX.operator.x",
    "$JS.API.INFO",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.UPDATE.SUBMIT",
    "$JS.API.STREAM.DELETE.ALLOC",
    "$JS.API.STREAM.PURGE.SUBMIT",
    "$JS.API.STREAM.INFO.ALLOC",
    "$JS.API.STREAM.MSG.GET.SUBMIT",
    "$JS.API.STREAM.MSG.DELETE.ALLOC",
    "$JS.API.CONSUMER.CREATE.SUBMIT.mine",
    "$JS.API.CONSUMER.DELETE.ALLOC.gateway",
    "$JS.API.DIRECT.GET.SUBMIT",
    "$JS.ACK.ALLOC.gateway.1.1.1.1.0",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.SERVER.RELOAD",
)
MAY_NOT_HEAR = (
    ">",
    "skep.v1.>",
    subjects.STREAMS[subjects.ALLOC][0],
    subjects.submit("*"),
    subjects.submit("vision"),
    subjects.reply("vision", ">"),
    subjects.command("*"),
    subjects.heartbeat("*"),
    subjects.SPANS,
    "_INBOX.>",
    "_INBOX.vc-vision.>",
    "_INBOX.operator.>",
    "$JS.>",
    "$SYS.>",
)


@pytest.mark.parametrize("subject", MAY_NOT_SAY)
def test_a_tenant_cannot_publish_elsewhere(target: Target, subject: str) -> None:
    before = stored(target)
    (violation,) = violations(target, TENANT, subject)
    assert subject.lower() in violation.lower()
    assert stored(target) == before


@pytest.mark.parametrize("subject", MAY_NOT_HEAR)
def test_a_tenant_cannot_listen_to_others(target: Target, subject: str) -> None:
    (violation,) = violations(target, TENANT, subject, listen=True)
    assert "subscription" in violation.lower()


SPEC = {"name": "a", "vc": "nlp", "command": ["true"]}


def spec(**changes: Any) -> bytes:
    return json.dumps({**SPEC, **changes}).encode()


BAD_SPECS = {
    "the name of another tenant": (spec(vc="vision"), "wrong-vc"),
    "a deep nest": (b'{"name":' + b"[" * 60_000, "not-json"),
    "a number of 400 digits": (spec(priority=10**400), "bad-value"),
    "a huge gang": (spec(resources={"gpus": 1, "workers": 2**62}), "bad-value"),
    "a negative gang": (spec(resources={"workers": -1}), "bad-value"),
    "no number": (b'{"name":"a","vc":"nlp","command":"x","size":{"epochs":NaN}}', "not-json"),
    "a name of a megabyte's tenth": (spec(name="x" * 50_000), "bad-value"),
    "a name that moves the cursor": (spec(name="a\x1b[2J"), "bad-value"),
    "a NUL in the environment": (spec(env={"A": "a\x00b"}), "bad-value"),
    "a NUL in the command": (spec(command=["a\x00b"]), "bad-value"),
    "an option where a script belongs": (spec(command=None, script="\x00"), None),
    "a time limit of for ever": (spec(limits={"time": 2**63}), "bad-value"),
    "retries without end": (spec(limits={"retries": 10**9}), "bad-value"),
    "an environment with two meanings": (spec(env={"A=B": "c"}), "bad-value"),
    "a spec of 70 kB": (spec(labels={"a": "x" * 70_000}), "too-large"),
    "an unknown key": (spec(privileged=True), "unknown-key"),
    "invalid UTF-8": (b'{"name":"\xff\xfe"}', "not-json"),
    "a surrogate": (b'{"name":"\\ud800","vc":"nlp","command":"x"}', "not-json"),
}


@pytest.mark.parametrize("what", BAD_SPECS)
def test_a_spec_that_makes_no_sense_is_refused(target: Target, what: str) -> None:
    payload, reason = BAD_SPECS[what]

    async def main() -> dict[str, Any]:
        async with bare_client(target.cluster.about, TENANT) as client:
            return (await client.ask(subjects.submit("nlp"), payload)).verdict

    verdict = asyncio.run(main())
    assert not verdict["accepted"], verdict
    assert reason is None or verdict["reason"] == reason, verdict
    assert all(len(problem["text"]) < 1_000 for problem in verdict["problems"])


OTHERS = (
    ("cancel", {"job": "{victim}"}, "unknown-job"),
    ("cancel", {"job": "j99999999999999999999"}, "bad-value"),
    ("cancel", {"job": "j" + "9" * 3_000}, "bad-value"),
    ("cancel", {"job": "-1"}, "bad-value"),
    ("ask", {"ask": "suspend", "job": "{victim}"}, "unknown-job"),
    ("ask", {"ask": "suspend", "job": "{victim}", "release": True}, "unknown-job"),
    ("ask", {"ask": "migrate", "job": "{victim}", "to": "node-2"}, "unknown-job"),
    ("ask", {"ask": "resize", "job": "{victim}", "workers": 2**62}, None),
    ("ask", {"ask": "pack", "job": "j1", "beside": "{victim}"}, None),
    ("ask", {"ask": "checkpoint", "job": "{victim}"}, "unknown-job"),
    ("ask", {"ask": "become-root", "job": "{victim}"}, "bad-value"),
    ("search", {"search": "cancel", "id": "s1"}, None),
    ("search", {"do": "begin", "spec": {"trials": 10**30}}, None),
)


@pytest.mark.parametrize("kind, request_, reason", OTHERS)
def test_what_a_tenant_asks_about_others_is_refused(
    target: Target, kind: str, request_: dict[str, Any], reason: str | None
) -> None:
    payload = json.dumps(request_).replace("{victim}", target.victim).encode()

    async def main() -> dict[str, Any]:
        async with bare_client(target.cluster.about, TENANT) as client:
            return (await client.ask(f"{subjects.PREFIX}.{kind}.nlp", payload)).verdict

    verdict = asyncio.run(main())
    assert not verdict["accepted"], verdict
    assert reason is None or verdict["reason"] == reason, verdict


HTTP: tuple[tuple[str, str, Any, int], ...] = (
    ("GET", "/v1/jobs/{victim}", None, 404),
    ("GET", "/v1/jobs/{victim}/blame", None, 404),
    ("GET", "/v1/blame?vc=vision", None, 403),
    ("GET", "/v1/report?vc=vision", None, 403),
    ("GET", "/v1/jobs/{victim}/why", None, 404),
    ("GET", "/v1/jobs/{victim}/logs", None, 404),
    ("GET", "/v1/jobs/{victim}/events", None, 404),
    ("GET", "/v1/jobs/{victim}/trace", None, 404),
    ("GET", "/v1/jobs/{victim}/curve", None, 404),
    ("GET", "/v1/jobs?vc=vision", None, 403),
    ("GET", "/v1/jobs?vc=a.b", None, 400),
    ("GET", "/v1/jobs?limit=99999999999999999999", None, 400),
    ("GET", "/v1/events?vc=vision", None, 403),
    ("GET", "/v1/events?since=99999999999999999999", None, 400),
    ("GET", "/v1/jobs/..%2F..%2Fetc%2Fpasswd", None, 404),
    ("GET", "/v1/jobs/j99999999999999999999", None, 404),
    ("DELETE", "/v1/jobs/{victim}", None, 404),
    ("POST", "/v1/jobs/{victim}/suspend", {}, 404),
    ("POST", "/v1/jobs/{victim}/migrate", {"to": "node-2"}, 404),
    ("POST", "/v1/jobs/{victim}/become-root", {}, 404),
    ("POST", "/v1/jobs", {**SPEC, "vc": "vision"}, 403),
    ("POST", "/v1/plan", {**SPEC, "vc": "vision"}, 403),
    ("POST", "/v1/admin/vcs", {"vcs": {"nlp": {"gpus": 4}}}, 403),
    ("POST", "/v1/admin/drain", {"node": "node-1", "drain": True}, 403),
    ("POST", "/v1/admin/quarantine", {"node": "node-1", "device": 0, "quarantine": True}, 403),
    ("POST", "/v1/cells/plan", {}, 403),
    ("GET", "/v1/vcs/vision/usage", None, 404),
    ("PUT", "/v1/jobs", {}, 405),
)


@pytest.mark.parametrize("method, path, body, status", HTTP)
def test_a_tenant_cannot_reach_others_over_http(
    target: Target, method: str, path: str, body: Any, status: int
) -> None:
    data = None if body is None else json.dumps(body).encode()
    answer = target.cluster.ask(method, path.replace("{victim}", target.victim), data, TENANT)
    assert answer.status == status, answer
    assert answer.body["error"]["reason"]


def test_nothing_of_another_tenant_is_shown(target: Target) -> None:
    for path in (
        "/v1/jobs?state=all",
        "/v1/gpus",
        "/v1/nodes",
        "/v1/usage",
        "/v1/cells",
        "/v1/events",
        "/v1/trials",
        "/v1/blame",
        "/v1/report?by=user",
    ):
        answer = target.cluster.ask("GET", path, None, TENANT)
        assert answer.status == 200, (path, answer)
        assert f'"{target.victim}"' not in json.dumps(answer.body), path


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer x", "Basic bmxwOng=", "Bearer " + "x" * 4_000, "bearer\tx"]
)
def test_a_wrong_token_is_refused(target: Target, header: str) -> None:
    answer = target.cluster.ask("GET", "/v1/jobs", headers={"Authorization": header})
    assert answer.status in {400, 401}


def test_verdicts_are_not_sent_where_a_tenant_may_not_speak(target: Target) -> None:
    """Admission answers with its own rights: it must not be made to speak to others."""
    heard: list[str] = []
    targets = (
        subjects.STREAMS[subjects.ALLOC][0],
        subjects.admin("vcs"),
        subjects.command("node-1"),
        subjects.reply("vision", "x"),
        "_INBOX.vc-vision.x",
        "_INBOX.operator.x",
        "_INBOX.*.x",
        "$JS.API.STREAM.PURGE.SUBMIT",
    )

    async def main() -> None:
        about = target.cluster.about
        async with (
            bare_client(about, "operator") as operator,
            bare_client(about, "vc-vision") as vision,
            bare_client(about, TENANT) as client,
        ):
            for ear, subject in (
                (operator, "skep.v1.>"),
                (operator, "_INBOX.operator.x"),
                (vision, "_INBOX.vc-vision.x"),
                (vision, subjects.reply("vision", ">")),
            ):
                await ear.client.subscribe(subject, cb=note)
                await ear.settle()
            for one in targets:
                await client.publish(subjects.submit("nlp"), b"{}", headers={"Skep-Reply": one})
            # Admission decides in order: this verdict comes after all those.
            verdict = (await client.ask(subjects.submit("nlp"), b"{}")).verdict
            assert not verdict["accepted"]
            await operator.settle()
            await vision.settle()

    async def note(message: Msg) -> None:
        heard.append(message.subject)

    before = stored(target)
    asyncio.run(main())
    after = stored(target)
    for stream in (subjects.ALLOC, subjects.ADMIN, subjects.NODE):
        assert after[stream] == before[stream], stream
    assert {one for one in heard if one in targets} == set()


def test_the_attempts_left_nothing_behind(target: Target) -> None:
    target.check_intact()
