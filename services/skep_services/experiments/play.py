"""All settings and seeds of an experiment, several at a time; what is done when stopped is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skep_lab.experiments.catalogue import EXPERIMENTS
from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.genie import Queue
from skep_lab.experiments.hived import Outcome
from skep_lab.experiments.report import Experiment, Results
from skep_lab.experiments.setting import AnySetting, Setting, play
from skep_lab.traces.generators.k80measured import Rows
from skep_services.engines import task as engines
from skep_services.engines.deal import Ear, Engine
from skep_services.engines.stop import Stop
from skep_services.experiments import keep

WORK = f"{__name__}:work"


class Task(NamedTuple):
    """One setting and seed."""

    experiment: str
    setting: int
    seed: int
    days: float | None
    measured: Rows = ()
    """What was measured, for an experiment that needs it."""

    def setting_of(self) -> AnySetting:
        """Return what is run."""
        found: AnySetting = EXPERIMENTS[self.experiment].settings(self.days)[self.setting]
        return found._replace(measured=self.measured) if isinstance(found, Queue) else found


def tasks(
    experiment: Experiment, seeds: Sequence[int], days: float | None, rows: Rows = ()
) -> list[Task]:
    """Return everything that is to be run, seed by seed: an early stop leaves whole seeds.

    Args:
        experiment: What is to be run.
        seeds: The seeds.
        days: The length of each run (days of submissions); None: as each setting has it.
        rows: What was measured, for an experiment that needs it.
    """
    settings = experiment.settings(days)
    return [
        Task(experiment.name, place, seed, days, rows)
        for seed in seeds
        for place in range(len(settings))
    ]


def run_all(
    todo: Sequence[Task], engine: Engine, ear: Ear, stop: Stop, folder: Path | None = None
) -> dict[Task, Outcome | Played]:
    """Return what came of each task; what was not done when `stop` was asked is left out.

    Args:
        todo: The tasks.
        engine: What runs them.
        ear: Is told how far each task is that was not kept, and what to say.
        stop: Once it is asked for, no further outcome is waited for.
        folder: Where each outcome is kept, and found again by the same program: also by another
            experiment with the same setting. None: nowhere.

    Raises:
        EngineError: A run failed, or the engine cannot be used.
    """
    done = _kept(folder, todo) if folder is not None else {}
    left = [task for task in todo if task not in done]
    kept = [1.0] * len(done)

    def take(place: int, data: bytes) -> None:
        task = left[place]
        done[task] = _outcome(task, data)
        if folder is not None:
            keep.put(folder, task.setting_of(), task.seed, done[task])

    def tell(parts: Sequence[float]) -> None:
        ear.tell([*kept, *parts])

    if left:
        engine.run([_asked(task) for task in left], Ear(take, tell, ear.say), stop)
    return done


def _asked(task: Task) -> engines.Task:
    label = f"{task.setting_of().label} · seed {task.seed}"
    return engines.Task(label, WORK, (msgspec.msgpack.encode(task),), watches=False)


def _outcome(task: Task, data: bytes) -> Outcome | Played:
    kind: type[Any] = Outcome if isinstance(task.setting_of(), Setting) else Played
    found: Outcome | Played = msgspec.msgpack.decode(data, type=kind)
    return found


def work(inputs: Sequence[bytes], _watch: engines.Watch) -> bytes:
    """Run one task: what an engine's worker calls."""
    task = msgspec.msgpack.decode(inputs[0], type=Task)
    return msgspec.msgpack.encode(play(task.setting_of(), task.seed, clock=time.process_time))


def results(settings: Sequence[AnySetting], done: dict[Task, Outcome | Played]) -> Results:
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
