"""Services on a cluster of real processes: health, replacement, update and drain under load."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

SCRIPT = Path(__file__).parent / "jobs" / "serving.py"


def spec(word: str = "one", **changes: Any) -> dict[str, Any]:
    job = {"command": [sys.executable, str(SCRIPT), word]}
    given = {"name": "llm", "vc": "nlp", "job": job, "replicas": 2, "health": "/health"}
    return {**given, "drain": 10, **changes}


def show(cluster: Embedded, service: str, query: str = "") -> dict[str, Any]:
    shown: dict[str, Any] = cluster.get(f"/v1/services/{service}{query}")
    return shown


def whole(cluster: Embedded, service: str) -> dict[str, Any]:
    """Return a service once all of its replicas are ready."""

    def look() -> dict[str, Any] | None:
        found = show(cluster, service, "?wait=ready&timeout_s=10")
        ready = found["ready"] == found["wanted"] == found["replicas"]
        return found if ready and not found["updating"] else None

    found = until(look, f"{service} to be whole")
    assert found is not None
    return found


def put(cluster: Embedded, method: str, path: str, body: Any, status: int) -> Any:
    answer = cluster.ask(method, path, json.dumps(body).encode(), who="vc-nlp")
    assert answer.status == status, answer
    return answer.body


class Calls:
    """Requests one after another, until it is told to stop."""

    def __init__(self, cluster: Embedded, path: str) -> None:
        self.answers: list[Any] = []
        self._cluster, self._path = cluster, path
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._go) for _ in range(3)]

    def _go(self) -> None:
        while not self._stop.is_set():
            self.answers.append(self._cluster.ask("GET", self._path, who="vc-nlp"))

    def __enter__(self) -> Calls:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_a_service_answers_through_a_lost_replica_an_update_and_its_drain(
    cluster: Embedded,
) -> None:
    begun = put(cluster, "POST", "/v1/services", spec(), 201)
    service = begun["service"]
    whole(cluster, service)
    call = "/v1/services/nlp.llm/http"
    headers = cluster.ask("GET", f"{call}/headers", who="vc-nlp").body["headers"]
    assert "Authorization" not in headers
    assert put(cluster, "POST", f"{call}/sum?x=1", "ab", 200) == {"bytes": 4, "sum": 263}

    with Calls(cluster, f"{call}/slow?s=0.02") as calls:
        # A replica that dies amid a request is replaced, and others answer meanwhile.
        put(cluster, "POST", f"{call}/die", "", 502)
        until(lambda: show(cluster, service)["ready"] < 2, "a lost replica")
        whole(cluster, service)
        put(cluster, "PUT", f"/v1/services/{service}", spec("two"), 202)
        until(lambda: show(cluster, service)["revision"] == 2, "the update")
        whole(cluster, service)
    assert {answer.status for answer in calls.answers} == {200}
    assert {answer.body["word"] for answer in calls.answers} == {"one", "two"}
    assert calls.answers[-1].body["word"] == "two"

    # With none at times, all end when nothing is asked, and a request begins one and waits for it.
    none = {"replicas": 0, "replicas_max": 2, "requests_per_s": 100, "idle": 3}
    put(cluster, "PUT", f"/v1/services/{service}", spec("two", **none), 202)
    until(lambda: show(cluster, service)["replicas"] == 0, "the idle time")
    answer = cluster.ask("POST", f"{call}/sum", b"ab", who="vc-nlp")
    assert (answer.status, answer.body) == (200, {"bytes": 2, "sum": 195})

    # What is open when it is stopped is answered.
    with Calls(cluster, f"{call}/slow?s=1"):
        put(cluster, "DELETE", f"/v1/services/{service}", {}, 202)
    over = show(cluster, service, "?wait=over")
    assert (over["state"], over["why"]) == ("over", "cancelled")


def test_a_job_that_trains_leaves_a_replica_whose_requests_take_too_long(cluster: Embedded) -> None:
    """Real processes share a GPU by a share of it each; latency is that of real requests."""
    part = {"resources": {"gpus": 0.5}}
    job = {**spec()["job"], **part}
    asked = spec(name="bounded", job=job, replicas=1, latency_ms=100)
    service = put(cluster, "POST", "/v1/services", asked, 201)["service"]
    (row,) = whole(cluster, service)["rows"]
    trains = {"name": "beside", "vc": "nlp", "command": "sleep 600", **part}
    beside = put(cluster, "POST", "/v1/jobs", trains, 201)["job"]

    def shown(job: str) -> dict[str, Any]:
        found: dict[str, Any] = cluster.get(f"/v1/jobs/{job}")
        return found

    until(lambda: shown(beside)["beside"] == [row["job"]], f"{beside} beside {row['job']}")
    with Calls(cluster, "/v1/services/nlp.bounded/http/slow?s=0.3") as calls:
        until(lambda: row["job"] not in shown(beside)["beside"], f"{beside} to leave")
    assert {answer.status for answer in calls.answers} == {200}
    assert show(cluster, service)["rows"][0]["job"] == row["job"]
    for name in (beside, row["job"]):
        why = cluster.get(f"/v1/jobs/{name}/why")
        assert "latency-above" in [each["reason"] for each in why["reasons"]], why
    put(cluster, "DELETE", f"/v1/jobs/{beside}", {}, 202)
    put(cluster, "DELETE", f"/v1/services/{service}", {}, 202)
    assert show(cluster, service, "?wait=over")["state"] == "over"
