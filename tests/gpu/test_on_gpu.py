"""Real PyTorch jobs on a real GPU, under a whole cluster of real processes.

`python -m pytest tests/gpu -m gpu` on a machine with an NVIDIA GPU. SKEP_GPU_SUITE=cpu has the same
tests run on a fake GPU, without what only a driver can say. Each test prints a line `gpu {...}` of
what it measured.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.gpu import kit
from tests.gpu.conftest import Record
from tests.gpu.kit import Cluster, Driver, Job, Reference, kill
from tests.support.embedded import until

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

SHARE = 0.3
SLICE_S = 2


@pytest.fixture(scope="class")
def job(cluster: Cluster, folder: Path) -> Job:
    return Job(cluster, folder, "plain")


@pytest.fixture(scope="class")
def pair(cluster: Cluster, folder: Path) -> Iterator[tuple[Job, Job]]:
    """Return a job that runs, and one that waits for its GPU."""
    host = Job(cluster, folder, "host", over_quota="wait")
    host.trains()
    yield host, Job(cluster, folder, "guest", over_quota="wait")
    cluster.policy("fifo")


@pytest.mark.usefixtures("opaque")  # It begins before all others.
def test_the_inventory_is_what_the_driver_says(cluster: Cluster, record: Record) -> None:
    row = cluster.gpus()[0]
    record(up_s=cluster.up_s, **{name: row[name] for name in ("type", "memory", "uuid")})
    assert (row["taken"], row["quarantined"]) == (False, False)
    if kit.CPU:
        assert (row["type"], row["memory"], row["uuid"]) == ("fake", kit.FAKE_MEMORY, "")
        return
    needs.require("nvidia-smi")
    fields = "--query-gpu=name,memory.total,uuid"
    told = subprocess.run(
        ["nvidia-smi", "--id=0", fields, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    name, mib, uuid = told.stdout.strip().split(", ")
    assert row["type"] == name.lower().replace(" ", "-")
    assert row["memory"] // 2**20 == int(mib)
    assert row["uuid"] == uuid


class TestAnUnmodifiedScript:
    """It is bound to the GPU, counted, suspended with its memory given back, and resumed."""

    def test_it_runs_on_its_gpu_and_is_counted(
        self, cluster: Cluster, driver: Driver, job: Job, record: Record
    ) -> None:
        first = job.trains()[0]
        about = job.about()
        record(first_step_s=first.at - job.began, **about)
        assert job.row["place"] == "node-1:0"
        if not kit.CPU:
            assert (about["device"], about["count"], about["visible"]) == ("cuda", 1, "0")
        held = driver.on_it(first.pid)
        told = job.has_rate()
        busy = job.until(lambda: cluster.gpus()[0]["utilisation"], "use its GPU")
        assert cluster.gpus()[0]["job"] == job.job
        own = job.rate()
        record(bytes=held, rate=told, own_rate=own, utilisation=busy)
        assert held == -1 or held >= kit.STATE_BYTES_MIN

    def test_its_memory_goes_to_others_while_it_is_suspended(
        self,
        cluster: Cluster,
        driver: Driver,
        job: Job,
        folder: Path,
        reference: Reference,
        record: Record,
    ) -> None:
        reference.losses()  # It has ended: the rest of the device's memory is the job's.
        job.can("release")
        pid, before = job.trains()[-1].pid, driver.look().memory
        held = driver.on_it(pid)
        suspend_s = job.ask("suspend", "--release")
        stood = job.steps()
        assert (job.row["state"], job.row["released"]) == ("suspended", True)
        record(suspend_s=suspend_s, held=held, left=driver.on_it(pid))
        record(bytes_freed=before - driver.falls_to(before - kit.STATE_BYTES_MIN))

        other = Job(cluster, folder, "other")
        other.trains()
        assert cluster.gpus()[0]["job"] == other.job
        other.ends()
        assert job.steps() == stood

        asked = time.monotonic()
        resume_s = job.ask("resume")
        went_on = job.trains()
        assert {step.pid for step in went_on} == {pid}
        back = driver.on_it(pid)
        job.ends()
        whole = job.steps()
        record(
            resume_s=resume_s,
            back=back,
            until_first_step_s=went_on[0].at - asked,
            compared=reference.agrees(whole, beyond=len(stood)),
        )
        assert job.row["steps"] == len(whole)
        assert back == -1 or back >= kit.STATE_BYTES_MIN


def test_a_cooperative_job_goes_on_after_a_crash_and_moves_by_its_memory(
    cluster: Cluster, folder: Path, reference: Reference, record: Record
) -> None:
    job = Job(
        cluster,
        folder,
        "mover",
        cooperative=True,
        limits={"retries": 2, "retry_on": ["exit", "signal"]},
    )
    job.can("migrate")
    job.trains()
    checkpoint_s = job.ask("checkpoint")
    stored = len(job.steps())
    os.kill(job.trains()[-1].pid, signal.SIGKILL)
    killed = time.monotonic()
    job.until(lambda: job.steps()[-1].attempt == 2, "go on from its checkpoint")
    record(checkpoint_s=checkpoint_s, stored_at=stored, back_s=time.monotonic() - killed)
    job.trains()

    job.can("migrate")
    asked = time.monotonic()
    job.ask("suspend", "--release")
    move_s = job.ask("migrate", "--to", "node-1")
    job.ask("resume")
    went_on = job.trains()
    assert {step.attempt for step in went_on} == {3}
    record(move_s=move_s, pause_s=went_on[0].at - asked)
    job.ends()
    record(compared=reference.agrees(job.steps(), beyond=stored))


class TestTwoJobsOnOneGpu:
    """They share it in parts of its memory, and then in turns."""

    def test_each_keeps_to_its_share(
        self, cluster: Cluster, driver: Driver, pair: tuple[Job, Job], record: Record
    ) -> None:
        host, guest = pair
        size = cluster.gpus()[0]["memory"]
        alone = host.rate()
        pack_s = guest.ask("pack", "--with", host.job, "--share", str(SHARE))
        guest.trains()
        given = {
            job.name: [job.may_take(round((share + more) * size)) for more in (-0.15, 0.05)]
            for job, share in ((host, 1 - SHARE), (guest, SHARE))
        }
        record(given=given)
        pids = [job.steps()[-1].pid for job in pair]
        record(on_device=[driver.on_it(pid) for pid in pids])
        together, told = [job.rate() for job in pair], [job.has_rate() for job in pair]
        record(pack_s=pack_s, alone=round(alone, 1), rates=[round(each, 1) for each in together])
        record(told_rates=told)
        assert {tuple(each) for each in given.values()} == {(True, False)}, "its share, and no more"

    def test_they_take_turns(
        self, cluster: Cluster, pair: tuple[Job, Job], reference: Reference, record: Record
    ) -> None:
        host, guest = pair
        if guest.row["state"] == "running":
            guest.ask("unpack")
        cluster.policy("gandiva", slice_s=SLICE_S)
        began = time.monotonic()

        def turns() -> list[tuple[str, int]]:
            """Return which job trained, and how many mini-batches, in the order of time."""
            steps = [(step.at, job.name) for job in pair for step in job.steps()]
            names = (name for at, name in sorted(steps) if at > began)
            return [(name, sum(1 for _ in group)) for name, group in itertools.groupby(names)]

        host.until(lambda: len(turns()) > 4, "take turns")
        seen = turns()
        record(turns=seen, slice_s=SLICE_S, within_s=time.monotonic() - began)
        for job in pair:
            job.ends()
        assert all(count > 1 for _, count in seen[1:-1]), "two never train at once"
        record(compared=[reference.agrees(job.steps()) for job in pair])


def test_what_breaks_ends_with_its_own_error_and_the_next_job_gets_the_gpu(
    cluster: Cluster, folder: Path, driver: Driver, record: Record
) -> None:
    script = str(kit.JOBS / "breaks.py")
    errors = {"memory": "OutOfMemoryError", "access": "illegal memory access"}
    over = {}
    for what, error in errors.items():
        job = Job(cluster, folder, what, script=script, args=[what], limits={"retries": 0})
        ended = cluster.ended(job.job, kit.PATIENCE_S)
        log = cluster.log(job.job)
        assert ended["state"] == "failed", log
        assert error in log
        over[what] = ended["attempts"][-1]["detail"], log.splitlines()[-1]
    record(errors=over, trouble=driver.look().trouble)
    job = Job(cluster, folder, "next")
    first = job.trains()[0]
    assert not cluster.gpus()[0]["quarantined"]
    assert driver.look().trouble == ()
    job.ends()
    record(next_first_step_s=first.at - job.began)


def test_the_driver_moves_an_opaque_job(opaque: Job, driver: Driver, record: Record) -> None:
    if not kit.CPU:
        needs.require("cuda-checkpoint")
    opaque.until(lambda: opaque.row["tier"] == "opaque", "be known as opaque", 40.0)
    pid, before = opaque.trains()[-1].pid, driver.look().memory
    held = driver.on_it(pid)
    suspend_s = opaque.ask("suspend", "--release")
    record(suspend_s=suspend_s, held=held)
    record(bytes_freed=before - driver.falls_to(before if kit.CPU else before - kit.OPAQUE_BYTES))
    assert opaque.row["released"]
    stood = opaque.steps()
    resume_s = opaque.ask("resume")
    went_on = opaque.trains()
    assert {(step.pid, step.loss) for step in [*stood, *went_on]} == {(pid, "intact")}
    record(resume_s=resume_s)
    opaque.ends()


def test_an_unmodified_script_goes_on_from_an_image_of_its_processes(
    tmp_path_factory: pytest.TempPathFactory, side: Cluster, reference: Reference, record: Record
) -> None:
    (node,) = side.get("/v1/nodes")["nodes"]
    record(images=node["images"])
    if node["images"] != "yes":
        needs.skip(node["images"])
    side.clear()
    limits = {"retries": 1, "retry_on": ["exit", "signal"]}
    # An image is for one process tree without sockets: MPS has one to its daemon.
    job = Job(side, tmp_path_factory.mktemp("image"), "stored", limits=limits)
    job.can("checkpoint")
    job.trains()
    checkpoint_s = job.ask("checkpoint")
    stored = len(job.steps())
    beyond = job.trains()
    kill(beyond[-1].pid)
    killed = time.monotonic()
    until(lambda: not Path(f"/proc/{beyond[-1].pid}").exists(), "its end", kit.PATIENCE_S)
    ended = len(job.steps())
    job.until(lambda: len(job.steps()) > ended, "go on from the image")
    back_s = time.monotonic() - killed  # Its own clock goes on from the image, too.
    job.trains(2 * ended)
    found, whole = job.steps(), reference.losses()
    pauses = [b.at - a.at for a, b in itertools.pairwise(found[:stored])]
    back = whole.index(found[ended].loss)
    record(checkpoint_s=checkpoint_s, pause_s=max(pauses[1:]), stored_at=stored, ended_at=ended)
    record(back_at=back, back_s=back_s)
    assert 0 < back <= stored
    job.ends()
    again = [step.loss for step in job.steps()[ended:]]
    assert again == whole[back : back + len(again)]
    record(compared=len(again), log=[x for x in side.log(job.job).splitlines() if "[skep]" in x])


def test_packed_jobs_run_under_mps(
    tmp_path_factory: pytest.TempPathFactory, side: Cluster, reference: Reference, record: Record
) -> None:
    if kit.CPU:
        needs.skip("MPS is the driver's")
    needs.require("nvidia-cuda-mps-control")
    side.clear()
    folder = tmp_path_factory.mktemp("mps")
    host, guest = (Job(side, folder, name, over_quota="wait") for name in ("host", "guest"))
    host.trains()
    guest.ask("pack", "--with", host.job, "--share", str(SHARE))
    guest.trains()
    pipe = guest.about()["mps"]
    assert pipe, "there is no daemon"
    servers = mps(pipe, "get_server_list").split()
    clients = [mps(pipe, f"get_client_list {server}").split() for server in servers]
    record(servers=len(servers), rates=[round(job.rate(), 1) for job in (host, guest)])
    assert str(guest.steps()[-1].pid) in itertools.chain(*clients)
    for job in (host, guest):
        job.ends()
    record(compared=reference.agrees(host.steps()))


def mps(pipe: str, word: str) -> str:
    """Return what the control daemon of MPS answers."""
    done = subprocess.run(
        ["nvidia-cuda-mps-control"],
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe},
        input=word,
        capture_output=True,
        text=True,
        timeout=kit.PATIENCE_S,
        check=True,
    )
    return done.stdout
