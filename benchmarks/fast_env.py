"""How many decisions a processor second the fast environment for learners takes.

Both shapes are those of the papers: SCHED² (15 servers of 8 GPUs, the first 10 jobs of the queue)
and DL² (500 servers, 40 jobs, workers and servers up to 16). `stepped` is what a learner has: one
call steps a batch, and returns observations, masks and rewards in numpy arrays; its actions are the
first possible one of each environment (SCHED²: start what fits, so the cluster is as full as the
jobs allow), and choosing them is not counted. `random` takes random possible decisions without
Python in between. `busy` has jobs come twice as fast, so that hundreds wait. `gymnasium` steps one
environment by its Gymnasium interface. `rules` plays a trace by a policy's rule, in jobs a second,
and beside it the production simulator. Compilation is measured apart; every other figure is of
compiled kernels.

    python -m benchmarks fast_env [--quick] [--seed N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from skep_lab.fast_env import dl2, engine, equality, sched2
from skep_lab.fast_env.environments import Dl2Env, Sched2Env
from skep_lab.fast_env.play import prepare, rule_of
from skep_lab.simulator.run import run as simulate
from skep_lab.simulator.settings import Settings
from skep_lab.workloads.situation import Steady

ENVS = 64
BUSY_S = 86.0
"""Seconds between arrivals where the cluster cannot keep up; the paper has 172."""
ROUNDS = 3
"""Each figure is taken so many times, and the median is reported with the others."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--quick", action="store_true", help="a tenth of the decisions")
    parser.add_argument("--seed", type=int, default=1, help="seed of the jobs")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    seeds = np.arange(given.seed, given.seed + ENVS)
    part = 10 if given.quick else 1
    busy = sched2.PAPER._replace(interval_s=BUSY_S)
    compiling = {"sched2": _compile_sched2(seeds), "dl2": _compile_dl2(seeds)}
    _say("compiled")
    told: dict[str, Any] = {
        "compile_cpu_s": compiling,
        "environments": ENVS,
        "sched2_decisions_per_cpu_s": {
            "stepped": _stepped(lambda: sched2.Batch(ENVS), seeds, 4000 // part),
            "random": _random(lambda: sched2.Batch(ENVS), seeds, 8000 // part),
            "busy_stepped": _stepped(lambda: sched2.Batch(ENVS, busy), seeds, 4000 // part),
            "busy_random": _random(lambda: sched2.Batch(ENVS, busy), seeds, 8000 // part),
            "gymnasium": _gymnasium(Sched2Env(), 10_000 // part),
        },
        "dl2_decisions_per_cpu_s": {
            "stepped": _stepped(lambda: dl2.Batch(ENVS), seeds, 20_000 // part),
            "random": _random(lambda: dl2.Batch(ENVS), seeds, 40_000 // part),
            "gymnasium": _gymnasium(Dl2Env(), 20_000 // part),
        },
        "rules_jobs_per_cpu_s": _rules(given.seed, 300 if given.quick else 1000),
    }
    slow = told["sched2_decisions_per_cpu_s"], told["dl2_decisions_per_cpu_s"]
    told["within_limit"] = bool(
        min(slow[0][each]["median"] for each in ("stepped", "random")) >= 100_000
        and min(slow[1][each]["median"] for each in ("stepped", "random")) >= 500_000
    )
    return told


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _compile_sched2(seeds: Any) -> float:
    began = time.process_time()
    batch = sched2.Batch(ENVS)
    batch.reset(seeds)
    batch.step(np.zeros(ENVS, np.int64))
    batch.play_random(1)
    return round(time.process_time() - began, 2)


def _compile_dl2(seeds: Any) -> float:
    began = time.process_time()
    batch = dl2.Batch(ENVS)
    batch.reset(seeds)
    batch.step(np.zeros(ENVS, np.int64))
    batch.play_random(1)
    return round(time.process_time() - began, 2)


def _rates(once: Callable[[], tuple[int, float]]) -> dict[str, Any]:
    """Return what is done a processor second: every round, and the median."""
    rates = sorted(round(count / cpu_s) for count, cpu_s in (once() for _ in range(ROUNDS)))
    return {"median": rates[ROUNDS // 2], "rounds": rates}


def _stepped(make: Callable[[], Any], seeds: Any, steps: int) -> dict[str, Any]:
    """Return decisions a processor second, stepped from Python."""

    def once() -> tuple[int, float]:
        batch, spent = make(), 0.0
        sight = batch.reset(seeds)
        for _ in range(steps):
            actions = np.argmax(sight.mask, axis=1)
            began = time.process_time()
            batch.step(actions)
            spent += time.process_time() - began
        return steps * ENVS, spent

    return _rates(once)


def _random(make: Callable[[], Any], seeds: Any, steps: int) -> dict[str, Any]:
    """Return random decisions a processor second, without Python in between."""

    def once() -> tuple[int, float]:
        batch = make()
        batch.reset(seeds)
        began = time.process_time()
        count = batch.play_random(steps)
        return count, time.process_time() - began

    return _rates(once)


def _gymnasium(env: Any, steps: int) -> dict[str, Any]:
    """Return decisions a processor second of one environment by Gymnasium's interface."""

    def once() -> tuple[int, float]:
        _, info = env.reset(seed=1)
        began = time.process_time()
        for _ in range(steps):
            action = np.argmax(info["action_mask"])
            _, _, done, _, info = env.step(action)
            if done:
                _, info = env.reset()
        return steps, time.process_time() - began

    return _rates(once)


def _rules(seed: int, jobs: int) -> dict[str, Any]:
    """Return jobs a processor second by a policy's rule, and those of the production simulator."""
    told: dict[str, Any] = {}
    for name in ("fifo", "sif skips", "packing"):
        case = equality.cases()[name]
        trace, cluster = equality.random_trace(seed, jobs, case), equality.cluster_of(case)
        rule = rule_of(case.policy, case.options)
        engine.run_all(prepare(trace.jobs, cluster, Settings()), rule)
        states = [prepare(trace.jobs, cluster, Settings()) for _ in range(20)]
        began = time.process_time()
        for state in states:
            engine.run_all(state, rule)
        fast_s = (time.process_time() - began) / len(states)
        settings = Settings(policies={"all": (case.policy, case.options)})
        right = simulate(trace, cluster, settings, Steady(), clock=time.process_time)
        told[name.replace(" ", "_")] = {
            "fast": round(jobs / fast_s),
            "production": round(jobs / right.cpu_s),
        }
        _say(f"{name}: done")
    return told
