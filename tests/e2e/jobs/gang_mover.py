"""Trains a tiny model on several ranks with DistributedDataParallel, until $STEPS_FILE.stop exists.

After each mini-batch a line `ATTEMPT STEP LOSS` is appended to $STEPS_FILE.<rank>, the loss as the
bits of its number. With $STEPS the training ends after so many mini-batches, and pauses in none.
With $COPIES it keeps copies in memory so often. $STEPS_FILE.<rank>.<attempt> is its pid, and the
folder of these copies.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import skep_job

PAUSE_S = 0.1
"""Long, so that another gang can soon do the same mini-batches without it."""


def main() -> None:
    """Train until $STEPS_FILE.stop exists on every rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path, attempt = os.environ["STEPS_FILE"], os.environ.get("SKEP_GEN", "0")
    notes = os.open(
        f"{path}.{os.environ.get('RANK', '0')}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    Path(f"{path}.{os.environ.get('RANK', '0')}.{attempt}").write_text(
        f"{os.getpid()} {os.environ.get('SKEP_REPLICAS', '-')}"
    )
    distributed.init_process_group("gloo")
    data = TensorDataset(torch.randn(96, 16), torch.randn(96, 1))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    run = skep_job.init(replicas_every=os.environ.get("COPIES"))
    run.track(model=model, opt=optimizer)
    torch.manual_seed(int(os.environ.get("RANK", "0")))  # Each rank drops out something else.
    last = int(os.environ.get("STEPS", "0"))
    for epoch in run.epochs(1_000_000):
        sampler.set_epoch(epoch)
        for x, y in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.report(loss=loss, samples=len(x))
            os.write(notes, f"{attempt} {run.steps + 1} {float(loss.item()).hex()}\n".encode())
            stop = torch.tensor([os.path.exists(f"{path}.stop") or run.steps + 1 == last])
            distributed.all_reduce(stop, distributed.ReduceOp.MAX)
            if bool(stop):
                return
            if not last:
                time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and paces itself


if __name__ == "__main__":
    main()
    # Else a thread of gloo may hear of the other's end while the interpreter takes itself apart.
    distributed.destroy_process_group()
