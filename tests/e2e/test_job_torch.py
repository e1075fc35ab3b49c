"""Mini-batches of real PyTorch scripts, counted at a real socket.

Importing PyTorch takes seconds, so the small loops run one after the other in one process: each is
a phase of 20 mini-batches with optimizers of its own, and waits until its count was looked at.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_agent import JobAgent, job_agent, launch

JOBS = Path(__file__).parent.parent.parent / "scripts" / "demo" / "jobs"

pytestmark = [pytest.mark.torch, pytest.mark.e2e]


BEGIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
batches = DataLoader(data, batch_size=2)
model = nn.Linear(4, 1)
def loss_of(x, y):
    return ((model(x) - y) ** 2).mean()

def plain():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=20):
                loss_of(x, y)

def accumulation():
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (x, y) in enumerate(batches, 1):
        (loss_of(x, y) / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

def gan():
    generator, noise = nn.Linear(4, 4), torch.randn(2, 4)
    fool = torch.optim.Adam(generator.parameters())
    judge = torch.optim.Adam(model.parameters())
    for number, (x, _) in enumerate(batches, 1):
        judge.zero_grad()
        (model(generator(noise).detach()) - model(x)).mean().backward()
        judge.step()
        if number % 5 == 0:
            fool.zero_grad()
            (-model(generator(noise))).mean().backward()
            fool.step()

def optimizer_in_backward():
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in layers.parameters()}
    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    handles = [p.register_post_accumulate_grad_hook(step) for p in layers.parameters()]
    for x, y in batches:
        ((layers(x) - y) ** 2).mean().backward()
    for handle in handles:
        handle.remove()

def skipped_steps():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = loss_of(x, y) * (float("inf") if number % 5 == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

def lbfgs():
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in batches:
        def closure():
            optimizer.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            return loss
        optimizer.step(closure)

def compiled_step():
    import warnings
    warnings.filterwarnings("error", "Dynamo does not know")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = torch.compile(optimizer.step, backend="eager")
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        step()

def by_hand(workers=0):
    for x, y in DataLoader(data, batch_size=2, shuffle=True, num_workers=workers):
        loss_of(x, y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None

def by_hand_with_workers():
    by_hand(workers=2)

def checkpointed():
    from torch.utils.checkpoint import checkpoint
    for x, y in batches:
        x.requires_grad_()
        hidden = checkpoint(model, x, use_reentrant=True)  # Has a backward pass of its own.
        (penalty,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (((hidden - y) ** 2).mean() + penalty.square().mean()).backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.01)
            parameter.grad = None

def without_a_loader():
    x, y = data.tensors
    for at in range(0, 40, 2):
        model.zero_grad()
        loss_of(x[at : at + 2], y[at : at + 2]).backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.01)

def run(*phases):
    for phase in phases:
        phase()
        print(phase.__name__, flush=True)
        input()
"""


@pytest.fixture
def agent() -> Iterator[JobAgent]:
    with job_agent() as agent:
        yield agent


