"""The jobs of a live run: drawn from a seed, and timed by the clock, so a busy machine is fine."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
STEP_S = 0.5
TRAININGS = ROOT / "scripts" / "demo" / "jobs"
SIZES = ((1, 1, 45), (1, 2, 25), (2, 1, 12), (2, 2, 10), (4, 2, 5), (1, 4, 3))
"""Workers, GPUs of each, and how often out of 100."""
LENGTHS_S = (8.0, 240.0)
"""The shortest and the longest job; between them the logarithm is even."""


class Arrival(NamedTuple):
    """A spec, and when it is handed in: seconds after the begin."""

    at_s: float
    spec: dict[str, Any]


def arrivals(
    rng: Random, vcs: dict[str, float], duration_s: float, every_s: float
) -> list[Arrival]:
    """Return jobs that arrive at random, one in `every_s` seconds, of VCs with these shares."""
    found: list[Arrival] = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1 / every_s)) < duration_s:
        vc = rng.choices(list(vcs), list(vcs.values()))[0]
        # Now and then many come at once, so that there is a queue.
        for _ in range(rng.randint(3, 6) if rng.random() < 0.08 else 1):
            found.append(Arrival(at_s, _spec(rng, vc, len(found) + 1)))
    return found


def _spec(rng: Random, vc: str, number: int) -> dict[str, Any]:
    workers, gpus, _ = rng.choices(SIZES, [share for *_, share in SIZES])[0]
    low, high = LENGTHS_S
    length_s = low * (high / low) ** rng.random()
    kind = rng.random()
    spec: dict[str, Any] = {"vc": vc, "limits": {"time": 600}}
    if kind < 0.04:
        epochs = rng.choice((2, 4))
        spec |= {
            "name": f"train-{number}",
            "script": str(TRAININGS / "digits_mlp.py"),
            "args": ["--epochs", str(epochs), "--min-accuracy", "0"],
            "size": {"epochs": epochs, "mini_batches_per_epoch": 90, "family": "mlp"},
        }
        workers, gpus = 1, 1
    elif kind < 0.55:
        steps = max(1, round(length_s / STEP_S))
        command = [sys.executable, "-m", "tests.system.live.steps", str(steps), str(STEP_S)]
        spec |= {
            "name": f"steps-{number}",
            "command": command,
            "workdir": str(ROOT),
            "size": {"epochs": 1, "mini_batches_per_epoch": steps, "family": "steps"},
        }
        workers = 1
    elif kind < 0.95:
        spec |= {"name": f"sleep-{number}", "command": ["sleep", f"{length_s:.2f}"]}
    else:
        spec |= {
            "name": f"fails-{number}",
            "limits": {"time": 600, "retries": 1},
            "command": f"sleep {min(length_s, 20):.1f}; exit 3",
        }
    spec["resources"] = {"workers": workers, "gpus": gpus}
    if rng.random() < 0.2:
        spec["service_class"] = "opportunistic"
    elif rng.random() < 0.2:
        spec["over_quota"] = "opportunistic"
    if rng.random() < 0.15:
        spec["priority"] = rng.choice((5, 10, 50))
    return spec
