"""A virtual cluster with a preemptive order: a short job overtakes a long one that runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Gate, Tenant
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

USUAL = {"nlp": {"gpus": 4}, "vision": {"gpus": 4}}


def under(cluster: Embedded, vcs: dict[str, Any], policy: str) -> None:
    """Publish virtual clusters, and return once they are in force."""
    reply = cluster.ask("POST", "/v1/admin/vcs", json.dumps({"vcs": vcs}).encode())
    assert reply.status == 202, reply

    def look() -> bool:
        rows = cluster.get("/v1/usage")["vcs"]
        return any(row["vc"] == "nlp" and row["policy"] == policy for row in rows)

    until(look, f"nlp under {policy}")


@pytest.fixture
def srtf(cluster: Embedded) -> Iterator[Embedded]:
    """The shared cluster, with the shortest job first in `nlp`."""
    under(cluster, {**USUAL, "nlp": {"gpus": 4, "policy": "srtf"}}, "srtf")
    yield cluster
    for row in cluster.get("/v1/jobs?state=active")["jobs"]:
        cluster.ask("DELETE", f"/v1/jobs/{row['job']}")
    under(cluster, USUAL, "fifo")


def test_a_short_job_overtakes_a_long_one(
    srtf: Embedded, nlp: Tenant, gates: Callable[[str], Gate]
) -> None:
    gate = gates("long")
    wanted = {"resources": {"gpus": 4}}
    long = nlp.accepted(nlp.spec(gate.wait, **wanted, size={"run_time": "1h"}))
    gate.reached()
    short = nlp.accepted(nlp.spec("echo short", **wanted, size={"run_time": 5}))
    assert srtf.ended(short)["state"] == "succeeded"
    gate.open()
    done = srtf.ended(long)
    assert done["state"] == "succeeded"
    assert [each["ranked"] for each in done["attempts"]] == ["shortest-remaining"] * 2
    assert "preempted-by-policy" in srtf.skep("show", long, "--json")
