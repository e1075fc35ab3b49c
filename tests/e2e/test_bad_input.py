"""Bad input and faults: each gets its clear reason, and the healthy job beside it ends well."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from nats.errors import MaxPayloadError
from nats.js.errors import APIError

from skep.units import KIB, MIB
from skep.wire import subjects
from skep.wire.spec import SPEC_BYTES_MAX
from tests.e2e.conftest import LOG_BYTES_MAX, Gate, Tenant
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e


class Beside:
    """A healthy job that runs all through a test."""

    def __init__(self, cluster: Embedded, tenant: Tenant, gate: Gate) -> None:
        self._cluster, self._tenant, self._gate = cluster, tenant, gate
        self._restarts = self._restarted()  # Tests of other files may have killed a service.
        self._jobs = [tenant.accepted(tenant.spec(gate.wait))]
        gate.reached()

    def ends_well(self) -> None:
        """Let it end, and check that it did so at its first attempt, and the next job as well."""
        self._jobs.append(self._tenant.accepted(self._tenant.spec(["true"])))
        self._gate.open()
        for job in self._jobs:
            document = self._cluster.ended(job)
            assert document["state"] == "succeeded", document
            assert len(document["attempts"]) == 1, document
        health = self._cluster.get("/v1/health")
        assert health["ok"], health
        assert self._restarted() == self._restarts

    def _restarted(self) -> dict[str, int]:
        return {name: entry["restarts"] for name, entry in self._cluster.pids().items()}


@pytest.fixture(autouse=True)
def beside(cluster: Embedded, vision: Tenant, gates: Callable[[str], Gate]) -> Iterator[Beside]:
    healthy = Beside(cluster, vision, gates("beside"))
    yield healthy
    healthy.ends_well()


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload, path, reason",
    [
        (b"", "$", "not-json"),
        (b"\x00\xff\xfe", "$", "not-json"),
        (b"name: yaml\n", "$", "not-json"),
        (b'{"name": "cut', "$", "not-json"),
        (b"[" * 50_000, "$", "not-json"),
        (b"[]", "$", "wrong-type"),
        (b"{}", "$.name", "missing-key"),
        (b'{"name": 1, "vc": "nlp", "command": ["true"]}', "$.name", "wrong-type"),
        (b'{"name": "a", "vc": "nlp", "command": [7]}', "$.command", "wrong-type"),
        (b'{"name": "a", "vc": "nlp", "command": []}', "$.command", "bad-value"),
        (b'{"name": "a", "vc": "nlp"}', "$.command", "missing-key"),
        (b'{"name": "a", "vc": "nlp", "command": "x", "version": 2}', "$.version", "wrong-version"),
        (b'{"name": "a", "vc": "nlp", "command": "x", "roles": {}}', "$.roles", "not-built"),
    ],
)
def test_a_malformed_spec_is_refused_and_says_where(
    cluster: Embedded, nlp: Tenant, payload: bytes, path: str, reason: str
) -> None:
    problem = nlp.refused(payload)
    assert (problem["path"], problem["reason"]) == (path, reason)
    assert problem["text"]
    over_http = cluster.ask("POST", "/v1/jobs", payload, who="vc-nlp")
    assert over_http.status == 422
    assert over_http.body["error"]["problems"][0]["path"] == path


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b"{}", b'{"job": 17}', b'{"job": "17"}'])
def test_a_malformed_cancellation_is_refused(
    cluster: Embedded, nlp: Tenant, payload: bytes
) -> None:
    async def main() -> dict[str, Any]:
        async with bare_client(cluster.about, nlp.user) as client:
            return (await client.ask(subjects.cancel("nlp"), payload)).verdict

    verdict = asyncio.run(main())
    assert not verdict["accepted"]
    assert verdict["reason"] in {"not-json", "bad-value"}
    assert verdict["problems"][0]["suggestion"] == 'publish {"job": "j17"}'


GARBAGE = (
    b"",
    b"\xff\x00",
    b"{}",
    b"[" * 10_000,
    b'{"type": "unheard-of"}',
    b"null",
    b'{"type": "set-vcs", "vcs": {"nlp": {"gpus": -1}}}',
)


def test_garbage_on_the_services_own_subjects_is_passed_over(cluster: Embedded) -> None:
    """An agent or an operator gone mad: nothing is decided on what cannot be read."""

    async def main() -> None:
        async with bare_client(cluster.about, "node-node-1") as agent:
            for payload in GARBAGE:
                await agent.publish(subjects.node_event("node-1", "exited"), payload)
                await agent.client.publish(subjects.heartbeat("node-1"), payload)
                await agent.client.publish(subjects.report("node-1"), payload)
                await agent.client.publish(subjects.span("node-node-1"), payload)
            await agent.settle()
        async with bare_client(cluster.about, "operator") as operator:
            for payload in GARBAGE:
                await operator.publish(subjects.admin("vcs"), payload)
                await operator.publish(subjects.admin("no-such-verb"), payload)
                await operator.client.publish(
                    subjects.logs("node-1"), payload, reply="_INBOX.operator.x"
                )
            await operator.settle()
        async with bare_client(cluster.about, "allocator") as allocator:
            for payload in GARBAGE:
                await allocator.client.publish(subjects.command("node-1"), payload)
            await allocator.settle()
        async with bare_client(cluster.about, "advisor") as advisor:
            for payload in GARBAGE:
                await advisor.client.publish(subjects.ADVICE_QUEUE, payload)
            await advisor.settle()

    asyncio.run(main())
    assert {vc["vc"] for vc in cluster.get("/v1/vcs")["vcs"]} == {"nlp", "vision"}


def test_an_agent_cannot_speak_for_another_node(cluster: Embedded, nlp: Tenant) -> None:
    told = {"type": "heartbeat", "node": "node-2", "identity": "x", "at": 1}

    async def main() -> list[str]:
        async with bare_client(cluster.about, "node-node-1") as agent:
            await agent.client.publish(subjects.heartbeat("node-1"), json.dumps(told).encode())
            await agent.client.publish(subjects.heartbeat("node-2"), json.dumps(told).encode())
            await agent.settle()
            return agent.violations

    (violation,) = asyncio.run(main())
    assert "heartbeat.node-2" in violation
    assert {node["state"] for node in cluster.get("/v1/nodes")["nodes"]} == {"up"}


@pytest.mark.parametrize(
    "subject", ["skep.v1.submitt.nlp", "skep.v2.submit.nlp", "skep.v1.submit.nlp.more", "submit"]
)
def test_an_unknown_subject_is_answered_by_the_bus(
    cluster: Embedded, nlp: Tenant, subject: str
) -> None:
    async def main() -> list[str]:
        async with bare_client(cluster.about, nlp.user) as client:
            await client.client.publish(subject, b"{}")
            await client.settle()
            return client.violations

    (violation,) = asyncio.run(main())
    assert f'Permissions Violation for Publish to "{subject}"'.lower() in violation.lower()


def test_an_unknown_tenant_is_told_who_exists(cluster: Embedded) -> None:
    async def main() -> dict[str, Any]:
        async with bare_client(cluster.about, "operator") as operator:
            return (await operator.submit({"name": "a", "vc": "vison", "command": "x"})).verdict

    verdict = asyncio.run(main())
    problem = verdict["problems"][0]
    assert (problem["path"], problem["reason"]) == ("$.vc", "unknown-vc")
    assert "nlp, vision" in problem["text"]
    assert problem["suggestion"] == "did you mean `vision`?"


def test_wrong_credentials_are_refused_at_once(cluster: Embedded) -> None:
    url = urlsplit(cluster.about["nats"]["url"])
    assert url.hostname is not None
    login = {"user": "vc-nlp", "pass": "guessed", "verbose": False, "pedantic": False}
    with (
        socket.create_connection((url.hostname, url.port or 0), timeout=120) as connection,
        connection.makefile("rwb") as lines,
    ):
        assert lines.readline().startswith(b"INFO ")
        lines.write(f"CONNECT {json.dumps(login)}\r\nPING\r\n".encode())
        lines.flush()
        assert lines.readline() == b"-ERR 'Authorization Violation'\r\n"
        assert lines.readline() == b""
    headers = {"Authorization": "Bearer guessed"}
    assert cluster.ask("GET", "/v1/jobs", headers=headers).status == 401


def test_a_giant_spec_is_refused_with_its_size(cluster: Embedded, nlp: Tenant) -> None:
    async def main() -> tuple[dict[str, Any], APIError]:
        async with bare_client(cluster.about, nlp.user) as client:
            fat = nlp.spec(["true"], env={"FAT": "x" * SPEC_BYTES_MAX})
            verdict = (await client.submit(fat)).verdict
            huge = nlp.spec(["true"], env={"FAT": "x" * 200 * KIB})
            with pytest.raises(APIError) as refused:
                await client.submit(huge)
            with pytest.raises(MaxPayloadError):
                await client.publish(subjects.submit("nlp"), b"x" * (MIB + 1))
            return verdict, refused.value

    verdict, refused = asyncio.run(main())
    problem = verdict["problems"][0]
    assert (problem["path"], problem["reason"]) == ("$", "too-large")
    assert str(SPEC_BYTES_MAX) in problem["text"]
    assert (refused.code, refused.err_code) == (400, 10054)
    assert "exceeds maximum allowed" in str(refused.description)
    body = json.dumps(nlp.spec(["true"], env={"FAT": "x" * SPEC_BYTES_MAX})).encode()
    assert cluster.ask("POST", "/v1/jobs", body, who="vc-nlp").status == 413


@pytest.mark.parametrize(
    "resources, path, reason, told",
    [
        ({"gpus": 16}, "$.resources", "too-many-gpus", "the cluster has 8"),
        ({"gpus": 2, "workers": 5}, "$.resources", "too-many-gpus", "the cluster has 8"),
        ({"gpus": 5}, "$.resources", "node-too-small", "the largest node has 4 GPUs"),
        ({"gpus": 4, "workers": 2}, "$.resources", "quota-too-small", "`nlp` owns 4"),
        ({"gpu_type": "cpuu"}, "$.resources.gpu_type", "no-such-gpu-type", "there are: cpu"),
        ({"cpus": 4000}, "$.resources", "node-too-small", "CPUs"),
        ({"memory": "900TiB"}, "$.resources", "node-too-small", "bytes of memory"),
        ({"gpus": 0}, "$.resources.gpus", "bad-value", "1 to 16"),
        ({"gpus": 10**30}, "$.resources.gpus", "", ""),
    ],
)
def test_an_impossible_request_is_refused_at_once_with_what_exists(
    nlp: Tenant, resources: dict[str, Any], path: str, reason: str, told: str
) -> None:
    problem = nlp.refused(nlp.spec(["true"], resources=resources))
    assert problem["path"] == path
    assert not reason or problem["reason"] == reason
    assert told in problem["text"]


# --- agents ---------------------------------------------------------------------------------------


def test_a_second_agent_of_a_taken_name_ends_and_the_first_goes_on(
    cluster: Embedded, nlp: Tenant, gates: Callable[[str], Gate], tmp_path: Path
) -> None:
    held = [gates(f"first-{number}") for number in range(4)]
    jobs = [nlp.accepted(nlp.spec(gate.wait)) for gate in held]
    for gate in held:
        gate.reached()
    before = {node["node"]: node for node in cluster.get("/v1/nodes")["nodes"]}
    about = cluster.about["nats"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SKEP_")},
        "SKEP_NATS_URL": about["url"],
        "SKEP_NATS_USER": "node-node-1",
        "SKEP_NATS_PASSWORD": about["users"]["node-node-1"],
        "SKEP_STATE": str(tmp_path / "impostor"),
        "SKEP_NODE": "node-1",
        "SKEP_GPUS": "4",
        "SKEP_DEVICE": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-m", "skep_services.agent"],
        env=environment,
        check=False,
        stderr=subprocess.PIPE,
        timeout=120,
    )
    assert done.returncode == 73
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (refused,) = [line for line in lines if line["event"] == "refused"]
    assert refused["error"] == "another agent named node-1 is alive: give this one another name"
    after = {node["node"]: node for node in cluster.get("/v1/nodes")["nodes"]}
    assert after["node-1"]["state"] == "up"
    assert after["node-1"]["incarnation"] == before["node-1"]["incarnation"]
    for gate, job in zip(held, jobs, strict=True):
        gate.open()
        document = cluster.ended(job)
        assert (document["state"], len(document["attempts"])) == ("succeeded", 1)


@pytest.mark.parametrize(
    "change, told",
    [
        ({"SKEP_NODE": "no de"}, "SKEP_NODE is 'no de'"),
        ({"SKEP_GPUS": "many"}, "SKEP_GPUS"),
        ({"SKEP_PORTS": "5-1"}, "SKEP_PORTS is '5-1'"),
        ({"SKEP_LOG_BYTES_MAX": "64M"}, "SKEP_LOG_BYTES_MAX is '64M'"),
        ({"SKEP_CONTAINER_FOLDERS": "/data:data"}, "SKEP_CONTAINER_FOLDERS has 'data'"),
        ({"SKEP_NATS_URL": ""}, "SKEP_NATS_URL is not set"),
    ],
)
def test_an_agent_with_a_bad_setting_says_which(
    change: dict[str, str], told: str, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "SKEP_NATS_URL": "nats://127.0.0.1:1",
        "SKEP_NATS_USER": "node-x",
        "SKEP_NATS_PASSWORD": "x",
        "SKEP_STATE": str(tmp_path / "state"),
        "SKEP_NODE": "x",
        "SKEP_GPUS": "1",
        **change,
    }
    command = [sys.executable, "-m", "skep_services.agent"]
    done = subprocess.run(
        command, env=environment, check=False, stderr=subprocess.PIPE, timeout=120
    )
    assert done.returncode == 64
    first = json.loads(done.stderr.splitlines()[0])
    assert first["event"] == "bad configuration"
    assert told in first["error"]


# --- jobs -----------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Return whether a process is there and not merely unreaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".part", sys.argv[1])
if len(sys.argv) > 2:
    os.execve("/bin/sleep", ["sleep", "600"], {})
time.sleep(600)
"""


