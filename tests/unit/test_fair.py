"""Whose opportunistic jobs yield to whose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.cells.decide.fair_share import gpus_to_give, may_take
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement, Request, Spot
from skep.ids import AttemptId
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import CellsReserved, JobBound, JobPromoted, JobStopping, ReservationDropped
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from tests.kit import Driver, admitted, allocator, exited, facts_of, joined


def idle(vc: str, gpus: int) -> CellHold:
    """Return an opportunistic job that holds so many GPUs."""
    request = Request(AttemptId(f"{vc}-{gpus}"), vc, OPPORTUNISTIC, ((1, gpus),))
    return CellHold(request, Placement("main", (Spot(tuple(range(gpus))),)))


@pytest.mark.parametrize(
    "rich, poor, wanted, lost, may",
    [
        (8, 0, 4, 4, True),
        (8, 0, 4, 5, False),
        (8, 4, 1, 3, True),
        (8, 4, 1, 4, False),
        (4, 4, 1, 1, False),
    ],
)
def test_who_gives_keeps_as_much_as_who_takes(
    rich: int, poor: int, wanted: int, lost: int, may: bool
) -> None:
    shares = {"rich": (rich, 1.0), "poor": (poor, 1.0)}
    request = Request(AttemptId("new"), "poor", OPPORTUNISTIC, ((1, wanted),))
    assert may_take(shares, request, [idle("rich", lost)]) is may


@given(
    st.integers(0, 40),
    st.sampled_from([0.5, 1.0, 1.7, 3.0]),
    st.integers(0, 40),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(1, 12),
)
def test_what_may_be_given_is_what_may_be_taken(
    rich: int, heavy: float, poor: int, weight: float, wanted: int
) -> None:
    shares = {"rich": (rich, heavy), "poor": (poor, weight)}
    request = Request(AttemptId("new"), "poor", OPPORTUNISTIC, ((1, wanted),))
    most = max(
        (gpus for gpus in range(1, rich + 1) if may_take(shares, request, [idle("rich", gpus)])),
        default=0,
    )
    assert gpus_to_give(shares, request) == {"rich": most}


def test_weights_count() -> None:
    request = Request(AttemptId("new"), "poor", OPPORTUNISTIC, ((1, 1),))
    assert may_take({"rich": (6, 2.0), "poor": (2, 1.0)}, request, [idle("rich", 1)]) is False
    assert may_take({"rich": (8, 2.0), "poor": (2, 1.0)}, request, [idle("rich", 2)]) is True


def test_nobody_takes_from_himself() -> None:
    request = Request(AttemptId("new"), "rich", OPPORTUNISTIC, ((1, 1),))
    assert may_take({"rich": (6, 1.0), "poor": (0, 1.0)}, request, [idle("rich", 1)]) is False


def flooded(**weights: float) -> Driver[AllocatorMachine]:
    """Return a cluster of one node that nlp's four opportunistic jobs fill."""
    decide = allocator(joined(), nlp=1, cv=1)
    decide(
        SetVcs(
            vcs={vc: VirtualCluster(gpus=1, weight=weights.get(vc, 1.0)) for vc in ("nlp", "cv")}
        )
    )
    for number in range(1, 5):
        (_, bound) = facts_of(decide(admitted(number, opportunistic=True)))
        assert isinstance(bound, JobBound)
    return decide


def test_an_over_share_tenants_jobs_yield_until_both_have_as_much() -> None:
    decide = flooded()
    for number in (5, 6):
        facts = facts_of(decide(admitted(number, vc="cv", opportunistic=True)))
        reserved = next(fact for fact in facts if isinstance(fact, CellsReserved))
        stopped = next(fact for fact in facts if isinstance(fact, JobStopping))
        assert reserved.victims == (stopped.job,)
        assert stopped.why is Reason.PREEMPTED
    facts = facts_of(decide(admitted(7, vc="cv", opportunistic=True)))
    assert not [fact for fact in facts if isinstance(fact, JobStopping)], "each has two by then"


def test_what_was_yielded_goes_to_whom_it_was_yielded_to() -> None:
    decide = flooded()
    facts = facts_of(decide(admitted(5, vc="cv", opportunistic=True)))
    (victim,) = [fact.job for fact in facts if isinstance(fact, JobStopping)]
    decide(admitted(6, opportunistic=True))
    bound = [fact for fact in facts_of(decide(exited(victim))) if isinstance(fact, JobBound)]
    assert [fact.job for fact in bound] == ["j5"]


