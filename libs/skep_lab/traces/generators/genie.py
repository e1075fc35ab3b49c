"""The task queues GENIE was evaluated with (section 7.1, Table 3), for 4 nodes of 4 K80.

The paper says:

- tasks arrive by a Poisson process for 24 hours, 5, 10 or 20 an hour; for 15 see section 7.2.2, for
  20 on up to 128 GPUs section 7.3;
- model type, calculation type and configuration (batch size, iterations) are uniform: six models,
  50 % training and 50 % inference (Table 3);
- 5 % of the users are urgent, 35 % prior, 60 % normal (Table 3); a task should have ended after 0,
  1 or 2 times its latency on a single GPU (equation 9).

Left open, and chosen here: batch sizes are 16, 32, 64 or 128. Iterations are uniform from a tenth
of a number to that number, one for all models, with which the mean latency on one GPU is
`latency_h`. The paper has makespans of "dozens to hundreds of hours" at 20 tasks an hour: 480 tasks
on 16 GPUs for 100 hours or more are 3.3 GPU-hours each. Latencies follow from `k80`, with `start_s`
to begin. A task has one GPU unless a policy gives it more, up to `gpus_max`.
"""

from __future__ import annotations

import random
from itertools import product
from statistics import fmean

import msgspec

from skep.units import Duration, seconds
from skep_lab.traces.generators import k80
from skep_lab.traces.generators.draw import HOUR_S, in_order, require, whole_seconds
from skep_lab.traces.job import Trace, TraceJob

MODELS = tuple(k80.CURVES)
CLASSES = ((0.05, 0, 2), (0.35, 1, 1), (0.60, 2, 0))
"""Part of the users, latencies until a task should have ended, priority: urgent, prior, normal."""
CALCULATIONS = (k80.TRAINING, k80.INFERENCE)
BATCHES = (16, 32, 64, 128)
LEAST = 0.1
"""The fewest iterations of a task, as a part of the most."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from Table 3."""

    per_hour: float = 20.0
    """Arrivals (5, 10 and 20 in section 7.2; 15 where other things vary)."""
    hours: float = 24.0
    urgent: float = 0.05
    prior: float = 0.35
    """Parts of the tasks; the rest are normal (Figures 14c and 14d vary them)."""
    latency_h: float = 3.3
    """The mean latency on one GPU, without the start."""
    start_s: float = 30.0
    """What it takes to begin (equation 4)."""
    gpus_max: int = 16

    def __post_init__(self) -> None:
        require(self.per_hour > 0, "per_hour is above 0")
        require(self.hours >= 0, "hours are 0 or more")
        parts = min(self.urgent, self.prior, 1 - self.urgent - self.prior)
        require(parts >= -1e-9, "urgent and prior are parts of 1")
        require(self.latency_h > 0, "latency_h is above 0")
        require(self.start_s >= 0, "start_s is 0 or more")
        require(self.gpus_max >= 1, "gpus_max is 1 or more")


DEFAULT = Options()


def iterations_max(latency_h: float, step_s: k80.StepS = k80.step_s) -> float:
    """Return the most iterations of a task, for a mean latency on one GPU.

    Args:
        latency_h: The mean latency, in hours.
        step_s: What a mini-batch takes.
    """
    kinds = [k80.kind(*each) for each in product(MODELS, CALCULATIONS)]
    mean_s = fmean(step_s(kind, batch) for kind, batch in product(kinds, BATCHES))
    return latency_h * HOUR_S / mean_s / ((1 + LEAST) / 2)


def generate(seed: int, options: Options = DEFAULT, step_s: k80.StepS = k80.step_s) -> Trace:
    """Return the tasks of a seed.

    Args:
        seed: The seed.
        options: What differs from Table 3.
        step_s: What a mini-batch takes.
    """
    rng = random.Random(f"genie {seed}")
    at, jobs = rng.expovariate(options.per_hour / HOUR_S), []
    most = iterations_max(options.latency_h, step_s)
    while at < options.hours * HOUR_S:
        jobs.append(_job(rng, at, most, options, step_s))
        at += rng.expovariate(options.per_hour / HOUR_S)
    return in_order(f"genie-{seed}", jobs, "t", (f"GENIE, Table 3, seed {seed}",))


def _job(
    rng: random.Random, at: float, most: float, options: Options, step_s: k80.StepS
) -> TraceJob:
    calculation = rng.choice(CALCULATIONS)
    kind = k80.kind(rng.choice(MODELS), calculation)
    batch = rng.choice(BATCHES)
    iterations = max(1, round(most * rng.uniform(LEAST, 1)))
    run_time = whole_seconds(iterations * step_s(kind, batch))
    begin = seconds(round(at))
    normal = 1 - options.urgent - options.prior
    times, priority = rng.choices(
        [(times, priority) for _, times, priority in CLASSES],
        [options.urgent, options.prior, max(0.0, normal)],
    )[0]
    return TraceJob(
        id="",
        at=begin,
        run_time=run_time,
        gpus=1,
        workers=1,
        workers_min=1,
        workers_max=options.gpus_max,
        model=kind,
        mini_batches=iterations,
        batch_size=batch,
        gpu_type="k80",
        user=calculation,
        priority=priority,
        deadline=Duration(begin + times * (run_time + seconds(options.start_s))),
    )
