"""How long admission takes for a job with a deadline, behind many promises.

A VC of `--nodes` nodes of 8 GPUs is given jobs with deadlines until `--promises` of them are
promised. Then `--jobs` more are submitted, of which every other one that is promised takes the
place of an older promise, so that their number stays. Half of all jobs say their run time; the
others are elastic, and their speed is predicted at each size, by a fit of what was measured of
their family and others, as the advisor sends it. What is measured is processor time
of the whole decision: reading the spec, judging it, recording facts. It is to be 20 ms at most for
99 of 100.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import msgspec

from benchmarks._sample import percentiles
from skep.machines.admission import AdmissionMachine
from skep.machines.base import Record, Restarted
from skep.perf.fitted import Fitted, as_fit
from skep.perf.model.placement import Placement, Point
from skep.perf.model.pool import Pool
from skep.units import Duration, Instant
from skep.wire.admin import SetVcs
from skep.wire.advice import Outlook
from skep.wire.bearing import RULES
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.codec import Facts, Submission
from skep.wire.facts import CellsSet, End, EpochBegan, JobEnded
from skep.wire.promises import PromiseMade
from skep.wire.reasons import Reason
from skep_services.collection import short_pauses

BEGIN = Instant(1_700_000_000_000_000_000)
LIMIT_MS = 20.0


BATCH = 256
PLACES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2))


def points(scale: float, rng: random.Random) -> list[Point]:
    """Return what was measured of a family that gains less with each GPU, of 1 s on one."""
    found = []
    for gpus, nodes in PLACES:
        step_ns = scale * 1e9 / gpus**0.8 * (1.1 if nodes > 1 else 1.0) * rng.uniform(0.97, 1.03)
        found.append(Point(Placement("v100", gpus, nodes, BATCH / gpus), Duration(round(step_ns))))
    return found


def told() -> Outlook:
    """Return the fit of a family, as the advisor tells it."""
    rng = random.Random(1)
    families = {str(each): points(rng.uniform(0.2, 5), rng) for each in range(8)}
    fitted = Fitted(Pool(families).fit_family(points(1.0, rng)), batches=(BATCH // 16, BATCH))
    return Outlook(at=BEGIN, fits=(as_fit("timed", "resnet", "v100", fitted),))


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--promises", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return how long decisions take, in milliseconds."""
    machine, rng = admission(given.nodes), random.Random(given.seed)
    number, promised = 0, list[str]()
    while len(promised) < given.promises:
        number += 1
        _, made = submit(machine, number, rng)
        promised += [f"j{number}"] * made
    machine.check()
    taken: list[float] = []
    answers: dict[str, int] = {}
    with short_pauses():  # As the service has them, once it has read its log.
        for _ in range(given.jobs):
            number += 1
            cpu_ms, made = submit(machine, number, rng)
            taken.append(cpu_ms)
            answer = "promised" if made else "not"
            answers[answer] = answers.get(answer, 0) + 1
            if made:
                promised.append(f"j{number}")
                end(machine, promised.pop(rng.randrange(len(promised) - 1)))
    machine.check()
    return {
        "decision_ms": percentiles(taken),
        "within_limit": percentiles(taken)["p99"] <= LIMIT_MS,
        "limit_ms": LIMIT_MS,
        "promised_jobs": answers.get("promised", 0),
        "other_jobs": answers.get("not", 0),
        "promises_n": len(machine.pledges.books["timed"].places),
    }


def admission(nodes: int) -> AdmissionMachine:
    """Return admission of a cluster with one VC."""
    machine = AdmissionMachine()
    chain = Chain(
        gpu="v100",
        levels=(Level(name="node", fanout=8),),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{at}") for at in range(nodes)),
    )
    vc = VirtualCluster(cells=(Quota(chain="v100", level="node", count=nodes),), policy="deadline")
    cluster = Cluster(chains={"v100": chain}, vcs={"timed": vc})
    machine.apply(EpochBegan(epoch=1, owner="benchmark", rules=RULES))
    machine.decide(Restarted(1), BEGIN)
    machine.decide(SetVcs(vcs=cluster.vcs, chains=cluster.chains), BEGIN)
    cells = CellsSet(cluster=cluster, asked=cluster)
    machine.decide(Facts(service="allocator", at=BEGIN, facts=(cells,)), BEGIN)
    machine.decide(told(), BEGIN)
    return machine


def submit(machine: AdmissionMachine, number: int, rng: random.Random) -> tuple[float, bool]:
    """Submit a job; return the milliseconds of its decision, and whether it was promised."""
    lasts_s = rng.choice((600, 3600, 7200, 36_000)) * rng.uniform(0.5, 1.5)
    within_s = lasts_s * rng.choice((1.2, 1.5, 2, 4, 8, 16))
    spec: dict[str, Any] = {"name": "job", "vc": "timed", "command": ["train"]}
    spec["finish_by"] = round(within_s)
    if rng.random() < 0.5:
        gpus, workers = rng.choice((1, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2, 4))
        spec["resources"] = {"gpus": gpus, "workers": workers}
        spec["size"] = {"run_time": lasts_s}
    else:
        spec["elastic"] = {"min": 1, "max": 16}
        spec["willing"] = {"gpus": "1..16"}
        spec["size"] = {"mini_batches": round(lasts_s), "family": "resnet", "batch_size": BATCH}
    raw = msgspec.json.encode(spec)
    event = Submission(job=f"j{number}", vc="timed", raw=raw, at=BEGIN)
    began = time.process_time()
    effects = machine.decide(event, BEGIN)
    cpu_ms = (time.process_time() - began) * 1000
    facts = [effect.fact for effect in effects if isinstance(effect, Record)]
    return cpu_ms, any(isinstance(fact, PromiseMade) for fact in facts)


def end(machine: AdmissionMachine, job: str) -> None:
    """End a job."""
    over = JobEnded(job=job, end=End.SUCCEEDED, why=Reason.SUCCEEDED, attempts=1, at=BEGIN)
    machine.decide(Facts(service="allocator", at=BEGIN, facts=(over,)), BEGIN)
