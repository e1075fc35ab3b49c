"""Trains a small data-parallel model that may change its size, until $NOTES.stop exists.

Or for $STEPS mini-batches. Of each mini-batch every rank notes its number, its rank, how many ranks
there are, and its samples in $NOTES.steps-<pid>, at the end the loss over all data in $NOTES.loss.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import skep_job

PAUSE_S = 0.01
ROUND = 50
"""All ranks stop after the same mini-batch: a multiple that none is past when they are told to."""


class Numbered(Dataset):  # type: ignore[type-arg]
    """Random samples; each also says which it is."""

    def __init__(self, count: int) -> None:
        made = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, 8, generator=made)
        self.y = torch.tanh(self.x @ torch.randn(8, 1, generator=made))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, Any, int]:
        return self.x[index], self.y[index], index


def main() -> None:
    path, limit = os.environ["NOTES"], int(os.environ.get("STEPS", "0"))
    torch.set_num_threads(1)
    torch.manual_seed(3)
    data = Numbered(120)
    loader = DataLoader(data, batch_size=12, shuffle=True)
    run = skep_job.init(elastic=(1, 4), global_batch=12)
    model = run.ddp(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.track(model=model, opt=optimizer)
    with Path(f"{path}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    with Path(f"{path}.steps-{os.getpid()}").open("a", buffering=1) as notes:
        for _ in run.epochs(1_000_000):
            for x, y, index in run.batches(loader):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                run.report(loss=loss, samples=len(x))
                step, seat = run.steps + 1, run.seat
                real = index.tolist() if run.weight else []
                notes.write(json.dumps([step, seat.rank, seat.world, real]) + "\n")
                told = step % ROUND == 0 and os.path.exists(f"{path}.stop")
                if step == limit or (told and not limit):
                    with torch.no_grad():
                        whole = nn.functional.mse_loss(model(data.x), data.y).item()
                    Path(f"{path}.loss").write_text(json.dumps(whole))
                    return
                if not limit:
                    time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and paces itself


if __name__ == "__main__":
    main()
