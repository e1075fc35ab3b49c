"""One embedded cluster that many tests share: of two nodes, and idle whenever a test begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.embedded import Embedded

GPUS = 4
"""Of each of the two nodes, and of each of the two virtual clusters."""


@contextmanager
def two_nodes(cluster: Embedded, vcs: tuple[str, str], *more: str) -> Iterator[Embedded]:
    """Have a cluster up with two nodes, and one virtual cluster for the GPUs of each."""
    owned = [word for vc in vcs for word in ("--vc", f"{vc}={GPUS}")]
    try:
        cluster.up("--nodes", "2", "--gpus", str(GPUS), *owned, "--port", "0", *more)
        yield cluster
    finally:
        cluster.down()


def left_idle(cluster: Embedded) -> Iterator[Embedded]:
    """Give a cluster to a test, and end whatever jobs it left."""
    yield cluster
    left = [row["job"] for row in cluster.get("/v1/jobs?state=active")["jobs"]]
    for job in left:
        cluster.ask("DELETE", f"/v1/jobs/{job}")
    for job in left:
        cluster.ended(job)
