"""Replays over HTTP: one process at a time, told of as it goes, and ended with the gateway.

What the process does is for `tests/browser` and `tests/e2e`; here others stand in for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.units import seconds
from skep_services.gateway import replays
from tests.gateway_kit import House, opened
from tests.kit import at

pytestmark = pytest.mark.asyncio

READ = "import json, sys; asked = json.loads(sys.stdin.readline()); "
SAY = "print(json.dumps(dict({})), flush=True); "
HALF = SAY.format("type='progress', phase='reading', part=500")
OUTCOME = {"jobs": [], "jobs_total": 0}
DONE = READ + HALF + SAY.format(f"type='done', outcome={OUTCOME!r} | asked")
FAILED = READ + SAY.format("type='failed', reason='nothing-to-replay', text='no job has ended'")
WAITS = READ + HALF + "sys.stdin.read()"
DIES = READ + "sys.exit(3)"
MUMBLES = READ + "print('half of a li')"


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes()
        made.cluster.clock.advance(seconds(100))
        yield made


def error(answer: Any) -> tuple[str, str]:
    return answer["error"]["reason"], answer["error"]["text"]


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(replays, "COMMAND", (sys.executable, "-S", "-c", program))


def asked(**changes: Any) -> dict[str, Any]:
    return {
        "since": at(10),
        "until": at(90),
        "policies": {"nlp": {"name": "tiresias-l", "options": {"thresholds": [60]}}},
        **changes,
    }


REFUSED = [
    (asked(since=at(90)), 422, "bad-span", "`since` must be before `until`"),
    (asked(until=at(101)), 422, "bad-span", "not past yet"),
    (asked(since=0), 422, "bad-span", "longer than 31 days"),
    (asked(policies={}), 422, "bad-value", "length >= 1"),
    (asked(policies={"nlq": {"name": "fifo"}}), 404, "unknown-vc", "did you mean nlp?"),
    (asked(policies={"nlp": {"name": "fifi"}}), 422, "unknown-policy", "fifo"),
    (
        asked(policies={"nlp": {"name": "fifo", "options": {"x": 1}}}),
        422,
        "unknown-policy",
        "policy fifo has no option 'x'",
    ),
    (asked(more=1), 422, "bad-value", "unknown field `more`"),
]


async def over(house: House, name: str) -> Any:
    """Return a replay once it is over, by waiting for each of its versions."""
    told = {"state": "running", "version": 0}
    while told["state"] == "running":
        told = await house.op.get(f"/v1/replays/{name}?seen={told['version']}&timeout_s=20")
    return told


async def test_a_replay_tells_how_far_it_is_and_what_came_of_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, DONE)
    begun = await house.op.json("POST", "/v1/replays", 201, asked())
    assert (begun["replay"], begun["state"], begun["version"]) == ("r1", "running", 1)
    told = await over(house, "r1")
    assert (told["state"], told["version"], told["phase"], told["part"]) == (
        "done",
        3,
        "reading",
        1000,
    )
    assert told["outcome"] == {
        **OUTCOME,
        "since": at(10),
        "until": at(90),
        "policies": {"nlp": ["tiresias-l", {"thresholds": [60]}]},
    }
    (row,) = (await house.op.get("/v1/replays"))["replays"]
    assert row["by"] == "operator"
    assert "outcome" not in row


@pytest.mark.parametrize(
    "program, reason, text",
    [
        (FAILED, "nothing-to-replay", "no job has ended"),
        (DIES, "replay-failed", "its process ended with 3, and said no more"),
        (MUMBLES, "replay-failed", "what it said cannot be read"),
    ],
)
async def test_a_replay_without_an_outcome_says_why(
    house: House, monkeypatch: pytest.MonkeyPatch, program: str, reason: str, text: str
) -> None:
    stand_in(monkeypatch, program)
    await house.op.json("POST", "/v1/replays", 201, asked())
    told = await over(house, "r1")
    assert (told["state"], told["reason"], told["outcome"]) == ("failed", reason, None)
    assert text in told["text"]
    # Whoever sees that it is over can begin the next one, though its process is there still.
    await house.op.json("POST", "/v1/replays", 201, asked())


async def test_one_replay_runs_at_a_time_and_can_be_cancelled(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, WAITS)
    await house.op.json("POST", "/v1/replays", 201, asked())
    second = await house.op.json("POST", "/v1/replays", 409, asked())
    assert error(second) == ("replay-runs", "r1 runs: wait for its end, or cancel it")
    await house.op.get("/v1/replays/r1?seen=1&timeout_s=20")  # Its process reads.
    cancelled = await house.op.json("DELETE", "/v1/replays/r1", 200)
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled")
    again = await house.op.json("DELETE", "/v1/replays/r1", 409)
    assert error(again) == ("already-ended", "r1 is over already: cancelled")
    await house.op.json("POST", "/v1/replays", 201, asked())


async def test_one_that_is_cancelled_before_its_process_is_there_is_over_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", late)
    await house.op.json("POST", "/v1/replays", 201, asked())
    cancelled = await house.op.json("DELETE", "/v1/replays/r1", 200)
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled")
    await house.op.json("POST", "/v1/replays", 201, asked())


async def test_one_that_takes_too_long_is_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, WAITS)
    monkeypatch.setattr(replays, "TIME_S_MAX", 0)
    await house.op.json("POST", "/v1/replays", 201, asked())
    told = await over(house, "r1")
    assert (told["state"], told["reason"]) == ("failed", "replay-too-large")


async def test_its_process_ends_with_the_gateway(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    begin = asyncio.create_subprocess_exec

    async def noted(*words: Any, **more: Any) -> Any:
        made.append(await begin(*words, **more))
        return made[-1]

    stand_in(monkeypatch, WAITS)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    await house.op.json("POST", "/v1/replays", 201, asked())
    await house.op.get("/v1/replays/r1?seen=1&timeout_s=20")
    await house.restart()
    assert made[0].returncode is not None


async def test_what_is_no_replay_is_refused(house: House) -> None:
    for body, status, reason, text in REFUSED:
        told = error(await house.op.json("POST", "/v1/replays", status, body))
        assert told[0] == reason, body
        assert text in told[1]
    assert (await house.op.get("/v1/replays"))["replays"] == []


async def test_an_unknown_replay_and_another_tenants_question_are_refused(house: House) -> None:
    told = error(await house.op.get("/v1/replays/r7", 404))
    assert told[0] == "unknown-replay"
    for method, path in (("POST", "/v1/replays"), ("GET", "/v1/replays"),
                         ("GET", "/v1/replays/r1"), ("DELETE", "/v1/replays/r1")):  # fmt: skip
        told = error(await house.nlp.json(method, path, 403, asked()))
        assert "it takes the role operator" in told[1]
