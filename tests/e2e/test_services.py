"""Services on a cluster of real processes: health, replacement, update and drain under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skep.wire import subjects
from skep_services.adapters.nats_access import SERVICES_ACCOUNT, service_users
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_server import free_port
from skep_services.ports import RefusedError
from skep_services.supervisor.table import nats_config_path, tokens_path
from tests.support.embedded import DIRECT, Embedded, until

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


class SecondGateway:
    """A gateway beside that of an embedded cluster, with an identity of its own on the bus."""

    NAME = "gateway-2"

    def __init__(self, cluster: Embedded, state: Path) -> None:
        about, home = cluster.about, str(cluster.home)
        self._token = about["gateway"]["tokens"]["vc-nlp"]
        password = "second" * 8
        grants = next(user.grants for user in service_users(2) if user.name == self.NAME)
        permissions = {
            "publish": {"allow": list(grants.publish)},
            "subscribe": {"allow": list(grants.subscribe)},
        }
        user = {"user": self.NAME, "password": password, "permissions": permissions}
        path = Path(nats_config_path(home))
        text, mark = path.read_text(), '"users": ['
        at = text.index(mark, text.index(SERVICES_ACCOUNT)) + len(mark)
        path.write_text(f"{text[:at]}{json.dumps(user)}, {text[at:]}")
        os.kill(cluster.entry("nats")["pid"], signal.SIGHUP)
        self.port = free_port()
        environment = {
            **cluster.environment,
            "SKEP_NATS_URL": about["nats"]["url"],
            "SKEP_NATS_USER": self.NAME,
            "SKEP_NATS_PASSWORD": password,
            "SKEP_STATE": str(state),
            "SKEP_LISTEN": f"127.0.0.1:{self.port}",
            "SKEP_TOKENS": tokens_path(home),
        }
        command = [sys.executable, "-m", "skep_services.gateway"]
        state.mkdir()
        with open(state / "log", "wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Return status and JSON of an answer.

        Raises:
            OSError: There is none.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=body, method=method
        )
        request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with DIRECT.open(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def knows(self, service: str) -> bool:
        try:
            return self.ask("GET", f"/v1/services/{service}")[0] == 200
        except OSError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_two_gateways_serve_a_service_and_one_that_dies_loses_its_requests_alone(
    cluster: Embedded, tmp_path: Path
) -> None:
    none: dict[str, Any] = {"replicas": 0, "replicas_max": 2, "requests_per_s": 100, "idle": 2}
    service = put(cluster, "POST", "/v1/services", spec(name="both", **none), 201)["service"]
    second, call = SecondGateway(cluster, tmp_path / "second"), "/v1/services/nlp.both/http"
    try:
        until(lambda: second.knows(service), "the second gateway")
        # What waits at either begins a replica, and both send to it.
        assert second.ask("POST", f"{call}/sum", b"ab") == (200, {"bytes": 2, "sum": 195})
        assert put(cluster, "POST", f"{call}/sum", "ab", 200) == {"bytes": 4, "sum": 263}
        with ThreadPoolExecutor(2) as pool:
            theirs = pool.submit(second.ask, "GET", f"{call}/slow?s=30")
            until(lambda: second.ask("GET", f"/v1/services/{service}")[1]["open"], "one open")
            # Longer than the idle time: that one is open at the other gateway keeps the replica.
            ours = pool.submit(cluster.ask, "GET", f"{call}/slow?s=6", who="vc-nlp")
            assert ours.result().status == 200
            assert show(cluster, service)["ready"] == 1
            ours = pool.submit(cluster.ask, "GET", f"{call}/slow?s=3", who="vc-nlp")
            until(lambda: show(cluster, service)["open"], "another open")
            second.kill()
            with pytest.raises(OSError, match=r".*"):
                theirs.result()
            assert ours.result().status == 200
        # A gateway that is not heard keeps nothing.
        until(lambda: show(cluster, service)["replicas"] == 0, "the idle time")
    finally:
        second.kill()
    put(cluster, "DELETE", f"/v1/services/{service}", {}, 202)
    assert show(cluster, service, "?wait=over")["state"] == "over"


def test_an_upgrade_gives_a_bus_of_an_earlier_version_the_rights_of_services(
    cluster: Embedded,
) -> None:
    path = Path(nats_config_path(str(cluster.home)))
    text = path.read_text()
    for subject in (subjects.served("gateway"), subjects.SERVED, subjects.LATE):
        assert f'"{subject}"' in text
        text = text.replace(f'"{subject}"', '"skep.v1.nothing"')
    path.write_text(text)
    os.kill(cluster.entry("nats")["pid"], signal.SIGHUP)
    rights = {"gateway": subjects.served("gateway"), "searches": subjects.LATE}
    until(lambda: not any(may_say(cluster, *one) for one in rights.items()), "the old rights")
    cluster.skep("upgrade")
    for identity, subject in rights.items():
        assert may_say(cluster, identity, subject)
    for name in ("searches", "allocator"):  # Services are begun anew after it.
        pid = cluster.entry(name)["pid"]
        cluster.kill(name)
        cluster.wait_back(name, pid)
    service = put(cluster, "POST", "/v1/services", spec(name="after"), 201)["service"]
    whole(cluster, service)
    put(cluster, "DELETE", f"/v1/services/{service}", {}, 202)


def may_say(cluster: Embedded, identity: str, subject: str) -> bool:
    """Return whether the bus takes a message of an identity on a subject."""

    async def ask() -> bool:
        nats = cluster.about["nats"]
        options = LinkOptions(
            servers=(nats["url"],), identity=identity, password=nats["users"][identity]
        )
        link = await Link.connect(options, on_fatal=lambda _: None)
        try:
            await link.call(subject, b"{}", {}, 0.5)
        except RefusedError:
            return False
        finally:
            await link.close()
        return True

    return asyncio.run(ask())