@pytest.mark.parametrize("hides", [False, True], ids=["plain", "emptied-environment"])
@pytest.mark.parametrize("how", ["ends", "is-cancelled"])
def test_a_daemon_does_not_outlive_its_job(
    cluster: Embedded,
    nlp: Tenant,
    gate: Gate,
    tmp_path: Path,
    beside: Beside,
    how: str,
    hides: bool,
) -> None:
    script, note = tmp_path / "daemon.py", tmp_path / "pid"
    script.write_text(DAEMON)
    forks = " ".join([sys.executable, str(script), str(note), *(["hides"] if hides else [])])
    job = nlp.accepted(nlp.spec(f"{forks}; {gate.wait}"))
    until(note.exists, "the daemon's pid")
    pid = int(note.read_text())
    gate.reached()
    assert alive(pid)
    if how == "ends":
        gate.open()
    else:
        assert nlp.cancel(job)["accepted"]
    document = cluster.ended(job)
    assert document["state"] == ("succeeded" if how == "ends" else "cancelled")
    if hides:
        # It bears no mark of its job: it goes at the latest with the last job that ran beside.
        beside.ends_well()
        until(lambda: not alive(pid), f"daemon {pid} is gone")
    else:
        assert not alive(pid)


@pytest.mark.slow
def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(
    cluster: Embedded, nlp: Tenant, gate: Gate
) -> None:
    job = nlp.accepted(nlp.spec(f"trap '' TERM; echo deaf; {gate.wait}; echo never"))
    gate.reached()
    assert nlp.cancel(job)["accepted"]
    document = cluster.ended(job)
    assert (document["state"], document["why"]) == ("cancelled", "cancelled")
    events = cluster.get(f"/v1/jobs/{job}/events")["events"]
    at = {event["kind"]: event["at"] for event in events}
    took_s = (at["job-ended"] - at["job-stopping"]) / 1e9
    assert 9.5 < took_s < 20
    assert cluster.log(job) == "deaf\nhere\n"
    (member,) = document["attempts"][0]["members"]
    assert member["exits"] == [{"rank": 0, "code": -9}]


