"""Train and judge the runs of DL²'s figures with one seed, on one core.

    python -m skep_lab.learn.dl2_main --data DIR --seed 0 --out DIR --time-limit 450

writes `seed-0.json` (curves and scores by run) and `seed-0.npz` (the policies of some runs) after
each run. It ends by itself: what the time does not reach is left out. Runs that these files have
are not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from skep_lab.learn import dl2_protocol, dl2_runs
from skep_lab.learn.dl2_protocol import LARGE, SMALL, World
from skep_lab.learn.progress import Tensors

KEPT = ("small", "small-shaped", "small-bandit", "small-look-ahead")
"""The policies of these runs are stored."""
LEAST_S = 40.0
"""A run does not begin with less time left."""


def worlds_of(folder: Path | None) -> dict[str, World]:
    """Return both settings, with the measurements in a folder, or with the chosen speeds."""
    if folder is None:
        return {"large": dl2_protocol.chosen(LARGE), "small": dl2_protocol.chosen(SMALL)}
    constants = json.loads((folder / "trace_constants.json").read_text())
    lines = (folder / "config_speed.csv").read_text().splitlines()
    return {
        "large": dl2_protocol.world(LARGE, lines, constants),
        "small": dl2_protocol.world(SMALL, lines, constants),
    }


def main(words: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="DL²'s runs with one seed, on one core.")
    parser.add_argument(
        "--data", type=Path, help="folder of config_speed.csv, trace_constants.json"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=450.0)
    parser.add_argument("--steps", type=int, default=0, help="instead of each run's own")
    parser.add_argument("--runs", nargs="*", default=[], choices=dl2_runs.RUNS)
    given = parser.parse_args(words)
    worlds, end = worlds_of(given.data), time.monotonic() + given.time_limit
    warmed: dict[str, Tensors] = {}
    given.out.mkdir(parents=True, exist_ok=True)
    scores_at, weights_at = (given.out / f"seed-{given.seed}.{kind}" for kind in ("json", "npz"))
    told: dict[str, Any] = json.loads(scores_at.read_text()) if scores_at.exists() else {}
    weights: dict[str, Any] = dict(np.load(weights_at)) if weights_at.exists() else {}
    for name in given.runs or dl2_runs.order(given.seed):
        if name in told:
            continue
        if end - time.monotonic() < LEAST_S:
            break
        told[name] = _run(name, given, worlds, warmed, end)
        saved = told[name].pop("policy")
        if name in KEPT:
            weights |= {f"{name}/{key}": part for key, part in saved.items()}
        np.savez_compressed(weights_at, **weights)
        scores_at.write_text(json.dumps(told))  # The last: a run that is told has its policy.


def _run(
    name: str,
    given: argparse.Namespace,
    worlds: dict[str, World],
    warmed: dict[str, Tensors],
    end: float,
) -> dict[str, Any]:
    """Train and judge a run, while there is time."""
    began, points, cpu = time.monotonic(), [], time.process_time()
    for point in dl2_runs.play(name, given.seed, worlds, given.steps, warmed):
        points.append([point.step, point.values])
        # What is left must be enough to judge it: as long as a third of what it took so far.
        if end - time.monotonic() < (time.monotonic() - began) / 3:
            break
    scores = dl2_runs.ended(name, worlds, point.saved)
    policy = {key: part for key, part in point.saved.tensors.items() if key.startswith("policy.")}
    policy = {key: part for key, part in policy.items() if ".adam." not in key}
    took = time.process_time() - cpu
    return {"points": points, "scores": scores, "policy": policy, "cpu_s": took}


if __name__ == "__main__":
    main()
