"""Runs as jobs of a real Skep cluster: the same bytes, workers that die or are stopped, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from skep_services.cli.client import Client, Target
from skep_services.cli.on import GatewayJobs
from skep_services.engines import skep_jobs
from skep_services.engines.skep_jobs import OnSkep
from skep_services.engines.task import DiedError, FailedError
from tests import engine_kit, learner_kit
from tests.e2e.conftest import Gate, Tenant
from tests.engine_kit import run, task
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

SWEEP = ("sim", "sweep", "--trace", "sched2:jobs=40", "--cluster", "2x8", "--seeds", "2")
POLICIES = ("--policy", "fifo", "--policy", "sif", "--json")
LOOK_S = 60.0


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers find the tests, whatever the path of this process is."""
    monkeypatch.setenv("PYTHONPATH", engine_kit.PYTHONPATH)


@pytest.fixture
def engine(cluster: Embedded) -> OnSkep:
    gateway = cluster.about["gateway"]
    target = Target(gateway["url"], gateway["tokens"]["operator"], str(cluster.home))
    return OnSkep(GatewayJobs(Client(target), "nlp"), "127.0.0.1", workers=2)


def skep(cluster: Embedded, *words: str) -> subprocess.Popen[str]:
    environment = {**cluster.environment, "SKEP_VC": "nlp", "PYTHONPATH": engine_kit.PYTHONPATH}
    return subprocess.Popen(
        [sys.executable, "-m", "skep_services", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def active(cluster: Embedded) -> list[str]:
    return [row["job"] for row in cluster.get("/v1/jobs?state=active")["jobs"]]


def test_a_sweep_comes_to_the_same_bytes(cluster: Embedded, tmp_path: Path) -> None:
    told, err = {}, ""
    for name, words in (("here", ("--processes", "1")), ("there", ("--on", "skep"))):
        with skep(cluster, *SWEEP, *POLICIES, *words, "--out", str(tmp_path / name)) as command:
            out, err = command.communicate(timeout=LOOK_S)
        assert command.returncode == 0, err
        told[name] = out
    assert told["here"] == told["there"]
    assert len(re.findall(r"^j\d+ is submitted: a worker", err, re.MULTILINE)) == 4
    files = [sorted((tmp_path / name).iterdir()) for name in ("here", "there")]
    assert [each.name for each in files[0]] == [each.name for each in files[1]]
    assert len(files[0]) == 7, "a file of jobs for each of four runs, and the report"
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert active(cluster) == []


def test_rollouts_come_to_the_same(engine: OnSkep) -> None:
    there, here = learner_kit.rollouts_on(engine)
    assert there == here


def test_a_killed_worker_is_named_and_its_run_goes_on_in_another(
    engine: OnSkep, tmp_path: Path
) -> None:
    path = str(tmp_path / "died").encode()
    tasks = [task("seed 0", engine_kit.dies_once, path), task("seed 1", engine_kit.twice, b"1")]
    kept = run(engine, tasks)
    assert kept.results == [b"alive", b"11"]
    lost = [line for line in kept.said if "is run again" in line]
    assert len(lost) == 1
    assert re.fullmatch(r"job j\d+ failed \(.*\): the run 'seed 0' is run again", lost[0])


def test_a_run_that_kills_two_workers_or_raises_ends_all(engine: OnSkep, cluster: Embedded) -> None:
    with pytest.raises(
        DiedError, match=r"the run 'seed 0' ended without a result: job j\d+ failed"
    ):
        run(engine, [task("seed 0", engine_kit.dies)])
    with pytest.raises(
        FailedError, match=r"the run 'seed 1' failed on job j\d+: ValueError: no su"
    ):
        run(engine, [task("seed 1", engine_kit.fails)])
    assert active(cluster) == []


def test_a_worker_gives_way_to_others_and_its_run_is_run_again_when_it_is_back(
    engine: OnSkep, nlp: Tenant, vision: Tenant, gate: Gate, tmp_path: Path
) -> None:
    there = tmp_path / "begun"
    owners: list[str] = []

    def crowd() -> bool:
        """Once the worker is at work have the owners of all GPUs want them, and let go later."""
        if there.exists() and not owners:
            resources = {"gpus": 4}
            owners.append(nlp.accepted(nlp.spec(gate.wait, resources=resources)))
            owners.append(vision.accepted(vision.spec(gate.wait, resources=resources)))
        elif owners and gate.is_reached():
            gate.open()
        return False

    kept = run(engine, [task("seed 0", engine_kit.waits_once, str(there).encode())], crowd)
    assert kept.results == [b"again"]
    assert any(re.search(r"cluster.*: the run 'seed 0' is run again", line) for line in kept.said)


def test_what_runs_ends_early_and_no_job_is_left(
    engine: OnSkep, cluster: Embedded, tmp_path: Path
) -> None:
    there = [tmp_path / "a", tmp_path / "b"]
    tasks = [
        task("seed 0", engine_kit.waits, str(there[0]).encode()),
        task("seed 1", engine_kit.deaf, str(there[1]).encode(), watches=False),
        task("seed 2", engine_kit.twice, b"never"),
    ]
    kept = run(engine, tasks, lambda: all(each.exists() for each in there))
    assert kept.results == [b"cut", None, None]
    assert active(cluster) == []


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_the_end_of_the_command_is_the_end_of_its_jobs(
    cluster: Embedded, number: signal.Signals, code: int
) -> None:
    words = ("sim", "run", "--trace", "sched2:jobs=20000", "--cluster", "2x8", "--json")
    with skep(cluster, *words, "--on", "skep", "--workers", "1") as command:

        def running() -> bool:
            rows = cluster.get("/v1/jobs?state=active")["jobs"]
            return any(row["state"] == "running" for row in rows)

        until(running, "a worker")
        os.kill(command.pid, number)
        out, err = command.communicate(timeout=LOOK_S)
    assert command.returncode == code, err
    if number == signal.SIGINT:
        tree = json.loads(out)
        assert (tree["interrupted"], len(tree["runs"]) + len(tree["not_run"])) == (True, 1)
    until(lambda: not active(cluster), "no job is left")


def test_what_does_not_know_the_key_is_not_let_in(engine: OnSkep, tmp_path: Path) -> None:
    """Strangers at the door are turned away, or wait there, and the runs go on."""
    strangers: list[socket.socket] = []
    path = tmp_path / "begun"
    opened = skep_jobs.Door.__enter__

    def watched(door: skep_jobs.Door) -> skep_jobs.Door:
        opened(door)
        for word in (b"", b"\0\0\0\4what", b"GET / HTTP/1.1\r\n\r\n"):
            strangers.append(socket.create_connection(door.address))
            strangers[-1].sendall(word)
        return door

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skep_jobs.Door, "__enter__", watched)
        kept = run(engine, [task("seed 0", engine_kit.dies_once, str(path).encode())])
    assert kept.results == [b"alive"]
    for each in strangers:
        each.close()
