"""The traces SCHED² was trained and tested with (section IV), for 15 servers of 8 GPUs.

The paper says:

- a trace is 1,000 jobs; there are 30 to train with and 30 to test with (IV-A), each with a seed;
- "The mean interval of arrival times is 172s", and arrivals do not obey a Poisson process (V);
- 68 % of the jobs have one GPU (II-B); further sets have 60 % and 75 % (IV-B);
- computer vision is 10 %, natural language processing 60 %, speech 30 % (IV-A); models of Table II;
- execution times range "from several minutes to hours" (II-B);
- a job may be on several servers, where it is slower (II-A): each of its GPUs has a worker.

Left open, and chosen here (Figure 3 has no numbers): of every 32 jobs with more GPUs, 10 have 2, 10
have 4 and 12 have 8. Run times at the best locality are log-normal of median 1,800 s and mean
4,800 s, from 3 minutes to a day, whatever the size. Then the cluster is 91 % busy if a job takes
8,427 s on average, as under the best other scheduler of the paper, which has jobs wait 19,075 s,
and 59 % at SCHED²'s 5,422 s, where they wait 557 s. Intervals are log-normal with a deviation of
the logarithm of 1.5; models of a category are equally likely.
"""

from __future__ import annotations

import math
import random

import msgspec

from skep.units import seconds
from skep_lab.traces.generators.draw import by_mean, in_order, require, whole_seconds
from skep_lab.traces.job import Trace, TraceJob

MODELS = (
    (0.6, ("transformer",)),
    (0.3, ("deepspeech",)),
    (0.1, ("alexnet", "inception3", "resnet50", "vgg16")),
)
LARGER = ((2, 10), (4, 10), (8, 12))
"""GPUs of the jobs with more than one, and their weights."""
LENGTHS = by_mean(1800, 4800)
SHORTEST_S, LONGEST_S = 180.0, 86400.0
INTERVAL_SIGMA = 1.5


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from the realistic traces."""

    jobs: int = 1000
    single: float = 0.68
    """The part of the jobs that has one GPU (Figure 7: 0.6, 0.68, 0.75)."""
    interval_s: float = 172.0
    """Mean seconds between two arrivals (Figure 8 scales them)."""

    def __post_init__(self) -> None:
        require(self.jobs >= 0, "jobs are 0 or more")
        require(0 <= self.single <= 1, "single is from 0 to 1")
        require(self.interval_s > 0, "interval_s is above 0")


DEFAULT = Options()


def generate(seed: int, options: Options = DEFAULT) -> Trace:
    """Return the jobs of a seed."""
    rng = random.Random(f"sched2 {seed}")
    median_s = options.interval_s / math.exp(INTERVAL_SIGMA**2 / 2)
    at, jobs = 0.0, []
    for _ in range(options.jobs):
        jobs.append(_job(rng, at, options))
        at += median_s * rng.lognormvariate(0.0, INTERVAL_SIGMA)
    return in_order(f"sched2-{seed}", jobs, "s", (f"SCHED², section IV, seed {seed}",))


def _job(rng: random.Random, at: float, options: Options) -> TraceJob:
    gpus = 1
    if rng.random() >= options.single:
        gpus = rng.choices([size for size, _ in LARGER], [part for _, part in LARGER])[0]
    models = rng.choices([names for _, names in MODELS], [part for part, _ in MODELS])[0]
    run_s = min(max(LENGTHS.draw(rng), SHORTEST_S), LONGEST_S)
    return TraceJob(
        id="",
        at=seconds(round(at)),
        run_time=whole_seconds(run_s),
        gpus=gpus,
        workers=gpus,
        model=rng.choice(models),
    )
