"""Trains a small model, and notes of every mini-batch: when, its loss, and what memory is allowed.

On a fake GPU it asks for one byte more than it is allowed whenever that has changed, and notes
whether PyTorch's own error said no. What it computes does not depend on any of that.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import nn

from skep_job.devices import fake_gpus


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notes", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--steps", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    model = nn.Sequential(nn.Linear(64, 512), nn.Dropout(0.2), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters())
    before = 0
    with arguments.notes.open("a", buffering=1) as notes:
        for number in itertools.count(1):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 64)).square().mean()
            loss.backward()
            optimizer.step()
            allowed, word = _memory(before)
            before = allowed
            notes.write(f"{time.monotonic():.4f} {loss.item().hex()} {allowed} {word}\n")
            if number == arguments.steps or (arguments.until and arguments.until.exists()):
                return


def _memory(before: int) -> tuple[int, str]:
    """Return the bytes allowed, and what came of asking for more, if these are others."""
    devices = fake_gpus.mine()
    if not devices:
        return 0, "-"
    one = devices[0]
    allowed = one.allowed
    if allowed == before:
        return allowed, "-"
    try:
        one.allocate(allowed - one.memory + 1)
    except torch.OutOfMemoryError:
        return allowed, "refused"
    return allowed, "given"


if __name__ == "__main__":
    main()
