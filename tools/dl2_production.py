"""Play DL²'s held-out episodes in the production simulator, under its network and Skep's policies.

    python -m tools.dl2_production RESULTS --data DIR --episodes 3

RESULTS holds the `seed-*.npz` of `dl2_main`. Each line is printed as it comes; the last ones are
means, and how much longer jobs take than under DRF (95 %, over episodes and seeds).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from skep.policy.api import Policy
from skep.policy.registry import make
from skep_lab.learn import dl2_agent, dl2_figures, dl2_main, dl2_policy, dl2_protocol, dl2_runs
from skep_lab.learn.dl2_protocol import World
from skep_lab.learn.progress import Saved

NODES, NODE_GPUS, NODE_CPUS = 6, 8, 32
"""As many GPUs and processors as the setting `small` has, on nodes that hold a whole job."""
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "drf": ("drf", {}),
    "optimus": ("optimus", {"fewest": True, "strict": False}),
    "look-ahead": ("look-ahead", {}),
}


def network_of(run: str, weights: Path, worlds: Mapping[str, World]) -> dl2_agent.Policy:
    """Return a policy that `dl2_main` stored.

    Args:
        run: One of `dl2_runs.RUNS`.
        weights: `seed-N.npz`.
        worlds: By `large` and `small`.
    """
    _, settings = dl2_runs.worlds_for(run, worlds)
    with np.load(weights) as stored:
        named = {key: stored[key] for key in stored.files if key.startswith(f"{run}/")}
    tensors = {key.removeprefix(f"{run}/"): part for key, part in named.items()}
    return dl2_agent.policy_of(settings, Saved(0, tensors, {}))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="DL² and Skep's policies in production.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--run", default="small-shaped", choices=dl2_runs.RUNS)
    parser.add_argument("--episodes", type=int, default=3)
    given = parser.parse_args()
    worlds = dl2_main.worlds_of(given.data)
    options, speed = worlds["small"]
    options = options._replace(nodes=(NODES,), node_gpus=NODE_GPUS, node_cpus=NODE_CPUS)
    policies: list[tuple[str, str, Policy]] = [
        (name, "", make(*rule)) for name, rule in RULES.items()
    ]
    for path in sorted(given.results.glob("seed-*.npz")):
        network = network_of(given.run, path, worlds)
        learned = dl2_policy.Dl2Policy(network=network, world=options)
        policies.append(("dl2", f" {path.stem}", learned))
    scores: dict[str, dict[str, list[list[float]]]] = {}
    for seed in dl2_protocol.HELD_OUT[: given.episodes]:
        for name, of, policy in policies:
            began = time.process_time()
            result = dl2_policy.play(options, speed, seed, policy)
            took = float(dl2_policy.completion_slots(result, options.slot_s).mean())
            scores.setdefault(name, {}).setdefault(of, []).append([took])
            spent, cut = time.process_time() - began, ", cut" if result.cut else ""
            print(f"{seed} {name}{of}: {took:.2f} slots, {spent:.1f} CPU s{cut}", flush=True)
    known = list(scores["drf"].values())
    for name, by_seed in scores.items():
        rows = list(by_seed.values())
        means = [fmean(dl2_figures.completions(each)) for each in rows]
        told = dl2_figures.interval(dl2_figures.gain(known, rows))
        slots = dl2_figures.spread(means) if name == "dl2" else f"{means[0]:.2f}"
        print(f"| {name} | {slots} | {told} |")


if __name__ == "__main__":
    main()
