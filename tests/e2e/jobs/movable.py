"""Trains with everything that makes a trajectory hard to continue, and prints every loss exactly.

Orders have to arrive at known mini-batches: at those in `--hold`, it says so, waits for a line, and
goes on once an order is due (`order`), at once (`go`), or ends as a crash does (`crash`).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import sys

import numpy as np
import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import skep_job

EPOCHS, SAMPLES, BATCH = 4, 56, 8
"""28 mini-batches in all."""


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are augmented with numbers of every generator, in this process or in none."""

    def __init__(self, samples: int, plain: bool) -> None:
        made = torch.Generator().manual_seed(7)
        self.x = torch.randn(samples, 6, generator=made)
        self.y = torch.randint(0, 3, (samples,), generator=made)
        self.plain = plain

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.x[index]
        if not self.plain:
            x = x + 0.1 * torch.randn(6) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return x, self.y[index]


def build(hidden: int) -> nn.Module:
    first, second = nn.Linear(6, hidden), nn.Linear(hidden, hidden)
    third = nn.Linear(hidden, hidden)
    third.weight = second.weight  # Tied.
    return nn.Sequential(
        first,
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(0.3),
        second,
        third,
        nn.Linear(hidden, 3),
    )


def hold(step: int) -> None:
    print(f"holding {step}", flush=True)
    line = sys.stdin.readline().strip()
    observation = skep_job.current()
    if line == "crash":
        os._exit(9)
    if line == "order" and observation is not None:
        control = observation.control
        while not control.due and control.held is None:
            os.sched_yield()


def spread(
    data: Noisy, model: nn.Module
) -> tuple[DataLoader[tuple[Tensor, Tensor]], DistributedDataParallel]:
    """Train on this rank's part of the samples, together with the others."""
    distributed.init_process_group("gloo", init_method="env://")
    torch.manual_seed(10 + distributed.get_rank())
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(data, seed=5)
    return DataLoader(data, BATCH // 2, sampler=sampler), DistributedDataParallel(model)


def own_gradients(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Return what keeps a rank's gradients its own: they are reduced when the window ends."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return contextlib.nullcontext()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--generator", action="store_true")
    parser.add_argument("--every", default=None)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--hold", type=int, nargs="*", default=[])
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    own = torch.Generator().manual_seed(4) if arguments.generator else None
    data = Noisy(SAMPLES, plain=arguments.workers > 0)
    loader = DataLoader(
        data,
        BATCH,
        shuffle=True,
        num_workers=arguments.workers,
        generator=own,
        persistent_workers=arguments.workers > 0,
    )
    check = DataLoader(data, 28, shuffle=True)
    model = build(arguments.hidden)
    if arguments.ranks:
        loader, model = spread(data, model)
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=7 * arguments.epochs
    )

    run = skep_job.init(checkpoint_every=arguments.every)
    run.track(model=model, opt=optimizer, sched=schedule)
    run.state["average"] = average
    run.state["best"] = float("inf")
    for epoch in run.epochs(arguments.epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        optimizer.zero_grad()
        for number, (x, y) in run.enumerate(loader, 1):
            steps_now = number % arguments.window == 0 or number == len(loader)
            with own_gradients(model) if not steps_now else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), y) / arguments.window
                torch.autograd.backward(loss)
            if steps_now:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            with torch.no_grad():
                for name, tensor in model.state_dict().items():
                    held = run.state["average"][name]
                    held.copy_(tensor if tensor.dtype == torch.int64 else (held + tensor) / 2)
            run.report(loss=loss, samples=len(x))
            step = run.steps + 1
            print(f"loss {step} {epoch} {float(loss.item()).hex()}", flush=True)
            if step in arguments.hold:
                hold(step)
        with torch.no_grad():
            losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in check]
            total = float(sum(losses))
        run.state["best"] = min(float(run.state["best"]), total)
        print(f"check {epoch} {total.hex()} {run.state['best'].hex()}", flush=True)
    digest = hashlib.sha256()
    states = (model.state_dict(), run.state["average"])
    for state in states:
        for tensor in state.values():
            digest.update(tensor.numpy().tobytes())
    print(f"end {run.steps} {schedule.last_epoch} {digest.hexdigest()}", flush=True)
    if arguments.ranks:  # See `gang_mover.py`.
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
