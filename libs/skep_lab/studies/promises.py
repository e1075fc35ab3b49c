"""Are promises kept? Deadlines under faults, bursts and wrong lengths, simulated.

    python -m skep_lab.studies.promises              the eighteen workloads that are judged
    python -m skep_lab.studies.promises --tune       others of the same kinds, to try things on

In each workload one VC has the policy `deadline`, and two serve their jobs first come, first
served. Most jobs of the first VC have a deadline, of which some cannot be met. What is judged:

- of the promises that admission made, the part that was kept (90 % or more in all workloads
  together), and that each broken one has a cause;
- that no job waits for ever;
- of the urgent jobs that have a promise, how long they took, measured by what they take alone at
  their best placement, and that no class has more GPU time of any 24 hours than its budget;
- that the other VCs' jobs wait no longer than in clusters of their own (`audit`, without faults,
  for nodes of two clusters cannot fail alike);
- after every decision, that the cells are safe, and at the end that the book is as it says.

Protocol: the judged workloads are `JUDGED`, with seeds from 100 on; whatever is tuned, is tuned on
`--tune`, which has seeds below 100. The lengths that owners say are log-normal around the truth,
with a spread of 0.1, and of 0.4 in workloads with wrong lengths. Speeds have a noise of 5 %. In
`classes` jobs say a class instead of a time, in `greedy` every job of that VC says that it is
urgent.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from skep.cells.check import safe
from skep.machines.admission.promising import BUDGETS
from skep.promises.length import URGENT_MILLI
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.admin import DrainNode
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.facts import Admitted, AllocatorFact, Refused
from skep.wire.promises import Answer, PromiseBroken, PromiseJudged, PromiseKept, PromiseMade
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.world import Crash, News, World
from skep_lab.studies.audit import audit
from skep_lab.studies.tenants import BEGIN, CHAIN, LEVELS
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

KINDS = ("right", "wrong", "bursts", "faults", "all", "classes", "greedy")
JUDGED: tuple[tuple[str, int], ...] = (
    ("right", 100),
    ("right", 101),
    ("wrong", 102),
    ("wrong", 103),
    ("bursts", 104),
    ("bursts", 105),
    ("faults", 106),
    ("faults", 107),
    ("faults", 108),
    ("all", 109),
    ("all", 110),
    ("all", 111),
    ("classes", 112),
    ("classes", 113),
    ("classes", 114),
    ("greedy", 115),
    ("greedy", 116),
    ("greedy", 117),
)
"""The workloads that are judged: kind and seed."""
KEPT_LEAST = 0.9
OWNED = {"timed": 4, "plain": 2, "other": 1}
"""Nodes of each VC. The first one has the policy `deadline`."""
SPARE = 1
"""Nodes that no VC owns: they bear a fault first."""
SPAN_S = 24 * 3600.0
JOBS = 260
LOAD = 0.8
"""What jobs of the timed VC ask for, of what it has."""
SIGMA, SIGMA_WRONG = 0.1, 0.4
NOISE = 0.05
COSTS = Costs(start_s=8.0, stop_s=2.0, suspend_s=3.0, resume_s=3.0, checkpoint_every_s=600.0)
CAN = ("suspend", "release", "rebind", "checkpoint", "migrate")
SLACK = (1.2, 1.6, 2.0, 3.0, 5.0, 10.0)
"""How long jobs may take, as multiples of their length."""
SIZES = (1, 1, 1, 2, 2, 4, 8, 16)
LENGTHS_S = (600.0, 1800.0, 5400.0, 14_400.0)
CLASSES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "classes": (("urgent", "prior", "normal", ""), (1, 3, 4, 2)),
    "greedy": (("urgent",), (1,)),
}
"""What jobs of the timed VC say of their class, by kind of workload, and how often."""
URGENT_MOST = URGENT_MILLI / 1000
DAY = 24 * 3600 * NS_PER_SECOND


class Urgent(msgspec.Struct):
    """How long urgent jobs with a promise took, as multiples of what they take alone."""

    promised: int = 0
    within: int = 0
    """How many took at most URGENT_MOST times that."""
    mean: float = 0.0
    worst: float = 0.0
    others: int = 0
    """Urgent jobs without a promise."""
    made_normal: int = 0
    """Jobs whose class had no budget left."""


class Found(msgspec.Struct):
    """What came of one workload."""

    kind: str
    seed: int
    jobs: int = 0
    answers: dict[str, int] = {}
    kept: int = 0
    broken: dict[str, int] = {}
    """By cause."""
    on_time: dict[str, str] = {}
    """By answer: how many of these jobs were on time in the end."""
    unfinished: int = 0
    anomalies: int = 0
    """Windows of 12 hours in which another VC waited longer than in a cluster of its own."""
    told: list[str] = []
    urgent: Urgent | None = None
    """None: no job says a class."""
    used: dict[str, float] = {}
    """By class with a budget: the most GPU time of 24 hours that it had, as a part of the VC's."""

    @property
    def promises(self) -> int:
        """Return how many promises were kept or broken."""
        return self.kept + sum(self.broken.values())


