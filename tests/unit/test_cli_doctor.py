"""`skep doctor`: each check, well and ill."""

from __future__ import annotations

import json
import os
import re
import time
from argparse import Namespace
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skep_services.cli import doctor
from skep_services.cli.checks import FAIL, OK, WARN, Check
from skep_services.cli.client import Client, Target
from skep_services.cli.main import main
from skep_services.supervisor import home
from tests.cli_kit import FakeGateway, fake_gateway
from tests.tls_kit import Certificates

OWN = {"pid": os.getpid(), "start_ticks": home.start_ticks(os.getpid())}


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.delenv("SKEP_API", raising=False)
        monkeypatch.delenv("SKEP_TOKEN", raising=False)
        monkeypatch.setenv("SKEP_HOME", str(tmp_path))
        tmp_path.chmod(0o700)
        well = {"ok": True, "epoch": 2, "facts": 7, "inbox": 0}
        ill = {"ok": False, "error": "does not answer"}
        made.on("GET /v1/health", {"ok": False, "services": {"admission": well, "node-n1": ill}})
        made.on("GET /v1/vcs", {"vcs": []})
        yield made


def write_cluster(folder: Path, url: str, **running: Any) -> None:
    cluster = {
        "version": 1,
        "gateway": {"url": url, "tokens": {"operator": "op"}},
        "supervisor": {**OWN, "state": "running", **running},
    }
    home.write_json(home.cluster_path(str(folder)), cluster)


def child(**changes: Any) -> dict[str, Any]:
    return {**OWN, "restarts": 0, "state": "ready", "exit": None, "detail": "", **changes}


def test_machine_with_everything(tmp_path: Path) -> None:
    checks = {check.name: check for check in doctor.machine_checks(str(tmp_path))}
    assert checks["python"].level == OK
    assert checks["nats-server"].level == OK
    assert checks["clock"].level == OK
    assert all(check.todo for check in checks.values() if check.level != OK)
    assert all(not check.todo for check in checks.values() if check.level == OK)


def test_programs_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "none"))
    check = doctor.check_nats()
    assert (check.level, "not an executable file" in check.todo) == (FAIL, True)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(broken))
    assert doctor.check_nats().level == FAIL
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert doctor.check_torch().level == WARN
    monkeypatch.setattr(doctor, "PYTHON_MIN", (9, 0))
    assert doctor.check_python().level == FAIL


def test_state_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert doctor.check_folder(str(tmp_path)).level == OK
    assert "made by `skep up`" in doctor.check_folder(str(tmp_path / "a" / "b")).text
    tmp_path.chmod(0o755)
    assert "chmod 700" in doctor.check_folder(str(tmp_path)).todo
    if os.getuid() != 0:
        assert doctor.check_folder("/proc/1").level == FAIL


def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def free(count: int, inodes: int = 9) -> Check:
        status = SimpleNamespace(f_bavail=count, f_frsize=1, f_files=9, f_favail=inodes)
        monkeypatch.setattr(os, "statvfs", lambda _: status)
        return doctor.check_disk(str(tmp_path / "sub"))

    assert free(20 * 2**30).level == OK
    assert free(5 * 2**30).level == WARN
    assert free(2**20).level == FAIL
    assert "no inodes" in free(20 * 2**30, inodes=0).text


def test_slow_or_failing_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "SYNC_SLOW_S", -1.0)
    assert doctor.check_sync(str(tmp_path)).level == WARN

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    assert doctor.check_sync(str(tmp_path)).level == FAIL


def test_memory_files_and_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SimpleNamespace(f_bavail=2**30, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _: shared)
    monkeypatch.setattr(doctor, "_meminfo", lambda _: 8 * 2**30)
    assert doctor.check_memory().level == OK
    shared.f_bavail = 1
    assert "--shm-size" in doctor.check_memory().todo
    monkeypatch.setattr(doctor, "_meminfo", lambda _: 2**20)
    assert doctor.check_memory().level == WARN
    monkeypatch.undo()
    assert doctor._meminfo("MemTotal")
    assert doctor._meminfo("Nonsense") is None
    monkeypatch.setattr(doctor, "FILES_MIN", 2**62)
    assert doctor.check_files().level == WARN
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
    assert doctor.check_clock().level == FAIL


