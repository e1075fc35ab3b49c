"""Starts and ends over HTTP, and how often such estimates held: to each tenant its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.units import Duration, seconds
from skep.wire import codec, subjects
from skep.wire.estimates import EstimateJudged, Outcome
from skep.wire.facts import EpochBegan
from skep.wire.findings import JobRate, Rates
from skep.wire.spec import SizeHint
from skep_services.gateway import estimates
from tests.gateway_kit import DEADLINE_S, House, opened, submitted
from tests.kit import at
from tests.shell.test_gateway_what_if import answering

SECOND = 1_000_000_000


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes()
        await answering(made)
        yield made


def judged(family: str, vc: str, took: float, what: str = "earlier-runs") -> EstimateJudged:
    outcome = Outcome(
        what=what,
        p10=seconds(90.0),
        p50=seconds(100.0),
        p90=seconds(110.0),
        took=seconds(took),
        held=90 <= took <= 110,
        rank=500 if took == 100 else 999,
    )
    return EstimateJudged(
        at=at(1),
        job="j1",
        attempt=1,
        vc=vc,
        family=family,
        gpu_type="cpu",
        gpus=4,
        nodes=2,
        outcomes=(outcome,),
        mini_batches=100,
        ran=Duration(round(took * SECOND)),
    )


async def told(house: House, *facts: EstimateJudged) -> None:
    house.cluster.store_record(
        subjects.PROFILE_FACTS, [EpochBegan(epoch=1, owner="a"), *facts], at(1)
    )
    await house.restart()
    await house.caught_up()


def between(times: dict[str, int]) -> tuple[int, int, int]:
    low, middle, high = times["p10"], times["p50"], times["p90"]
    assert low <= middle <= high
    return low, middle, high


@pytest.mark.asyncio
async def test_a_running_job_ends_by_its_rate_and_the_next_starts_then(house: House) -> None:
    size = SizeHint(mini_batches=1000, family="resnet")
    first = await submitted(house, gpus=2, workers=2, size=size)
    house.cluster.runs(first)
    second = await submitted(house, gpus=2, workers=2, over_quota="wait", size=size)
    third = await submitted(house, gpus=2, workers=2, over_quota="wait")
    await told(house, judged("resnet", "nlp", 100))
    rate = JobRate(job=first, attempt=1, steps=500, rate_milli=10_000)
    now = house.cluster.clock.now()
    told_rates = codec.encode(Rates(at=now, jobs=(rate,)))
    await house.bus.send(subjects.finding("rates"), told_rates, {})
    jobs: dict[str, Any] = {}
    runs = waits = unknown = None
    # Estimates that were made a moment before are shown until they may take time again.
    async with asyncio.timeout(DEADLINE_S):
        while runs is None or runs["basis"] != "measured-rate":
            jobs = {row["job"]: row for row in (await house.op.get("/v1/jobs"))["jobs"]}
            runs, waits, unknown = (jobs[name]["estimate"] for name in (first, second, third))
    assert waits
    assert unknown
    low, middle, high = between(runs["end"])
    assert middle - now == pytest.approx(51 * SECOND, rel=0.1)
    assert low < middle < high
    assert runs["start"]["p10"] == runs["start"]["p90"] == jobs[first]["started_at"]
    assert waits["basis"] == "earlier-runs"
    begin, end = between(waits["start"])[1], between(waits["end"])[1]
    assert begin - now == pytest.approx(52 * SECOND, rel=0.2)
    assert end - begin == pytest.approx(1000 * SECOND, rel=0.2)
    assert (unknown["basis"], unknown["end"]) == ("length-unknown", None)
    assert unknown["start"]["p50"] > begin
    shown = await house.nlp.get(f"/v1/jobs/{first}")
    assert shown["estimate"]["basis"] == "measured-rate"


@pytest.mark.asyncio
async def test_a_plan_has_start_and_end_and_an_ended_job_has_neither(house: House) -> None:
    await told(house, judged("resnet", "nlp", 100))
    body: dict[str, Any] = {
        "name": "a",
        "vc": "nlp",
        "script": "a.py",
        "resources": {"gpus": 2, "workers": 2},
        "size": {"mini_batches": 1000, "family": "resnet"},
    }
    plan = (await house.nlp.json("POST", "/v1/plan", 200, body))["estimate"]
    start, end = between(plan["start"]), between(plan["end"])
    assert start[2] - start[0] <= 10 * SECOND
    assert end[1] - start[1] == pytest.approx(1000 * SECOND, rel=0.2)
    assert plan["basis"] == "earlier-runs"
    opaque = {**body, "size": {}}
    plan = (await house.nlp.json("POST", "/v1/plan", 200, opaque))["estimate"]
    assert (plan["end"], plan["basis"]) == (None, "length-unknown")
    job = await submitted(house, gpus=1)
    await house.op.json("DELETE", f"/v1/jobs/{job}", 202)
    await house.caught_up()
    for row in (await house.op.get("/v1/jobs?state=ended"))["jobs"]:
        assert row["estimate"] is None


@pytest.mark.asyncio
async def test_calibration_is_told_by_vc_and_family(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = [judged("resnet", "nlp", took) for took in (100, 100, 200)]
    await told(house, *facts, judged("secret", "vision", 100, "start"))
    rows = (await house.op.get("/v1/calibration"))["estimates"]
    assert [(one["vc"], one["family"], one["what"]) for one in rows] == [
        ("nlp", None, "earlier-runs"),
        ("nlp", "resnet", "earlier-runs"),
        ("vision", None, "start"),
        ("vision", "secret", "start"),
    ]
    own = rows[1]
    assert (own["outcomes"], own["held"], own["covered"]) == (3, 2, 0.6667)
    assert own["widened"] > 1
    assert own["error"] == 0.0
    assert own["ranks"] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert len((await house.nlp.get("/v1/calibration"))["estimates"]) == 2
    named = (await house.op.get("/v1/calibration?vc=nlp&family=resnet"))["estimates"]
    assert named == [own]
    monkeypatch.setattr(estimates, "LISTED_MAX", 1)
    cut = await house.op.get("/v1/calibration")
    assert (cut["estimates"], cut["left_out"]) == ([rows[0]], 3)
    metrics = await (await house.op.open("/metrics")).text()
    assert 'skep_estimates_total{outcome="held",vc="nlp",what="earlier-runs"} 2.0' in metrics
    assert 'skep_estimates_total{outcome="missed",vc="nlp",what="earlier-runs"} 1.0' in metrics


@pytest.mark.asyncio
async def test_what_is_not_there_or_not_ones_own_is_refused(house: House) -> None:
    await told(house, judged("secret", "vision", 100))
    await house.nlp.get("/v1/calibration?vc=vision", 403)
    await house.nlp.get("/v1/calibration?family=secret", 404)
    await house.op.get("/v1/calibration?vc=nothing", 404)
    refused = await house.op.get("/v1/calibration?family=secrt", 404)
    assert "did you mean secret?" in refused["error"]["text"]
    await house.nobody.get("/v1/calibration", 401)
