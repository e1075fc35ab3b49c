"""A gang of which the rank on node-2 is slow: `slows.py HOW STEPS`.

forward   it sleeps in its forward pass
load      its data loader does
none      no rank is slow
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, IterableDataset

HOW, STEPS = sys.argv[1], int(sys.argv[2])
SLOW = Path(os.environ["SKEP_NODE_STATE"]).name == "node-2"
LAGS_S = 0.06


class Rows(IterableDataset[Tensor]):
    """Rows of which a mini-batch takes its time, where the loader is slow."""

    def __iter__(self) -> Iterator[Tensor]:
        """Yield them."""
        for _ in range(STEPS):
            if SLOW and HOW == "load":
                # tidy: allow sleep because the loading itself is slow
                time.sleep(LAGS_S)
            yield torch.ones(16, 64)


class Net(nn.Module):
    """Layers, behind work that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])

    def forward(self, rows: Tensor) -> Tensor:
        """Return the sum of what the layers make of the rows."""
        # tidy: allow sleep because the training itself is slow
        time.sleep(0.03)
        if SLOW and HOW == "forward":
            # tidy: allow sleep because the training itself is slow
            time.sleep(LAGS_S)
        return self.layers(rows).sum()


def main() -> None:
    """Train, with nothing of Skep's in the script."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for rows in DataLoader(Rows(), batch_size=None):
        optimizer.zero_grad()
        model(rows).backward()
        optimizer.step()
    print("done", flush=True)


main()
