"""Trains a tiny model on parameter servers until $STEPS_FILE.stop exists.

After each mini-batch a line `PID STEP WORKERS SERVERS` is appended to $STEPS_FILE.<rank>.
"""

from __future__ import annotations

import os
import time

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import nn

from skep_ps import SGD

PAUSE_S = 0.01
SAMPLES = 16


def main() -> None:
    """Train until $STEPS_FILE.stop exists."""
    torch.set_num_threads(1)
    path, rank = os.environ["STEPS_FILE"], os.environ["RANK"]
    torch.manual_seed(int(rank))
    notes = os.open(f"{path}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9, average=False)
    while not optimizer.left and not os.path.exists(f"{path}.stop"):
        step, world, servers = optimizer.version, optimizer.world, len(optimizer.servers)
        samples = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(samples[optimizer.rank :: world]).square().sum() / SAMPLES
        loss.backward()
        optimizer.step()
        os.write(notes, f"{os.getpid()} {step} {world} {servers}\n".encode())
        time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and it paces itself


if __name__ == "__main__":
    main()
