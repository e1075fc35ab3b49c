"""Runs on a real Ray cluster of two nodes: the same bytes, workers that die, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from skep_services.cli import exits
from skep_services.engines import deal
from skep_services.engines.ray_actors import OnRay, connect
from skep_services.engines.task import DiedError, DiffersError, FailedError, UnreachableError, about
from tests import engine_kit, learner_kit
from tests.engine_kit import run, task
from tests.support import ports
from tests.support.ray_cluster import RayCluster

# Ray leaves sockets and files to the collector.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.needs("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SWEEP = ("sim", "sweep", "--trace", "sched2:jobs=40", "--cluster", "2x8", "--seeds", "2")
POLICIES = ("--policy", "fifo", "--policy", "sif", "--json")
LOOK_S = 120.0


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    """Two nodes with one processor each."""
    cluster = RayCluster(ports.free_port())
    yield cluster
    cluster.down()


def skep(ray: RayCluster, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "skep_services", *words],
        env=ray.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_sweep_comes_to_the_same_bytes_from_outside_and_inside(
    ray: RayCluster, tmp_path: Path
) -> None:
    told = {}
    engines = {"here": ("--processes", "1")}
    engines |= {name: ("--on", name) for name in (ray.client, ray.address, "ray")}
    for number, (name, words) in enumerate(engines.items()):
        out_to = tmp_path / str(number)
        with skep(ray, *SWEEP, *POLICIES, *words, "--out", str(out_to)) as command:
            out, err = command.communicate(timeout=LOOK_S)
        assert command.returncode == 0, err
        told[name] = [out, *(each.read_bytes() for each in sorted(out_to.iterdir()))]
        assert len(told[name]) == 8, "a file of jobs for each of four runs, and the report"
    assert all(each == told["here"] for each in told.values())


def test_two_nodes_work_and_a_killed_worker_is_named(ray: RayCluster, tmp_path: Path) -> None:
    path = str(tmp_path / "died").encode()
    tasks = [task(f"seed {n}", engine_kit.twice, b"%d" % n) for n in range(1, 5)]
    kept = run(OnRay(ray.client), [task("seed 0", engine_kit.dies_once, path), *tasks])
    assert kept.results == [b"alive", b"11", b"22", b"33", b"44"]
    assert len(kept.said) == 1
    assert re.fullmatch(
        r"process \d+ of Ray on \S+ died \(its process was killed or crashed\): "
        "the run 'seed 0' is run again",
        kept.said[0],
    )


def test_a_run_that_kills_two_workers_or_raises_ends_all(ray: RayCluster) -> None:
    with pytest.raises(DiedError, match=r"'seed 0' ended without a result: process \d+ of Ray on"):
        run(OnRay(ray.client), [task("seed 0", engine_kit.dies)])
    with pytest.raises(FailedError, match=r"'seed 1' failed on process \d+ .*: ValueError: no su"):
        run(OnRay(ray.client), [task("seed 1", engine_kit.fails)])


def test_rollouts_come_to_the_same(ray: RayCluster) -> None:
    there, here = learner_kit.rollouts_on(OnRay(ray.client))
    assert there == here


def test_workers_with_another_program_are_refused(
    ray: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = msgspec.structs.replace(about(), program="other")
    monkeypatch.setattr(deal, "about", lambda: other)
    with pytest.raises(
        DiffersError, match=r"process \d+ of Ray on \S+ cannot .* has other code than"
    ):
        run(OnRay(ray.client), [task("seed 0", engine_kit.twice)])


def test_what_runs_ends_early(ray: RayCluster, tmp_path: Path) -> None:
    there = [tmp_path / "a", tmp_path / "b"]
    tasks = [
        task("seed 0", engine_kit.waits, str(there[0]).encode()),
        task("seed 1", engine_kit.deaf, str(there[1]).encode(), watches=False),
        task("seed 2", engine_kit.twice, b"never"),
    ]
    kept = run(OnRay(ray.client), tasks, lambda: all(each.exists() for each in there))
    assert kept.results == [b"cut", None, None]
    again = run(OnRay(ray.client), [task("seed 2", engine_kit.twice, b"2")])
    assert again.results == [b"22"], "no worker was left on a processor"


def test_ctrl_c_ends_workers_and_tells_what_there_is(ray: RayCluster) -> None:
    words = ("--trace", "sched2:jobs=20000", "--cluster", "2x8", "--json", "--on", ray.client)
    policies = ("--policy", "fifo", "--policy", "sif", "--policy", "spf")
    with skep(ray, "sim", "compare", *words, *policies, "--workers", "1") as command:
        assert command.stderr is not None
        while "SCHED²" not in command.stderr.readline():
            pass
        os.kill(command.pid, signal.SIGINT)
        out, err = command.communicate(timeout=LOOK_S)
    assert command.returncode == exits.INTERRUPTED, err
    tree = json.loads(out)
    assert tree["interrupted"]
    assert len(tree["runs"]) + len(tree["not_run"]) == 3
    assert run(OnRay(ray.client), [task("", engine_kit.twice, b"2")]).results == [b"22"]


def test_addresses_without_a_cluster_are_refused_in_one_line() -> None:
    for address, said in {
        f"ray://127.0.0.1:{ports.free_port()}": "no Ray answers there .*client's port of its head",
        f"127.0.0.1:{ports.free_port()}": "no Ray answers there .*the head's port",
        "ray://no-such-host.invalid:10001": "no Ray answers there",
    }.items():
        with pytest.raises(UnreachableError, match=f"--on {address}: {said}") as told:
            connect(address)
        assert "\n" not in str(told.value)
