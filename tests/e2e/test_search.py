"""Searches on a cluster of real processes: trials take turns, one of them is the best."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from skep.wire import subjects
from skep.wire.facts import Admitted
from tests.e2e.conftest import Tenant
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parent / "jobs" / "curve.py"
STEPS = 300


def spec(**changes: Any) -> dict[str, Any]:
    """Return a search for the steepest of four made-up curves, two of them at a time."""
    job = {"script": str(SCRIPT), "args": ["{rate}", str(STEPS)]}
    given = {
        "name": "steep",
        "vc": "nlp",
        "metric": "accuracy",
        "direction": "maximize",
        "job": job,
        "space": {"rate": {"log": [0.001, 1.0]}},
        "budget": {"trials": 4},
        "parallel": 2,
        "exclusive": 1,
        "turn": 1,
        "steps": STEPS,
    }
    return {**given, **changes}


def asked(tenant: Tenant, **request: Any) -> dict[str, Any]:
    """Publish a request as a tenant that knows nothing of Skep but its subjects."""

    async def ask() -> dict[str, Any]:
        async with bare_client(tenant.cluster.about, tenant.user) as client:
            payload = json.dumps(request).encode()
            return (await client.ask(f"skep.v1.search.{tenant.vc}", payload)).verdict

    verdict = asyncio.run(ask())
    assert verdict["accepted"], verdict
    return verdict


def found(cluster: Embedded, search: str, query: str = "") -> dict[str, Any]:
    shown: dict[str, Any] = cluster.get(f"/v1/searches/{search}{query}")
    return shown


def over(cluster: Embedded, search: str) -> dict[str, Any]:
    """Return a search once it is over."""
    shown = until(
        lambda: (told := found(cluster, search, "?wait=over"))["state"] == "over" and told,
        f"{search} to be over",
    )
    assert isinstance(shown, dict)
    return shown


def test_trials_take_turns_and_a_killed_service_loses_none(cluster: Embedded, nlp: Tenant) -> None:
    search = asked(nlp, do="begin", spec=spec())["search"]
    until(
        lambda: any(row["stand"] == "suspended" for row in found(cluster, search)["rows"]),
        "a trial that stands while others run",
    )
    cluster.kill("searches")
    shown = over(cluster, search)
    assert (shown["why"], shown["trials"], shown["stands"]) == ("all-tried", 4, {"over": 4})
    rows = shown["rows"]
    assert [(row["end"], row["step"]) for row in rows] == [("done", STEPS)] * 4
    steepest = max(rows, key=lambda row: row["params"]["rate"])
    assert shown["best"]["trial"] == steepest["trial"]
    assert shown["best"]["value"] == 1 - (1 + steepest["params"]["rate"] * STEPS) ** -0.5
    # However often it was submitted, every trial was one job.
    jobs = [row["job"] for row in rows]
    assert len(set(jobs)) == 4
    facts = [fact for _, fact in asyncio.run(cluster.facts(subjects.ADMISSION))]
    mine = [fact.job for fact in facts if isinstance(fact, Admitted) and fact.spec.search == search]
    assert mine == jobs
    told = json.loads(cluster.skep("search", "show", search, "--json"))
    assert told["best"] == shown["best"]
    again = json.loads(cluster.skep("replay", "--json"))["services"]["searches"]
    assert again["equal"] == again["decisions"] > 20, again


def test_all_trials_of_a_search_are_cancelled_at_once(cluster: Embedded, nlp: Tenant) -> None:
    job = {"script": str(SCRIPT), "args": ["{rate}", "100000"]}
    search = asked(nlp, do="begin", spec=spec(job=job, turn="1m"))["search"]
    until(lambda: found(cluster, search)["stands"] == {"running": 2}, "two trials to run")
    asked(nlp, do="cancel", search=search)
    shown = over(cluster, search)
    assert (shown["why"], shown["trials"]) == ("cancelled", 2)
    for row in shown["rows"]:
        assert row["end"] == "cancelled"
        assert cluster.ended(row["job"])["state"] == "cancelled"
