"""A data-parallel job that may change its size, as a user would write it, and what a test asks.

Arguments: a JSON object (see `OPTIONS`). Prints one JSON line when it holds and one at its end.
`window`: mini-batches whose gradients are accumulated, in its first half without an all-reduce.
`hold`: before these mini-batches it prints and reads a line. After "due" it waits until it knows of
a change of the gang, after "order" until it knows of any order.
`die`: where this process kills itself, see `plant`. `agree_ns`: how often ranks agree on what is
due (0: as ever; -1: after every mini-batch).
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import skep_job
from skep_job.cooperate import gang_barrier
from skep_job.elastic import process_group
from skep_job.elastic.agreement import Round
from skep_job.elastic.run import ElasticRun
from skep_job.state import transfer

OPTIONS = {
    "epochs": 4,
    "samples": 200,
    "global_batch": 32,
    "workers": 0,
    "hold": [],
    "die": "",
    "patience_s": 20.0,
    "width": 16,
    "sizes": [1, 4],
    "pace_s": 0.0,
    "window": 1,
    "agree_ns": 0,
}

torch.set_num_threads(1)


class Numbered(Dataset):  # type: ignore[type-arg]
    """Random samples; each also says which it is."""

    def __init__(self, count: int) -> None:
        made = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, 8, generator=made)
        self.y = torch.tanh(self.x @ torch.randn(8, 1, generator=made))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, Any, int]:
        return self.x[index], self.y[index], index


def say(**fields: object) -> None:
    """Print one line."""
    print(json.dumps(fields), flush=True)


def hold(run: ElasticRun, step: int) -> None:
    """Wait for a line; with "due", then until a change is known here."""
    say(holds=step, rank=run.seat.rank)
    word = sys.stdin.readline().strip()
    if word != "go":
        observation = skep_job.current()
        assert observation is not None
        control = observation.control
        ways: dict[str, Callable[[], bool]] = {
            "due": lambda: control.due and run.gang.due,
            "order": lambda: control.due or control.held is not None,
        }
        while not ways[word]():
            threading.Event().wait(0.002)


def plant(where: str) -> None:
    """Have this process killed at a moment of a change."""

    victim = os.getpid()

    def die(*_: object, **__: object) -> None:
        os.kill(victim, signal.SIGKILL)

    if where.startswith("store:"):
        victim, original = int(where.removeprefix("store:")), Round.enter

        def kill_store(round_: Round) -> None:
            die()
            original(round_)

        owner: Any = Round
        owner.enter = kill_store
        return

    places: dict[str, tuple[Any, str]] = {
        "arrive": (Round, "arrive"),
        "copy": (transfer.Wire, "receive_tensors"),
        "send": (transfer.Wire, "send_tensors"),
        "form": (process_group, "form"),
        "enter": (Round, "enter"),
        "knock": (Round, "knock"),
    }
    planted, name = places[where]
    setattr(planted, name, die)


def main() -> None:
    options = OPTIONS | json.loads(sys.argv[1])
    if options["die"]:
        plant(options["die"])
    if options["agree_ns"]:
        gang_barrier.EVERY_NS = options["agree_ns"]
    torch.manual_seed(3)
    run = skep_job.init(
        elastic=tuple(options["sizes"]),
        global_batch=options["global_batch"],
        patience_s=options["patience_s"],
    )
    width = options["width"]
    model = run.ddp(nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    run.track(model=model, opt=optimizer, sched=schedule)
    data = Numbered(options["samples"])
    loader = DataLoader(
        data, batch_size=options["global_batch"], shuffle=True, num_workers=options["workers"]
    )
    seen = []
    step = 0
    try:
        for _ in run.epochs(options["epochs"]):
            for x, y, index in run.batches(loader):
                step = run.steps
                if step in options["hold"]:
                    hold(run, step)
                at, window = step % options["window"], options["window"]
                with model.no_sync() if at < window // 2 else contextlib.nullcontext():
                    nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
                if at == window - 1:
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                time.sleep(options["pace_s"])  # tidy: allow sleep because this is a job's work
                real = index.tolist() if run.weight else []
                seen.append([step, run.seat.rank, run.seat.world, real])
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(data.x), data.y).item()
        say(loss=loss, lr=schedule.get_last_lr()[0], steps=run.steps)
    finally:
        say(
            pid=os.getpid(),
            seen=seen,
            pauses=[
                {
                    "step": p.step,
                    "total_ns": p.total_ns,
                    "parts_ns": p.parts_ns,
                    "bytes": p.bytes,
                    "before": p.before,
                    "after": p.after,
                }
                for p in run.gang.pauses
            ],
        )


main()
