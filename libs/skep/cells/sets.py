"""Several jobs on the GPUs of one hold, by a recorded decision to share them: a set.

A set has one hold, which is counted once. The hold has the name of the job that leads: at first the
one that brought it, for as long as it stays. When the leader leaves or is to end, another job
leads, a guaranteed one before others; if several could, `decide.bad_cells` decides, and the hold
keeps its name until then. So the GPUs pass on without a moment in which they are idle, and a GPU
that no job of the set uses any longer is free. A set has the highest priority of its jobs; a job
that preempts one of them preempts all.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.cells.holdings import Holdings
from skep.cells.holds import OPPORTUNISTIC, CellHold, Partner, Request, Spot
from skep.ids import AttemptId


def join_set(cells: Holdings, request: Request, on: AttemptId, leaves: Sequence[int]) -> None:
    """Add a job to the GPUs of another job's hold, as a set.

    Args:
        cells: The holdings, which change.
        request: What the job was submitted with.
        on: A job that uses the GPUs.
        leaves: The GPUs that the new job uses.

    Raises:
        AssertionError: The hold is a claim or of another VC, or the job is in a set already.
    """
    hold = cells.hold_of(on)
    assert hold is not None, on
    assert not hold.claims, on
    assert not hold.further, on
    assert hold.vc == request.vc, (on, request.job)
    assert request.job not in cells.sets, request.job
    if not hold.partners:
        every = tuple(leaf for spot in hold.spots for leaf in spot.leaves)
        hold.partners[hold.job] = Partner(hold.asked, hold.lazy, hold.pin, every)
        cells.sets[hold.job] = hold
    hold.partners[request.job] = Partner(request.priority, request.lazy, request.pin, tuple(leaves))
    cells.sets[request.job] = hold
    review_leader(cells, hold)


def leave_set(cells: Holdings, job: AttemptId, node: str) -> None:
    """Take a job out of its set; the other jobs keep what they use.

    Args:
        cells: The holdings, which change.
        job: A job of a set.
        node: Only if the job is on this node; empty: in any case.
    """
    hold = cells.sets[job]
    shape = cells.chains[hold.chain].topology
    if node and shape.node(hold.partners[job].leaves[0]) != node:
        return
    gone = hold.partners.pop(job)
    del cells.sets[job]
    review_leader(cells, hold)
    stays = {leaf for each in hold.partners.values() for leaf in each.leaves}
    free_part(cells, hold, [leaf for leaf in gone.leaves if leaf not in stays])
    _dissolve(cells, hold)


def stop_counting(cells: Holdings, job: AttemptId) -> None:
    """Exclude a job that is to end from the priority of its set.

    Args:
        cells: The holdings, which change.
        job: A job of a set.
    """
    hold = cells.sets[job]
    hold.partners[job] = hold.partners[job]._replace(asked=OPPORTUNISTIC)
    review_leader(cells, hold)


def review_leader(cells: Holdings, hold: CellHold) -> None:
    """Give a set a leader that may lead it, and the highest priority of its jobs.

    Without a guaranteed job the set becomes opportunistic, unless another job claims its GPUs: then
    all its jobs have to leave anyway. If several jobs could lead, it is noted in `unled`.

    Args:
        cells: The holdings, which change.
        hold: The hold of the set.
    """
    firm = [name for name, each in hold.partners.items() if each.asked > OPPORTUNISTIC]
    able = leader_candidates(hold)
    if hold.job in able:
        cells.unled.pop(hold.job, None)
    elif len(able) == 1:
        cells.unled.pop(hold.job, None)
        rename_hold(cells, hold, able[0])
    elif cells.choosers is not None:
        rename_hold(cells, hold, cells.choosers.lead(able))
    else:
        cells.unled[hold.job] = None
    cells.count_hold(hold, -1)
    hold.asked = max(each.asked for each in hold.partners.values())
    hold.lazy = all(each.lazy for each in hold.partners.values())
    if hold.guaranteed and firm:
        hold.priority = hold.asked
    elif not hold.guaranteed and hold.job in hold.partners:
        hold.pin = hold.partners[hold.job].pin
    cells.count_hold(hold, 1)
    claim = cells.chains[hold.chain].claim
    claimed = any(leaf in claim for spot in hold.spots for leaf in spot.leaves)
    if hold.guaranteed and not firm and not claimed:
        cells.demote(hold.job)


def leader_candidates(hold: CellHold) -> list[AttemptId]:
    """Return the jobs that may lead a set, in the order in which they joined."""
    firm = [name for name, each in hold.partners.items() if each.asked > OPPORTUNISTIC]
    return firm or list(hold.partners)


def rename_hold(cells: Holdings, hold: CellHold, leader: AttemptId) -> None:
    """Give a hold the name of another job of its set.

    Args:
        cells: The holdings, which change.
        hold: The hold.
        leader: The other job.
    """
    del cells.holds[hold.job]
    hold.job = leader
    cells.holds[leader] = hold
    if not hold.guaranteed:
        hold.pin = hold.partners[leader].pin


def free_part(cells: Holdings, hold: CellHold, gone: Sequence[int]) -> None:
    """Free some GPUs of a hold that keeps others, or all of them.

    Args:
        cells: The holdings, which change.
        hold: The hold.
        gone: Leaves to free.
    """
    chain, left = cells.chains[hold.chain], []
    cells.count_hold(hold, -1)
    for spot in hold.spots:
        chain.free_leaves([leaf for leaf in spot.leaves if leaf in gone], hold)
        stays = tuple(leaf for leaf in spot.leaves if leaf not in gone)
        left += [Spot(stays, spot.level)] if stays else []
    hold.spots = tuple(left)
    if hold.spots:
        cells.count_hold(hold, 1)
    else:
        del cells.holds[hold.job]
    cells.mark_unsettled(chain)


def _dissolve(cells: Holdings, hold: CellHold) -> None:
    """Turn a set with one job into a plain hold, once nothing depends on jobs that have left."""
    if len(hold.partners) == 1 and (hold.asked > OPPORTUNISTIC or not hold.guaranteed):
        del cells.sets[hold.job]
        hold.partners = {}
