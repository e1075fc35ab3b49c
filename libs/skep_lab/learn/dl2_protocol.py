"""How the rebuilt DL² is trained, tuned and judged: settings, seeds and measures, fixed beforehand.

Settings. `large` is the paper's simulation: 500 servers, 200 jobs, J = 40; every job can have 16
workers and 16 servers, so nothing is ever short. `small` has 24 servers and 60 jobs, J = 20: GPUs
are short. Jobs come by the arrival pattern of the public code (its peak cut to 10 a slot), from a
random slot on; models are equally likely, and a model's length is fixed, as in the public code
(of at most 4,000 epochs, so that about 40 jobs run at once; the code has 30,000).

Seeds. Training uses those from `TRAINING` on, tuning and curves those of `TUNING`, and the figures
that are told those of `HELD_OUT`, each an episode. Nothing is tuned on `HELD_OUT`. Learners are
trained with each of `SEEDS`.

Measures. Mean completion time in slots of 20 minutes (from the beginning of the slot of arrival),
makespan, and the part of the GPUs that is given. A learned policy is judged twice: by actions
sampled from it, as the paper trains, and by its most likely action. Two schedulers are compared on
the same episodes by the paired bootstrap interval of `skep_lab.measures.paired`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from skep_lab.fast_env import dl2
from skep_lab.fast_env.arrays import Floats
from skep_lab.workloads import dl2 as measured
from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Place, Work

SEEDS = (0, 1, 2, 3, 4)
TRAINING = 1_000_000
"""Environment e of training seed s begins with seed `TRAINING + 1000 s + e`."""
TUNING = tuple(range(100, 200))
HELD_OUT = tuple(range(10000, 10030))
VALIDATION = TUNING[:4]
"""Episodes of a point of a curve."""

EPOCHS_MOST = 4000
ARRIVALS_MOST = 10
MOST = 16
"""The most workers, and servers, of a job."""
SLOT_S = 1200.0


class World(NamedTuple):
    """A setting with its speeds."""

    options: dl2.Options
    speed: Floats
    """[M, most + 1, most + 1] epochs a slot, where 1 is that of 4 workers and 4 servers."""


LARGE = dl2.Options(jobs=200, window=40, nodes=(500,), most=MOST)
SMALL = dl2.Options(jobs=60, window=20, nodes=(24,), most=MOST)


def chosen(options: dl2.Options) -> World:
    """Return a setting without measurements: the chosen table of speeds, and drawn jobs."""
    return World(options, dl2.optimus_speeds(options.most))


def world(options: dl2.Options, speeds: Iterable[str], constants: Mapping[str, Any]) -> World:
    """Return a setting with the measured speeds and the jobs of the public code.

    Args:
        options: The setting; its jobs are replaced.
        speeds: The lines of `config_speed.csv`.
        constants: `trace_constants.json`.

    Raises:
        ValueError: The texts are others; the message says what is missing.
    """
    table = measured.parse(speeds)
    wanted = ("models", "num_epochs_fraction", "epoch_sizes", "resr_workers", "arrv_pattern_10")
    if missing := [name for name in wanted if name not in constants]:
        reason = f"trace_constants.json lacks {', '.join(missing)}"
        raise ValueError(reason)
    models = [normalised(name).model for name in constants["models"]]
    most = options.most
    speed, lengths = np.zeros((len(models), most + 1, most + 1)), []
    for at, model in enumerate(models):
        for workers in range(1, most + 1):
            for servers in range(1, most + 1):
                rate = table.rate(Work(model), Place("", (workers,), workers, servers))
                if rate is None:
                    reason = f"config_speed.csv has no {model}"
                    raise ValueError(reason)
                speed[at, workers, servers] = rate * table.batches[model]
        epochs = constants["num_epochs_fraction"][at] * EPOCHS_MOST
        then = speed[at, dl2.THEN, dl2.THEN]
        lengths.append(epochs * constants["epoch_sizes"][at] / (then * SLOT_S))
        speed[at] /= then
    gpus = tuple(options.worker_gpus if need[1] else 0 for need in constants["resr_workers"])
    arrivals = tuple(min(count, ARRIVALS_MOST) for count in constants["arrv_pattern_10"])
    jobs = options._replace(lengths=tuple(lengths), model_gpus=gpus, arrivals=arrivals)
    return World(jobs, speed)


def fitted(speed: Floats) -> Floats:
    """Return the speeds as Optimus' form has them, fitted to a table (EuroSys 2018, equation 4).

    The time of a step with w workers and p servers is a / w + b + c w / p + d w + e p with
    coefficients that are not negative: least squares of the relative error of the time.
    """
    size = speed.shape[1]
    workers, servers = (
        each.ravel().astype(float)
        for each in np.meshgrid(np.arange(1, size), np.arange(1, size), indexing="ij")
    )
    terms = np.stack([1 / workers, np.ones_like(workers), workers / servers, workers, servers], 1)
    made = np.zeros_like(speed)
    for model in range(len(speed)):
        relative = terms * speed[model, 1:, 1:].ravel()[:, None]
        best, error = np.zeros(terms.shape[1]), np.inf
        for chosen_terms in range(1, 1 << terms.shape[1]):
            some = [at for at in range(terms.shape[1]) if chosen_terms >> at & 1]
            found = np.linalg.lstsq(relative[:, some], np.ones(len(relative)), rcond=None)[0]
            rest = float(np.sum((relative[:, some] @ found - 1.0) ** 2))
            if (found >= 0).all() and rest < error:
                best, error = np.zeros(terms.shape[1]), rest
                best[some] = found
        made[model, 1:, 1:] = (1.0 / (terms @ best)).reshape(size - 1, size - 1)
    return made