def test_a_log_that_floods_is_bounded_and_keeps_its_end(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    script = tmp_path / "flood.py"
    script.write_text(
        "import os\n"
        "print('first line', flush=True)\n"
        "for n in range(300):\n"
        "    os.write(1, b'x' * 99_999 + b'\\n')\n"
        # What is written at the very moment of a cut may be lost, or come before the end that is
        # put back: the last line comes when head, note and end are all there.
        f"while not {LOG_BYTES_MAX * 3 // 4} < os.fstat(1).st_size <= {LOG_BYTES_MAX}:\n"
        "    os.sched_yield()\n"
        "print('last line', flush=True)\n"
    )
    job = nlp.accepted(nlp.spec([sys.executable, str(script)]))
    document = cluster.ended(job)
    assert document["state"] == "succeeded"
    node = document["attempts"][0]["members"][0]["node"]
    path = cluster.home / node / "logs" / job / "1" / "rank0.log"
    assert path.stat().st_size <= LOG_BYTES_MAX
    text = cluster.log(job)
    assert text.startswith("first line\n")
    assert text.endswith("last line\n")
    assert "[skep] log limit reached: " in text


@pytest.mark.parametrize(
    "spec, reason, told",
    [
        ({"script": "/no/such/script.py"}, "not-started", "/no/such/script.py does not exist"),
        ({"script": "nowhere.py", "workdir": "/tmp"}, "not-started", "script /tmp/nowhere.py does"),
        ({"command": ["/no/such/program"]}, "not-started", "/no/such/program does not exist"),
        ({"command": ["no-such-program"]}, "not-started", "was not found in PATH"),
        ({"command": ["/etc/passwd"]}, "not-started", "is not executable"),
        ({"command": ["true"], "workdir": "/no/such/folder"}, "not-started", "workdir /no/such"),
        ({"command": "no-such-program"}, "exited-nonzero", "exit status 127"),
    ],
)
def test_what_is_not_there_is_named(
    cluster: Embedded, nlp: Tenant, spec: dict[str, Any], reason: str, told: str
) -> None:
    document = cluster.ended(nlp.accepted({"name": "absent", "vc": "nlp", **spec}))
    assert (document["state"], document["why"]) == ("failed", reason)
    assert told in document["detail"]


def test_one_member_that_cannot_start_ends_the_gang(
    cluster: Embedded, nlp: Tenant, gate: Gate
) -> None:
    command = f"test $RANK = 1 && exit 9; {gate.wait}"
    job = nlp.accepted(nlp.spec(command, resources={"workers": 2, "gpus": 2}))
    document = cluster.ended(job)
    assert (document["state"], document["why"]) == ("failed", "exited-nonzero")
    assert "rank 1: exit status 9" in document["detail"]
    assert cluster.get("/v1/gpus")["gpus"]
