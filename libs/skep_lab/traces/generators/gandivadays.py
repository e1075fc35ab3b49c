"""Gandiva's nine days of a production cluster (section 6.4), for time-slicing and migration.

The paper says:

- ten models in the ratio of Table 2: computer vision 10 %, language 60 %, speech 30 %;
- "the number of mini-batches of the jobs in the trace are set to follow the job running time
  distribution of the 9-day real-world trace", which is not public; 100 GPUs, half P100, half P40;
- the makespan is 13,371 minutes with the capacity scheduler and 11,349 with Gandiva, so the jobs
  come in less than eight days, and are more than the cluster gets done meanwhile.

Left open, and chosen here: jobs come evenly over `days`; how many GPUs they have (`SIZES`), and run
times by their number as in Microsoft's Philly trace (`draw.PHILLY`), three days at most; together
they are `load` times the cluster's GPU time of those days. Models of a kind are equally likely.
"""

from __future__ import annotations

import random

import msgspec

from skep.units import in_seconds, seconds
from skep_lab.traces.generators.draw import DAY_S, PHILLY, in_order, require, whole_seconds
from skep_lab.traces.job import Trace, TraceJob

MODELS: tuple[tuple[str, float], ...] = (
    ("inception3", 0.10 / 4),
    ("resnet50", 0.10 / 4),
    ("alexnet", 0.10 / 4),
    ("vgg16", 0.10 / 4),
    ("bi-att-flow", 0.60 / 4),
    ("lm", 0.60 / 4),
    ("gnmt", 0.60 / 4),
    ("transformer", 0.60 / 4),
    ("wavenet", 0.30 / 2),
    ("deepspeech", 0.30 / 2),
)
"""Table 2."""
SIZES: tuple[tuple[int, float], ...] = ((1, 0.87), (2, 0.05), (4, 0.05), (8, 0.03))
"""GPUs of a job, and the part of the jobs: nearly as in Philly (93 % have one)."""
LONGEST_S = 3 * DAY_S
STEP_S = 0.5


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from section 6.4."""

    gpus: int = 100
    days: float = 7.5
    load: float = 1.1

    def __post_init__(self) -> None:
        require(self.gpus >= 1 and self.days > 0 and self.load > 0, "all of it is above 0")


DEFAULT = Options()


def generate(seed: int, options: Options = DEFAULT) -> Trace:
    """Return the jobs of a seed."""
    rng = random.Random(f"gandiva days {seed}")
    left = options.load * options.gpus * options.days * DAY_S
    jobs: list[TraceJob] = []
    while left > 0:
        job = _job(rng, options)
        if job.gpus <= options.gpus:
            jobs.append(job)
            left -= job.gpus * in_seconds(job.run_time)
    return in_order(f"gandiva-days-{seed}", jobs, "d", (f"Gandiva, section 6.4, seed {seed}",))


def _job(rng: random.Random, options: Options) -> TraceJob:
    gpus = rng.choices([size for size, _ in SIZES], [part for _, part in SIZES])[0]
    model = rng.choices([name for name, _ in MODELS], [part for _, part in MODELS])[0]
    run_time = whole_seconds(min(PHILLY[gpus].draw(rng), LONGEST_S))
    return TraceJob(
        id="",
        at=seconds(round(rng.uniform(0, options.days * DAY_S))),
        run_time=run_time,
        gpus=gpus,
        workers=gpus,
        model=model,
        gpu_type="p40",
        mini_batches=max(1, round(in_seconds(run_time) / STEP_S)),
    )
