"""The jobs DL² was evaluated with (section 6.2): elastic, on parameter servers.

The paper says:

- 200 jobs on 500 simulated servers, 30 on the testbed of 13 servers with two GPUs each;
- arrivals follow the rate of a typical week of a production cluster in slots of 20 minutes, scaled
  down; section 6.4 has uniform and Poisson arrivals as well (Figure 12);
- "over a half of jobs run for more than an hour and some for days; the average job duration is 147
  minutes"; durations follow that distribution;
- a model of Table 1 is chosen at random; "each worker in different jobs uses at most 2 GPUs and 1-4
  CPU cores, and each PS uses 1-4 CPU cores";
- at most about 40 jobs are uncompleted at a time (section 6.5.1).

Left open, and chosen here: arrivals are spread over 75 slots (25 hours), so that 20 jobs are there
on average and 40 at times; their rate follows the hours of the day in Philly, because Figure 8a has
no numbers. Durations are log-normal of mean 147 and median 75 minutes. That is how long a job takes
with 4 workers and 4 servers; it can have 1 to 16 of the first. Workers have one GPU and 1 to 4
cores.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from skep.units import seconds
from skep_lab.traces.generators.draw import (
    HOUR_S,
    PHILLY_HOURS,
    by_mean,
    in_order,
    require,
    whole_seconds,
)
from skep_lab.traces.job import Trace, TraceJob

MODELS = ("resnet-50", "vgg-16", "resnext-110", "inception-bn", "seq2seq", "ctc", "dssm", "wlm")
"""DL², Table 1."""
LENGTHS = by_mean(75 * 60.0, 147 * 60.0)
SLOT_S = 20 * 60.0
WORKERS, WORKERS_MAX, SERVERS = 4, 16, 4
CPUS_MAX = 4


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from the simulations of section 6.3."""

    jobs: int = 200
    """30 on the testbed."""
    slots: int = 75
    """Of 20 minutes, over which they arrive."""
    arrivals: Literal["pattern", "uniform", "poisson"] = "pattern"

    def __post_init__(self) -> None:
        require(self.jobs >= 0, "jobs are 0 or more")
        require(self.slots >= 1, "slots are 1 or more")


DEFAULT = Options()


def generate(seed: int, options: Options = DEFAULT) -> Trace:
    """Return the jobs of a seed."""
    rng = random.Random(f"dl2 {seed}")
    jobs = [_job(rng, at) for at in _arrivals(rng, options)]
    return in_order(f"dl2-{seed}", jobs, "d", (f"DL², section 6.2, seed {seed}",))


def _arrivals(rng: random.Random, options: Options) -> list[float]:
    """Return as many times in seconds as there are jobs.

    Uniform ones are the same number in every slot, as nearly as possible.
    """
    span = options.slots * SLOT_S
    match options.arrivals:
        case "pattern":
            weights = [
                PHILLY_HOURS[int(slot * SLOT_S // HOUR_S) % 24] for slot in range(options.slots)
            ]
            slots = rng.choices(range(options.slots), weights, k=options.jobs)
            return [(slot + rng.random()) * SLOT_S for slot in slots]
        case "uniform":
            return [(number + rng.random()) * span / options.jobs for number in range(options.jobs)]
        case "poisson":
            at, times = 0.0, []
            for _ in range(options.jobs):
                at += rng.expovariate(options.jobs / span)
                times.append(at)
            return times


def _job(rng: random.Random, at: float) -> TraceJob:
    return TraceJob(
        id="",
        at=seconds(round(at)),
        run_time=whole_seconds(LENGTHS.draw(rng)),
        gpus=WORKERS,
        workers=WORKERS,
        workers_min=1,
        workers_max=WORKERS_MAX,
        servers=SERVERS,
        model=rng.choice(MODELS),
        cpus=rng.randint(1, CPUS_MAX),
    )
