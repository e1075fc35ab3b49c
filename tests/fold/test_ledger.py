"""The fold of the allocator's log: complete, and plain where a fact cannot follow."""

from __future__ import annotations

from typing import get_args

import pytest

from skep.ledger import fold
from skep.ledger.job_state import IllegalTransitionError
from skep.ledger.state import ClusterState
from skep.units import Instant
from skep.wire.facts import AllocatorFact, JobRan
from tests.kit import admitted, allocator, joined, started


def test_every_fact_has_one_handler() -> None:
    assert set(fold.HANDLERS) == set(get_args(AllocatorFact))


def test_the_ledger_alone_comes_to_the_state_of_the_allocator() -> None:
    decide = allocator()
    decide(joined(), 1)
    decide(admitted(1), 2)
    decide(started("j1"), 3)
    state = ClusterState()
    for fact in decide.facts:
        fold.apply(state, fact)
    assert state.jobs == decide.machine.state.jobs
    assert state.cells == decide.machine.state.cells
    assert list(state.placed) == ["j1"]


def test_a_fact_that_cannot_follow_tells_the_story_of_its_job() -> None:
    decide = allocator()
    decide(joined(), 1)
    decide(admitted(1), 2)
    decide(started("j1"), 3)
    again = JobRan(job="j1", attempt=1, at=Instant(4), trace="")
    with pytest.raises(IllegalTransitionError, match="j1: JobRan in running") as caught:
        decide.machine.apply(again)
    told = "\n".join(caught.value.__notes__)
    assert "job-queued" in told
    assert "job-bound" in told
