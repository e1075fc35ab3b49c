"""Episodes of SCHED²'s environment under a trained network, which always takes its best action."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from skep_lab.fast_env.arrays import JOB, Ints
from skep_lab.fast_env.sched2 import Batch, Options
from skep_lab.fast_env.sched2_rules import Played, jobs_of, played
from skep_lab.learn.dqn import UNKNOWN_VALUE, with_weights
from skep_lab.learn.progress import Tensors
from skep_lab.learn.sched2_protocol import Setting, settings

Act = Callable[[NDArray[np.float32], NDArray[np.bool_]], Ints]
"""Returns an action for each observation [B, D] with a mask [B, J + 1] of possible ones."""
ALONE = "model/"
"""What the names of a network's weights begin with, in what a run stores."""


def greedy(options: Options, weights: Tensors) -> Act:
    """Return what takes the action of the highest value.

    Args:
        options: The setting that the weights were trained in.
        weights: Of the network.
    """
    torch.set_num_threads(1)
    model = with_weights(options, weights)

    def act(seen: NDArray[np.float32], may: NDArray[np.bool_]) -> Ints:
        with torch.no_grad():
            values = model(torch.from_numpy(seen)).numpy()
        chosen: Ints = np.where(may, values, UNKNOWN_VALUE).argmax(1)
        return chosen

    return act


def weights_in(tensors: Tensors) -> Tensors:
    """Return the weights of the network among all that a run stores."""
    return {
        name.removeprefix(ALONE): each for name, each in tensors.items() if name.startswith(ALONE)
    }


def play(act: Act, seeds: Ints, options: Options) -> Played:
    """Return what becomes of the jobs of each seed.

    Args:
        act: Chooses actions.
        seeds: One episode for each.
        options: The setting.
    """
    batch = Batch(len(seeds), options)
    jobs = jobs_of(batch, seeds)
    sight, over = batch.sight, np.zeros(len(seeds), np.bool_)
    times = np.zeros_like(sight.times)
    while not over.all():
        batch.step(act(sight.observation, sight.mask))
        times[sight.done & ~over] = sight.times[sight.done & ~over]
        over |= sight.done
    return played(jobs, times[:, :, 0], times[:, :, 1])


def judge(act: Act, traces: int) -> dict[str, Played]:
    """Return what becomes of jobs in each setting of the protocol.

    Args:
        act: Chooses actions.
        traces: How many of the traces are played, the first ones.
    """
    return {
        name: play(act, np.array(each.seeds), each.options)
        for name, each in settings(traces).items()
    }


def stored(judged: dict[str, Played]) -> dict[str, NDArray[np.float64]]:
    """Return starts and ends by name, to be stored; `restored` has the jobs drawn again."""
    return {
        f"{name}|{what}": getattr(played, what)
        for name, played in judged.items()
        for what in ("first", "ended")
    }


@cache
def drawn(each: Setting) -> Played:
    """Return the jobs of a setting, as if all had started and ended at once."""
    jobs = jobs_of(Batch(len(each.seeds), each.options), np.array(each.seeds))
    return played(jobs, jobs[:, :, JOB.at], jobs[:, :, JOB.at])


def restored(arrays: Tensors, name: str, each: Setting) -> Played:
    """Return what became of jobs, as it was stored.

    Args:
        arrays: From `stored`.
        name: Under which name.
        each: The setting.
    """
    return drawn(each)._replace(first=arrays[f"{name}|first"], ended=arrays[f"{name}|ended"])
