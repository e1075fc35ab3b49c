"""What is kept of episodes that a network plays: some decisions as it saw them, and what time cost.

    decisions   a random part of those in which something was possible: all features, what was done
    steps       every decision: when it was taken, and what followed until the next one

Of every step two costs are kept, in seconds of all jobs. `jct` is the time that unfinished jobs
spent. `delay` is what of it was not work that the jobs had to do anyway: it counts what a placement
or a size changes of a job's completion at once, where `jct` counts it while the job runs. Both add
up to the same, but for what all jobs would take alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skep.learn.candidates import CHOICES, A
from skep.learn.features import F, G
from skep_lab.fast_env.arrays import Floats, Ints, Shown
from skep_lab.fast_env.compiled import inner
from skep_lab.fast_env.scores import Work, choice, drawn, is_queued, job_of, option_of

Matrix = NDArray[np.float32]

AT, JCT, DELAY = range(3)
STEP = 3
"""Numbers of a step: seconds, and its costs."""


class Tape(NamedTuple):
    """Room for the episodes of a batch; decisions beyond it are not kept."""

    jobs: Matrix
    """[R, F] of the jobs of decision after decision."""
    waits: NDArray[np.bool_]
    """[R] which of them wait; the others have GPUs."""
    options: Matrix
    """[P, A] of the possible candidates of decision after decision."""
    row: Ints
    """[P] the job of each, counted within its decision."""
    clusters: Matrix
    """[D, G]"""
    decisions: Ints
    """[D + 1, 5] environment, step in `steps`, first job, first candidate, and which of its
    candidates was chosen, -1 for none; of the last only the firsts, which are the ends."""
    steps: Floats
    """[S, STEP], environment after environment."""
    begins: Ints
    """[B + 1] the first step of each environment, and the end of the last one."""
    counts: Ints
    """[2] decisions and steps."""
    above: Floats
    """[1] a decision is kept if the next number of the noise is above this."""


DECISIONS, STEPS = range(2)
ENVIRONMENT, STEP_AT, JOBS_AT, OPTIONS_AT, CHOSEN = range(5)
ROWS_EACH, OPTIONS_EACH = 64, 128
"""Room for so many jobs and candidates at a decision, on average."""


def tape_of(batch: int, decisions: int = 0, steps: int = 0, above: float = 0.0) -> Tape:
    """Return an empty tape.

    Args:
        batch: Environments.
        decisions: The most that are kept; 0: nothing is kept.
        steps: The most steps.
        above: See `Tape`.
    """
    rows, options = ROWS_EACH * decisions, OPTIONS_EACH * decisions
    return Tape(
        np.zeros((rows, F), np.float32),
        np.zeros(rows, np.bool_),
        np.zeros((options, A), np.float32),
        np.zeros(options, np.int64),
        np.zeros((decisions, G), np.float32),
        np.zeros((decisions + 1, 5), np.int64),
        np.zeros((steps, STEP)),
        np.zeros(batch + 1, np.int64),
        np.zeros(2, np.int64),
        np.full(1, above),
    )


def noise_of(rng: np.random.Generator, count: int, temperature: float) -> Floats:
    """Return noise with which the best score is a draw from the softmax of all (Gumbel).

    Args:
        rng: Random numbers.
        count: How many; they are used again from the beginning.
        temperature: By what scores are divided.
    """
    return temperature * rng.gumbel(size=count)


def threshold(part: float, temperature: float) -> float:
    """Return above what as large a part of such noise is."""
    if part >= 1.0:
        return -math.inf
    return -temperature * math.log(-math.log1p(-part))


@inner
def keep_decision(t: Tape, b: int, shown: Shown, w: Work) -> None:
    """Keep a decision of an environment that `scores.best` has just taken, or leave it out."""
    raw, n, cluster, now = shown.raw[b], shown.counts[b], shown.cluster[b], shown.now[b]
    d = t.counts[DECISIONS]
    if w.found[1] < 0 or d == t.clusters.shape[0] or drawn(w) <= t.above[0]:
        return
    job, option = t.decisions[d, JOBS_AT], t.decisions[d, OPTIONS_AT]
    if job + n > t.jobs.shape[0] or option + n * CHOICES > t.options.shape[0]:
        return
    moves, chosen, first = w.found[0] > w.found[4], -1, option
    for i in range(n):
        job_of(raw[i], cluster, now, w)
        t.jobs[job + i], t.waits[job + i] = w.job, is_queued(raw[i])
        for place in range(CHOICES):
            workers, kind = choice(raw[i], place)
            if workers <= 0 or not option_of(raw, i, cluster, now, (workers, kind, False), w):
                continue
            if moves and w.found[1] == i and w.found[2] == workers and w.found[3] == kind:
                chosen = option - first
            t.options[option], t.row[option] = w.candidate, i
            option += 1
    t.clusters[d] = w.cluster
    t.decisions[d, ENVIRONMENT], t.decisions[d, STEP_AT] = b, t.counts[STEPS]
    t.decisions[d, CHOSEN] = chosen
    t.decisions[d + 1, JOBS_AT], t.decisions[d + 1, OPTIONS_AT] = job + n, option
    t.counts[DECISIONS] = d + 1


@inner
def keep_step(t: Tape, b: int, at: float, jct: float, delay: float) -> None:
    """Keep what followed from a decision of an environment."""
    step = t.counts[STEPS]
    t.steps[step, AT], t.steps[step, JCT], t.steps[step, DELAY] = at, jct, delay
    t.counts[STEPS] = t.begins[b + 1] = step + 1
