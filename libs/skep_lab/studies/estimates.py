"""How often do estimates of starts and ends hold? Judged by the advisor, on simulated workloads.

    python -m skep_lab.studies.estimates              the two workloads that are judged
    python -m skep_lab.studies.estimates --tune       the same with other seeds, to try things on

Each workload has four virtual clusters:

- `models`: jobs name their family and mini-batches. What one takes differs between families and
  sizes by factors, and between runs of a family by some 20 %;
- `owners`: jobs say only a run time, too low by a fifth in the median, with a spread of 0.4;
- `both`: half of them like these, half like those, with priorities;
- `shortest`: like `both`, under a policy (`srsf`) that the plays of queues do not know.

`steady` has Poisson arrivals and no lending; in `bursts` most jobs come in eight bursts, and idle
GPUs are lent. Nominal coverage is 80 %. An estimate counts as the advisor makes it for people:
with what it has learned by then, and widened.

Protocol: workloads that are judged have seeds from 100 on, those for tuning seeds below 100.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from statistics import median

import msgspec

from skep.machines.advisor import AdvisorMachine
from skep.machines.base import Restarted
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.estimates import EstimateJudged, Outcome
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.world import World
from skep_lab.studies.tenants import CHAIN, LEVELS
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

KINDS = ("steady", "bursts")
JUDGED = tuple((kind, seed) for kind in KINDS for seed in (100, 101))
TUNED = tuple((kind, seed) for kind in KINDS for seed in (0, 1))
VCS = ("models", "owners", "both", "shortest")
NODES = 3
"""Nodes of eight GPUs that each VC owns."""
SPAN_S = 24 * 3600.0
JOBS = 450
FAMILIES = 6
SIZES = (1, 1, 1, 2, 2, 4, 8)
LENGTHS_S = (900.0, 2700.0, 7200.0, 14_400.0)
LOAD = 1.05
"""What jobs ask for, of what there is: queues form, and empty again."""
RUN_SIGMA = 0.2
OWNER_BIAS, OWNER_SIGMA = 0.8, 0.4
NOISE = 0.05
COSTS = Costs(start_s=8.0, stop_s=2.0, suspend_s=3.0, resume_s=3.0, checkpoint_every_s=600.0)
CAN = ("suspend", "release", "rebind", "checkpoint", "migrate")


class Row(msgspec.Struct):
    """What came of one kind of estimates in a VC: medians are of errors and of widths.

    `late` is the share of outcomes above P90.
    """

    vc: str
    what: str
    outcomes: int
    held: float
    late: float
    error: float
    width: float


def draw(kind: str, seed: int) -> tuple[Cluster, Trace]:
    """Return the cluster of a workload, and its jobs.

    Args:
        kind: One of KINDS.
        seed: Its seed.
    """
    rng = random.Random(f"estimates {kind} {seed}")
    nodes = tuple(NodeCell(node=f"n{index}") for index in range(NODES * len(VCS)))
    levels = tuple(Level(name=name, fanout=fan) for name, fan in LEVELS if name != "rack")
    chain = Chain(gpu="v100", levels=levels, node_level="node", nodes=nodes)
    cells = (Quota(chain=CHAIN, level="node", count=NODES),)
    vcs = {vc: VirtualCluster(cells=cells) for vc in VCS}
    vcs["shortest"] = msgspec.structs.replace(vcs["shortest"], policy="srsf")
    steps = {
        (family, gpus): rng.choice((0.2, 0.5, 1.0)) * gpus ** rng.uniform(-0.9, -0.3)
        for family in range(FAMILIES)
        for gpus in sorted(set(SIZES))
    }
    bursts = [rng.uniform(0, SPAN_S * 0.9) for _ in range(8)] if kind == "bursts" else []
    jobs = [_job(rng, number, bursts, steps) for number in range(JOBS)]
    jobs.sort(key=lambda job: (job.at, job.id))
    trace = Trace(name=f"estimates-{kind}-{seed}", jobs=tuple(jobs))
    return Cluster(chains={CHAIN: chain}, vcs=vcs), trace


def _job(
    rng: random.Random, number: int, bursts: Sequence[float], steps: dict[tuple[int, int], float]
) -> TraceJob:
    vc = rng.choice(VCS)
    gpus, family = rng.choice(SIZES), rng.randrange(FAMILIES)
    mean_gpus, mean_s = sum(SIZES) / len(SIZES), sum(LENGTHS_S) / len(LENGTHS_S)
    scale = LOAD * NODES * len(VCS) * 8 * SPAN_S / (JOBS * mean_gpus * mean_s)
    length_s = rng.choice(LENGTHS_S) * rng.uniform(0.6, 1.4) * scale
    at_s = rng.choice(bursts) + rng.uniform(0, 1800) if bursts and rng.random() < 0.7 else None
    at_s = rng.uniform(0, SPAN_S) if at_s is None else at_s
    sized = vc == "models" or (vc != "owners" and rng.random() < 0.5)
    step_s = steps[family, gpus]
    mini_batches = max(round(length_s / step_s), 30)
    if sized:
        length_s = mini_batches * step_s * rng.lognormvariate(0.0, RUN_SIGMA)
    said_s = length_s * OWNER_BIAS * rng.lognormvariate(0.0, OWNER_SIGMA)
    return TraceJob(
        id=f"h{number}",
        at=seconds(round(at_s)),
        gpus=gpus,
        vc=vc,
        run_time=seconds(length_s),
        said_time=seconds(0 if sized else max(round(said_s), 1)),
        mini_batches=mini_batches if sized else 0,
        model=f"family-{family}" if sized else "",
        priority=rng.choice((0, 0, 0, 10)) if vc in {"both", "shortest"} else 0,
    )


def play(kind: str, seed: int) -> list[tuple[str, Outcome]]:
    """Return what came of the estimates in a workload, with the VC of each.

    Args:
        kind: One of KINDS.
        seed: Its seed.
    """
    cluster, trace = draw(kind, seed)
    settings = Settings(
        seed=seed,
        costs=COSTS,
        can=CAN,
        noise=NOISE,
        over_quota="auto" if kind == "bursts" else "wait",
        hints="none",
        reports="on-change",
    )
    world = World(trace, cluster, settings, Steady())
    reports = world.reports
    assert reports is not None
    busy, reports.advisor = reports.advisor, AdvisorMachine(judges=True)
    reports.advisor.resend_after = busy.resend_after
    reports.advisor.expires_after = busy.expires_after
    reports.advisor.decide(Restarted(1), Instant(0))
    world.run()
    reports.advisor.check()
    return [
        (fact.vc, outcome)
        for fact in reports.recorded
        if isinstance(fact, EstimateJudged)
        for outcome in fact.outcomes
    ]


def rows_of(found: Sequence[tuple[str, Outcome]]) -> list[Row]:
    """Return what outcomes come to, by VC and kind of estimate; `all` is every VC.

    Args:
        found: VC and outcome.
    """
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for vc, outcome in found:
        kind = "start" if outcome.what == "start" else "end"
        for key in ((vc, outcome.what), ("all", outcome.what), ("all", f"every {kind}")):
            groups.setdefault(key, []).append(outcome)
    return [_row(*key, groups[key]) for key in sorted(groups)]


def _row(vc: str, what: str, outcomes: list[Outcome]) -> Row:
    count = len(outcomes)
    return Row(
        vc,
        what,
        count,
        sum(each.held for each in outcomes) / count,
        sum(each.took > each.p90 for each in outcomes) / count,
        median(abs(each.took - each.p50) / max(each.p50, 1) for each in outcomes),
        median((each.p90 - each.p10) / max(each.p50, NS_PER_SECOND) for each in outcomes),
    )


class Options(argparse.Namespace):
    """What the command line says."""

    tune: bool
    json: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workloads and print how often estimates held.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit code: always 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m skep_lab.studies.estimates",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--tune", action="store_true", help="workloads that are not judged")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments, namespace=Options())
    found: dict[str, list[tuple[str, Outcome]]] = {}
    for kind, seed in TUNED if options.tune else JUDGED:
        found.setdefault(kind, []).extend(play(kind, seed))
    tables = {kind: rows_of(outcomes) for kind, outcomes in found.items()}
    if options.json:
        print(msgspec.json.encode(tables).decode())
        return 0
    for kind, rows in tables.items():
        print(
            f"{kind}\n  vc        estimate                    outcomes   held  late  error  width"
        )
        for row in rows:
            print(
                f"  {row.vc:9} {row.what:27} {row.outcomes:8} {row.held:6.1%} {row.late:5.1%} "
                f"{row.error:6.1%} {row.width:6.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