def test_processes_of_the_state_folder(gateway: FakeGateway, tmp_path: Path) -> None:
    write_cluster(tmp_path, gateway.url)
    children = {
        "nats": child(),
        "admission": child(restarts=5, detail="killed by SIGKILL"),
        "allocator": child(state="stopped", pid=0, detail="exit code 72: its log is corrupt"),
        "advisor": child(state="backoff", pid=0, detail="exit code 1"),
        "gateway": child(state="starting"),
        "node-1": child(pid=0),
    }
    home.write_json(home.pids_path(str(tmp_path)), children)
    checks = {check.name: check for check in doctor.supervised_checks(str(tmp_path))}
    assert checks["supervisor"].text == f"running, pid {os.getpid()}"
    levels = {name: checks[f"process {name}"].level for name in children}
    assert levels == {
        "nats": OK,
        "admission": WARN,
        "allocator": FAIL,
        "advisor": FAIL,
        "gateway": WARN,
        "node-1": FAIL,
    }
    assert "its log is corrupt" in checks["process allocator"].text
    assert "admission/service.log" in checks["process admission"].todo


def test_supervisor_that_failed_or_died(gateway: FakeGateway, tmp_path: Path) -> None:
    write_cluster(tmp_path, gateway.url, state="failed", error="stream SUBMIT is gone")
    (check, *_) = doctor.supervised_checks(str(tmp_path))
    assert (check.level, check.text) == (FAIL, "stream SUBMIT is gone")
    write_cluster(tmp_path, gateway.url, pid=0)
    (check, *_) = doctor.supervised_checks(str(tmp_path))
    assert (check.level, check.text, check.todo) == (FAIL, "not running", "skep up")
    Path(home.pids_path(str(tmp_path))).write_text("{")
    assert list(doctor.supervised_checks(str(tmp_path)))[-1].name == "processes"


def test_services(gateway: FakeGateway, tmp_path: Path) -> None:
    client = Client(Target(gateway.url, "op", str(tmp_path)), 0.0)
    checks = {check.name: check for check in doctor.service_checks(client)}
    assert checks["API"].level == WARN
    assert checks["admission"].text == "epoch 2, 7 facts, 0 waiting"
    assert checks["node-n1"].todo.endswith("/n1/service.log")
    assert checks["token"].level == OK
    gateway.refuse("GET /v1/vcs", 401, "unauthorized", "a token is needed")
    elsewhere = Client(Target(gateway.url, "op", ""), 0.0)
    checks = {check.name: check for check in doctor.service_checks(elsewhere)}
    assert checks["token"].level == FAIL
    assert checks["node-n1"].todo == "its log says why: the log of n1"
    gateway.refuse("GET /v1/health", 500, "broken", "broken")
    assert [check.level for check in doctor.service_checks(client)] == [FAIL]


