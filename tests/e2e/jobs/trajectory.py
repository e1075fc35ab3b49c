"""Trains a tiny model in double precision, and notes every mini-batch so exactly that it can be
compared with an uninterrupted run.

    python trajectory.py plain | cooperative | elastic | sharded

$NOTES.<rank> gets a line `begin ATTEMPT PID` before anything is imported that takes time, and after
each mini-batch `step ATTEMPT PID STEP WORLD SUM`, SUM the exact sum of all parameters. The training
ends after the mini-batch whose number is in $NOTES.stop. `plain` imports nothing of Skep.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

ATTEMPT, RANK = os.environ.get("SKEP_GEN", "0"), os.environ.get("RANK", "0")
NOTES = os.environ["NOTES"]
PAUSE_S = float(os.environ.get("PAUSE_S", "0.01"))


class Notes:
    """The file that outlives the process."""

    def __init__(self) -> None:
        """Say that the process is there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(f"{NOTES}.{RANK}", flags, 0o644)
        os.write(self._file, f"begin {ATTEMPT} {os.getpid()}\n".encode())

    def step(self, step: int, world: int, model: Any) -> bool:
        """Note a mini-batch; return whether it is the last one."""
        total = sum(float(whole(each.detach()).sum()) for each in model.parameters())
        line = f"step {ATTEMPT} {os.getpid()} {step} {world} {float(total).hex()}\n"
        os.write(self._file, line.encode())
        try:
            with open(f"{NOTES}.stop", encoding="ascii") as file:
                over = step >= int(file.read() or sys.maxsize)
        except FileNotFoundError:
            over = False
        if not over and PAUSE_S:
            time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and it paces itself
        return over


def main(kind: str) -> None:
    """Train until told to stop."""
    notes = Notes()
    if kind != "sharded":  # DTensor needs all of PyTorch.
        import quick_torch  # noqa: F401 - PyTorch starts twice as fast
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    # Ranks of a gang draw different numbers: only what one process trains has dropout.
    gang = kind in ("elastic", "sharded")
    middle = nn.Identity() if gang else nn.Dropout(0.1)
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), middle, nn.Linear(32, 1))

    def train(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    if kind == "plain":
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.001)
        for step, (x, y) in enumerate(forever(loader), 1):
            train(x, y)
            if notes.step(step, 1, model):
                return
    import skep_job

    elastic = {"elastic": (1, 4), "global_batch": 8} if gang else {}
    run: Any = skep_job.init(**elastic)  # type: ignore[arg-type]
    if kind == "elastic":
        model = run.ddp(model)
    elif kind == "sharded":
        model = run.shard(model, split)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    run.track(model=model, opt=optimizer)
    for _ in run.epochs(1_000_000):
        for x, y in run.batches(loader):
            train(x, y)
            world = run.seat.world if gang else 1
            if notes.step(run.steps + 1, world, model):
                return


def split(model: Any) -> None:
    """Leave each rank with a part of every parameter."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)


def whole(tensor: Any) -> Any:
    """Return all of a tensor of which each rank may have a part; all ranks ask for it together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def forever(loader: Any) -> Iterator[Any]:
    """Yield mini-batch after mini-batch."""
    while True:
        yield from loader


if __name__ == "__main__":
    main(sys.argv[1])
