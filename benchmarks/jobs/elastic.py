"""The job of `benchmarks.elastic`: a model of a given size, as an elastic job or under torchrun.

Argument: JSON with `parameters`, and `folder` for checkpoints under torchrun. As an elastic job it
trains until SIGUSR1 and prints its pauses; under torchrun it prints a line after each mini-batch.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import skep_job

WIDTH = 512
GLOBAL_BATCH = 12
torch.set_num_threads(1)


def make_model(parameters: int) -> nn.Module:
    """Return a network of about that many parameters."""
    layers = max(1, round(parameters / WIDTH**2))
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def elastic_job(parameters: int) -> None:
    """Train until told to end; say what each change cost."""
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
    run = skep_job.init(elastic=(1, 4), global_batch=GLOBAL_BATCH)
    model = run.ddp(make_model(parameters))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    run.track(model=model, opt=optimizer)
    loader = DataLoader(TensorDataset(torch.randn(GLOBAL_BATCH * 64, WIDTH)), GLOBAL_BATCH)
    flag = torch.zeros(1)
    ends: list[tuple[int, int]] = []  # when each mini-batch ended, and the pauses until then
    for _ in run.epochs(1_000_000):
        for (x,) in run.batches(loader):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            ends.append((time.monotonic_ns(), len(run.gang.pauses)))
            flag.fill_(len(told))
            if run.seat.world > 1:
                torch.distributed.all_reduce(flag)
            if flag.item():
                print(json.dumps({"pauses": list(map(described, run.gang.pauses, gaps(ends)))}))
                return


def gaps(ends: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return, for each pause, the time between the mini-batches around it, and a usual one."""
    found = []
    pairs = list(itertools.pairwise(ends))
    usual = sorted(b[0] - a[0] for a, b in pairs if a[1] == b[1])
    for before, after in pairs:
        found += [(after[0] - before[0], usual[len(usual) // 2])] * (after[1] - before[1])
    return found


def described(pause: Any, gap: tuple[int, int]) -> dict[str, Any]:
    """Return a pause as JSON."""
    return {
        "total_ns": pause.total_ns,
        "parts_ns": pause.parts_ns,
        "bytes": pause.bytes,
        "gap_ns": gap[0],
        "step_ns": gap[1],
    }


def restarted_job(parameters: int, folder: Path) -> None:
    """Train as torchrun's workers do: from the last checkpoint, until killed."""
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    inner = make_model(parameters)
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    file = folder / "checkpoint.pt"
    if file.exists():
        saved = torch.load(file, weights_only=True)
        inner.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["opt"])
    x = torch.randn(GLOBAL_BATCH // world, WIDTH)
    written = not file.exists()
    while True:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        print(json.dumps({"at": time.monotonic(), "world": world}), flush=True)
        if rank == 0 and written:
            # Once is enough for what is measured: the restart reads as much.
            torch.save({"model": inner.state_dict(), "opt": optimizer.state_dict()}, f"{file}.part")
            os.replace(f"{file}.part", file)
            written = False


def main() -> None:
    """Be the job that the environment asks for."""
    options = json.loads(sys.argv[1])
    if os.environ.get("TORCHELASTIC_RUN_ID") and not os.environ.get("SKEP_SOCK"):
        restarted_job(options["parameters"], Path(options["folder"]))
    else:
        elastic_job(options["parameters"])


main()
