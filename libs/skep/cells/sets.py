"""Several jobs on the GPUs of one hold, by a recorded decision to share them: a set.

The hold is there once, and counted once, however many are in the set. It has the name of the job
that leads: the one that brought it, as long as it stays; then, or as soon as that one is to end,
another one, a guaranteed one before others. Where several could, `decide.bad_cells` decides: until
then it keeps its name. So what they use passes on without a moment in which it is idle, and what
nobody of them uses any more is free. The set is as important as the most important in it: who puts
one of them aside puts all of them aside.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.cells.holdings import Holdings
from skep.cells.holds import OPPORTUNISTIC, CellHold, Partner, Request, Spot


def join_set(cells: Holdings, request: Request, on: str, leaves: Sequence[int]) -> None:
    """Let a further job use GPUs of what another holds."""
    hold = cells.hold_of(on)
    assert hold is not None, on
    assert not hold.claims, on
    assert hold.vc == request.vc, (on, request.job)
    assert request.job not in cells.sets, request.job
    if not hold.partners:
        every = tuple(leaf for spot in hold.spots for leaf in spot.leaves)
        hold.partners[hold.job] = Partner(hold.asked, hold.lazy, hold.pin, every)
        cells.sets[hold.job] = hold
    hold.partners[request.job] = Partner(request.priority, request.lazy, request.pin, tuple(leaves))
    cells.sets[request.job] = hold
    review_leader(cells, hold)


def leave_set(cells: Holdings, job: str, node: str) -> None:
    """Take from a job what it uses (on one node, or everywhere): the others of its set keep it."""
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


def stop_counting(cells: Holdings, job: str) -> None:
    """Have a job that is to end hold nothing against others any more: its partners do."""
    hold = cells.sets[job]
    hold.partners[job] = hold.partners[job]._replace(asked=OPPORTUNISTIC)
    review_leader(cells, hold)


def review_leader(cells: Holdings, hold: CellHold) -> None:
    """Have a set be led by one that may lead it, and be as important as the most important in it.

    Without anybody guaranteed it becomes opportunistic, unless somebody claims it: then all of them
    have to make room anyway.
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


def leader_candidates(hold: CellHold) -> list[str]:
    """Return who may lead a set, in the order in which they came."""
    firm = [name for name, each in hold.partners.items() if each.asked > OPPORTUNISTIC]
    return firm or list(hold.partners)


def rename_hold(cells: Holdings, hold: CellHold, leader: str) -> None:
    """Have a hold have the name of another job of its set."""
    del cells.holds[hold.job]
    hold.job = leader
    cells.holds[leader] = hold
    if not hold.guaranteed:
        hold.pin = hold.partners[leader].pin


def free_part(cells: Holdings, hold: CellHold, gone: Sequence[int]) -> None:
    """Free some GPUs of a hold that keeps others, or all of them."""
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
    """Have the last of a set be like any job: once nothing of it depends on who has gone."""
    if len(hold.partners) == 1 and (hold.asked > OPPORTUNISTIC or not hold.guaranteed):
        del cells.sets[hold.job]
        hold.partners = {}
