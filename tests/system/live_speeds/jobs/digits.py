"""Trains a classifier of handwritten digits on one or more ranks that add up gradients (gloo).

    digits.py --data FILE [--mini-batches N] [--until FILE] [--width N] [--layers N] [--conv]
              [--batch N] [--work MS] [--elastic LEAST MOST]

Ends after so many mini-batches, or once the file is there. `--work` is a wait for each sample of a
mini-batch that stands for the work of a GPU; passes, sums of gradients and steps are real.
`--batch` are samples of a rank; with `--elastic` they are those of the gang, which may change its
size.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "e2e" / "jobs"))

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import skep_job


def parse() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--mini-batches", type=int, default=1_000_000)
    parser.add_argument("--until", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--conv", action="store_true")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--work", type=float, default=1.0)
    parser.add_argument("--elastic", type=int, nargs=2)
    return parser.parse_args()


def network(width: int, layers: int, *, conv: bool) -> nn.Module:
    """Return the model."""
    first = [
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
    ]
    parts: list[nn.Module] = first if conv else []
    inputs = 1024 if conv else 64
    for _ in range(layers):
        parts += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*parts, nn.Linear(inputs, 10))


def main() -> None:
    """Train until told to end."""
    given = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = network(given.width, given.layers, conv=given.conv)
    data = TensorDataset(*torch.load(given.data))
    elastic, ranks = bool(given.elastic), int(os.environ.get("WORLD_SIZE", "1"))
    run: Any
    model: Any = net
    sampler: Any = None
    if elastic:
        run = skep_job.init(elastic=tuple(given.elastic), global_batch=given.batch)
        model = run.ddp(net)
    else:
        if ranks > 1:
            distributed.init_process_group("gloo")
            model = DistributedDataParallel(net)
        run = skep_job.init()
        sampler = DistributedSampler(data, ranks, int(os.environ.get("RANK", "0")))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, opt=optimizer)
    loader = DataLoader(data, given.batch, shuffle=elastic, sampler=sampler, drop_last=True)
    told = torch.zeros(2)
    for _ in run.epochs(1_000_000):
        for images, labels in run.batches(loader):
            world = run.seat.world if elastic else ranks
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(model(images), labels)
            time.sleep(given.work * len(labels) / 1000)
            loss.backward()
            optimizer.step()
            told[0], told[1] = loss.item(), given.until.exists()
            if world > 1:
                distributed.all_reduce(told)
            if told[1] or run.steps + 1 >= given.mini_batches:
                print(f"mini-batches={run.steps + 1} loss={told[0].item() / world:.4f}", flush=True)
                return


if __name__ == "__main__":
    main()
