"""Parameter-server jobs of real processes over real connections: scaling changes no result."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from skep_ps.store import view
from skep_ps.wire import Patience, dial
from tests.support.ports import free_port
from tests.support.ps.jobs import Job, Zygote

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

DIGITS = Path(__file__).parent.parent.parent / "scripts" / "demo" / "jobs" / "digits_ps.py"

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
        where = {"SKEP_PS": f"127.0.0.1:{free_port()}"}
        jobs.append(Job(zygote, folder, **where, **environment))
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
    begin(job, 1, 2, "--until", "60", "--gates", ",".join(map(str, [*gates, 59])))
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
        [1, 2],
        [1, 2, 3],
        [2, 3],
        [3],
    ]
    job.open_gate(59)
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


@pytest.mark.slow
def test_removing_a_server_while_connections_break_leaves_every_bit_as_it_is(
    new_job: NewJob,
) -> None:
    job = new_job(SKEP_PS_LOST_S="10")
    gates = ["--until", "50", "--gates", "15,30"]
    begin(job, 2, 2, *gates, "--cut", "7")
    job.at_gate(15, 0, 1)
    job.remove("server", 1)
    job.open_gate(15)
    job.at_gate(30, 0, 1)
    job.server("s2")
    job.open_gate(30)
    w0, w1 = results(job, "w0", "w1")
    assert w0["sha"] == w1["sha"]

    plain = new_job()
    begin(plain, 1, 2, "--until", "50")
    assert plain.result("w0")["sha"] == w0["sha"]


@pytest.mark.slow
def test_workers_come_and_go_with_the_same_global_mini_batch(new_job: NewJob) -> None:
    # Sums in another order: alike to about 1e-6 of the loss, stated as 1e-4.
    shared = ["--until", "60", "--gates", "10,20,30", "--global-batch", "24"]
    job = new_job()
    begin(job, 2, 1, *shared)
    job.at_gate(10, 0)
    job.worker("w1", 1, *shared, "--seed", "5")  # Its own parameters must not matter.
    job.reaches("move")
    job.open_gate(10)
    job.at_gate(20, 0, 1)
    job.worker("w2", 2, *shared, "--seed", "6")
    job.reaches("move")
    job.open_gate(20)
    job.at_gate(30, 0, 1, 2)
    job.remove("worker", 1)
    job.reaches("move")
    job.open_gate(30)
    w0, w1, w2 = results(job, "w0", "w1", "w2")

    assert w1["left"]
    assert not w0["left"]
    assert w0["sha"] == w2["sha"]
    worlds = {version: world for version, _, world in w0["world"]}
    assert [worlds[version] for version in (0, 20, 30, 59)] == [1, 2, 3, 2]
    for other in (w1, w2):  # All workers changed at the same version.
        assert all(worlds[version] == world for version, _, world in other["world"])
    taken = sorted((version, rank) for w in (w0, w1, w2) for version, rank, _ in w["world"])
    assert taken == [(v, rank) for v in range(60) for rank in range(worlds[v])]

    alone = new_job()
    begin(alone, 1, 1, "--until", "60", "--global-batch", "24")
    single = alone.result("w0")
    for version, loss in single["losses"].items():
        parts = [w["losses"].get(version, 0.0) for w in (w0, w1, w2)]
        assert sum(parts) == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_a_lost_server_ends_the_job_with_a_clear_error_everywhere(new_job: NewJob) -> None:
    job = new_job()
    begin(job, 2, 2, "--gates", "10")
    job.at_gate(10, 0, 1)
    job.kill("s0")
    job.open_gate(10)
    for name in ("w0", "w1", "coordinator", "s1"):
        assert job.ended(name) == 1, job.logs()
    for name in ("w0", "w1"):
        assert "parameter server" in job.log(name)
        assert "lost" in job.log(name)
    assert "is lost, and its parameters with it" in job.log("coordinator")


@pytest.mark.slow
def test_the_others_go_on_without_a_lost_worker(new_job: NewJob) -> None:
    job = new_job()
    begin(job, 2, 3, "--gates", "10", "--until", "30")
    job.at_gate(10, 0, 1, 2)
    job.kill("w1")
    job.open_gate(10)
    w0, w2 = results(job, "w0", "w2")
    assert w0["sha"] == w2["sha"]
    assert w0["world"][-1][2] == 2
    assert job.ended("coordinator") == 0


@pytest.mark.slow
def test_a_coordinator_that_comes_back_finds_its_job_again(new_job: NewJob) -> None:
    job = new_job(SKEP_PS_LOST_S="10")
    begin(job, 1, 2, "--gates", "10,20,30", "--until", "40")
    job.at_gate(10, 0, 1)
    job.server("s1")
    job.reaches("move")  # Everybody is ready; nothing is decided.
    job.kill("coordinator")
    job.ended("coordinator")
    job.coordinator(1, 2, "--recover", name="coordinator2")
    job.open_gate(10)
    job.at_gate(20, 0, 1)
    job.open_gate(20)
    assert job.scaled(1)[-1]["done"]  # The newcomer asked again.
    job.at_gate(30, 0, 1)
    job.kill("coordinator2")
    job.ended("coordinator2")
    job.coordinator(1, 2, "--recover", name="coordinator3")
    job.begun()
    job.remove("server", 1)
    job.reaches("move")
    job.open_gate(30)
    assert job.ended("s0") == 0
    w0, w1 = results(job, "w0", "w1")
    assert job.ended("coordinator3") == 0
    assert "called off" in job.log("coordinator") or "is back" in job.log("coordinator2")

    plain = new_job()
    begin(plain, 1, 2, "--until", "40")
    assert plain.result("w0")["sha"] == w0["sha"] == w1["sha"]


@pytest.mark.slow
def test_a_newcomer_that_dies_changes_nothing(new_job: NewJob) -> None:
    job = new_job()
    begin(job, 1, 2, "--gates", "10,20,30,40", "--until", "50")
    job.at_gate(10, 0, 1)
    job.server("s1")
    job.reaches("move")
    job.kill("s1")  # The clock is set; nobody is there yet.
    job.scaled(1)
    job.open_gate(10)

    job.at_gate(20, 0, 1)
    job.server("s2")
    job.reaches("move")
    job.kill("s2", signal.SIGSTOP)
    job.open_gate(20)  # At the clock the first server copies, and is not answered.
    for worker in (0, 1):
        job.held(worker)
    job.kill("s2")
    job.scaled(2)

    job.at_gate(30, 0, 1)
    job.worker("w2", 2)
    job.reaches("move")
    job.kill("w2")
    history = job.scaled(3)
    job.open_gate(30)
    assert [change["done"] for change in history] == [False] * 3

    job.at_gate(40, 0, 1)
    job.server("s3")
    job.reaches("move")
    job.open_gate(40)
    w0, w1 = results(job, "w0", "w1")
    assert "is in force" in job.log("coordinator")

    plain = new_job()
    begin(plain, 1, 2, "--until", "50")
    assert plain.result("w0")["sha"] == w0["sha"] == w1["sha"]


@pytest.mark.slow
def test_two_changes_that_cross_are_done_one_after_the_other(new_job: NewJob) -> None:
    job = new_job()
    begin(job, 1, 2, "--gates", "10,59", "--until", "60")
    job.at_gate(10, 0, 1)
    job.server("s1")
    job.reaches("move")
    job.remove("server", 1)
    job.server("s2")
    job.open_gate(10)
    history = job.scaled(3)
    assert all(change["done"] for change in history), history
    assert [change["generation"] for change in history] == [2, 3, 4]
    job.open_gate(59)
    w0, w1 = results(job, "w0", "w1")
    assert w0["sha"] == w1["sha"]
    assert job.ended("s0") == 0


@pytest.mark.slow
def test_a_job_restarts_from_its_checkpoint_with_other_servers(new_job: NewJob) -> None:
    job = new_job()
    begin(job, 1, 2, "--gates", "20", "--until", "1000")
    job.at_gate(20, 0, 1)
    (job.folder / "stop").write_text("save")
    job.open_gate(20)
    w0 = job.result("w0")
    job.result("w1")

    (job.folder / "stop").unlink()
    again = new_job()
    load = ["--load", str(job.folder / "checkpoint.pt")]
    begin(again, 3, 2, "--until", "50", *load)
    resumed = again.result("w0")
    plain = new_job()
    begin(plain, 1, 2, "--until", "50")
    assert w0["version"] == 20
    assert resumed["sha"] == plain.result("w0")["sha"]


def test_only_processes_with_the_token_of_this_attempt_are_let_in(new_job: NewJob) -> None:
    job = new_job(SKEP_JOB="j1", SKEP_GEN="2")
    job.coordinator(1, 1)
    job.server("wrong-token", SKEP_PS_TOKEN="another token of the same length")
    job.server("earlier", SKEP_GEN="1")
    job.worker("w9", 0, SKEP_GEN="1")
    for name in ("wrong-token", "earlier", "w9"):
        assert job.ended(name) == 1
        assert "the token is wrong" in job.log(name)
    job.server("s0")
    job.worker("w0", 0)
    assert job.result("w0")["version"] == 60


@pytest.mark.slow
def test_late_pushes_of_an_asynchronous_job_are_redirected(new_job: NewJob) -> None:
    job = new_job()
    begin(job, 1, 1, "--asynchronous", "--gates", "10,40", "--until", "60")
    job.at_gate(10, 0)
    before = job.status()
    job.server("s1")
    job.server("s2")
    job.reaches("move")
    job.open_gate(10)
    history = job.scaled(2)
    assert all(change["done"] for change in history), history
    job.at_gate(40, 0)

    # A worker that has not heard of any change: all it knows is the first server. Its push is laid
    # out for generation 1, and most of it is elsewhere by now. lr is 1: the gradient is subtracted.
    elements = sum(before["elements"].values())
    values = pushed(job, elements, 0.0)
    again = pushed(job, elements, 2.0)
    assert torch.equal(again, values - 2.0)
    assert torch.equal(pushed(job, elements, -2.0), values - 2.0 + 2.0)
    job.open_gate(40)
    assert job.result("w0")["version"] >= 60


def pushed(job: Job, elements: int, gradient: float) -> Tensor:
    """Push the same gradient for every parameter in generation 1; return the answer."""
    host, port = re.findall(r"([\d.]+):(\d+)", job.log("s0"))[0]
    channel = dial(host, int(port), job.where.secret)
    content = torch.full((elements,), gradient)
    header = {
        "type": "push",
        "worker": 77,
        "generation": 1,
        "version": 0,
        "seq": time.monotonic_ns(),
        "hypers": [[1.0, 0.0, 0.0, 0.0, False, False]],
    }
    channel.send(header, [view(content)])
    patience = Patience(30.0, "an answer")
    assert channel.receive(patience)["type"] == "values"
    channel.read_into([view(content)], patience)
    channel.close()
    return content


@pytest.mark.slow
@pytest.mark.needs("sklearn")
def test_an_asynchronous_job_converges_while_servers_come_and_go(new_job: NewJob) -> None:
    job = new_job()
    job.coordinator(1, 2)
    job.server("s0")
    for rank in range(2):
        arguments = ["--asynchronous", "--epochs", "30", "--lr", "0.05", "--min-accuracy", "0.93"]
        job.start(f"w{rank}", str(DIGITS), arguments, RANK=str(rank))
    job.begun()
    job.server("s1")
    job.server("s2")
    job.scaled(2)
    job.remove("server", 1)
    assert job.ended("s0") == 0
    assert job.ended("w0") == job.ended("w1") == 0, job.logs()
    assert "generation 4 is in force" in job.log("coordinator")