def draw(kind: str, seed: int) -> tuple[Cluster, Trace, list[tuple[Duration, News]]]:
    """Return the cluster of a workload, its jobs, and when nodes fail and are back.

    Args:
        kind: One of KINDS.
        seed: Its seed.
    """
    rng = random.Random(f"promises {kind} {seed}")
    nodes = tuple(NodeCell(node=f"n{index}") for index in range(sum(OWNED.values()) + SPARE))
    levels = tuple(Level(name=name, fanout=fan) for name, fan in LEVELS if name != "rack")
    chain = Chain(gpu="v100", levels=levels, node_level="node", nodes=nodes)
    vcs = {
        vc: VirtualCluster(cells=(Quota(chain=CHAIN, level="node", count=count),))
        for vc, count in OWNED.items()
    }
    vcs["timed"] = msgspec.structs.replace(
        vcs["timed"], policy="deadline", options={"sizes": False}
    )
    cluster = Cluster(chains={CHAIN: chain}, vcs=vcs)
    news: list[tuple[Duration, News]] = []
    if kind in {"faults", "all"}:
        for _ in range(8):
            at, node = rng.uniform(0, SPAN_S), rng.choice(nodes).node
            lasts = rng.choice((900.0, 3600.0, 10_800.0))
            news += [
                (seconds(round(at)), DrainNode(node=node)),
                (seconds(round(at)), Crash(node)),
                (seconds(round(at + lasts)), DrainNode(node=node, drain=False)),
            ]
        news.sort(key=lambda each: each[0])
    bursts = [rng.uniform(0, SPAN_S * 0.9) for _ in range(8)] if kind in {"bursts", "all"} else []
    sigma = SIGMA_WRONG if kind in {"wrong", "all"} else SIGMA
    jobs = [_job(rng, number, bursts, sigma) for number in range(JOBS)]
    if kind in CLASSES:
        jobs = [_classed(rng, kind, job) for job in jobs]
    jobs.sort(key=lambda job: (job.at, job.id))
    return cluster, Trace(name=f"promises-{kind}-{seed}", jobs=tuple(jobs)), news


def _job(rng: random.Random, number: int, bursts: Sequence[float], sigma: float) -> TraceJob:
    vc = rng.choices(tuple(OWNED), (6, 2, 1))[0]
    most = OWNED[vc] * 8
    gpus = min(rng.choice(SIZES), most)
    lasts_s = rng.choice(LENGTHS_S) * rng.uniform(0.6, 1.4) * LOAD
    at_s = rng.choice(bursts) + rng.uniform(0, 300) if bursts and rng.random() < 0.7 else None
    at_s = rng.uniform(0, SPAN_S) if at_s is None else at_s
    said_s = lasts_s * rng.lognormvariate(0.0, sigma)
    within_s = said_s * rng.choice(SLACK) + 120
    timed = vc == "timed" and rng.random() < 0.75
    return TraceJob(
        id=f"h{number}",
        at=seconds(round(at_s)),
        gpus=gpus,
        vc=vc,
        run_time=seconds(round(lasts_s)),
        said_time=seconds(max(round(said_s), 1)),
        deadline=seconds(round(at_s) + round(within_s)) if timed else None,
    )


