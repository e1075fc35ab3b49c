"""A tenant's private cluster: what its virtual cluster promises it, as hardware (HiveD, 5.1)."""

from __future__ import annotations

import msgspec

from skep.cells.levels import gpus_by_level, gpus_per_node, level_names
from skep.cells.propose import resolve
from skep.wire.cluster import Cluster, Quota
from skep_lab.traces.job import Trace


def private_cluster(cluster: Cluster, vc: str) -> Cluster:
    """Return a cluster of a VC's cells and nothing else: as many top cells as hold them.

    Where its cells do not fill a top cell, the rest of it is there, and no VC owns it. Pinned cells
    count as others of their level.

    Args:
        cluster: It has chains.
        vc: The name of the VC.
    """
    cluster = resolve(cluster, ())
    owned = cluster.vcs[vc]
    pins = [cluster.pins[name] for name in owned.pinned]
    cells = [*owned.cells, *(Quota(chain=each.chain, level=each.level, count=1) for each in pins)]
    chains = {}
    for name, chain in cluster.chains.items():
        sizes = gpus_by_level(chain)
        gpus = dict(zip(level_names(chain), sizes, strict=True))
        needed = sum(gpus[each.level] * each.count for each in cells if each.chain == name)
        if needed:
            nodes = -(-needed // sizes[-1]) * sizes[-1] // gpus_per_node(chain)
            chains[name] = msgspec.structs.replace(chain, nodes=chain.nodes[:nodes], names={})
    alone = msgspec.structs.replace(owned, cells=tuple(cells), pinned=(), gpus=0)
    return msgspec.structs.replace(cluster, chains=chains, pins={}, vcs={vc: alone})


def own_jobs(trace: Trace, vc: str) -> Trace:
    """Return a VC's guaranteed jobs: what it would run in a cluster of its own."""
    jobs = tuple(job for job in trace.jobs if job.vc == vc and not job.opportunistic)
    return msgspec.structs.replace(trace, jobs=jobs, rows=())
