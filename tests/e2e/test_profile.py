"""A real PyTorch job shows what it trains, and what is measured of it outlives the advisor."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from skep.wire import codec, subjects
from skep.wire.profile import ProfileMeasured
from tests.e2e.conftest import JOBS, Tenant
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

WITHIN_S = 180.0
FAMILY = "small-net"


def measured(cluster: Embedded) -> list[ProfileMeasured]:
    """Return what the advisor has recorded of the family."""
    found = []
    for one in asyncio.run(cluster.records(subjects.PROFILES)):
        record = codec.read(one.subject, one.payload, one.headers, one.sequence, one.at)
        assert isinstance(record, codec.Facts), record
        found += [each for each in record.facts if isinstance(each, ProfileMeasured)]
    return [each for each in found if each.family == FAMILY]


def models(cluster: Embedded, path: str = "") -> list[dict[str, Any]]:
    reply = cluster.ask("GET", f"/v1/models{path}")
    found: list[dict[str, Any]] = reply.body["models"] if reply.status == 200 else []
    return found


@pytest.mark.nightly
def test_a_job_is_measured_and_a_restarted_advisor_knows_it(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    command = [sys.executable, str(JOBS / "small_net.py"), str(stop)]
    wanted = nlp.spec(command, resources={"gpus": 1}, size={"family": FAMILY})
    job = nlp.accepted(wanted)
    (model,) = until(lambda: models(cluster, f"/{FAMILY}"), "the job is measured", WITHIN_S)
    shown, (point,) = model["fingerprint"], model["measured"]
    assert (shown["parameters"], shown["gradient_bytes"]) == (49, 196)
    assert (shown["dtypes"], shown["batch"]) == (["float32"], [20, 4])
    assert shown["torch"].startswith("2.")
    assert (point["gpus"], point["nodes"], point["batch"], point["jobs"]) == (1, 1, 20, 1)
    assert 20_000_000 < point["p10_ns"] <= point["p50_ns"] <= point["p90_ns"]
    assert point["samples"] >= 8
    assert model["model"] == FAMILY
    (fact,) = measured(cluster)
    assert (fact.job, fact.attempt, fact.shared) == (job, 1, False)

    pid = cluster.entry("advisor")["pid"]
    cluster.kill("advisor")
    cluster.wait_back("advisor", pid)
    (again,) = models(cluster, f"/{FAMILY}")
    assert again == model
    second = nlp.accepted({**wanted, "size": {}})

    def other() -> dict[str, Any] | None:
        named = f"~{shown['shapes']}"  # Other tests' jobs are measured too.
        return next((one for one in models(cluster) if one["model"] == named), None)

    # It names no family, so it is news: the advisor that began anew goes on measuring.
    unnamed = until(other, "the second job is measured", WITHIN_S)
    (borrows,) = models(cluster, f"/{unnamed['model']}")
    assert borrows["borrowed_from"]["model"] == FAMILY
    assert borrows["borrowed_from"]["why"] == "same-fingerprint"
    assert measured(cluster)[0] == fact, "what was recorded stays"

    printed = cluster.skep("speeds", "--measured")
    assert FAMILY in printed
    told = json.loads(cluster.skep("speeds", "--measured", FAMILY, "--json"))
    assert told["models"][0]["measured"][0]["jobs"] == 1
    stop.touch()
    assert [cluster.ended(one)["state"] for one in (job, second)] == ["succeeded"] * 2
