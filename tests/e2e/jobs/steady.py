"""Trains a small model and notes every mini-batch with its loss: no code for Skep is in it.

With `--cooperative` it has the lines that moving takes. What the noted losses are does not depend
on when it stood still, nor on where it went on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notes", type=Path)
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--cooperative", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.2), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(2048, 64)), 4, shuffle=True)
    for x in _batches(model, optimizer, loader, cooperative=arguments.cooperative):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        with arguments.notes.open("a") as notes:
            attempt = os.environ.get("SKEP_GEN", "")
            notes.write(f"{attempt} {os.getpid()} {loss.item().hex()}\n")
        if arguments.until.exists():
            return


def _batches(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[Tensor, ...]],
    *,
    cooperative: bool,
) -> Iterator[Tensor]:
    if not cooperative:
        for _ in range(10_000):
            for (x,) in loader:
                yield x
        return
    import skep_job

    run = skep_job.init()
    run.track(model=model, opt=optimizer)
    for _ in run.epochs(10_000):
        for (x,) in run.batches(loader):
            yield x


if __name__ == "__main__":
    main()
