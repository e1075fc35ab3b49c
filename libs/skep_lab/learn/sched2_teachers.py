"""Two rules that SCHED²'s network may imitate: they choose by what the network sees alone.

They choose as `sched2_rules` does for the first J jobs: an observation has all that `hold` needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skep_lab.fast_env.arrays import Floats, Ints
from skep_lab.fast_env.sched2 import STATISTICS, Options
from skep_lab.fast_env.sched2_rules import NAMES

JOB_FEATURES = 6
"""k = 4 profiled times, GPUs, and the time that a job has waited."""
RELAX = NAMES["hold"].relax
NEARLY_ONE = 1.0 - 1e-6
"""An unknown time is seen as 1: here it is long."""
TEACHERS = ("hold", "saf")


class _Jobs(NamedTuple):
    """The jobs of the window, as they are seen; each is [B, J], but for `times`."""

    there: NDArray[np.bool_]
    fits: NDArray[np.bool_]
    beyond: Ints
    """Nodes more than necessary that a job would be on now."""
    times: Floats
    """[B, J, 4] hours that a job runs, by nodes more than necessary."""
    waited: Floats
    """Hours."""


def _jobs(seen: NDArray[Any], options: Options) -> _Jobs:
    size, wide = options.node_gpus, options.window * JOB_FEATURES
    left, told = seen[:, : -wide - STATISTICS], seen[:, -wide - STATISTICS : -STATISTICS]
    free = (left.reshape(len(seen), -1, size) == 0.0).sum(2)
    most = np.cumsum(-np.sort(-free, 1), 1)
    """GPUs that are free on the n emptiest nodes."""
    part = np.minimum(told.reshape(len(seen), -1, JOB_FEATURES).astype(np.float64), NEARLY_ONE)
    values = part / (1.0 - part)
    gpus = np.rint(8.0 * values[:, :, 4]).astype(np.int64)
    nodes = 1 + (most[:, None, :] < gpus[:, :, None]).sum(2)
    there = gpus > 0
    fits = there & (gpus <= most[:, -1:])
    return _Jobs(there, fits, nodes - -(-gpus // size), values[:, :, :4], values[:, :, 5])


def choose(name: str, seen: NDArray[Any], options: Options) -> Ints:
    """Return what a rule does: the place of the job that it starts, or J to hold.

    Args:
        name: One of `TEACHERS`: `hold`, or `saf` that blocks.
        seen: Observations [B, D].
        options: The setting.
    """
    jobs = _jobs(seen, options)
    if name == "hold":
        may = jobs.fits & ((jobs.beyond == 0) | (jobs.waited > RELAX * jobs.times[:, :, 0]))
        at = may.argmax(1)
    else:
        level = np.where(jobs.fits, np.clip(jobs.beyond, 0, 3), 0)[:, :, None]
        key = np.take_along_axis(jobs.times, level, 2)[:, :, 0]
        at = np.where(jobs.there, key, np.inf).argmin(1)
        may = jobs.fits
    chosen: Ints = np.where(may[np.arange(len(at)), at], at, options.window)
    return chosen
