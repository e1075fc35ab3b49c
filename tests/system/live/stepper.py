"""A PyTorch training whose length and pace are the clock's, however busy the machine is.

    stepper.py SECONDS STEP_SECONDS

It ends so many seconds after its process began, importing included.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import nn


def age_s() -> float:
    """Return how long ago this process began."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime") as file:
        up_s = float(file.read().split()[0])
    return up_s - ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Train at the pace until the time is over."""
    ends = time.monotonic() - age_s() + float(sys.argv[1])
    step_s = float(sys.argv[2])
    torch.set_num_threads(1)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    due = time.monotonic()
    while (due := due + step_s) < ends:
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        time.sleep(max(0.0, due - time.monotonic()))
    time.sleep(max(0.0, ends - time.monotonic()))
    # An interpreter with PyTorch in it takes a processor a while to come down.
    os._exit(0)


if __name__ == "__main__":
    main()
