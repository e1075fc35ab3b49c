"""All settings and seeds of an experiment, several at a time; what is done when stopped is kept."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from skep.experiments.catalogue import EXPERIMENTS, Experiment, Results, Setting, play
from skep.experiments.hived import Outcome
from skep_services.simulations.pool import Stop

LOOK_S = 0.2
"""Between two looks for the end, or for Ctrl-C."""


class Task(NamedTuple):
    """One setting and seed."""

    experiment: str
    setting: int
    seed: int
    days: float


def tasks(experiment: Experiment, seeds: Sequence[int], days: float) -> list[Task]:
    """Return everything that is to be run, seed by seed: an early stop leaves whole seeds."""
    settings = experiment.settings(days)
    return [Task(experiment.name, place, seed, days)
            for seed in seeds for place in range(len(settings))]  # fmt: skip


def run_all(
    todo: Sequence[Task], processes: int, tell: Callable[[int], None], stop: Stop
) -> dict[Task, Outcome]:
    """Return what came of each task; what was not done when `stop` was asked is left out."""
    done: dict[Task, Outcome] = {}
    with multiprocessing.get_context("spawn").Pool(processes, _deaf) as pool:
        waiting = {task: pool.apply_async(one, (task,)) for task in todo}
        while waiting and not stop.asked:
            next(iter(waiting.values())).wait(LOOK_S)
            for task in [task for task, answer in waiting.items() if answer.ready()]:
                done[task] = waiting.pop(task).get()
            tell(len(done))
    return done


def one(task: Task) -> Outcome:
    """Run one task."""
    return play(EXPERIMENTS[task.experiment].settings(task.days)[task.setting], task.seed)


def results(settings: Sequence[Setting], done: dict[Task, Outcome]) -> Results:
    """Return outcomes by setting, of the seeds for which every setting was run."""
    seeds = sorted({task.seed for task in done})
    whole = [seed for seed in seeds
             if sum(task.seed == seed for task in done) == len(settings)]  # fmt: skip
    by = {(task.setting, task.seed): outcome for task, outcome in done.items()}
    return {setting.label: [by[place, seed] for seed in whole]
            for place, setting in enumerate(settings)}  # fmt: skip


def _deaf() -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
