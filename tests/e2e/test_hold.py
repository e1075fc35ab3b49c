"""`hold` on real processes: a gang waits for a whole node, and is spread after its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from skep.units import NS_PER_SECOND
from skep.wire import subjects
from skep.wire.facts import JobBound
from tests.e2e.conftest import Gate, Tenant
from tests.e2e.test_policy import USUAL, under
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

NODE_GPUS = 4
RUN_TIME_S = 2
Holding = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def holding(cluster: Embedded) -> Holding:
    """The shared cluster with both of its nodes in `nlp`, under `hold` with some options."""

    @contextmanager
    def put(**options: Any) -> Iterator[None]:
        ours = {"gpus": 2 * NODE_GPUS, "policy": "hold", "options": options}
        under(cluster, {"nlp": ours, "vision": {"gpus": 0}}, "hold")
        try:
            yield
        finally:
            for row in cluster.get("/v1/jobs?state=active")["jobs"]:
                cluster.ask("DELETE", f"/v1/jobs/{row['job']}")
            under(cluster, USUAL, "fifo")

    return put


def begun(nlp: Tenant, gate: Gate, workers: int) -> str:
    """Hand in a job, and return it once it holds its GPUs."""
    job = handed_in(nlp, gate.wait, workers)
    gate.reached()
    return job


def handed_in(nlp: Tenant, command: str, workers: int) -> str:
    """Hand in a gang with one GPU for each worker, and what it says of its run time."""
    resources = {"workers": workers, "gpus": 1}
    return nlp.accepted(nlp.spec(command, resources=resources, size={"run_time": RUN_TIME_S}))


def held(cluster: Embedded, job: str) -> bool:
    """Return whether a job waits although as many GPUs are free as it wants."""
    return "held-for-locality" in cluster.skep("why", job, "--json")


def bound(cluster: Embedded, job: str) -> JobBound:
    """Return the fact by which a job got its GPUs."""

    def look() -> JobBound | None:
        facts = asyncio.run(cluster.facts(subjects.ALLOC))
        told = (fact for _, fact in facts if isinstance(fact, JobBound))
        return next((fact for fact in told if fact.job == job), None)

    return until(look, f"{job} to have GPUs")


def nodes(fact: JobBound) -> list[str]:
    """Return the nodes on which a job was placed."""
    return sorted({member.node for member in fact.members})


def test_a_gang_waits_for_one_node_and_smaller_jobs_pass_it(
    holding: Holding, cluster: Embedded, nlp: Tenant, gates: Callable[[str], Gate]
) -> None:
    first, second = gates("first"), gates("second")
    with holding():
        # Two GPUs are left on one node and one on the other: three in all, and on no node.
        pair = begun(nlp, first, 2)
        begun(nlp, second, 3)
        gang = handed_in(nlp, "true", 3)
        until(lambda: held(cluster, gang), f"{gang} to be held")
        small = handed_in(nlp, "true", 1)
        assert cluster.ended(small)["state"] == "succeeded", "one GPU is free: it passes the gang"
        assert held(cluster, gang), "three GPUs are free again, and not on one node"
        first.open()
        assert cluster.ended(gang)["state"] == "succeeded"
    assert nodes(bound(cluster, gang)) == nodes(bound(cluster, pair))


def test_a_gang_is_spread_once_it_has_waited_for_its_bound(
    holding: Holding, cluster: Embedded, nlp: Tenant, gates: Callable[[str], Gate]
) -> None:
    first, second = gates("first"), gates("second")
    with holding(relax=1, drain=0):
        begun(nlp, first, 2)
        begun(nlp, second, 3)
        gang = handed_in(nlp, "true", 3)
        assert cluster.ended(gang)["state"] == "succeeded", "nothing else has ended"
        waited_ns = bound(cluster, gang).at - cluster.get(f"/v1/jobs/{gang}")["submitted_at"]
    assert len(nodes(bound(cluster, gang))) == 2
    assert waited_ns >= RUN_TIME_S * NS_PER_SECOND
