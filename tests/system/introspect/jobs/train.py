"""Trains a small model, and notes of each mini-batch when its optimizer's step began and ended.

    train.py NOTES [--steps N] [--until FILE]

An unmodified script: it knows nothing of Skep. On a fake GPU its optimizer's step lasts as long as
that takes.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import torch
from torch import nn


def main() -> None:
    """Train until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("notes", type=Path)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--until", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with arguments.notes.open("a", buffering=1) as notes:
        for number in itertools.count(1):
            optimizer.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            began = time.time_ns()
            optimizer.step()
            notes.write(f"{began} {time.time_ns()}\n")
            if number == arguments.steps or (arguments.until and arguments.until.exists()):
                return


if __name__ == "__main__":
    main()
