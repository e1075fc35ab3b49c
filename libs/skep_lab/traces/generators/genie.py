"""The task queues GENIE was evaluated with (section 7.1, Table 3), for 4 nodes of 4 K80.

The paper says:

- tasks arrive by a Poisson process for 24 hours, 5, 10 or 20 an hour; for 15 see section 7.2.2, for
  20 on up to 128 GPUs section 7.3;
- model type, calculation type and configuration (batch size, iterations) are uniform: six models,
  50 % training and 50 % inference (Table 3);
- 5 % of the users are urgent, 35 % prior, 60 % normal (Table 3); a task should have ended after 0,
  1 or 2 times its latency on a single GPU (equation 9).

Left open, and chosen here: with its configuration a training task takes 10 minutes to 2 hours on
one GPU, uniformly, and an inference task a third of that (a forward pass without a backward one);
then 20 tasks an hour ask for nine tenths of 16 GPUs. Batch sizes are 16, 32, 64 or 128. A task has
one GPU unless a policy gives it more, up to 16.
"""

from __future__ import annotations

import random

import msgspec

from skep.units import Duration, seconds
from skep_lab.traces.generators.draw import HOUR_S, in_order, require, whole_seconds
from skep_lab.traces.job import Trace, TraceJob

MODELS = ("alexnet", "googlenet", "resnet50", "inception3", "regularized-lstm", "seq2seq")
CLASSES = ((0.05, 0, 2), (0.35, 1, 1), (0.60, 2, 0))
"""Part of the users, latencies until a task should have ended, priority: urgent, prior, normal."""
INFERENCE = 0.5
INFERENCE_TIME = 1 / 3
SHORTEST_S, LONGEST_S = 600.0, 7200.0
BATCHES = (16, 32, 64, 128)
GPUS_MAX = 16


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from Table 3."""

    per_hour: float = 20.0
    """Arrivals (5, 10 and 20 in section 7.2; 15 where other things vary)."""
    hours: float = 24.0
    urgent: float = 0.05
    prior: float = 0.35
    """Parts of the tasks; the rest are normal (Figures 14c and 14d vary them)."""

    def __post_init__(self) -> None:
        require(self.per_hour > 0, "per_hour is above 0")
        require(self.hours >= 0, "hours are 0 or more")
        parts = min(self.urgent, self.prior, 1 - self.urgent - self.prior)
        require(parts >= -1e-9, "urgent and prior are parts of 1")


DEFAULT = Options()


def generate(seed: int, options: Options = DEFAULT) -> Trace:
    """Return the tasks of a seed."""
    rng = random.Random(f"genie {seed}")
    at, jobs = rng.expovariate(options.per_hour / HOUR_S), []
    while at < options.hours * HOUR_S:
        jobs.append(_job(rng, at, options))
        at += rng.expovariate(options.per_hour / HOUR_S)
    return in_order(f"genie-{seed}", jobs, "t", (f"GENIE, Table 3, seed {seed}",))


def _job(rng: random.Random, at: float, options: Options) -> TraceJob:
    inference = rng.random() < INFERENCE
    run_s = rng.uniform(SHORTEST_S, LONGEST_S) * (INFERENCE_TIME if inference else 1)
    run_time, begin = whole_seconds(run_s), seconds(round(at))
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
        workers_max=GPUS_MAX,
        model=rng.choice(MODELS),
        batch_size=rng.choice(BATCHES),
        gpu_type="k80",
        user="inference" if inference else "training",
        priority=priority,
        deadline=Duration(begin + times * run_time),
    )
