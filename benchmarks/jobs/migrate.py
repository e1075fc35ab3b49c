"""The training that `benchmarks.migrate` moves: a state of a chosen size, and its times on a line.

Each line is a word and `time.monotonic_ns()`: `begun` when the state is there, `step` after each
mini-batch.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import skep_job

BYTES_PER_PARAMETER = 12
"""Four for the parameter and eight for what Adam remembers of it."""
WIDTH = 1024


def main() -> None:
    """Train until told to end."""
    megabytes = int(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = max(round(megabytes * 1_000_000 / BYTES_PER_PARAMETER / WIDTH**2), 1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(512, WIDTH), torch.randn(512, WIDTH))
    loader = DataLoader(data, batch_size=16, shuffle=True)

    run = skep_job.init()
    run.track(model=model, opt=optimizer)
    for _ in run.epochs(1_000_000):
        say("begun")
        for x, y in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            say("step")


def say(word: str) -> None:
    """Tell the time of something."""
    print(word, time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    main()
