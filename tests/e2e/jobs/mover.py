"""Trains a tiny model in epochs that never end, in a way that another process can go on with.

After each mini-batch a line `ATTEMPT STEP SUM` is appended to $STEPS_FILE.<rank>, SUM a fingerprint
of the model. The training ends at the first step at which $STEPS_FILE.stop exists.
"""

from __future__ import annotations

import os
import time

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import skep_job

PAUSE_S = 0.01


def main() -> None:
    """Train until $STEPS_FILE.stop exists."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path, attempt = os.environ["STEPS_FILE"], os.environ["SKEP_GEN"]
    notes = os.open(
        f"{path}.{os.environ.get('RANK', '0')}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    loader = DataLoader(data, 8, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    run = skep_job.init()
    run.track(model=model, opt=optimizer)
    for _ in run.epochs(1_000_000):
        for x, y in run.batches(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total = sum((float(each.detach().sum()) for each in model.parameters()), 0.0)
            os.write(notes, f"{attempt} {run.steps + 1} {total}\n".encode())
            if os.path.exists(f"{path}.stop"):
                return
            time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and it paces itself


if __name__ == "__main__":
    main()
