"""Trains a tiny data-parallel model that may change its size, until $STEPS_FILE.stop exists.

After each mini-batch a line `RANK STEP WORLD` is appended to $STEPS_FILE.<rank>. A mini-batch takes
a hundredth of a second, or $SAMPLE_S for each sample of the rank: then more workers are faster.
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
AHEAD = 3
"""Mini-batches from rank 0's word to the last one: no rank is more than one ahead of another."""


def is_last(path: str, step: int, rank: int) -> bool:
    """Return whether every rank stops after this mini-batch: rank 0 has said which one is last."""
    said = f"{path}.last"
    if rank == 0 and os.path.exists(f"{path}.stop") and not os.path.exists(said):
        with open(f"{said}.part", "w", encoding="ascii") as file:
            file.write(str(step + AHEAD))
        os.rename(f"{said}.part", said)
    try:
        with open(said, encoding="ascii") as file:
            return step >= int(file.read())
    except FileNotFoundError:
        return False


def main() -> None:
    """Train until $STEPS_FILE.stop exists."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path, rank = os.environ["STEPS_FILE"], os.environ["RANK"]
    sample_s = float(os.environ.get("SAMPLE_S", "0"))
    notes = os.open(f"{path}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    run = skep_job.init(elastic=(1, 4), global_batch=8)
    model = run.ddp(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.track(model=model, opt=optimizer)
    for _ in run.epochs(1_000_000):
        for x, y in run.batches(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            os.write(notes, f"{rank} {run.steps + 1} {run.seat.world}\n".encode())
            if is_last(path, run.steps + 1, run.seat.rank):
                return
            pause_s = sample_s * len(x) or PAUSE_S
            time.sleep(pause_s)  # tidy: allow sleep because this is a job, and it paces itself


if __name__ == "__main__":
    main()
