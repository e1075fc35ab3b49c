"""Trains a small model; its imports come first, for a warm process. `soon.py NOTES UNTIL`."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(64, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    notes, until = Path(sys.argv[1]), Path(sys.argv[2])
    with notes.open("a", buffering=1) as file:
        while not until.exists():
            optimizer.zero_grad()
            loss = model(torch.randn(16, 64, device=device)).pow(2).mean()
            loss.backward()
            optimizer.step()
            file.write(f"1 {os.getpid()} {time.monotonic():.4f} {loss.item().hex()}\n")


if __name__ == "__main__":
    main()
