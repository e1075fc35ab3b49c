"""What-if and plans over HTTP: asked of the machines on the bus, answered, and nothing done."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.what_if.what_if import answer
from skep.units import seconds
from skep.wire import codec, subjects
from skep.wire.drafts import Answer, Option, Outcome, Question, Start
from skep.wire.findings import JobRate, Rates
from skep.wire.reasons import Reason
from skep_services.cli.main import main
from skep_services.gateway.what_if import Drafts
from skep_services.ports import Delivery
from skep_services.what_if import Drafter, JudgeOnly
from tests.cli_kit import FakeGateway, fake_gateway
from tests.gateway_kit import House, error, opened, submitted
from tests.kit import at, spec


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes()
        await answering(made)
        yield made


async def answering(house: House) -> None:
    """Have the machines answer, on deep copies of themselves."""
    machine, bus = house.cluster.allocator.machine, house.cluster.bus

    async def take(asked: Delivery) -> None:
        question = msgspec.json.decode(asked.payload, type=Question)
        told = answer(machine, question, at(20), lambda work: work(copy.deepcopy(machine)))
        await bus.send(asked.reply, codec.encode(told), {})

    judge = JudgeOnly(house.cluster.admission.machine, bus)
    await bus.listen(subjects.draft("allocator"), take)
    await bus.listen(subjects.draft("admission"), judge.answer)


def recorded(house: House) -> int:
    """Return how many messages there are in all streams."""
    broker = house.cluster.broker
    return sum(len(broker.stream(name).messages) for name in subjects.STREAMS)


@pytest.mark.asyncio
async def test_what_would_start_a_job_is_told_and_does(house: House) -> None:
    first = await submitted(house, gpus=2)
    house.cluster.runs(first)
    second = await submitted(house, gpus=1, workers=3)
    await house.caught_up()
    before, state = recorded(house), codec.encode(house.cluster.allocator.machine.snapshot())
    answer = await house.op.get(f"/v1/jobs/{second}/why?what_if=1")
    assert answer["reasons"][0]["reason"] == "waits-for-cells"
    told = answer["what_if"]
    assert told["outcome"]["start"] == "unknown"
    assert told["outcome"]["unknown"] == 1
    fewer = next(one for one in told["options"] if one["reason"] == "with-fewer-gpus")
    assert (fewer["value"], fewer["outcome"]["place"]) == ("2 GPUs", "node-2:0,1")
    assert [one["rank"] for one in told["options"]] == list(range(1, len(told["options"]) + 1))
    urgent = next(one for one in told["options"] if one["reason"] == "with-a-priority")
    [stopped] = urgent["outcome"]["others"]
    assert (stopped["job"], stopped["what"], stopped["why"]) == (first, "stops", "preempted")
    assert (recorded(house), codec.encode(house.cluster.allocator.machine.snapshot())) == (
        before,
        state,
    )
    # The tenant is not told of other virtual clusters, and may not ask about their jobs.
    mine = (await house.nlp.get(f"/v1/jobs/{second}/why?what_if=1"))["what_if"]
    every = [one["reason"] for one in (*mine["options"], *mine["in_vain"])]
    assert "in-another-vc" not in every
    await house.vision.get(f"/v1/jobs/{second}/why?what_if=1", 404)
    # With what was said, it starts.
    await house.op.json("DELETE", f"/v1/jobs/{second}", 202)
    third = (await house.op.json("POST", "/v1/jobs", 201, fewer["spec"]))["job"]
    assert house.cluster.allocator.machine.state.jobs[third].state == "bound"


@pytest.mark.asyncio
async def test_a_wait_is_foreseen_from_what_is_measured(house: House) -> None:
    first = await submitted(house, gpus=2, workers=2, size={"mini_batches": 100})
    house.cluster.runs(first)
    second = await submitted(house, gpus=2, size={"run_time": "60s"})
    rate = JobRate(job=first, attempt=1, rate_milli=1_000, steps=50)
    house.gateway.indexer.live.apply(Rates(at=at(20), jobs=(rate,)), at(20))
    told = (await house.op.get(f"/v1/jobs/{second}/why?what_if=1"))["what_if"]
    assert told["outcome"]["start"] == "later"
    assert told["outcome"]["awaits"] == [first]
    assert told["outcome"]["at"] == at(70)
    assert told["outcome"]["ends_at"] == at(130)
    last = told["options"][-1]
    assert (last["reason"], last["value"]) == ("once-others-end", first)


@pytest.mark.asyncio
async def test_whose_end_a_job_waits_for_is_not_told_of_other_vcs(house: House) -> None:
    first = await submitted(
        house, vc="vision", opportunistic=True, gpus=2, workers=2, size={"mini_batches": 100}
    )
    house.cluster.runs(first)
    second = await submitted(house, opportunistic=True, gpus=2, workers=2)
    rate = JobRate(job=first, attempt=1, rate_milli=1_000, steps=50)
    house.gateway.indexer.live.apply(Rates(at=at(20), jobs=(rate,)), at(20))
    for client, value in ((house.op, first), (house.nlp, "")):
        told = (await client.get(f"/v1/jobs/{second}/why?what_if=1"))["what_if"]
        last = told["options"][-1]
        assert (last["reason"], last["value"]) == ("once-others-end", value)


@pytest.mark.asyncio
async def test_a_plan_says_where_and_at_whose_expense(house: House) -> None:
    body = codec.encode(spec(gpus=2))
    before = recorded(house)
    plan = await house.nlp.json("POST", "/v1/plan", 200, body)
    assert (plan["gpus"], plan["vc"], plan["service_class"]) == (2, "nlp", "guaranteed")
    assert (plan["outcome"]["start"], plan["outcome"]["place"]) == ("now", "node-1:0,1")
    assert recorded(house) == before
    borrower = await submitted(house, opportunistic=True, vc="vision", gpus=2, workers=2)
    house.cluster.runs(borrower)
    await house.caught_up()
    body = codec.encode(spec(gpus=2, workers=2))
    plan = await house.op.json("POST", "/v1/plan", 200, body)
    assert plan["outcome"]["start"] == "after"
    [touched] = plan["outcome"]["others"]
    assert (touched["job"], touched["what"], touched["gpus"]) == (borrower, "stops", 4)
    [touched] = (await house.nlp.json("POST", "/v1/plan", 200, body))["outcome"]["others"]
    assert (touched["job"], touched["vc"], touched["gpus"]) == (None, None, 4)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"vc": "nlp"}',
        b'{"name": "x", "vc": "nlq", "command": ["true"]}',
        b'{"name": "x", "vc": "nlp", "command": ["true"], "resorces": {}}',
        b'{"name": "x", "vc": "nlp", "command": ["true"], "resources": {"gpus": 64}}',
        b'{"name": "x", "vc": "nlp", "command": ["true"], "resources": {"gpu_type": "h100"}}',
        b" " * 70_000,
    ],
)
async def test_a_bad_spec_is_refused_as_it_would_be(house: House, body: bytes) -> None:
    async def status_and_error(path: str) -> tuple[int, Any]:
        async with house.session.post(
            house.base + path, data=body, headers=house.op.headers
        ) as told:
            return told.status, (await told.json())["error"]

    planned, refused = await status_and_error("/v1/plan"), await status_and_error("/v1/jobs")
    assert planned == refused
    assert planned[0] >= 400


@pytest.mark.asyncio
async def test_who_decides_may_be_away_or_have_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skep_services.gateway.what_if.TIMEOUT_S", 0.05)
    async with opened(tmp_path) as house:
        await house.with_nodes()
        first = await submitted(house)
        told = await house.op.get(f"/v1/jobs/{first}/why?what_if=1", 503)
        assert error(told)[0] == "allocator-away"
        await house.vision.json("POST", "/v1/plan", 403, codec.encode(spec()))
        await answering(house)
        told = (await house.op.get(f"/v1/jobs/{first}/why?what_if=1"))["what_if"]
        assert told["problem"] == f"{first} does not wait for GPUs: it is bound"
        await house.op.get(f"/v1/jobs/{first}/why?what_if=yes", 400)


# --- by copies of a process -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_copies_of_a_process_answer_and_leave_it_alone(house: House) -> None:
    first = await submitted(house, gpus=2)
    second = await submitted(house, gpus=1, workers=3)
    machine = house.cluster.allocator.machine
    before = codec.encode(machine.snapshot())
    drafter = Drafter(machine, house.bus, house.cluster.clock)
    told = msgspec.json.decode(await drafter.look(codec.encode(Question(job=second))), type=Answer)
    alike = answer(machine, Question(job=second), told.at, lambda work: work(_copy(machine)))
    assert told == alike
    assert drafter.held_ns < seconds(5)
    assert codec.encode(machine.snapshot()) == before
    assert b"does not wait" in await drafter.look(codec.encode(Question(job=first)))
    assert b"not a question" in await drafter.look(b"{")


def _copy(machine: AllocatorMachine) -> AllocatorMachine:
    return copy.deepcopy(machine)


@pytest.mark.asyncio
async def test_a_copy_that_fails_is_an_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Outcome:
        raise SystemExit

    monkeypatch.setattr("skep_services.what_if.what_if.answer", fails)
    machine = house.cluster.allocator.machine
    drafter = Drafter(machine, house.bus, house.cluster.clock)
    told = msgspec.json.decode(await drafter.look(codec.encode(Question(job="j1"))), type=Answer)
    assert "could not be answered" in told.problem
    large: list[Answer] = []
    monkeypatch.setattr("skep_services.what_if.what_if.answer", lambda *_: large[-1])
    monkeypatch.setattr("skep_services.what_if.ANSWER_BYTES_MAX", 500)
    option = Option(
        why=Reason.AS_OPPORTUNISTIC,
        value="",
        outcome=Outcome(start=Start.NOW),
        spec=spec(env={"A": "x" * 400}),
    )
    large.append(Answer(at=at(1), in_vain=(option,)))
    told = msgspec.json.decode(await drafter.look(codec.encode(Question(job="j1"))), type=Answer)
    assert told == Answer(at=at(1))
    large.append(Answer(at=at(1), options=(option,)))
    assert b"too large" in await drafter.look(codec.encode(Question(job="j1")))
    drafter._waiting = 16
    inbox: list[bytes] = []

    async def take(delivery: Delivery) -> None:
        inbox.append(delivery.payload)

    await house.bus.listen(subjects.draft("busy"), drafter.answer)
    told_now = await house.bus.request(subjects.draft("busy"), b"", {}, 5.0)
    assert told_now is not None
    assert b"too many questions" in told_now.payload


@pytest.mark.asyncio
async def test_what_nobody_waits_for_any_more_is_not_thought_about(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Drafter(house.cluster.allocator.machine, house.bus, house.cluster.clock)
    looked: list[float] = []

    async def look(_: bytes, within_s: float) -> bytes:
        looked.append(within_s)
        return b"told"

    monkeypatch.setattr(drafter, "look", look)
    for for_s in (5.0, 0.0, 0.0):
        monkeypatch.setattr("skep_services.what_if.ASKED_FOR_S", for_s)
        await drafter.answer(Delivery(subject="x", payload=b"{}", reply="_INBOX.x"))
    await asyncio.gather(*drafter._tasks)
    assert len(looked) == 1
    assert 0 < looked[0] <= 5.0, "nobody waits longer for this one either"
    assert drafter._waiting == 0


@pytest.mark.asyncio
async def test_one_vc_asks_one_question_at_a_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await submitted(house)
    held, asked = asyncio.Event(), asyncio.Event()
    ask = Drafts._ask

    async def slowly(*args: Any) -> Any:
        asked.set()
        await held.wait()
        return await ask(*args)

    monkeypatch.setattr(Drafts, "_ask", slowly)
    path = f"/v1/jobs/{first}/why?what_if=1"
    mine = asyncio.ensure_future(house.nlp.get(path))
    await asked.wait()
    told = await house.nlp.get(path, 429)
    assert error(told)[0] == "too-many-questions"
    others = asyncio.ensure_future(house.op.get(path))
    held.set()
    assert "is bound" in (await mine)["what_if"]["problem"]
    assert "is bound" in (await others)["what_if"]["problem"]
    await house.nlp.get(path)


# --- on the terminal ------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        monkeypatch.setenv("SKEP_HOME", str(tmp_path / "home"))
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def outcome(start: Start = Start.NOW, **changes: Any) -> dict[str, Any]:
    return {
        "start": start,
        "why": "waits-for-cells",
        "text": "in use",
        "needs": "3 GPUs",
        "place": "",
        "chain": "",
        "borrows": False,
        "at": None,
        "ends_at": None,
        "ends_most": None,
        "others": [],
        "others_more": 0,
        "awaits": [],
        "unknown": 0,
        "limits": False,
        "nodes": 0,
        **changes,
    }


def placed(**changes: Any) -> dict[str, Any]:
    why = {"why": "fewest-nodes", "text": "the fewest nodes", "needs": ""}
    return outcome(**{"place": "node-1:0,1", **why, **changes})


OTHER = {
    "job": "j1",
    "vc": "nlp",
    "what": "stops",
    "gpus": 2,
    "why": "preempted",
    "rate_milli": 12_345,
    "then_milli": 0,
}


def test_what_if_on_the_terminal(gateway: FakeGateway, run: Run) -> None:
    def option(rank: int, reason: str, text: str, value: str, **changes: Any) -> dict[str, Any]:
        return {
            "rank": rank,
            "reason": reason,
            "text": text,
            "value": value,
            "spec": None,
            "outcome": placed(**changes),
        }

    hidden = {**OTHER, "job": None, "vc": None, "rate_milli": None, "then_milli": None}
    options = [
        option(1, "with-fewer-gpus", "with fewer GPUs", "2 GPUs"),
        option(
            2,
            "with-a-priority",
            "with a higher priority",
            "1",
            start="after",
            others=[OTHER, hidden],
        ),
    ]
    in_vain = [
        {
            "reason": "as-opportunistic",
            "text": "as opportunistic",
            "spec": None,
            "value": "opportunistic",
            "outcome": outcome(Start.UNKNOWN),
        }
    ]
    answer = {
        "job": "j3",
        "state": "queued",
        "reasons": [],
        "would_change": ["x"],
        "what_if": {
            "problem": "",
            "outcome": outcome(Start.UNKNOWN),
            "options": options,
            "in_vain": in_vain,
        },
    }
    gateway.on("GET /v1/jobs/j3/why", answer)
    code, out, _ = run("why", "j3", "--what-if")
    assert gateway.last("GET /v1/jobs/j3/why").query == {"what_if": "1"}
    assert (code, out.splitlines()) == (
        0,
        [
            "j3  queued",
            "what would start it:",
            "  1. with fewer GPUs: 2 GPUs (with-fewer-gpus)",
            "       it would start now on node-1:0,1: the fewest nodes (fewest-nodes)",
            "  2. with a higher priority: 1 (with-a-priority)",
            "       it would start on node-1:0,1 as soon as others have made room: the fewest nodes"
            " (fewest-nodes)",
            "       it stops j1 (2 GPUs, 12.3/s now, 0 then), a job of another virtual cluster"
            " (2 GPUs, its rate is unknown)",
            "what would not:",
            "  as opportunistic: opportunistic (as-opportunistic): in use: 3 GPUs"
            " (waits-for-cells)",
        ],
    )
    assert json.loads(run("why", "j3", "--what-if", "--json")[1]) == {**answer, "if_stopped": ""}
    answer["what_if"] = {"problem": "j3 does not wait", "options": [], "in_vain": []}
    gateway.on("GET /v1/jobs/j3/why", answer)
    assert "what if: j3 does not wait" in run("why", "j3", "--what-if")[1]
    answer["what_if"] = {"problem": "", "options": [], "in_vain": [], "outcome": placed()}
    gateway.on("GET /v1/jobs/j3/why", answer)
    assert "what if: it would start now" in run("why", "j3", "--what-if")[1]


def test_plan_on_the_terminal(gateway: FakeGateway, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nvc: nlp\ncommand: [sleep, '1']\nresources: {gpus: 2}\n")
    answer = {
        "name": "x",
        "vc": "nlp",
        "gpus": 2,
        "service_class": "guaranteed",
        "outcome": placed(start="after", others=[OTHER], others_more=2),
    }
    gateway.on("POST /v1/plan", answer)
    code, out, _ = run("plan", str(path), "--set", "resources.gpus=4")
    assert gateway.last("POST /v1/plan").json()["resources"] == {"gpus": 4}
    assert (code, out.splitlines()) == (
        0,
        [
            "x  2 GPUs of nlp, guaranteed",
            "  it would start on node-1:0,1 as soon as others have made room: the fewest nodes"
            " (fewest-nodes)",
            "  it stops j1 (2 GPUs, 12.3/s now, 0 then)",
            "  and touches 2 further jobs",
            "  when it would end is not known",
        ],
    )
    assert json.loads(run("plan", str(path), "--json")[1]) == {"plans": [answer], "if_stopped": {}}
    answer["outcome"] = outcome(Start.UNKNOWN, unknown=3)
    gateway.on("POST /v1/plan", answer)
    assert (
        "it would wait, for how long is not known: the end of 3 jobs is not known; in use: "
        "3 GPUs (waits-for-cells)"
    ) in run("plan", str(path))[1]
    far = 4_000_000_000 * 10**9
    answer["outcome"] = outcome(
        Start.LATER, place="node-1:0", awaits=["j1", "j2"], at=1, ends_at=2, ends_most=far
    )
    gateway.on("POST /v1/plan", answer)
    out = run("plan", str(path))[1]
    assert "it would wait for about 0s, after j1 j2, then start on node-1:0; in use" in out
    assert "it would end in about 0s, or in " in out


def test_a_wrong_spec_is_told_as_submit_does(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nvc: nlp\ncommand: [sleep, '1']\nresources: {gpu: 2}\n")
    planned, submitted = run("plan", str(path)), run("submit", str(path))
    assert planned[0] == submitted[0] == 1
    told = [
        err.replace("skep plan", "skep submit").replace("planned", "submitted")
        for _, _, err in (planned, submitted)
    ]
    assert told[0] == told[1]
    assert run("plan", str(tmp_path / "none.yaml"))[0] == 2
    path.write_text("name: x\nvc: nlp\ncommand: [sleep, '1']\n")
    problem = {"path": "$.vc", "reason": "unknown-vc", "text": "there is none"}
    gateway.refuse("POST /v1/plan", 422, "unknown-vc", "there is none", problems=[problem])
    code, out, _ = run("plan", str(path))
    assert (code, out) == (1, f"would be refused: {path}:2: $.vc: there is none (unknown-vc)\n")
    assert json.loads(run("plan", str(path), "--json")[1])["plans"][0]["accepted"] is False