def test_a_heavier_tenant_keeps_more() -> None:
    decide = flooded(nlp=3.0)
    facts = facts_of(decide(admitted(5, vc="cv", opportunistic=True)))
    assert [fact for fact in facts if isinstance(fact, JobStopping)]
    facts = facts_of(decide(admitted(6, vc="cv", opportunistic=True)))
    assert not [fact for fact in facts if isinstance(fact, JobStopping)]


def borrowing(number: int, **changes: Any) -> Facts:
    """Return admission's word on a guaranteed job that may borrow."""
    return admitted(number, over_quota="opportunistic", **changes)


def of(kind: type, effects: list[Effect]) -> list[Any]:
    """Return the facts of one kind."""
    return [fact for fact in facts_of(effects) if isinstance(fact, kind)]


def test_who_borrows_gets_a_share_of_what_is_idle_too() -> None:
    decide = flooded()
    decide(borrowing(5, vc="cv"))
    effects = decide(borrowing(6, vc="cv"))
    (claim,) = of(CellsReserved, effects)
    assert claim.job == "j6"
    assert not claim.members[0].levels, "cv's one cell is j5's"
    (victim,) = of(JobStopping, effects)
    (bound,) = of(JobBound, decide(exited(victim.job)))
    assert bound.job == "j6"
    assert not of(JobStopping, decide(borrowing(7, vc="cv"))), "two of nlp's have to go by then"


def test_a_gang_gets_its_share_over_several_nodes() -> None:
    decide = allocator(*(joined(f"node-{number}") for number in range(1, 5)), nlp=6, cv=4)
    for number in range(1, 5):
        decide(admitted(number, gpus=4, opportunistic=True))
    effects = decide(admitted(5, vc="cv", gpus=2, workers=3, opportunistic=True))
    (claim,) = of(CellsReserved, effects)
    assert len(claim.members) == 2
    assert len(claim.victims) == len(of(JobStopping, effects)) == 2
    decide(exited(claim.victims[0], node=claim.members[0].node))
    (bound,) = of(JobBound, decide(exited(claim.victims[1], node=claim.members[1].node)))
    assert bound.job == "j5"
    again = admitted(6, vc="cv", gpus=2, workers=3, opportunistic=True)
    assert not of(JobStopping, decide(again)), "nlp would have less than cv"


def test_a_job_is_not_promoted_where_it_breaks_up_a_whole_cell() -> None:
    decide = allocator(joined("node-1"), joined("node-2"), joined("node-3"), nlp=8, cv=4)
    for number, gpus in ((1, 3), (2, 1), (3, 4)):
        (bound,) = of(JobBound, decide(admitted(number, gpus=gpus)))
        assert bound.members[0].levels
    (bound,) = of(JobBound, decide(borrowing(4)))
    assert not bound.members[0].levels
    decide(exited("j2", outcome=Outcome.SUCCEEDED))
    node = "node-2"
    assert not of(JobPromoted, decide(exited("j3", node=node, outcome=Outcome.SUCCEEDED)))
    (bound,) = of(JobBound, decide(admitted(5, gpus=4)))
    assert bound.members[0].levels, "a node of its own is left"


def test_a_cancelled_claim_is_made_up_for_at_once() -> None:
    nodes = [joined(f"node-{number}", gpus=2) for number in (1, 2, 3)]
    decide = allocator(*nodes, nlp=2, cv=2, idle=2)
    decide(admitted(1, gpus=2))
    for number in (2, 3):
        decide(admitted(number, vc="idle", gpus=2, opportunistic=True))
    (claim,) = of(CellsReserved, decide(borrowing(4, gpus=2)))
    assert not claim.members[0].levels
    decide(exited("j1", outcome=Outcome.SUCCEEDED))
    decide(admitted(5, vc="idle", gpus=2, opportunistic=True))
    effects = decide(admitted(6, vc="cv", gpus=2))
    assert [fact.job for fact in of(ReservationDropped, effects)] == ["j4"]
    own = of(CellsReserved, effects)[-1]
    assert own.job == "j4"
    assert own.members[0].levels, "its own cells are free by now"
