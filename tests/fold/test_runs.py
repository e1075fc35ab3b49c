"""The small projection of runs says the same as the whole state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from skep.ledger import fold, runs
from skep.ledger.runs import NO_CHANGE, Run, RunDelta
from skep.ledger.state import ClusterState
from skep.sim.history import live
from skep.sim.world import Settings, World
from skep.units import Instant
from skep.wire.facts import AllocatorFact, End, JobBound, JobEnded, JobQueued, JobRequeued, Member
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.packs import GpusShared, Mode
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from tests.fold_kit import LOGS, stored
from tests.unit.test_allocator_spanning import elastic, resized

Where = dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]]
"""By job: its attempt, its nodes, and those of the attempt that is to take over."""


def places(state: ClusterState) -> Where:
    """Return where the state has attempts."""
    return {
        job.job: (
            job.attempt,
            tuple(job.members),
            tuple(job.successor.members) if job.successor is not None else (),
        )
        if job.job in state.placed
        else (0, (), ())
        for job in state.jobs.values()
    }


def follow(records: Iterable[tuple[AllocatorFact, ...]]) -> None:
    """Apply records to runs and to a state; after each, both have the same attempts."""
    state, known, over = ClusterState(), dict[str, Run](), dict[str, int]()
    for record in records:
        for fact in record:
            fold.apply(state, fact)
            delta = runs.apply(known, fact)
            over[delta.job] = max(delta.over, over.get(delta.job, 0))
            if isinstance(fact, JobQueued):
                known[fact.job] = Run()
            elif delta.ended:
                del known[delta.job]
        said = {job: (run.attempt, run.nodes, run.successor) for job, run in known.items()}
        assert said == places(state), record
        for job in state.placed.values():
            assert job.attempt > over.get(job.job, 0), record


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.gz")), ids=lambda path: path.name)
def test_runs_of_a_stored_log_are_those_of_the_whole_state(path: Path) -> None:
    follow(stored(path).records)


def test_runs_of_a_history_with_faults_are_those_of_the_whole_state() -> None:
    world = World(0, Settings())
    live(world)
    log = world.roles["allocator"].log
    assert log is not None
    records = [record.facts for record in log.replay()]
    kinds = {type(fact) for facts in records for fact in facts}
    assert kinds >= {SuccessorBound, SuccessorDropped, JobMoved}
    follow(records)


def test_runs_of_a_gang_that_grows_and_shrinks_are_those_of_the_whole_state() -> None:
    decide = elastic(2, 2)
    resized(decide, 3)
    resized(decide, 1, 3)
    assert {type(fact) for fact in decide.facts} >= {GangWidened, GangNarrowed}
    follow([(fact,) for fact in decide.facts])


def test_only_facts_of_the_allocator_have_handlers() -> None:
    assert set(runs.HANDLERS) < set(get_args(AllocatorFact))


MEMBER = Member(node="n1", identity="i", first_rank=0, devices=((0,),))
BOUND = JobBound(
    job="j1",
    attempt=2,
    order=1,
    members=(MEMBER,),
    master_port=1,
    why=Reason.BEST_FIT_ONE_NODE,
    at=Instant(0),
)
REQUEUED = JobRequeued(job="j1", attempt=2, why=Reason.NODE_LOST, counted=False, at=Instant(0))
WIDENED = GangWidened(job="j1", attempt=2, order=2, member=MEMBER, at=Instant(0))


def test_a_fact_that_is_read_twice_changes_nothing_more() -> None:
    known = {"j1": Run()}
    assert runs.apply(known, BOUND) == RunDelta(job="j1", over=1, began=True, placed=True)
    assert runs.apply(known, BOUND) == RunDelta(job="j1", over=1, placed=True)
    assert known == {"j1": Run(attempt=2, nodes=("n1",))}
    assert runs.apply(known, REQUEUED) == RunDelta(job="j1", over=2, waits=True)
    assert runs.apply(known, REQUEUED) == RunDelta(job="j1", over=2)
    assert known == {"j1": Run()}


def test_of_a_job_that_is_not_followed_only_what_is_over_is_told() -> None:
    ended = JobEnded(job="j1", end=End.FAILED, why=Reason.CANCELLED, attempts=1, at=Instant(0))
    assert runs.apply({}, BOUND) == RunDelta(job="j1", over=1)
    assert runs.apply({}, REQUEUED) == RunDelta(job="j1", over=2)
    assert runs.apply({}, ended) == RunDelta(job="j1", over=runs.ALL_ATTEMPTS, ended=True)
    assert runs.apply({}, WIDENED) is NO_CHANGE


def test_each_job_on_shared_gpus_is_named() -> None:
    known = {"j2": Run(attempt=1, nodes=("n1",))}
    shared = GpusShared(
        mode=Mode.PACK,
        job="j1",
        attempt=1,
        beside=(("j2", 1),),
        node="n1",
        devices=(0,),
        why=Reason.BEST_FIT_ONE_NODE,
        at=Instant(0),
    )
    assert runs.apply(known, shared).shares == ("j1", "j2")
    assert known["j2"].shares
