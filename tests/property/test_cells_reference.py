"""Placement beside brute force: what a request is entitled to it gets, and nothing beyond safety."""

from __future__ import annotations

from collections import Counter

import pytest

from skep.cells.holds import Request
from tests.property import cells_reference
from tests.property.cells_histories import History

LEAVES = 12
EVENTS = 60
SEEDS = 120
PARTS = 4


class Judged(History):
    """A history on a few GPUs, every decision of which is compared with the reference."""

    def attempt(self, request: Request) -> bool:
        found = self.cells.place(request, self.loss)
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
        return super().attempt(request)


@pytest.mark.parametrize("part", range(PARTS))
def test_placement_is_what_brute_force_finds(part: int) -> None:
    stats: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        try:
            stats += Judged(seed, leaves=LEAVES).run(EVENTS)
        except Exception as error:
            error.add_note(f"python -m scripts.cell_histories --reference --seed {seed}")
            raise
    assert stats["entitled"] > 100
    assert stats["not entitled"] > 100
    assert stats["idle: True"] > 50
    assert stats["idle: False"] > 50
