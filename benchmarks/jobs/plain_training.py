"""A script that knows nothing of Skep: it measures its own mini-batches.

plain_training.py MODEL SECONDS FILE PROCESSOR NEIGHBOUR: trains for SECONDS of CPU time on one
processor, and writes what it used for that to FILE. MODEL is `small` (a mini-batch takes a fraction
of a millisecond) or `convolutions` (some milliseconds). Behind its warm-up it waits until the
script whose FILE is NEIGHBOUR is warm too.
"""

import json
import os
import sys
import time

import torch
from torch import nn

WARM_UP = 100
EACH = 10
"""Mini-batches between two looks at the clock."""
LOOK_S = 0.001


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Return a model, and the inputs of one mini-batch."""
    if name == "small":
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(32, 32)
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 12 * 12, 10)), torch.randn(32, 3, 16, 16)


def meet(file: str, neighbour: str) -> None:
    """Wait until the neighbour is warm too."""
    with open(f"{file}.warm", "w", encoding="ascii"):
        pass
    while not os.path.exists(f"{neighbour}.warm"):
        time.sleep(LOOK_S)


def main() -> None:
    """Train, and write the figures."""
    name, seconds, file, processor, neighbour = sys.argv[1:]
    os.sched_setaffinity(0, {int(processor)})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs = made(name)
    targets = torch.randint(0, 10, (len(inputs),))
    optimizer = torch.optim.Adam(model.parameters())

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    train(WARM_UP)
    meet(file, neighbour)
    steps, began, wall = 0, time.process_time(), time.perf_counter()
    while (used := time.process_time() - began) < float(seconds):
        train(EACH)
        steps += EACH
    figures = {"steps": steps, "cpu_s": used, "wall_s": time.perf_counter() - wall}
    with open(f"{file}.part", "w", encoding="ascii") as out:
        json.dump(figures, out)
    os.replace(f"{file}.part", file)


if __name__ == "__main__":
    main()
