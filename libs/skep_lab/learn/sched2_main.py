"""Train SCHED² on several cores: candidates for a while, and then the best of them with five seeds.

    python -m skep_lab.learn.sched2_main --out FOLDER [--time-limit S] [--device cuda] [--quick]
    python -m skep_lab.learn.sched2_main --out FOLDER --judge     the figures of what was trained

Kernels are compiled once, before the processes begin. Each candidate (`CANDIDATES`) is trained for
`--try-episodes`, and judged on tuning traces. The one with the shortest mean completion time among
those with the paper's reward is trained in full with each training seed. Whatever has not ended at
the limit stops there, and is judged as it is. `models.npz` has weights, and starts and ends of jobs
on judged traces; `runs.json` has settings, curves and speeds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from skep_lab.fast_env.sched2 import Batch
from skep_lab.learn import sched2_play
from skep_lab.learn.dqn import Settings, train
from skep_lab.learn.sched2_protocol import JUDGED, REALISTIC, TRAINING_SEEDS, TUNING

BASE = Settings(envs=120, decisions=360, batch=512, tells=200, ahead=10, double=True)
CANDIDATES: dict[str, Settings] = {
    "gamma 0.99, 1 ahead, not double": replace(BASE, ahead=1, double=False),
    "gamma 0.97, 10 ahead": replace(BASE, gamma=0.97),
    "horizon 2 h, 10 ahead": replace(BASE, horizon_s=7200.0),
    "horizon 8 h, 20 ahead": replace(BASE, horizon_s=28800.0, ahead=20),
    "waiting, horizon 2 h, 10 ahead": replace(BASE, horizon_s=7200.0, reward="waiting"),
}
TRIED_ON = 20
"""Tuning traces that a candidate is judged on."""
KEPT_FOR_THE_END_S = 50.0
"""Judging and storing take as long at most."""
FULL = "seed-"
"""What the names of runs of full length begin with: these are judged."""


def _one(name: str, settings: Settings, seed: int, until: float, folder: str) -> dict[str, Any]:
    """Train once; return what is stored as JSON, and store arrays in the folder.

    Args:
        name: What the run is called.
        settings: What it goes by.
        seed: Its seed.
        until: When it stops, by the clock.
        folder: For its arrays.
    """
    began, curve, progress = time.monotonic(), [], None
    cpu = time.process_time()
    for progress in train(settings, seed):
        curve.append({"updates": progress.step, **progress.values})
        if time.monotonic() > until:
            break
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    assert progress is not None, "a run tells its progress once at least"
    weights = sched2_play.weights_in(progress.save().tensors)
    act, options = sched2_play.greedy(settings.environment, weights), settings.environment
    tuned = sched2_play.play(act, np.array(TUNING[:TRIED_ON]), options)
    arrays = dict(weights)
    if name.startswith(FULL) and options == REALISTIC:
        arrays |= sched2_play.stored(sched2_play.judge(act, len(JUDGED)))
    _store(Path(folder) / f"{name}.npz", arrays)
    return {
        "name": name,
        "seed": seed,
        "settings": json.loads(msgspec.json.encode(settings)),
        "curve": curve,
        "wall_s": took,
        "cpu_s": cpu,
        "tuning_jct_s": float((tuned.ended - tuned.at).mean()),
    }


def _all(runs: list[tuple[str, Settings, int, float, str]]) -> list[dict[str, Any]]:
    """Return what came of runs in processes of their own, which have the compiled kernels."""
    with multiprocessing.get_context("fork").Pool(len(runs)) as pool:
        return pool.starmap(_one, runs)


def _compile(settings: Settings) -> None:
    batch = Batch(1, settings.environment, np.array([1]))
    batch.step(np.argmax(batch.reset(np.array([1])).mask, 1))


def main(words: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="sched2_main", description="train SCHED²")
    parser.add_argument("--out", required=True, help="where models.npz and runs.json go")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds in all")
    parser.add_argument("--try-episodes", type=int, default=300, help="of each candidate")
    parser.add_argument("--try-part", type=float, default=0.25, help="of the time, at most")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="few jobs, to see that it works")
    parser.add_argument("--judge", action="store_true", help="print the figures of what is there")
    given = parser.parse_args(words)
    if given.judge:  # It needs the production simulator, which training does not.
        judge = importlib.import_module("skep_lab.learn.sched2_judge")
        kept = [f"{given.out}/rules.npz", f"{given.out}/charts.json"]
        return int(judge.main([given.out, "--rules", kept[0], "--charts", kept[1]]))
    began, folder = time.monotonic(), Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    until = began + given.time_limit - KEPT_FOR_THE_END_S
    known = {name: _asked(each, given) for name, each in CANDIDATES.items()}
    _compile(next(iter(known.values())))
    _say(f"compiled after {time.monotonic() - began:.0f} s")
    tries = time.monotonic() + given.try_part * (until - time.monotonic())
    tried = _all(
        [
            (
                f"try-{number}",
                replace(each, episodes=min(given.try_episodes, each.episodes)),
                0,
                tries,
                str(folder),
            )
            for number, each in enumerate(known.values())
        ]
    )
    for name, each in zip(known, tried, strict=True):
        each["candidate"] = name
        _say(f"{name}: {each['tuning_jct_s']:.0f} s after {each['curve'][-1]['episodes']:.0f}")
    papers = [each for each in tried if each["settings"]["reward"] == "effectiveness"]
    best = min(papers, key=lambda each: float(each["tuning_jct_s"]))["candidate"]
    _say(f"the best: {best}, at {time.monotonic() - began:.0f} s")
    seeds = TRAINING_SEEDS[:2] if given.quick else TRAINING_SEEDS
    full = _all([(f"{FULL}{seed}", known[best], seed, until, str(folder)) for seed in seeds])
    for each in full:
        each["candidate"] = best
        _say(f"{each['name']}: {each['tuning_jct_s']:.0f} s, {each['curve'][-1]}")
    _pack(folder, [*tried, *full])
    _say(f"ended at {time.monotonic() - began:.0f} s")
    return 0


def _asked(settings: Settings, given: argparse.Namespace) -> Settings:
    settings = replace(settings, device=given.device)
    if not given.quick:
        return settings
    options = settings.environment._replace(jobs=30)
    return replace(settings, environment=options, episodes=300, tells=5)


def _pack(folder: Path, runs: list[dict[str, Any]]) -> None:
    """Put the arrays of all runs into one file, and the rest into another."""
    arrays: dict[str, Any] = {}
    for each in runs:
        file = folder / f"{each['name']}.npz"
        with np.load(file) as found:
            arrays |= {f"{each['name']}/{name}": found[name] for name in found.files}
        file.unlink()
    _store(folder / "models.npz", arrays)
    (folder / "runs.json").write_text(json.dumps(runs, indent=1))


def _store(file: Path, arrays: dict[str, Any]) -> None:
    np.savez_compressed(file, **arrays)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
