"""All settings and seeds of an experiment, several at a time; what is done when stopped is kept."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from skep_lab.experiments.catalogue import EXPERIMENTS
from skep_lab.experiments.gandiva import Played, Scene
from skep_lab.experiments.hived import Outcome
from skep_lab.experiments.report import Experiment, Results
from skep_lab.experiments.setting import Setting, play
from skep_services.experiments import keep
from skep_services.simulations.pool import DiedError, Stop, deaf_children

LOOK_S = 0.2
"""Between two looks for the end, or for Ctrl-C."""


class Task(NamedTuple):
    """One setting and seed."""

    experiment: str
    setting: int
    seed: int
    days: float | None

    def setting_of(self) -> Setting | Scene:
        """Return what is run."""
        found: Setting | Scene = EXPERIMENTS[self.experiment].settings(self.days)[self.setting]
        return found


def tasks(experiment: Experiment, seeds: Sequence[int], days: float | None) -> list[Task]:
    """Return everything that is to be run, seed by seed: an early stop leaves whole seeds.

    Args:
        experiment: What is to be run.
        seeds: The seeds.
        days: The length of each run (days of submissions); None: as each setting has it.
    """
    settings = experiment.settings(days)
    return [
        Task(experiment.name, place, seed, days) for seed in seeds for place in range(len(settings))
    ]


def run_all(
    todo: Sequence[Task],
    processes: int,
    tell: Callable[[int], None],
    stop: Stop,
    folder: Path | None = None,
) -> dict[Task, Outcome | Played]:
    """Return what came of each task; what was not done when `stop` was asked is left out.

    Args:
        todo: The tasks.
        processes: How many run at a time.
        tell: Told how many tasks are done, every so often.
        stop: Once it is asked for, no further outcome is waited for.
        folder: Where each outcome is kept, and found again by the same program: also by another
            experiment with the same setting. None: nowhere.

    Raises:
        DiedError: The process of a run ended without a result.
    """
    done = _kept(folder, todo) if folder is not None else {}
    todo = [task for task in todo if task not in done]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        with deaf_children():
            waiting = {pool.submit(one, task): task for task in todo}
        try:
            while waiting and not stop.asked:
                over, _ = wait(waiting, LOOK_S, FIRST_COMPLETED)
                for each in over:
                    task = waiting.pop(each)
                    done[task] = each.result()
                    if folder is not None:
                        keep.put(folder, task.setting_of(), task.seed, done[task])
                tell(len(done))
        except BrokenProcessPool:
            reason = "a run ended without a result: its process was killed, or had no memory left"
            raise DiedError(reason) from None
        finally:
            if waiting:  # What was not done would be done before the pool ends.
                for process in multiprocessing.active_children():
                    process.kill()
    return done


def one(task: Task) -> Outcome | Played:
    """Run one task."""
    return play(task.setting_of(), task.seed)


def results(settings: Sequence[Setting | Scene], done: dict[Task, Outcome | Played]) -> Results:
    """Return outcomes by setting, of the seeds for which every setting was run.

    Args:
        settings: The settings of the experiment.
        done: What came of the tasks that were done.
    """
    seeds = sorted({task.seed for task in done})
    whole = [seed for seed in seeds if sum(task.seed == seed for task in done) == len(settings)]
    by = {(task.setting, task.seed): outcome for task, outcome in done.items()}
    return {
        setting.label: [by[place, seed] for seed in whole] for place, setting in enumerate(settings)
    }


def _kept(folder: Path, todo: Sequence[Task]) -> dict[Task, Outcome | Played]:
    found = {task: keep.get(folder, task.setting_of(), task.seed) for task in todo}
    return {task: outcome for task, outcome in found.items() if outcome is not None}
