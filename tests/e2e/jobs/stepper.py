"""Trains a tiny model and notes every mini-batch it made, until it is told to stop.

After each optimizer step one line `ATTEMPT STEP` is appended to $STEPS_FILE.<rank>. The training
ends at the first step at which $STEPS_FILE.stop exists. More than one rank train together
(DistributedDataParallel over gloo) and agree on that step. Plain PyTorch: nothing of Skep is
imported.
"""

from __future__ import annotations

import os
import time

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

PAUSE_S = 0.01
"""After each mini-batch: what is observed is that none is lost, not how fast they are."""


def main() -> None:
    """Train until $STEPS_FILE.stop exists."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path, attempt = os.environ["STEPS_FILE"], os.environ.get("SKEP_GEN", "1")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    if world > 1:
        distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    notes = os.open(f"{path}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    print(f"rank {rank} of {world} trains", flush=True)

    step, stopping, loss = 0, torch.zeros(1), torch.zeros(1)
    while not stopping.item():
        inputs = torch.randn(8, 16)
        loss = ((model(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        os.write(notes, f"{attempt} {step}\n".encode())
        stopping[0] = os.path.exists(f"{path}.stop")
        if world > 1:
            distributed.all_reduce(stopping, distributed.ReduceOp.MAX)
        time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and it paces itself

    print(f"rank {rank} made {step} mini-batches, loss={loss.item():.4f}", flush=True)
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
