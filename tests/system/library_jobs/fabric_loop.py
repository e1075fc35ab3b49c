"""A loop with Lightning's Fabric: `fabric_loop.py NAME`, as it is or with five lines of Skep's."""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from digest import tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import skep_job


def main() -> None:
    """Train."""
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(0)
    net: Any = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    rows = TensorDataset(torch.randn(240, 64))
    loader: Any = DataLoader(rows, batch_size=4, shuffle=True)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    epochs: Any = range(2)
    batches: Any = iter
    if sys.argv[1] == "Fabric_five_lines":
        run = skep_job.init()
        run.track(model=model, optimizer=optimizer)
        epochs, batches = run.epochs(2), run.batches
    for _ in epochs:
        for (x,) in batches(loader):
            optimizer.zero_grad()
            fabric.backward(nn.functional.mse_loss(model(x), x))
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
    tell(net.state_dict().values())


main()
