"""Windows in a real cluster: what would run into one waits and says so, and begins after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded

pytestmark = pytest.mark.e2e

LASTS_S = 2


def reserve(cluster: Embedded, name: str, begins: str, lasts: str) -> dict[str, Any]:
    nodes = ",".join(row["node"] for row in cluster.get("/v1/nodes")["nodes"])
    words = ("--nodes", nodes, "--from", begins, "--for", lasts, "--maintenance", "--name", name)
    window: dict[str, Any] = json.loads(cluster.skep("reserve", "create", *words, "--json"))
    return window


def test_a_job_waits_for_a_window_that_it_would_run_into(cluster: Embedded) -> None:
    tenant = Tenant(cluster, "nlp")
    reserve(cluster, "later", "1h", "1h")
    gang = tenant.spec("true", resources={"workers": 2, "gpus": 2}, limits={"time": 60})
    try:
        long = tenant.accepted(tenant.spec("true", limits={"time": 7200}))
        # The gang is over before the window, comes later, and is not held up.
        ran = cluster.ended(tenant.accepted(gang))
        assert (ran["state"], ran["attempt"]) == ("succeeded", 1)
        assert "(waits-for-window)" in cluster.skep("why", long)
        assert cluster.get(f"/v1/jobs/{long}")["state"] == "queued"
        # Another window is open when the first is given up: the job begins when it is over.
        window = reserve(cluster, "open", "now", f"{LASTS_S}s")
        cluster.skep("reserve", "cancel", "later")
        done = cluster.ended(long)
        assert done["state"] == "succeeded"
        assert done["bound_at"] >= window["ends"] > window["begins"]
        assert cluster.get("/v1/windows")["windows"] == []
    finally:
        for row in cluster.get("/v1/windows")["windows"]:
            body = json.dumps({"name": row["name"]}).encode()
            cluster.ask("POST", "/v1/admin/unreserve", body)
