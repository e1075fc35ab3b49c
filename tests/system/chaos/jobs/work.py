"""A job that notes what it is and does in its own file: the evidence that no service can bend.

    began: job, attempt, rank, world, node, slots, pid;  step: its number;  ended: status

One JSON line per note, appended with one write, so that the file is whole up to the last line
whatever kills the process. Times are of the monotonic clock, which all processes of a machine
share and nobody sets. A later attempt goes on behind the last step noted. Standard library only,
and nothing of Skep.

    $NOTES   folder of the files; the file is `<job>.<rank>`
    $STEPS   how many steps to make, -1 for ever;   $PAUSE_MS  after each step
    $FAILS   attempts that exit with status 3 half way, counted from the first
    $TRAIN   1: each step is a mini-batch of a small model in PyTorch
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

FAILED = 3
BYTES_READ_MAX = 1 << 20


class Notes:
    """The file of one rank of one job."""

    def __init__(self) -> None:
        """Open it, and find the last step that any attempt noted."""
        env = os.environ
        self.attempt = int(env["SKEP_GEN"])
        path = os.path.join(env["NOTES"], f"{env['SKEP_JOB']}.{env['SKEP_RANK']}")
        self.step = last_step(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.note(
            "began",
            job=env["SKEP_JOB"],
            rank=int(env["SKEP_RANK"]),
            world=int(env["SKEP_WORLD"]),
            node=env.get("SKEP_NODE") or _node(env["SKEP_SOCK"]),
            slots=[int(slot) for slot in env["SKEP_DEVICES"].split(",") if slot],
            from_step=self.step,
        )

    def note(self, what: str, **facts: Any) -> None:
        """Append one line."""
        line = {
            "note": what,
            "attempt": self.attempt,
            "pid": os.getpid(),
            "at": time.monotonic_ns(),
            **facts,
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")


def _node(sock: str) -> str:
    """Return the name of a node: of its agent's state folder, or of its machine if it has one."""
    name = os.path.basename(os.path.dirname(os.path.dirname(sock)))
    return os.uname().nodename if name == "agent" else name


def last_step(path: str) -> int:
    """Return the highest step noted so far, 0 if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - BYTES_READ_MAX))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return 0
    steps = [json.loads(line).get("step", 0) for line in lines if line.startswith(b'{"note": "s')]
    return max(steps, default=0)


def mini_batch() -> Callable[[], None]:
    """Return what makes one step of a real training."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        inputs = torch.randn(8, 16)
        loss = ((model(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train


def main() -> int:
    """Make the steps; return the exit status."""
    env = os.environ
    steps, pause_s = int(env.get("STEPS", "0")), int(env.get("PAUSE_MS", "0")) / 1000
    notes = Notes()
    code = FAILED if notes.attempt <= int(env.get("FAILS", "0")) else 0
    step = mini_batch() if env.get("TRAIN") == "1" else None
    until = notes.step + max(1, (steps - notes.step) // 2) if code else steps
    while steps < 0 or notes.step < until:
        if step is not None:
            step()
        time.sleep(pause_s)
        notes.step += 1
        notes.note("step", step=notes.step)
    notes.note("ended", code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
