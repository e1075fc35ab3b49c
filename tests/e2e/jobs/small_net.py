"""Trains a net of 49 parameters on batches of 20 until a file is there: `small_net.py FILE`."""

import sys
import time
from pathlib import Path

import quick_torch  # noqa: F401  it spares the compiler
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

stop = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
batches = DataLoader(TensorDataset(torch.randn(400, 4), torch.randn(400, 1)), batch_size=20)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not stop.exists():
    for x, y in batches:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        # tidy: allow sleep because it stands for the work of a larger net
        time.sleep(0.02)