def _classed(rng: random.Random, kind: str, job: TraceJob) -> TraceJob:
    """Return a job of the timed VC with a class in the place of its deadline."""
    if job.vc != "timed":
        return job
    qos = rng.choices(*CLASSES[kind])[0]
    return msgspec.structs.replace(job, qos=qos, deadline=None)


def play(kind: str, seed: int) -> Found:
    """Return what comes of a workload.

    Args:
        kind: One of KINDS.
        seed: Its seed.
    """
    cluster, trace, news = draw(kind, seed)
    found = Found(kind, seed, jobs=len(trace.jobs))
    settings = Settings(
        seed=seed, costs=COSTS, deadlines="spec", can=CAN, noise=NOISE, over_quota="wait"
    )
    world = World(trace, cluster, settings, Steady(), news, _judge)
    answers: dict[str, Answer] = {}
    dues: dict[str, Instant] = {}
    classes: dict[str, str] = {}

    def hear(fact: Any, now: Instant) -> None:
        match fact:
            case Admitted():
                classes[fact.job] = fact.spec.qos or ""
            case Refused():
                pass
            case PromiseJudged() | PromiseMade():
                answers[fact.job], dues[fact.job] = fact.judged.answer, fact.judged.due
            case PromiseKept():
                found.kept += 1
            case PromiseBroken():
                found.broken[fact.why] = found.broken.get(fact.why, 0) + 1
                late_s = (now - fact.due) // NS_PER_SECOND
                found.told.append(f"{fact.job}: {fact.why.value}: {fact.detail} ({late_s:+} s)")
            case _:
                pass

    world.hear = hear
    world.run()
    world.admission.check()
    found.answers = dict(Counter(answer.value for answer in answers.values()))
    outcomes = {
        f"j{number}": outcome for number, outcome in enumerate(world.ledger.outcomes(world.now), 1)
    }
    ended = {job: outcome.ended for job, outcome in outcomes.items()}
    found.unfinished = sum(end is None for end in ended.values())
    for answer in Answer:
        mine = [job for job, given in answers.items() if given is answer]
        on_time = sum((end := ended[job]) is not None and BEGIN + end <= dues[job] for job in mine)
        if mine:
            found.on_time[answer.value] = f"{on_time} of {len(mine)}"
    found.anomalies = _anomalies(cluster, trace, settings)
    if kind in CLASSES:
        found.urgent = _urgent(outcomes, classes, answers)
        found.used = {qos: _used_most(outcomes, classes, qos) for qos in BUDGETS}
    return found


def _urgent(
    outcomes: dict[str, JobOutcome], classes: dict[str, str], answers: dict[str, Answer]
) -> Urgent:
    """Return how long urgent jobs took."""
    found, took = Urgent(), list[float]()
    for job, outcome in outcomes.items():
        found.made_normal += classes.get(job) == "normal" != outcome.job.qos
        if classes.get(job) != "urgent" or outcome.ended is None:
            continue
        if answers[job] is not Answer.ACCEPTED:
            found.others += 1
            continue
        alone = outcome.job.run_time + seconds(COSTS.start_s)
        took.append((outcome.ended - outcome.job.at) / alone)
    found.promised = len(took)
    found.within = sum(each <= URGENT_MOST for each in took)
    found.mean = round(statistics.fmean(took), 3) if took else 0.0
    found.worst = round(max(took, default=0.0), 3)
    return found


