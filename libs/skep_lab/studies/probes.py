"""Do probes make predictions promisable, and at what cost? A day of elastic jobs with and without.

    python -m skep_lab.studies.probes [--hours 24] [--seed 0]

One VC owns four nodes of 4 K80s and has the policy `deadline`. Jobs of six families are elastic and
begin with 2 workers; none has a deadline. They run as fast as the curves of `traces.generators.k80`
say. The production allocator, introspector and advisor run; agents report every second what
mini-batches took. Printed is what was measured of each family, how wrong what is predicted from
that is at all other placements of up to 8 GPUs, and what probes took.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from skep.ledger import probes
from skep.perf.model.genie import splits
from skep.perf.model.placement import Placement, Point, Span
from skep.perf.model.pool import Pool
from skep.perf.model.predict import predict
from skep.units import NS_PER_SECOND, Duration, in_seconds, seconds
from skep.wire.facts import AllocatorFact
from skep.wire.trials import Kind, TrialBegun, TrialOver
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.generators import genie, k80
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.k80 import K80

NODES, NODE_GPUS = 4, 4
JOBS_PER_HOUR = 1.0
BATCH = 64
WORKERS, WORKERS_MAX = 2, 8
LEAST_S, MOST_S = 3600.0, 3 * 3600.0
"""How long a job takes on one GPU."""
COSTS = Costs(start_s=30.0, resize_s=10.0)


class Found(NamedTuple):
    """What one day came to."""

    families: dict[str, list[Point]]
    begun: list[TrialBegun]
    verdicts: dict[str, int]
    used_ns: int
    """GPU time of probes, from their begins until the gangs had their own sizes again."""
    worst_ns: int
    """Most of it within 24 hours."""
    taken_s: float
    """Mean time from submission to end."""


def trace(seed: int, hours: float) -> Trace:
    """Return the jobs of so many hours.

    Args:
        seed: Of lengths and arrivals.
        hours: How long jobs come.
    """
    rng, jobs, at_s = random.Random(f"probes {seed}"), list[TraceJob](), 0.0
    models = [k80.kind(model, k80.TRAINING) for model in genie.MODELS]
    while True:
        at_s += rng.expovariate(JOBS_PER_HOUR / 3600)
        if at_s > hours * 3600:
            return Trace(name=f"probes {seed}", jobs=tuple(jobs))
        model, length_s = rng.choice(models), rng.uniform(LEAST_S, MOST_S)
        jobs.append(
            TraceJob(
                id=f"job-{len(jobs)}",
                at=seconds(at_s),
                run_time=seconds(length_s),
                gpus=WORKERS,
                workers=WORKERS,
                workers_min=1,
                workers_max=WORKERS_MAX,
                model=model,
                batch_size=BATCH,
                mini_batches=round(length_s / k80.step_s(model, BATCH)),
            )
        )


def day(seed: int, hours: float, *, probe: bool) -> Found:
    """Return what a day with or without probes comes to.

    Args:
        seed: Of the jobs.
        hours: How long jobs come.
        probe: Whether the VC's policy has the option.
    """
    cluster = uniform(NODES, NODE_GPUS, "k80")
    options: dict[str, Any] = {"probe": probe}
    settings = Settings(
        seed=seed,
        costs=COSTS,
        policies=dict.fromkeys(cluster.vcs, ("deadline", options)),
        hints="none",
        reports="timed",
    )
    begun, verdicts = list[TrialBegun](), dict[str, int]()
    worst = 0

    def judge(world: World, facts: list[AllocatorFact]) -> None:
        nonlocal worst
        for fact in facts:
            if isinstance(fact, TrialBegun) and fact.kind is Kind.PROBE:
                begun.append(fact)
            elif isinstance(fact, TrialOver):
                named = f"{fact.verdict}, {fact.why}"
                verdicts[named] = verdicts.get(named, 0) + 1
        for known in world.allocator.state.probes.of_vc.values():
            worst = max(worst, probes.used(known, world.now))

    jobs = trace(seed, hours)
    world = World(jobs, cluster, settings, K80(), judge=judge)
    world.run()
    assert world.reports is not None
    ended = [each for each in world.ledger.outcomes(world.now) if each.ended is not None]
    known = [each for one in world.allocator.state.probes.of_vc.values() for each in one]
    return Found(
        families=world.reports.advisor.profiles.of(next(iter(cluster.vcs))).families("k80"),
        begun=begun,
        verdicts=verdicts,
        used_ns=sum(probes.spent(each, world.now) for each in known),
        worst_ns=worst,
        taken_s=fmean(in_seconds(Duration((each.ended or 0) - each.job.at)) for each in ended),
    )


class Judged(NamedTuple):
    """How well a family is known."""

    places: list[tuple[int, int]]
    promised: int
    placements: int
    errors: list[float]


def judged(families: dict[str, list[Point]], kind: str) -> Judged:
    """Return how well a family is predicted where it was not measured.

    Args:
        families: What was measured.
        kind: The family.
    """
    points = families.get(kind, [])
    parameters = Pool(families).fit_family(points, kind)
    seen = {(each.placement.gpus, each.placement.nodes) for each in points}
    promised, errors, count = 0, list[float](), 0
    for split in splits(NODES, NODE_GPUS):
        if split.gpus > WORKERS_MAX or (split.gpus, split.nodes) in seen:
            continue
        place = Placement("k80", split.gpus, split.nodes, BATCH / split.gpus)
        span: Span = predict(parameters, place)
        real = k80.step_s(kind, BATCH, (split.each,) * split.nodes)
        count += 1
        promised += span.promised
        errors.append(100 * abs(in_seconds(span.p50) - real) / real)
    return Judged(sorted(seen), promised, count, errors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play both, and print them side by side.

    Args:
        arguments: Of the command line.

    Returns:
        1 if probes took more than their part.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    gpus, kept = NODES * NODE_GPUS, True
    found = {probe: day(options.seed, options.hours, probe=probe) for probe in (False, True)}
    kinds = [k80.kind(model, k80.TRAINING) for model in genie.MODELS]
    print("| family | probes | measured (GPUs, nodes) | promised | mean error, % |")
    print("| --- | --- | --- | ---: | ---: |")
    for kind, probe in product(kinds, (False, True)):
        one = judged(found[probe].families, kind)
        places = ", ".join(f"{gpus_there}/{nodes}" for gpus_there, nodes in one.places) or "-"
        promised = f"{one.promised} of {one.placements}"
        has, error = "yes" if probe else "no", fmean(one.errors)
        print(f"| {kind} | {has} | {places} | {promised} | {error:.1f} |")
    for probe, each in found.items():
        whole = gpus * probes.DAY
        kept = kept and each.worst_ns <= probes.most(gpus)
        print(
            f"\n{'with' if probe else 'without'} probes: {len(each.begun)} ({each.verdicts}), "
            f"{each.used_ns / NS_PER_SECOND / 60:.1f} GPU-minutes; at most "
            f"{100 * each.worst_ns / whole:.2f} % of the GPU time of 24 hours, with what was set "
            f"aside; mean time to completion {each.taken_s:.0f} s"
        )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