def test_clock_skew(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000.0
    ahead = doctor.clock_skew_s(formatdate(now + 60, usegmt=True), now)
    assert ahead == 60.5
    assert doctor.clock_skew_s("", now) is None
    monkeypatch.setattr(doctor, "clock_skew_s", lambda date, now_s: -60.0)
    client = Client(Target(gateway.url, "op", ""), 0.0)
    (skew,) = [check for check in doctor.service_checks(client) if check.name == "clock skew"]
    assert skew.text == "-60 s between the gateway and here"


def test_certificates_are_told_before_they_end(tmp_path: Path) -> None:
    issuer = Certificates(tmp_path)
    # A little later than now, as certificates have whole seconds and take a while to make.
    now = time.time() + 60

    def found() -> dict[str, list[tuple[str, str]]]:
        told: dict[str, list[tuple[str, str]]] = {}
        for check in doctor.certificate_checks(str(tmp_path), now):
            told.setdefault(check.level, []).append((check.name, check.text))
            assert bool(check.todo) == (check.level != OK)
        return told

    issuer.give("server", "localhost", days=200)
    (tmp_path / "server" / "not-a-certificate").write_text("?")
    # The authority's, the server's, and what it believes; keys are passed over.
    (good,) = found()[OK]
    assert good == (
        "certificates",
        f"3 certificates, the first ends in 199 days ({tmp_path}/server/cert.pem)",
    )
    issuer.give("soon", days=20)
    issuer.aged(40).give("late", days=30)
    (tmp_path / "broken.pem").write_text("?")
    told = found()
    assert [name for name, _ in told[WARN]] == ["certificate"]
    assert told[WARN][0][1] == f"soon ({tmp_path}/soon/cert.pem) ends in 19 days"
    assert sorted(text for _, text in told[FAIL])[1] == (
        f"late ({tmp_path}/late/cert.pem) expired 10 days ago"
    )
    assert any("broken.pem: no certificate" in text for _, text in told[FAIL])


@pytest.mark.parametrize(
    "url, level, text",
    [
        ("nats://127.0.0.1:4222", OK, "off: the bus serves this machine only"),
        ("tls://10.0.0.1:4222,tls://[fd00::1]:4222", OK, "on"),
        ("nats://[::1]:4222,nats://10.0.0.1:4222", WARN, "off, and .* is another machine's"),
    ],
)
def test_whether_it_is_encrypted_is_told(tmp_path: Path, url: str, level: str, text: str) -> None:
    home.write_json(home.cluster_path(str(tmp_path)), {"version": 1, "nats": {"url": url}})
    (check,) = doctor.encryption_checks(str(tmp_path), time.time())
    assert (check.name, check.level) == ("encryption", level)
    assert re.fullmatch(text, check.text)


def test_no_cluster_or_a_damaged_one(gateway: FakeGateway, tmp_path: Path) -> None:
    arguments = Namespace(home=None)
    cluster, port = doctor.cluster_checks(arguments)
    assert (cluster.level, cluster.todo, port.level) == (WARN, "skep up", OK)
    (tmp_path / "cluster.json").write_text("{")
    cluster, _ = doctor.cluster_checks(arguments)
    assert (cluster.level, "--wipe" in cluster.todo) == (FAIL, True)


def test_command(gateway: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cluster(tmp_path, gateway.url)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "\nnode-n1: its log says why" in out
    assert main(["doctor", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert {"name", "level", "text", "todo"} == set(answer["checks"][0])


def test_well_cluster(
    gateway: FakeGateway,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "machine_checks", lambda home: iter(()))
    gateway.on("GET /v1/health", {"ok": True, "services": {}})
    write_cluster(tmp_path, gateway.url)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("all is well\n")


def test_tenants_near_their_limits_are_shown(gateway: FakeGateway) -> None:
    text = "VC nlp has 16 of 16 event streams open"
    gateway.on("GET /v1/limits", {"near": [text]})
    client = Client(Target(gateway.url, "op", ""), 0.0)
    (check,) = doctor.limit_checks(client)
    assert (check.name, check.level, check.text) == ("limits", WARN, text)
    gateway.refuse("GET /v1/limits", 404, "not-found", "no such page")
    assert list(doctor.limit_checks(client)) == []


def test_messages_that_were_passed_over_are_shown() -> None:
    health = {"passed_over": 2, "passed_latest": "Submission SUBMIT/2/0: ValueError: a bug"}
    (check,) = doctor.oddity_checks("admission", health, "the log")
    assert check.level == WARN
    assert check.text == (
        "2 messages passed over, at last Submission SUBMIT/2/0: ValueError: a bug"
    )
    assert "the log" in check.todo
    assert list(doctor.oddity_checks("admission", {}, "the log")) == []
