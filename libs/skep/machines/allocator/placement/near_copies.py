"""Where a gang goes whose state has copies in the memory of nodes: to these nodes first.

The usual search is asked twice or more: for any nodes, and for those with copies and as few others
as it takes. A place with copies is taken if it is as good to the VC and to other jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from skep.cells.decide.cover_cost import cover_cost
from skep.cells.decide.search import Limit
from skep.cells.holds import Placement, Request
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.machines.allocator import gpu_suspects
from skep.units import Instant

ABILITY = "copies"
"""What ranks say that they can do if they keep copies of their state in the memory of nodes."""


def place(
    state: ClusterState, job: JobState, asked: Request, limit: Limit, now: Instant
) -> Placement | None:
    """Return where a gang goes: to nodes with copies of its state, if that is as good otherwise.

    It waits for no such node, and no other job is stopped for one. Nor does it go for copies to
    several chains, or to a node that it failed on. A gang whose usual place is mixed takes that.

    Args:
        state: Its cells and jobs are read.
        job: The job that is placed.
        asked: What it asks the cells for.
        limit: How many workers of it each node may have; None: as many as it has GPUs for.
        now: The time of the decision.

    Returns:
        The place; None: the job has to wait.
    """
    usual = gpu_suspects.place(state, job, asked, limit, now)
    if usual is None or not job.copies or usual.further:
        return usual
    there, asked = _nodes(state, usual), asked._replace(mixed=False)
    shunned = gpu_suspects.shunned(state, job) - there.keys()
    copies = [name for name in job.copies if name not in shunned]
    strange = [name for name in there if name not in job.copies]
    for count in _counts(len(strange)) if copies else ():
        near = dict.fromkeys((*copies, *strange[:count]))
        found = gpu_suspects.place(state, job, asked, _among(near, limit, len(asked.sizes)), now)
        if found is not None and _as_good(state, asked, found, usual):
            return found
    return usual


def _counts(most: int) -> Iterator[int]:
    """Yield how many nodes without copies are let in: 0, 1, 2, 4, ... below `most`."""
    count = 0
    while count < most:
        yield count
        count = count * 2 or 1


def _among(names: Collection[str], limit: Limit, workers: int) -> Limit:
    """Return a limit that leaves some nodes only."""

    def among(name: str) -> int:
        if name not in names:
            return 0
        return workers if limit is None else limit(name)

    return among


def _as_good(state: ClusterState, asked: Request, found: Placement, usual: Placement) -> bool:
    """Return whether a place takes no more from the VC and from others than the usual one does."""
    if found.chain != usual.chain or found.victims or found.cancels or found.demoted:
        return False
    if len(_nodes(state, found)) > len(_nodes(state, usual)):
        return False
    if not asked.guaranteed:
        return True
    chain = state.cells.chains[found.chain]
    pool = chain.pools[asked.vc, asked.pin]
    return cover_cost(chain, pool, found.spots) <= cover_cost(chain, pool, usual.spots)


def _nodes(state: ClusterState, where: Placement) -> dict[str, None]:
    """Return the nodes of a place, in the order of ranks."""
    shape = state.cells.chains[where.chain].topology
    return dict.fromkeys(shape.node(spot.leaves[0]) for spot in where.spots)
