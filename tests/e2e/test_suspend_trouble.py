"""What a suspension does when the job, its host or its script is in the way."""

import os
import resource
import select
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.job_agent import DEADLINE_S, Message
from tests.support.suspend_kit import Driver, driver

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

STATE_BYTES = 3 * 4 * 1024 * 1024
"""One weight, its gradient and its momentum."""

AWKWARD = """
    import gc, hashlib, os, signal, sys, threading, time
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = torch.nn.Linear(1024, 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = torch.randn(4, 1024)

    def say(text):  # print() must not be entered twice, and handlers may interrupt one another
        os.write(1, f"{text}\\n".encode())

    def tell(*_):
        digest = hashlib.sha256(model.weight.detach().clone().numpy().tobytes()).hexdigest()
        say(f"{digest} {torch.initial_seed()}")

    def stop(*_):
        raise RuntimeError("stop standing")

    def fork_and_train(*_):
        child = os.fork()
        if not child:
            with torch.no_grad():
                for _ in range(3):
                    optimizer.step()
            os._exit(17)
        say(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")

    def look(weight):
        while True:
            weight[0].sum()
            time.sleep(0.01)

    signal.signal(signal.SIGUSR1, tell)
    signal.signal(signal.SIGUSR2, stop)
    signal.signal(signal.SIGHUP, fork_and_train)
    gc.collect()
    gc.freeze()
    while True:
        try:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        except RuntimeError as error:
            assert "stop standing" in str(error), error
            say("caught")
            threading.Thread(target=look, args=(model.weight,), daemon=True).start()
    """


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Driver]:
    with driver() as job:
        yield job


def start(job: Driver, folder: Path, text: str, **env: str) -> None:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    job.start([script], **env)


def only(answers: list[Message]) -> Message:
    assert len(answers) == 1
    return answers[0]


def resident_bytes(job: Driver) -> int:
    text = Path(f"/proc/{job.processes[0].pid}/statm").read_text()
    return int(text.split()[1]) * resource.getpagesize()


def line_after(job: Driver, number: signal.Signals) -> str:
    process = job.processes[0]
    process.send_signal(number)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
    assert ready, "the script printed nothing"
    line = process.stdout.readline().strip()
    assert line, process.communicate()[1]
    return line


def test_one_job_in_every_kind_of_trouble(job: Driver, tmp_path: Path) -> None:
    start(job, tmp_path, AWKWARD, SKEP_HOST_BYTES="1000000")
    job.wait_for_boundaries()
    pid = job.processes[0].pid
    before = only(job.ask("suspend"))
    assert before["type"] == "suspended"

    # The budget of the environment, then the host itself, do not suffice.
    refused = only(job.ask("release"))
    assert refused["type"] == "failed"
    assert "allowed" in refused["error"]
    assert "budget" in refused["error"]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    refused = only(job.ask("release", max_bytes=10**9))
    assert refused["type"] == "failed"
    assert "File too large" in refused["error"]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    # The script's handler finds its state, whether that is on the device or away; so does a fork.
    state = line_after(job, signal.SIGUSR1)
    full = resident_bytes(job)
    released = only(job.ask("release", max_bytes=10**9))
    assert released["type"] == "released"
    assert released["moved"] >= STATE_BYTES  # Although gc.freeze() hid it.
    assert resident_bytes(job) < full - 0.8 * STATE_BYTES
    assert line_after(job, signal.SIGUSR1) == state
    assert line_after(job, signal.SIGHUP) == "child 17"

    # A new connection hears how the job stands.
    job.agent.stop()
    job.agent.received.clear()
    job.agent.listen()
    job.agent.wait_for(1, "released")
    assert [m["type"] for m in job.agent.received][:3] == ["hello", "can", "released"]

    assert only(job.ask("resume"))["type"] == "resumed"
    again = only(job.ask("suspend"))
    assert again["step"] >= before["step"]

    # A handler that raises ends the suspension, as it would have ended the step: the agent hears.
    assert only(job.ask("release", max_bytes=10**9))["type"] == "released"
    assert line_after(job, signal.SIGUSR2) == "caught"
    job.agent.wait_for(2, "resumed")

    # From here on a thread of the script uses the weights.
    assert only(job.ask("suspend"))["type"] == "suspended"
    refused = only(job.ask("release", max_bytes=10**9))
    assert refused["type"] == "failed"
    assert "a thread of the script runs beside the training" in refused["error"]
    assert only(job.ask("resume"))["type"] == "resumed"


@pytest.mark.parametrize(
    "phase",
    [
        "suspended",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("releasing", "released", "resuming")
        ),
    ],
)
def test_a_job_that_dies_is_gone(job: Driver, tmp_path: Path, phase: str) -> None:
    start(job, tmp_path, AWKWARD)
    job.wait_for_boundaries()
    job.ask("suspend")
    if phase == "releasing":
        job.agent.order("release", 99)
    elif phase != "suspended":
        assert only(job.ask("release"))["type"] == "released"
    if phase == "resuming":
        job.agent.order("resume", 99)
    job.processes[0].kill()
    job.processes[0].wait(DEADLINE_S)
    job.agent.wait_until(lambda agent: agent.open_connections == 0)


def test_a_job_without_boundaries_answers_only_that_it_goes_on(job: Driver, tmp_path: Path) -> None:
    start(job, tmp_path, "import torch\nprint('ready', flush=True)\ninput()\n")
    process = job.processes[0]
    job.agent.wait_for(1, "hello")
    job.agent.order("suspend", 1)
    job.agent.order("resume", 2)
    job.agent.wait_for(1, "resumed", order=2)
    assert job.agent.of_type("can") == []
    assert not job.agent.of_type("suspended")
    os.kill(process.pid, signal.SIGKILL)


def test_an_update_by_hand_stops_where_it_asks_for_a_batch(job: Driver, tmp_path: Path) -> None:
    start(
        job,
        tmp_path,
        """
        import itertools, torch
        from torch.utils.data import DataLoader, TensorDataset
        weight = torch.randn(300, 300, requires_grad=True)
        batches = DataLoader(TensorDataset(torch.randn(64, 300)), batch_size=8)
        for _ in itertools.count():
            for (x,) in batches:
                (x @ weight).square().mean().backward()
                with torch.no_grad():
                    weight -= 1e-3 * weight.grad
                    weight.grad = None
        """,
    )
    job.wait_for_boundaries()
    stopped = only(job.ask("suspend"))
    assert stopped["type"] == "suspended"
    assert only(job.ask("release"))["moved"] >= 300 * 300 * 4
    assert only(job.ask("resume"))["step"] == stopped["step"]
    job.agent.wait_until(
        lambda agent: any(m["steps"] > stopped["step"] for m in agent.of_type("stats"))
    )
