"""What is refused for ever is exactly what an empty, healthy cluster would not place either."""

from __future__ import annotations

from collections import Counter

import pytest

from skep.cells.decide import placement
from skep.cells.holds import Request
from skep.cells.legal import impossible
from skep.ids import AttemptId
from skep.wire.reasons import Reason
from tests.property.cells_histories import History

SEEDS = 150


@pytest.mark.parametrize("part", range(3))
def test_refused_for_ever_is_what_an_empty_cluster_cannot_place(part: int) -> None:
    told: Counter[str] = Counter()
    for seed in range(part, SEEDS, 3):
        history = History(seed, leaves=16)
        cells = history.cells
        for number in range(60):
            request = wild(history, history.request(AttemptId(f"j{number}")))
            refusal, found = impossible(cells.cluster, request), None
            if request.guaranteed or not request.pin:
                found = placement.find_placement(cells, request)
            if refusal is not None and (
                refusal.reason is Reason.UNKNOWN_VC
                or (refusal.reason is Reason.UNKNOWN_LEVEL and not request.hard)
            ):
                # Nothing stands in the way of these but that somebody mistyped a name.
                found = None
            note = f"seed {seed}: {request}: {refusal}, {found}"
            assert (refusal is None) == (found is not None), note
            if refusal is not None:
                assert refusal.text, note
                told[refusal.reason] += 1
    expected = (
        Reason.NODE_TOO_SMALL,
        Reason.CELL_TOO_SMALL,
        Reason.QUOTA_TOO_SMALL,
        Reason.WITHIN_TOO_SMALL,
        Reason.CELLS_DO_NOT_PACK,
        Reason.TYPE_NOT_OWNED,
        Reason.UNKNOWN_LEVEL,
        Reason.UNKNOWN_PIN,
        Reason.UNKNOWN_VC,
        Reason.NO_SUCH_GPU_TYPE,
        Reason.PIN_NEEDS_GUARANTEE,
        Reason.TOO_MANY_GPUS,
    )
    assert [reason for reason in expected if not told[reason]] == []


def test_a_mixed_gang_is_refused_if_its_chains_together_cannot_place_it() -> None:
    told: Counter[str] = Counter()
    for seed in range(120):
        history = History(seed, leaves=16, mixed=True)
        cells = history.cells
        if "twin" in cells.chains:
            continue  # What one host gives of two types depends on where the others are.
        for number in range(40):
            request = history.request(AttemptId(f"j{number}"))._replace(within="")
            if not request.mixed:
                continue
            refusal = impossible(cells.cluster, request)
            found = placement.find_placement(cells, request)
            if refusal is not None and refusal.reason is Reason.MIXED_OF_ONE:
                assert found is None or not found.further, (seed, request)
            else:
                assert (refusal is None) == (found is not None), (seed, request, refusal, found)
            told["mixed" if found is not None and found.further else "alone"] += 1
            told[refusal.reason if refusal is not None else "possible"] += 1
    expected = ("mixed", "possible", Reason.MIXED_OF_ONE, Reason.QUOTA_TOO_SMALL)
    assert [what for what in expected if not told[what]] == []


def wild(history: History, request: Request) -> Request:
    """Return a request with something random that may be wrong with it."""
    rng, cells = history.rng, history.cells
    match rng.randrange(12):
        case 0:
            return request._replace(vc="nobody")
        case 1:
            return request._replace(gpu=rng.choice(("h100", "g0", "g1")), pin="")
        case 2:
            return request._replace(pin=rng.choice(("p0", "p1", "p9")))
        case 3:
            return request._replace(within=rng.choice(("hall", "node", "aisle")), hard=True)
        case 4:
            return request._replace(members=((1, 1), (1, 4), (2, 3)))
        case 5:
            gpus = sum(chain.topology.leaves for chain in cells.chains.values())
            return request._replace(members=((gpus + 1, 1),), priority=-1, pin="", within="")
        case _:
            return request
