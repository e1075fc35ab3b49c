"""Placement beside brute force: requests get what they are entitled to."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from skep.cells.decide import placement
from skep.cells.decide.explain import explain_wait
from skep.cells.holds import OPPORTUNISTIC, Placement, Request
from skep.cells.legal import impossible
from skep.cells.snapshot import restore_cells, take_snapshot
from skep.cells.state import Cells
from skep.wire.reasons import Reason
from tests.property import cells_reference
from tests.property.cells_histories import History

LEAVES = 12
EVENTS = 60
SEEDS = 120
PARTS = 4


def room_left(cells: Cells, request: Request, found: Placement) -> list[object]:
    """Return what a VC has left once a placement is carried out, on a copy of the cells."""
    copy = restore_cells(take_snapshot(cells))
    copy.carry_out(request, found)
    left: list[object] = []
    for name, chain in copy.chains.items():
        for key, pool in chain.pools.items():
            if pool.vc == request.vc:
                rooms = [
                    {room: len(units) for room, units in level.items() if room}
                    for level in pool.loose
                ]
                left.append((name, key, pool.left, rooms))
    return left


class Judged(History):
    """A history on a few GPUs, every decision of which is compared with the reference."""

    def attempt(self, request: Request) -> bool:
        found = placement.find_placement(self.cells, request, self.loss)
        if not request.guaranteed:
            idle = cells_reference.idle_for(self.cells, request)
            assert (found is not None) is idle, f"{request}: {found}, and idle GPUs for it: {idle}"
            self.stats[f"idle: {idle}"] += 1
        elif cells_reference.must_grant(self.cells, request):
            assert found is not None, f"{request} is entitled to a placement, and gets none"
            self.stats["entitled"] += 1
        elif found is not None and not found.demoted:
            assert cells_reference.may_grant(self.cells, request), f"{request}: {found}"
            self.stats["granted on what is left of bad cells"] += 1
        elif found is None:
            self.stats["not entitled"] += 1
        if found is None:
            why = explain_wait(self.cells, request)
            assert why.reason is not Reason.WAITS_FOR_NODES, f"{request}: {why}"
            never = impossible(self.cells.cluster, request)
            assert (why.reason is Reason.FITS_NO_CELL) is (never is not None), f"{request}: {why}"
            self.stats[why.reason] += 1
        if found is not None and request.guaranteed:
            self.judge_blindness(request, found)
        return super().attempt(request)

    def judge_blindness(self, request: Request, found: Placement) -> None:
        """Assert that what a VC has left does not depend on opportunistic jobs beside it.

        So it is served as its private cluster would be. Where jobs of its own have to yield, the
        least work lost decides, and opportunistic jobs have a part in that.
        """
        kept = take_snapshot(self.cells)
        holds = tuple(hold for hold in kept.holds if hold.priority > OPPORTUNISTIC)
        alone = restore_cells(msgspec.structs.replace(kept, holds=holds))
        other = placement.find_placement(alone, request, self.loss)
        assert other is not None, f"{request} only fits beside opportunistic jobs"
        own = [job for job in found.victims if self.cells.holds[job].guaranteed]
        yields = (*own, *other.victims, *found.cancels, *other.cancels, *found.demoted)
        if yields or other.demoted:
            return
        with_them, without = (
            room_left(self.cells, request, found),
            room_left(alone, request, other),
        )
        assert with_them == without, f"{request}: {found}, and alone {other}"
        self.stats["blind"] += 1


@pytest.mark.parametrize("part", range(PARTS))
def test_placement_is_what_brute_force_finds(part: int) -> None:
    stats: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        try:
            stats += Judged(seed, leaves=LEAVES).run(EVENTS)
        except Exception as error:
            error.add_note(f"python -m tests.property.run_histories --reference --seed {seed}")
            raise
    assert stats["entitled"] > 100
    assert stats["blind"] > 100
    assert stats["not entitled"] > 100
    for reason in (
        Reason.WAITS_FOR_REPAIR,
        Reason.WAITS_FOR_AFFINITY,
        Reason.WAITS_FOR_CELLS,
        Reason.WAITS_FOR_GPUS,
        Reason.FITS_NO_CELL,
    ):
        assert stats[reason], reason
    assert stats["idle: True"] > 50
    assert stats["idle: False"] > 50
