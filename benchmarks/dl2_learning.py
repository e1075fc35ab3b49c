"""How many decisions a processor second DL²'s learner takes, on one thread.

`decides` is the policy network and the environments, sampled actions; `learns` has the updates as
well, one of 256 decisions for each slot. `update_cpu_ms` is one update of policy and critic. Both
settings are those of `dl2_protocol`, with the chosen speeds; compilation is not counted.

    python -m benchmarks dl2_learning [--quick]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from skep_lab.learn import dl2_agent, dl2_protocol

ROUNDS = 3


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--quick", action="store_true", help="a tenth of the decisions")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    part = 10 if given.quick else 1
    worlds = {"small": dl2_protocol.SMALL, "large": dl2_protocol.LARGE}
    return {name: _figures(world, part) for name, world in worlds.items()}


def _figures(world: Any, part: int) -> dict[str, Any]:
    settings = dl2_agent.PAPER._replace(world=world, teacher="", replay=2048)
    learner = dl2_agent.Learner(settings, 1)
    cluster = learner.clusters[0]
    learner.play(cluster)  # Compiles.
    found: dict[str, list[float]] = {"decides": [], "learns": [], "update": []}
    for _ in range(ROUNDS):
        turns, began, first = 1000 // part, time.process_time(), cluster.turns
        for _ in range(turns):
            cluster.turn(learner.policy, settings, learner.rng)
        found["decides"].append(turns * settings.envs / (time.process_time() - began))
        began, first, updates, spent = time.process_time(), cluster.turns, 0, 0.0
        while cluster.turns < first + turns:
            for _ in range(learner.play(cluster)):
                at = time.process_time()
                if (gradients := learner.gradients(cluster)) is not None:
                    learner.update(gradients)
                    updates, spent = updates + 1, spent + time.process_time() - at
        taken = (cluster.turns - first) * settings.envs
        found["learns"].append(taken / (time.process_time() - began))
        found["update"].append(1e3 * spent / max(updates, 1))
    middle = {name: float(np.median(values)) for name, values in found.items()}
    return {
        "decides_per_cpu_s": round(middle["decides"]),
        "learns_per_cpu_s": round(middle["learns"]),
        "update_cpu_ms": round(middle["update"], 2),
    }