@pytest.mark.parametrize(
    "source, phases",
    [
        pytest.param(
            "optimizer",
            {
                "plain": 20,
                "accumulation": 5,
                "gan": 20,
                "optimizer_in_backward": 20,
                "skipped_steps": 16,
                "lbfgs": 20,
                "compiled_step": 20,
            },
            id="optimizers",
        ),
        pytest.param(
            "backward",
            {"by_hand": 20, "by_hand_with_workers": 20, "checkpointed": 20, "without_a_loader": 20},
            id="by-hand",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_the_count_is_exact(
    agent: JobAgent, tmp_path: Path, source: str, phases: dict[str, int]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{BEGIN}\nrun({', '.join(phases)})\n")
    command = [sys.executable, "-m", "skep_job", str(script)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    env = agent.environment(SKEP_REPORT_S="0.1")
    total = 0
    with subprocess.Popen(command, env=env, bufsize=1, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for phase, steps in phases.items():
            assert process.stdout.readline() == f"{phase}\n"
            # The first report from here on may have been sampled before the phase ended.
            agent.wait_for(len(agent.of_type("stats")) + 2, "stats")
            before, total = total, total + steps
            last = agent.received[-1]
            assert (last["steps"] - before, last["source"]) == (steps, source), phase
            assert last["step_ns"] > 0
            assert last["memory_bytes"] > 50_000_000  # PyTorch alone takes more.
            process.stdin.write("\n")
        process.stdin.close()
        assert process.wait() == 0
    agent.wait_for(1, "bye", steps=total)
    assert agent.of_type("error") == []
    counts = [stats["steps"] for stats in agent.of_type("stats", source=source)]
    assert counts == sorted(counts)


@pytest.mark.slow
@pytest.mark.needs("sklearn")
@pytest.mark.parametrize(
    "name, batches, demanded, status",
    [
        pytest.param("digits_mlp.py", 90, "1.1", 1, marks=pytest.mark.nightly),
        ("digits_cnn.py", 45, "0.9", 0),
    ],
)
def test_a_demo_script_learns_and_is_counted(
    agent: JobAgent, name: str, batches: int, demanded: str, status: int
) -> None:
    script = str(JOBS / name)
    outcome = launch([script, "--epochs", "4", "--min-accuracy", demanded], agent.environment())
    assert (outcome.returncode, outcome.stderr) == (status, ""), outcome.stdout
    lines = outcome.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["epoch", f"{n}/4"] for n in range(1, 5)]
    assert re.fullmatch(r"final accuracy=0\.9\d\d\d", lines[-1])
    agent.wait_until(lambda agent: agent.of_type("bye"))
    assert agent.of_type("bye")[0]["steps"] == 4 * batches


@pytest.mark.nightly
@pytest.mark.needs("sklearn")
def test_two_ranks_train_together_and_each_is_counted(agent: JobAgent, free_port: int) -> None:
    command = [sys.executable, "-m", "skep_job", str(JOBS / "digits_ddp.py"), "--epochs", "8"]
    rendezvous = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    ranks = [
        subprocess.Popen(
            command,
            env=agent.environment(RANK=str(rank), **rendezvous),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    assert re.search(r"^final accuracy=0\.9\d\d\d$", printed[0], re.MULTILINE), printed[0]
    assert "accuracy" not in printed[1]
    agent.wait_for(2, "bye")
    # 1,437 samples: 719 per rank, in 45 batches of 16.
    byes = {bye["rank"]: bye["steps"] for bye in agent.of_type("bye")}
    assert byes == {0: 8 * 45, 1: 8 * 45}
    assert {hello["world"] for hello in agent.of_type("hello")} == {2}


BY_HAND = """
import hashlib, os, sys
import torch
from torch import nn
import skep_job
torch.set_num_threads(1)
torch.manual_seed(0)
model, words = nn.LSTM(8, 8, dropout=0.2, num_layers=2), torch.randn(40, 4, 8)
state = (torch.zeros(2, 4, 8), torch.zeros(2, 4, 8))
for number in range(40):
    model.zero_grad()
    state = tuple(part.detach() for part in state)
    output, state = model(words[number : number + 5], state)
    loss = (output - words[number : number + 5]).square().mean()
    if number == 20 and "hold" in sys.argv:
        print("holding", flush=True)
        while not skep_job.current().control.due:
            os.sched_yield()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.5)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print(digest.hexdigest(), loss.item(), flush=True)
"""


@pytest.mark.slow
def test_what_updates_by_hand_is_suspended_and_goes_on_to_the_same_bits(
    agent: JobAgent, tmp_path: Path
) -> None:
    """A word model as PyTorch's example has it: no optimizer, no loader."""
    script = tmp_path / "script.py"
    script.write_text(BY_HAND)
    whole = launch([script], agent.environment())
    assert (whole.returncode, whole.stderr) == (0, "")
    command = [sys.executable, "-m", "skep_job", str(script), "hold"]
    with subprocess.Popen(
        command, env=agent.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        agent.order("suspend", 1)
        agent.wait_for(1, "suspended", order=1)
        assert agent.of_type("suspended")[0]["step"] == 21
        agent.order("release", 2)
        agent.wait_for(1, "released", order=2)
        agent.order("resume", 3)
        assert process.stdout.read() == whole.stdout
        assert process.wait() == 0
    agent.wait_for(2, "bye", steps=40)
    assert agent.of_type("stats")[-1]["source"] == "backward"
