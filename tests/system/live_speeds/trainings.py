"""The models that are trained, the placements of their gangs, and the specs that lead to these."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

SCRIPT = Path(__file__).parent / "jobs" / "digits.py"
NODES = ("node-1", "node-2", "node-3")
SLOTS = 4
GPU_TYPE = "cpu"
INSIDE = "eth0"


class Model(NamedTuple):
    """A family: its network, samples of a mini-batch on each GPU, and ms of work for each."""

    name: str
    width: int
    layers: int
    batch: int
    work_ms: float
    conv: bool = False

    def args(self, batch: int = 0) -> list[str]:
        """Return the words of the script's command line that make this model."""
        words = ["--width", self.width, "--layers", self.layers, "--batch", batch or self.batch]
        words += ["--work", self.work_ms, *(["--conv"] if self.conv else [])]
        return [str(word) for word in words]


MODELS = (
    Model("mlp-1m", 480, 2, 32, 3.0),
    Model("mlp-5m", 1088, 2, 32, 4.0),
    Model("conv-1m", 256, 1, 16, 8.0, conv=True),
    Model("mlp-3m", 512, 4, 24, 4.0),
    Model("mlp-2m", 448, 3, 64, 1.5),
    Model("conv-4m", 960, 1, 32, 5.0, conv=True),
)
"""Gradients have so many megabytes; a mini-batch works for 96 to 160 ms."""


class Place(NamedTuple):
    """GPUs of a gang, nodes they are on, and by what the batch of each GPU is multiplied."""

    gpus: int
    nodes: int = 1
    batches: int = 1

    def batch(self, model: Model) -> int:
        """Return samples of a mini-batch on each GPU."""
        return model.batch * self.batches


PROFILED = (Place(1), Place(2), Place(4), Place(2, 2), Place(1, 1, 2))
UNSEEN = (Place(3), Place(4, 2), Place(3, 3), Place(2, 2, 2))
"""Near what was profiled but the third one, which has more nodes than any of it."""


def spec(model: Model, place: Place, memory: int, words: list[str]) -> dict[str, Any]:
    """Return the spec of a gang at a placement.

    Args:
        model: What it trains.
        place: Where.
        memory: Of a node: so much of it is asked for that a node has room for its part of a gang.
        words: What else the script is told.
    """
    resources: dict[str, Any] = {"workers": place.gpus, "gpus": 1}
    if place.nodes == 1:
        resources["topology"] = {"within": "node", "hard": True}
    else:
        resources["memory"] = memory * place.nodes // place.gpus
    return {**job(model, [*model.args(place.batch(model)), *words]), "resources": resources}


def job(model: Model, words: list[str]) -> dict[str, Any]:
    """Return what the specs of all jobs of a model have in common."""
    return {
        "script": str(SCRIPT),
        "python": sys.executable,
        "args": words,
        "env": {"GLOO_SOCKET_IFNAME": INSIDE, "OMP_NUM_THREADS": "1", "SKEP_REPORT_S": "0.5"},
        "size": {"family": model.name},
        "limits": {"time": 900},
    }