def _used_most(outcomes: dict[str, JobOutcome], classes: dict[str, str], qos: str) -> float:
    """Return the largest part of the VC's GPU time of 24 hours that a class had.

    A window in which it had the most ends with a span of one of its jobs.
    """
    spans = [
        span
        for job, outcome in outcomes.items()
        if classes.get(job) == qos
        for span in outcome.spans
    ]
    whole, most = OWNED["timed"] * 8 * DAY, 0
    for end in sorted({span.ended for span in spans}):
        begin = end - DAY
        used = sum(
            max(min(span.ended, end) - max(span.began, begin), 0) * span.gpus for span in spans
        )
        most = max(most, used)
    return most / whole


def _judge(world: World, facts: list[AllocatorFact]) -> None:
    del facts
    for chain in world.allocator.state.cells.chains.values():
        safe(chain)


def _anomalies(cluster: Cluster, trace: Trace, settings: Settings) -> int:
    """Return how often another VC waited longer than in a cluster of its own, without faults."""
    shared = run(trace, cluster, settings, Steady())
    private: list[RunResult] = []
    for vc, nodes in OWNED.items():
        if vc == "timed":
            continue
        chain = msgspec.structs.replace(
            cluster.chains[CHAIN], nodes=tuple(NodeCell(node=f"n{at}") for at in range(nodes))
        )
        own = Cluster(chains={CHAIN: chain}, vcs={vc: cluster.vcs[vc]})
        jobs = tuple(job for job in trace.jobs if job.vc == vc)
        alone = msgspec.structs.replace(trace, jobs=jobs)
        private.append(run(alone, own, settings, Steady()))
    found = audit(shared, private)
    return sum(each.windows_worse + each.jobs_worse for each in found.tenants.values())


class Options(argparse.Namespace):
    """What the command line says."""

    tune: bool
    json: bool
    verbose: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workloads and print what came of them.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit code: 1 if too few promises are kept, one has no cause, a job waits for ever, or
        another VC waits longer; else 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m skep_lab.studies.promises",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--tune", action="store_true", help="workloads that are not judged")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--verbose", action="store_true", help="name every broken promise")
    options = parser.parse_args(arguments, namespace=Options())
    chosen = JUDGED
    if options.tune:
        chosen = tuple((kind, seed) for seed, kind in enumerate((*KINDS, *KINDS)))
    found = [play(kind, seed) for kind, seed in chosen]
    kept = sum(each.kept for each in found)
    promises = sum(each.promises for each in found)
    unfinished = sum(each.unfinished for each in found)
    anomalies = sum(each.anomalies for each in found)
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        for each in found:
            _print(each, verbose=options.verbose)
        part = kept / max(promises, 1)
        print(
            f"all: {kept} of {promises} promises kept ({part:.1%}); {unfinished} jobs unfinished; "
            f"{anomalies} delays of other VCs longer than alone"
        )
    return int(kept < KEPT_LEAST * promises or unfinished > 0 or anomalies > 0)


def _print(found: Found, *, verbose: bool) -> None:
    part = found.kept / max(found.promises, 1)
    causes = ", ".join(f"{count} {why}" for why, count in sorted(found.broken.items()))
    times = "; ".join(f"{answer} on time: {text}" for answer, text in found.on_time.items())
    print(
        f"{found.kind} {found.seed}: {found.jobs} jobs; {found.kept} of {found.promises} promises "
        f"kept ({part:.0%}){'; broken: ' + causes if causes else ''}\n  {times}; "
        f"{found.unfinished} unfinished; audit {found.anomalies}"
    )
    if (urgent := found.urgent) is not None:
        used = ", ".join(f"{qos} {part:.2%}" for qos, part in found.used.items())
        print(
            f"  urgent with a promise: {urgent.within} of {urgent.promised} took at most "
            f"{URGENT_MOST} times as long as alone (mean {urgent.mean:.2f}, worst "
            f"{urgent.worst:.2f}); {urgent.others} urgent without, {urgent.made_normal} made "
            f"normal; most of 24 hours: {used}"
        )
    for line in found.told if verbose else ():
        print(f"    {line}")


if __name__ == "__main__":
    sys.exit(main())
