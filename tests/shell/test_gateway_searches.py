"""Searches over HTTP: their log as the gateway tells it, and what is asked of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.wire.codec import Facts
from skep.wire.facts import End
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchFact
from skep_services.gateway import searches
from skep_services.gateway.intake import Intake
from skep_services.gateway.searches import SearchesView, summary, trial_row
from skep_services.gateway.watch import Watch
from tests.gateway_kit import House, error, opened
from tests.kit import T0
from tests.search_kit import World, tree

OUTSIDE = {"sampler": "client"}


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


def view_of(world: World) -> SearchesView:
    """Return what the gateway makes of a world's log, as it is stored."""
    view = SearchesView(Watch(), Intake())
    raw = msgspec.json.encode(world.driver.facts)
    facts = msgspec.json.decode(raw, type=tuple[SearchFact, ...])
    view.apply(Facts(service="searches", at=T0, facts=facts))
    return view


def rows(view: SearchesView, world: World, name: str = "s1") -> list[dict[str, Any]]:
    found = view.find(name)
    assert found is not None
    return [trial_row(view, found[0], trial, world.now) for trial in found[0].trials.values()]


def test_curves_are_kept_when_trials_and_searches_are_over() -> None:
    world = World()
    world.begin(parallel=1, budget={"trials": 2}, direction="minimize", metric="accuracy")
    world.settle()
    for number, low in ((1, 0.3), (2, 0.2)):
        job = world.job_of(number)
        for step in range(1, 5):
            world.measure(job, step * 10, low + 0.1 / step)
        running = rows(view_of(world), world)[number - 1]
        assert (running["stand"], running["end"], running["step"]) == ("running", None, 40)
        world.end(job, End.SUCCEEDED, Reason.SUCCEEDED, step=50, value=low)
        world.settle()
    view = view_of(world)
    found = view.find("s1")
    assert found is not None
    told = summary(*found, world.now)
    assert (told["state"], told["why"], told["stands"]) == ("over", "all-tried", {"over": 2})
    assert (told["best"]["trial"], told["best"]["value"], told["best"]["step"]) == (2, 0.2, 50)
    first = rows(view, world)[0]
    assert [step for step, _ in first["points"]] == [10, 20, 30, 40, 50]
    assert (first["end"], first["why"], first["value"]) == ("done", "succeeded", 0.3)
    assert first["promise"] == pytest.approx(0.3, abs=0.1)
    assert [one[0].search for one in view.listed("", "over")] == ["s1"]
    assert view.listed("", "active") == view.listed("vision", "all") == []


def test_of_searches_that_are_over_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "OVER_MAX", 2)
    world = World()
    names = [world.begin(**OUTSIDE) for _ in range(3)]
    for name in names:
        world.ask(do="cancel", search=name)
    view = view_of(world)
    assert [one[0].search for one in view.listed("nlp", "all")] == names[1:]
    assert view.find(names[0]) is None


@pytest.mark.asyncio
async def test_a_search_is_begun_asked_told_and_cancelled(house: House) -> None:
    begun = await house.nlp.json("POST", "/v1/searches", 201, tree(**OUTSIDE), Idempotency_Key="k")
    name = begun["search"]
    assert begun == {"search": name, "accepted": True, "repeated": False}
    again = await house.nlp.json("POST", "/v1/searches", 201, tree(**OUTSIDE), Idempotency_Key="k")
    assert (again["search"], again["accepted"]) == (name, True)
    asked = {"params": {"lr": 0.1}, "outside": True}
    trial = await house.nlp.json("POST", f"/v1/searches/{name}/trials", 201, asked)
    async with house.nobody.open("/metrics") as answer:
        text = await answer.text()
    assert 'skep_searches{vc="nlp"} 1.0' in text
    assert 'skep_search_trials{stand="outside",vc="nlp"} 1.0' in text
    assert (trial["trial"], trial["params"]) == (1, {"lr": 0.1})
    path = f"/v1/searches/{name}/trials/1"
    for step, value in ((10, 0.5), (20, 0.6)):
        await house.nlp.json("POST", path, 200, {"step": step, "value": value})
    await house.nlp.json("POST", path, 200, {"over": "done"})
    await house.nlp.json("DELETE", f"/v1/searches/{name}", 202)
    shown = await house.op.get(f"/v1/searches/{name}?wait=over")
    assert (shown["why"], shown["best"]["value"], shown["trials"]) == ("cancelled", 0.6, 1)
    assert shown["rows"][0]["points"] == [[10, 0.5], [20, 0.6]]
    assert shown["spec"]["metric"] == "accuracy"
    listed = await house.nlp.get("/v1/searches?state=over")
    assert [one["search"] for one in listed["searches"]] == [name]
    assert (await house.nlp.get("/v1/searches?state=active"))["searches"] == []
    gone = await house.nlp.json("DELETE", f"/v1/searches/{name}", 409)
    assert error(gone)[0] == "already-ended"


@pytest.mark.asyncio
async def test_what_is_wrong_is_refused_and_others_searches_are_unknown(house: House) -> None:
    begun = await house.nlp.json("POST", "/v1/searches", 201, tree(**OUTSIDE))
    path = f"/v1/searches/{begun['search']}"
    for who, status, spec, reason in (
        (house.nlp, 422, tree(metrik="x"), "unknown-key"),
        (house.vision, 403, tree(), "wrong-vc"),
        (house.nlp, 422, b"no", "not-json"),
    ):
        assert error(await who.json("POST", "/v1/searches", status, spec))[0] == reason
    for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/trials")):
        assert error(await house.vision.json(method, where, 404))[0] == "unknown-search"
    assert (await house.vision.get("/v1/searches"))["searches"] == []
    for method, where, status, body, reason in (
        ("POST", f"{path}/trials", 422, {"params": {"rl": 1.0}}, "unknown-key"),
        ("POST", f"{path}/trials", 422, {"outsde": True}, "unknown-key"),
        ("POST", f"{path}/trials", 400, b"no", "not-json"),
        ("POST", f"{path}/trials/7", 404, {"value": 1.0}, "unknown-trial"),
        ("POST", f"{path}/trials/x", 404, {"value": 1.0}, "unknown-trial"),
        ("GET", "/v1/searches/s9", 404, None, "unknown-search"),
        ("GET", "/v1/searches?state=running", 400, None, "bad-value"),
    ):
        assert error(await house.nlp.json(method, where, status, body))[0] == reason
