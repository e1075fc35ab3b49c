"""Trains on parameter servers until a version, and waits at gates on the way.

At a gate's version it makes FOLDER/gate-V.RANK and goes on once FOLDER/gate-V.open is there. Once
FOLDER/stop is there it ends; if that says "save", rank 0 writes FOLDER/checkpoint.pt before. At the
end it writes what it knows to FOLDER/NAME.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skep_ps import SGD

WAIT_S = 300.0
DATA, CLASSES = 64, 10
CUT_EVERY_S = 0.02


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--until", type=int, default=60)
    parser.add_argument("--gates", default="", help="versions, or own steps if asynchronous")
    parser.add_argument("--leave-at", type=int, default=-1)
    parser.add_argument("--cut", type=int, default=0, help="seed: breaks connections all the time")
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--global-batch", type=int, default=0, help="samples of all workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", default="")
    return parser.parse_args()


class Trainer:
    """One worker."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Make the model and join the job."""
        self.options = options
        self.folder: Path = options.folder
        self.gates = [int(gate) for gate in options.gates.split(",") if gate]
        torch.manual_seed(options.seed)
        self.model = nn.Sequential(
            nn.Linear(DATA, options.hidden), nn.ReLU(), nn.Linear(options.hidden, CLASSES)
        )
        saved: dict[str, Any] = torch.load(options.load) if options.load else {}
        if saved:
            self.model.load_state_dict(saved["model"])
        self.optimizer = SGD(
            self.model.parameters(),
            lr=0.05,
            momentum=0.9,
            weight_decay=1e-4,
            asynchronous=options.asynchronous,
            average=not options.global_batch,
        )
        self.before = int(saved.get("version", 0))  # what an earlier job has done
        self.begins_at = self.version
        # Wherever this worker comes in: the learning rates must agree.
        done = self.version
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda steps: 0.5 ** ((done + steps) // 25)
        )
        if saved:
            self.optimizer.load_state_dict(saved["optimizer"])
        self.losses: dict[int, float] = {}
        self.world: list[list[int]] = []
        self.steps_ns: list[int] = []
        self.first_step_at = self.last_step_at = 0.0

    @property
    def version(self) -> int:
        """Return how many updates there were, those of an earlier job included."""
        return self.optimizer.version + self.before

    def train(self) -> None:
        """Train to the end."""
        optimizer, options = self.optimizer, self.options
        while self.version < options.until and not optimizer.left:
            position = len(self.steps_ns) if options.asynchronous else self.version
            if position in self.gates:
                self.wait_at(position)
            if options.leave_at == self.version:
                optimizer.leave()
            if (self.folder / "stop").exists():
                if optimizer.rank == 0 and "save" in (self.folder / "stop").read_text():
                    self.save()
                return
            self.step()

    def step(self) -> None:
        """Do one mini-batch."""
        optimizer, size = self.optimizer, self.options.global_batch
        version, rank, world = self.version, optimizer.rank, optimizer.world
        began = time.monotonic_ns()
        if size:
            inputs, targets = batch_of(version, size * rank // world, size * (rank + 1) // world)
            loss = nn.functional.cross_entropy(self.model(inputs), targets, reduction="sum") / size
        else:
            inputs, targets = batch_of(version * 100 + rank, 0, 16)
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.schedule.step()
        self.steps_ns.append(time.monotonic_ns() - began)
        self.last_step_at = time.time()
        self.first_step_at = self.first_step_at or self.last_step_at
        self.losses[version] = loss.item()
        self.world.append([version, rank, world])

    def wait_at(self, gate: int) -> None:
        """Stand at a gate until it is opened."""
        self.gates.remove(gate)
        (self.folder / f"gate-{gate}.{self.optimizer.rank}").touch()
        deadline = time.monotonic() + WAIT_S
        while not (self.folder / f"gate-{gate}.open").exists():
            if time.monotonic() > deadline:
                sys.exit("the gate was not opened")
            # tidy: allow sleep because it looks at a condition until a deadline
            time.sleep(0.002)

    def save(self) -> None:
        """Write a checkpoint, atomically."""
        path = self.folder / "checkpoint.pt"
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def result(self) -> dict[str, Any]:
        """Return what the test wants to know."""
        return {
            "version": self.version,
            "begins_at": self.begins_at,
            "left": self.optimizer.left,
            "sha": parameters_sha(self.model),
            "pauses": [list(pause) for pause in self.optimizer.pauses],
            "losses": self.losses,
            "world": self.world,
            "steps_ns": self.steps_ns,
            "first_step_at": self.first_step_at,
            "last_step_at": self.last_step_at,
        }


def parameters_sha(model: nn.Module) -> str:
    """Return the sha256 of all parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def batch_of(seed: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Return samples `begin` to `end` of a mini-batch."""
    inputs = torch.randn(48, DATA, generator=torch.Generator().manual_seed(seed))
    return inputs[begin:end], inputs[begin:end, :CLASSES].argmax(dim=1)


def cut(optimizer: SGD, rng: random.Random, over: threading.Event) -> None:
    """Break one of the worker's connections after the other, as a bad network would."""
    link: Any = optimizer._link
    while not over.wait(CUT_EVERY_S * rng.random()):
        channels = [lane._channel for lane in list(link._lanes.values())]
        channel = rng.choice([*channels, *([link._control._channel] * (rng.random() < 0.1))])
        if channel is not None:
            channel.close()


def main() -> None:
    """Join, train, and tell."""
    torch.set_num_threads(1)
    options = parse_arguments()
    trainer = Trainer(options)
    over = threading.Event()
    if options.cut:
        rng = random.Random(options.cut)
        arguments = (trainer.optimizer, rng, over)
        threading.Thread(target=cut, args=arguments, daemon=True).start()
    trainer.train()
    over.set()
    result = trainer.result()
    trainer.optimizer.close()
    path = options.folder / f"{options.name}.json"
    path.with_suffix(".new").write_text(json.dumps(result))
    os.replace(path.with_suffix(".new"), path)


if __name__ == "__main__":
    main()
