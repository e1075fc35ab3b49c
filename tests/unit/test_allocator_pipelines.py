"""Jobs of a pipeline with `max_parallel`: no more of them are let in than that."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ledger.records import PipelineKey
from skep.machines.allocator import AllocatorMachine, deferring
from skep.machines.base import Restarted
from skep.wire.admin import SetVcs
from skep.wire.changes import AskHold, AskPriority, AskRelease
from skep.wire.cluster import VirtualCluster
from skep.wire.node import Outcome
from skep.wire.spec import After, PipelineBound
from tests.kit import Driver, admitted, allocator, cancel_asked, exited, joined, started
from tests.unit.test_allocator_deferring import asked, ends, told

WAITS = ("waits-for-pipeline", "nightly")
NIGHTLY = PipelineKey("nlp", "", "nightly")


def cluster() -> Driver[AllocatorMachine]:
    """Return an allocator with one node of 8 GPUs, all of VC nlp."""
    decide = allocator(joined("node-1", 8))
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=8), "cv": VirtualCluster()}))
    return decide


def one(number: int, most: int = 2, name: str = "nightly", **more: Any) -> Any:
    return admitted(number, pipeline=PipelineBound(name=name, max_parallel=most), **more)


def test_no_more_jobs_are_let_in_than_max_parallel() -> None:
    decide = cluster()
    assert told(decide(one(1))) == [("j1", "bound")]
    assert told(decide(one(2))) == [("j2", "bound")]
    assert told(decide(one(3))) == [("j3", *WAITS)]
    assert told(decide(one(4))) == [("j4", *WAITS)]
    assert told(decide(admitted(5))) == [("j5", "bound")]  # Of no pipeline.

    # The end of one lets in one, whatever the end.
    assert told(ends(decide, "j2", Outcome.EXITED))[1:] == [("j3", "eligible"), ("j3", "bound")]
    assert told(decide(cancel_asked(4))) == [("j4", "cancelled", "cancelled")]
    assert told(ends(decide, "j1"))[1:] == []
    assert told(ends(decide, "j3"))[1:] == []
    assert not decide.machine.state.pipelines


def test_pipelines_of_other_names_and_owners_are_apart() -> None:
    decide = cluster()
    assert told(decide(one(1, 1))) == [("j1", "bound")]
    assert told(decide(one(2, 1, "other"))) == [("j2", "bound")]
    assert told(decide(one(3, 1, vc="cv", opportunistic=True))) == [("j3", "bound")]


def test_a_job_in_its_queue_counts_and_a_held_one_does_not() -> None:
    decide = cluster()
    decide(admitted(1, gpus=8))
    assert told(decide(one(2, 1))) == []  # It is in its queue.
    assert told(decide(one(3, 1))) == [("j3", *WAITS)]

    assert told(decide(asked(1, AskHold(job="j2")))) == [("j2", "held", ""), ("j3", "eligible")]
    assert told(decide(asked(2, AskRelease(job="j2")))) == [("j2", *WAITS)]
    assert told(ends(decide, "j1"))[-1] == ("j3", "bound")
    assert told(ends(decide, "j3"))[-2:] == [("j2", "eligible"), ("j2", "bound")]


def test_what_waits_for_other_jobs_takes_no_room() -> None:
    decide = cluster()
    decide(one(1))
    decide(one(2, after=After(ok=("j1",))))
    assert told(decide(one(3))) == [("j3", "bound")]
    assert told(decide(one(4))) == [("j4", *WAITS)]
    # j2 waits for j1 no more, and comes before j4.
    assert told(ends(decide, "j1"))[1:] == [("j2", "eligible"), ("j2", "bound")]


def test_a_higher_priority_is_let_in_first() -> None:
    decide = cluster()
    decide(one(1, 1))
    decide(one(2, 1))
    decide(one(3, 1, priority=5))
    decide(one(4, 1))
    decide(asked(1, AskPriority(job="j4", priority=9)))  # type: ignore[arg-type]
    assert told(ends(decide, "j1"))[-1] == ("j4", "bound")
    assert told(ends(decide, "j4"))[-1] == ("j3", "bound")
    assert told(ends(decide, "j3"))[-1] == ("j2", "bound")


def test_of_different_bounds_the_lowest_holds() -> None:
    decide = cluster()
    decide(one(1, 3))
    decide(one(2, 3))
    assert told(decide(one(3, 1))) == [("j3", *WAITS)]
    assert told(decide(one(4, 3))) == [("j4", "bound")]
    assert told(decide(one(5, 3))) == [("j5", *WAITS)]
    # j3 comes first, and still has too many beside it; j5 has room.
    assert told(ends(decide, "j1"))[-1] == ("j5", "bound")
    for job in ("j2", "j4"):
        ends(decide, job)
    assert told(ends(decide, "j5"))[-1] == ("j3", "bound")
    assert told(decide(one(6, 3))) == [("j6", *WAITS)]  # j3 wants to be alone.


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_restart_lets_in_no_more_and_loses_none(*, snapshot: bool) -> None:
    decide = cluster()
    for number in range(1, 6):
        decide(one(number))
    decide(started("j1"))
    again = AllocatorMachine()
    for fact in decide.machine.snapshot() if snapshot else decide.facts:
        again.apply(fact)
    again.check()
    assert again.state.pipelines == decide.machine.state.pipelines
    assert list(again.state.pipelines[NIGHTLY].let_in) == ["j1", "j2"]

    decide.machine = again
    decide.thorough = False
    assert told(decide(Restarted(epoch=2))) == []
    assert told(decide(exited("j1")))[1:] == [("j3", "eligible"), ("j3", "bound")]


def test_room_that_a_crash_left_undecided_is_given_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deferring, "RESOLVED_MAX", 0)
    decide = cluster()
    for number in (1, 2, 3, 4):
        decide(one(number, 1, priority=number))
    assert told(ends(decide, "j1"))[1:] == []
    monkeypatch.setattr(deferring, "RESOLVED_MAX", 100)
    again = AllocatorMachine()
    for fact in decide.facts:
        again.apply(fact)
    decide.machine = again
    assert told(decide(Restarted(epoch=2))) == [("j4", "eligible"), ("j4", "bound")]
