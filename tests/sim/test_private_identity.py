"""A tenant that does not borrow is served as in a cluster of its own, instant by instant.

Whatever others run beside it: what its policy sees and where the cells put its jobs follow from its
own history alone (HiveD, section 3.1: a VC's view is that of its private cluster).
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from skep.policy.registry import POLICIES
from skep.units import Duration, in_seconds, seconds
from skep.wire.cluster import Cluster
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings
from skep_lab.studies.private import own_jobs
from skep_lab.traces.generators import hived
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

CELLS = {"a": {"node": 3}, "b": {"node": 2}, "c": {"gpu": 3}}
NODES = 6
SIZES = (1, 1, 1, 2, 2, 3, 4, 4, 6, 8, 16)
ALIKE_SEED = 3
"""A workload in which choosing another of two equally free nodes changes who starts when."""

Times = dict[str, list[tuple[float, float]]]


def drawn(seed: int) -> Trace:
    """Return more jobs of three tenants than their cells hold, and opportunistic ones beside."""
    rng = random.Random(seed)
    rows = []
    for _ in range(70):
        at, vc = rng.randrange(3000), rng.choice("aaabbc")
        gpus = 1 if vc == "c" else rng.choice(SIZES)
        rows.append((at, vc, gpus, rng.choice([100, 400, 1500]) * rng.uniform(0.5, 1.5), False))
    rows += [
        (rng.randrange(5000), rng.choice("abc"), rng.choice(SIZES), rng.uniform(300, 3000), True)
        for _ in range(30)
    ]
    rows.sort(key=lambda row: row[0])
    jobs = (
        TraceJob(
            id=f"h{number}",
            at=seconds(at),
            gpus=gpus,
            vc=vc,
            opportunistic=idle,
            run_time=seconds(round(lasts)),
            workers=-(-gpus // hived.NODE_GPUS),
        )
        for number, (at, vc, gpus, lasts, idle) in enumerate(rows)
    )
    return Trace(name=f"drawn-{seed}", jobs=tuple(jobs))


def times(trace: Trace, cluster: Cluster, policy: str) -> Times:
    """Return when each guaranteed job ran; stretches that follow on one another are one."""
    settings = Settings(can=("checkpoint",))
    if policy != "fifo":
        rules: dict[str, tuple[str, dict[str, Any]]] = dict.fromkeys(cluster.vcs, (policy, {}))
        settings = msgspec.structs.replace(settings, policies=rules)
    found: Times = {}
    for each in run(trace, cluster, settings, Steady()).jobs:
        if each.job.opportunistic:
            continue
        assert each.ended is not None, each.job.id
        spans = found.setdefault(each.job.id, [])
        for span in each.spans:
            began, ended = in_seconds(span.began), in_seconds(span.ended)
            if spans and spans[-1][1] == began:
                began = spans.pop()[0]
            spans.append((began, ended))
    return found


def alone(trace: Trace, vc: str, policy: str) -> Times:
    """Return when a tenant's jobs ran in its private cluster."""
    cells = CELLS[vc]
    nodes = -(-hived.gpus_of(cells) // hived.NODE_GPUS)
    return times(own_jobs(trace, vc), hived.cluster(nodes, {vc: cells}), policy)


PUBLISHED = [name for name, kind in POLICIES.items() if kind.__module__.startswith("skep.policy.")]
"""Without those that tests and simulators register, whichever of them were imported first."""


@pytest.mark.parametrize("policy", PUBLISHED)
def test_a_tenant_is_served_at_the_same_instants_as_alone(policy: str) -> None:
    trace = drawn(ALIKE_SEED)
    shared = times(trace, hived.cluster(NODES, CELLS), policy)
    private = {job: spans for vc in CELLS for job, spans in alone(trace, vc, policy).items()}
    assert shared == private


def test_that_says_something() -> None:
    """Jobs wait in these workloads, and the flood is put aside for them."""
    trace = drawn(ALIKE_SEED)
    result = run(trace, hived.cluster(NODES, CELLS), Settings(can=("checkpoint",)), Steady())
    waited = [job.waited for job in result.jobs if not job.job.opportunistic]
    assert sum(each > Duration(0) for each in waited) > len(waited) / 3
    assert sum(job.preempted for job in result.jobs if job.job.opportunistic) > 5
