"""Gandiva's mix of small jobs (section 6.3), for time-slicing and packing on 180 GPUs.

The paper says:

- "A total of 1,000 jobs drawn from the above distribution arrive in a uniformly random manner over
  two hours";
- jobs 1 and 2 of Table 1 are chosen with probability 0.3, jobs 3, 4 and 5 with 0.25, and jobs 6, 7
  and 8 with 0.45; "jobs 7 and 8 require either 2 or 4 GPUs while the rest each uses 1-GPU";
- "the number of mini-batches for each of these jobs are chosen such that, in isolation on P40, they
  take between 30 and 45 minutes of GPU time";
- mini-batches per second of each on a P40: Table 1, "Time Slicing".

Left open, and chosen here: jobs of a group are equally likely, and so are 2 and 4 GPUs; GPU time is
uniform between the two bounds; a job of k GPUs has k times the GPU time of its run time (then 1,000
jobs are 208 minutes of 180 GPUs, as Figure 15 has it; otherwise they would be 333); a mini-batch of
it takes as long as on one GPU. Its cluster: 45 servers of 4 GPUs, about half P100 and half P40.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from skep.units import in_seconds, seconds
from skep_lab.traces.generators.draw import in_order, require, whole_seconds
from skep_lab.traces.job import Trace, TraceJob


class Kind(NamedTuple):
    """One row of Table 1: how often it is drawn, its mini-batches per second, its GPUs."""

    model: str
    part: float
    rate: float
    gpus: tuple[int, ...] = (1,)


KINDS = (
    Kind("vae", 0.30 / 2, 81.8),
    Kind("superresolution", 0.30 / 2, 40.3),
    Kind("rhn", 0.25 / 3, 10.1),
    Kind("scrnn", 0.25 / 3, 16.7),
    Kind("mi-lstm", 0.25 / 3, 22.2),
    Kind("lstm", 0.45 / 3, 63.8),
    Kind("resnet-50", 0.45 / 3, 10.3, (2, 4)),
    Kind("resnext-50", 0.45 / 3, 83.6, (2, 4)),
)
SHORTEST_S, LONGEST_S = 30 * 60.0, 45 * 60.0
"""Bounds of the GPU time of a job."""
GPU_TYPE = "p40"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from section 6.3."""

    jobs: int = 1000
    hours: float = 2.0
    """Over which they arrive."""

    def __post_init__(self) -> None:
        require(self.jobs >= 0 and self.hours >= 0, "jobs and hours are 0 or more")


DEFAULT = Options()


def generate(seed: int, options: Options = DEFAULT) -> Trace:
    """Return the jobs of a seed."""
    rng = random.Random(f"gandiva {seed}")
    jobs = [_job(rng, options) for _ in range(options.jobs)]
    return in_order(f"gandiva-{seed}", jobs, "g", (f"Gandiva, section 6.3, seed {seed}",))


def _job(rng: random.Random, options: Options) -> TraceJob:
    kind = rng.choices(KINDS, [each.part for each in KINDS])[0]
    gpus = rng.choice(kind.gpus)
    at = rng.uniform(0, options.hours * 3600)
    run_time = whole_seconds(rng.uniform(SHORTEST_S, LONGEST_S) / gpus)
    return TraceJob(
        id="",
        at=seconds(round(at)),
        run_time=run_time,
        gpus=gpus,
        model=kind.model,
        mini_batches=round(in_seconds(run_time) * kind.rate),
        gpu_type=GPU_TYPE,
    )
