"""A gang of which the last rank hangs in its first attempt: `hangs.py HOW`.

behind   in a line of the script, before the others' collective is over
mute     in a call that keeps the interpreter's lock
waits    all ranks, each in a collective that waits for the next one
stands   the only rank, in a line of the script
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch
from torch import distributed, nn

import skep_job

HANG_AT, STEPS = 20, 40


def load(step: int, hangs: bool) -> None:
    """Load a mini-batch, or never come back."""
    if not hangs or step != HANG_AT:
        return
    if sys.argv[1] in {"behind", "stands"}:
        threading.Event().wait()
    elif sys.argv[1] == "mute":
        sum(range(10**15))


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    net = nn.Linear(8, 8)
    model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    run = skep_job.init(checkpoint_every="1s")
    run.track(model=model, optimizer=optimizer)
    first = os.environ["SKEP_GEN"] == "1"
    for step in run.batches(range(STEPS)):
        load(step, first and rank == world - 1)
        if first and sys.argv[1] == "waits" and step == HANG_AT:
            distributed.broadcast(torch.ones(1), (rank + 1) % world)
        # tidy: allow sleep because the training itself is slow, and nothing waits for it by time
        time.sleep(0.1)
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    print("result", net.weight.sum().item(), flush=True)


main()
