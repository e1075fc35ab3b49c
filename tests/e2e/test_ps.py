"""Parameter-server jobs of real processes over real connections: scaling changes no result."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.ps.jobs import Job, Zygote

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="PyTorch is not installed: pip install 'skep[train]'",
    ),
]

NewJob = Callable[..., Job]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def new_job(zygote: Zygote, tmp_path: Path) -> Iterator[NewJob]:
    jobs: list[Job] = []

    def make(**environment: str) -> Job:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Job(zygote, folder, **environment))
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


def begin(job: Job, servers: int, workers: int, *arguments: str) -> None:
    job.coordinator(servers, workers)
    for number in range(servers):
        job.server(f"s{number}")
    for rank in range(workers):
        job.worker(f"w{rank}", rank, *arguments)


def results(job: Job, *names: str) -> list[dict[str, Any]]:
    return [job.result(name) for name in names]


def test_adding_and_removing_servers_leaves_every_bit_as_it_is(new_job: NewJob) -> None:
    job = new_job()
    gates = [10, 20, 30, 40]
    begin(job, 1, 2, "--until", "60", "--gates", ",".join(map(str, gates)))
    for gate, change in zip(gates, ("s1", "s2", 1, 2), strict=True):
        job.at_gate(gate, 0, 1)
        if isinstance(change, int):
            job.remove("server", change)
        else:
            job.server(str(change))
        job.reaches("move")
        job.open_gate(gate)
        done = job.scaled(gates.index(gate) + 1)[-1]
        assert done["done"], done
        assert gate < done["version"] <= gate + 8
    history = job.status()["history"]
    assert [sorted(map(int, step["elements"])) for step in history] == [
        [1, 2], [1, 2, 3], [2, 3], [3]
    ]  # fmt: skip
    w0, w1 = results(job, "w0", "w1")
    assert len(w0["pauses"]) == 4
    assert w0["sha"] == w1["sha"]
    assert job.ended("s0") == job.ended("s1") == job.ended("s2") == job.ended("coordinator") == 0

    plain = new_job()
    begin(plain, 2, 2, "--until", "60")
    unscaled = plain.result("w0")
    assert unscaled["pauses"] == []
    assert unscaled["sha"] == w0["sha"]
    assert unscaled["losses"] == w0["losses"]
