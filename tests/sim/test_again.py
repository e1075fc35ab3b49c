"""Decisions made again: whatever happened to a process, its log says what it decided on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest

from skep.ledger.queue import Head, JobQueue
from skep.machines.allocator import AllocatorMachine
from skep.units import Instant
from skep.wire import subjects
from skep.wire.advice import JobAdvice, QueueAdvice
from skep.wire.changes import Goal, JobChanging
from skep.wire.codec import Facts
from skep.wire.commands import Move, Target
from skep.wire.facts import EpochBegan, JobBound, JobWaits
from skep.wire.following import AdviceFollowed
from skep.wire.inputs import InputNotes
from skep.wire.reasons import Reason
from skep_lab.live_log.decide_again import Again, Log, without_secrets
from tests.kit import at
from tests.replay_kit import Record, history, log_of

SEEDS = (7, 11)
TIMED_SEED = 2006
"""A history with deadlines, in which an advisor speaks."""
LEARNED_SEED = 3002
"""A history in which models that guess advise virtual clusters."""


@pytest.mark.parametrize("service", ["admission", "allocator"])
def test_every_decision_of_histories_with_faults_comes_out_again(service: str) -> None:
    found = []
    for seed in SEEDS:
        world = history(seed)
        found.append(Again(world.roles[service].machine, log_of(world, service)).run())
        assert found[-1].differences == [], seed
        assert found[-1].equal == found[-1].decisions > 30, seed
        assert found[-1].not_comparable == {}, seed
    assert sum(each.starts for each in found) > len(SEEDS), "none died"
    if service == "allocator":
        assert sum(each.given.get("NodeLost", 0) for each in found), "no node was lost"


@pytest.mark.parametrize("service", ["admission", "allocator"])
def test_what_was_decided_by_fits_and_paces_comes_out_again(service: str) -> None:
    world = history(TIMED_SEED)
    found = Again(world.roles[service].machine, log_of(world, service)).run()
    assert found.differences == []
    assert found.equal == found.decisions > 30
    assert found.inputs_by_kind["Outlook"] > 10
    assert found.not_comparable == {}


def test_what_was_decided_by_the_advice_of_models_comes_out_again() -> None:
    world = history(LEARNED_SEED)
    log = log_of(world, "allocator")
    found = Again(world.roles["allocator"].machine, log).run()
    assert found.differences == []
    assert found.equal == found.decisions > 30
    assert found.inputs_by_kind["LearnedAdvice"] > 10
    followed = [
        fact for one in log.records for fact in one.facts if isinstance(fact, AdviceFollowed)
    ]
    assert {fact.follows for fact in followed} == {True, False}
    assert found.not_comparable == {}


def test_another_order_of_the_queue_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest_first(queue: JobQueue) -> Head | None:
        if not queue.entries:
            return None
        last = queue.entries[-1]
        return Head(last, last, Reason.ARRIVAL)

    world = history(SEEDS[0])
    log = log_of(world, "allocator")
    monkeypatch.setattr(JobQueue, "head", newest_first)
    found = Again(world.roles["allocator"].machine, log).run()
    assert 0 < len(found.differences) == found.decisions - found.equal
    deeds = [one for one in found.differences if not one.reasons]
    bound = [
        fact
        for one in deeds
        for fact in (*one.recorded, *one.recomputed)
        if isinstance(fact, JobBound)
    ]
    assert bound
    assert all(one.record < other.record for one, other in pairwise(found.differences))


def test_only_the_window_is_compared() -> None:
    world = history(SEEDS[0])
    log = log_of(world, "allocator")
    times = [record.at for record in log.records]
    middle = times[len(times) // 2]
    parts = [
        Again(world.roles["allocator"].machine, log, window=window).run()
        for window in ((times[0], middle), (type(middle)(middle + 1), times[-1]))
    ]
    whole = Again(world.roles["allocator"].machine, log).run()
    assert all(0 < part.decisions < whole.decisions for part in parts)
    assert sum(part.decisions for part in parts) == whole.decisions


def test_records_that_note_nothing_are_said_to_be_beyond_comparison() -> None:
    log = log_of(history(SEEDS[0]), "allocator", noted=False)
    found = Again(AllocatorMachine, log).run()
    assert found.decisions == 0
    assert found.not_comparable["records-without-inputs"] == len(log.records) - found.starts


def test_records_of_submissions_that_were_taken_out_are_not_compared() -> None:
    world = history(SEEDS[0])
    log = log_of(world, "admission")
    kept = sorted(log.messages["SUBMIT"])
    first = kept[len(kept) // 2]
    left = {sequence: log.messages["SUBMIT"][sequence] for sequence in kept if sequence >= first}
    log = log._replace(messages={**log.messages, "SUBMIT": left})
    found = Again(world.roles["admission"].machine, log).run()
    assert found.differences == []
    assert found.not_comparable["records-whose-inputs-were-taken-out"] > 0
    assert found.equal == found.decisions > 0


def test_behind_a_record_that_was_taken_out_reading_goes_on_where_it_was() -> None:
    """Its notes say of which job an advice is, and how far a record of another service was read."""

    class Hears:
        epoch = 1

        def __init__(self) -> None:
            self.heard: list[Any] = []

        def decide(self, event: Any, now: Instant) -> list[Any]:
            self.heard.append(event)
            return []

        def apply(self, fact: Any) -> None:
            pass

    advised = JobAdvice(job="j1", why=Reason.ARRIVAL, remaining=None)
    advice = QueueAdvice(at=at(1), expires_at=at(2), jobs=(advised,))
    waits = [JobWaits(job=job, why=Reason.WAITS_FOR_GPUS, needs="") for job in ("j1", "j2")]
    notes = InputNotes()
    notes.streamed(subjects.SUBMIT, 1, at(1), led=True)
    notes.heard(advice, at(1))
    notes.streamed(subjects.ALLOC, 5, at(1), led=True)
    first = notes.take()
    notes.heard(advice, at(1))
    notes.streamed(subjects.ALLOC, 5, at(2), led=False)
    began = EpochBegan(epoch=1, owner="o1")
    records = [
        Record(1, 1, at(0), (began,), b""),
        Record(2, 1, at(1), (waits[0],), first),
        Record(3, 1, at(2), (), notes.take()),
    ]
    facts = Facts(service="allocator", at=at(1), facts=tuple(waits))
    log = Log(records, {"SUBMIT": {2: None}, "ALLOC": {5: facts}})
    machine = Hears()
    found = Again(lambda: cast("Any", machine), log).run()
    assert found.not_comparable == {"records-whose-inputs-were-taken-out": 1}
    assert machine.heard == [advice, msgspec.structs.replace(facts, facts=(waits[1],))]


def test_what_proves_who_may_send_a_state_is_no_part_of_a_decision() -> None:
    def told(token: str, port: int = 4000) -> JobChanging:
        move = Move(targets=(Target(rank=0, host="n1", port=port, token=token),))
        return JobChanging(
            job="j1",
            attempt=1,
            order=1,
            goal=Goal.MIGRATE,
            change=move,
            nodes=("n2",),
            why=Reason.REQUESTED,
            at=Instant(1),
        )

    assert without_secrets([told("one")]) == without_secrets([told("another")])
    assert without_secrets([told("one")]) != without_secrets([told("one", 4001)])
