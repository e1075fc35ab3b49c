"""Trains a model on several ranks that add up their gradients over the network (gloo).

    gang.py NOTES --until FILE [--megabytes N] [--work SECONDS] [--workers LEAST MOST --batch N]

Notes in NOTES.RANK when each mini-batch began and ended, and how many ranks there were. `--work` is
a wait that stands for the GPU's work of a mini-batch; with `--workers` the job may change its size,
and what each rank waits is its part of it.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import skep_job

WIDTH = 256


def main() -> None:
    """Train until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("notes")
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=0.25)
    parser.add_argument("--work", type=float, default=0.05)
    parser.add_argument("--workers", type=int, nargs=2)
    parser.add_argument("--batch", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    layers = max(1, round(given.megabytes * 1e6 / 4 / WIDTH**2))
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    elastic = bool(given.workers)
    run: Any
    model: Any
    if elastic:
        run = skep_job.init(elastic=tuple(given.workers), global_batch=given.batch)
        model = run.ddp(net)
    else:
        distributed.init_process_group("gloo")
        run, model = skep_job.init(), DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    run.track(model=model, opt=optimizer)
    loader = DataLoader(TensorDataset(torch.randn(given.batch * 64, WIDTH)), given.batch)
    stop = torch.zeros(1)
    with open(f"{given.notes}.{rank}", "a", buffering=1) as notes:
        began = time.time_ns()
        for _ in run.epochs(1_000_000):
            for (x,) in run.batches(loader):
                world = run.seat.world if elastic else distributed.get_world_size()
                optimizer.zero_grad()
                loss = model(x).square().mean()
                time.sleep(given.work / (world if elastic else 1))
                loss.backward()
                optimizer.step()
                stop.fill_(given.until.exists())
                if world > 1:
                    distributed.all_reduce(stop, distributed.ReduceOp.MAX)
                ended = time.time_ns()
                notes.write(f"{began} {ended} {world}\n")
                if stop.item():
                    return
                began = ended


if __name__ == "__main__":
    main()
