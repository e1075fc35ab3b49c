"""The chaos checker finds each promise that is broken, and nothing in a run without fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep.units import Instant
from skep.wire.changes import GpusRegained
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import (
    Admitted,
    End,
    EpochBegan,
    JobBound,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    Member,
    MemberGone,
    MemberRan,
    NodeAdded,
    NodeLost,
    Refused,
    Repeated,
    VcsSet,
)
from skep.wire.node import Gpu, NodeJoined, Outcome
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Problem, Resources
from skep_services.ports import LogRecord
from tests.system.chaos.checker import Checker
from tests.system.chaos.evidence import Ack, Evidence, Run, Submitted, Told, read_notes

VCS = VcsSet(vcs={"red": VirtualCluster(gpus=4)})
BAD = Problem(path="$.gpus", reason=Reason.BAD_VALUE, text="it is -1")


def log(*facts: Any, **positions: int) -> list[LogRecord]:
    """Return one record per fact; the last one has consumed `positions`."""
    every = (EpochBegan(epoch=1, owner="it"), *facts)
    return [
        LogRecord(number, 1, Instant(number), positions if number == len(every) else {}, (fact,))
        for number, fact in enumerate(every, 1)
    ]


def spec(name: str, workers: int = 1) -> JobSpec:
    return JobSpec(name=name, vc="red", command=("true",), resources=Resources(workers=workers))


def bound(job: str, order: int, *slots: int, attempt: int = 1) -> JobBound:
    member = Member(node="n1", identity="i1", first_rank=0, devices=tuple((s,) for s in slots))
    return JobBound(
        job=job,
        attempt=attempt,
        order=order,
        members=(member,),
        master_port=1,
        why=Reason.BEST_FIT_ONE_NODE,
        at=Instant(1),
    )


def over(job: str, outcome: Outcome = Outcome.SUCCEEDED, attempt: int = 1) -> list[Any]:
    return [
        MemberRan(job=job, attempt=attempt, node="n1", at=Instant(1)),
        JobRan(job=job, attempt=attempt, at=Instant(1)),
        MemberGone(job=job, attempt=attempt, node="n1", outcome=outcome),
    ]


def ended(job: str, end: End = End.SUCCEEDED, attempts: int = 1) -> JobEnded:
    return JobEnded(job=job, end=end, why=Reason.SUCCEEDED, attempts=attempts, at=Instant(1))


def run(job: str, began: int, last: int, *, rank: int = 0, slot: int = 0, **more: Any) -> Run:
    facts = {"attempt": 1, "world": 1, "pid": began, "steps": [1, 2], "code": 0, **more}
    return Run(job=job, rank=rank, node="n1", slots=(slot,), began=began, last=last, **facts)


def told(key: str, kind: str, sequence: int, **verdict: Any) -> Told:
    return Told(
        key=key,
        vc="red",
        kind=kind,
        sent_at=1,
        acks=[Ack(sequence, False, 2)],
        verdicts=[{"job": f"j{sequence}", "accepted": True} | verdict],
    )


def clean() -> Evidence:
    """j1 a gang, j2 with one counted retry, j3 refused, j4 the key of j1 again."""
    gpus = tuple(Gpu(index=i, type="cpu") for i in range(4))
    node = NodeJoined(
        node="n1",
        identity="i1",
        incarnation=1,
        address="a",
        ports=(1, 2),
        gpus=gpus,
        cpus=1,
        memory=1,
    )
    again = JobRequeued(job="j2", attempt=1, why=Reason.EXITED_NONZERO, counted=True, at=Instant(1))
    return Evidence(
        told=[
            told("a", "gang", 1),
            told("b", "retried", 2),
            told(
                "c",
                "wrong",
                3,
                accepted=False,
                reason="bad-value",
                problems=[{"reason": "bad-value", "text": "no"}],
            ),
        ],
        submitted=[
            Submitted(1, "red", "a"),
            Submitted(2, "red", "b"),
            Submitted(3, "red", "c"),
            Submitted(4, "red", "a"),
        ],
        admission=log(
            VCS,
            Admitted(job="j1", spec=spec("one", 2), submitted_at=Instant(1), key="a"),
            Admitted(job="j2", spec=spec("two"), submitted_at=Instant(1), key="b"),
            Refused(job="j3", vc="red", problems=(BAD,), submitted_at=Instant(1), key="c"),
            Repeated(job="j4", original="j1", vc="red"),
        ),
        allocator=log(
            VCS,
            NodeAdded(joined=node),
            JobQueued(job="j1", spec=spec("one", 2), submitted_at=Instant(1)),
            JobQueued(job="j2", spec=spec("two"), submitted_at=Instant(1)),
            bound("j1", 1, 0, 1),
            bound("j2", 2, 2),
            *over("j1"),
            ended("j1"),
            *over("j2", Outcome.EXITED),
            again,
            bound("j2", 3, 2, attempt=2),
            *over("j2", attempt=2),
            ended("j2", attempts=2),
        ),
        runs=[
            run("j1", 10, 20, world=2),
            run("j1", 11, 19, rank=1, slot=1, world=2),
            run("j2", 12, 15, slot=2, code=3),
            run("j2", 16, 30, slot=2, attempt=2, from_step=2, steps=[3, 4]),
        ],
    )


def found(evidence: Evidence) -> set[str]:
    return {violation.promise for violation in Checker(evidence).check()}


def facts(records: list[LogRecord], change: Callable[[list[Any]], None]) -> list[LogRecord]:
    """Return the log with its facts changed."""
    every = [fact for record in records for fact in record.facts]
    change(every)
    return log(*every[1:])


def test_a_run_without_fault_breaks_no_promise() -> None:
    assert Checker(clean()).check() == []


def test_an_acknowledged_submission_that_is_not_stored() -> None:
    evidence = clean()
    evidence.submitted[1] = Submitted(2, "red", "somebody else")
    assert "acknowledged" in found(evidence)


def test_a_submission_without_an_answer_or_with_two() -> None:
    evidence = clean()
    evidence.submitted.append(Submitted(5, "red", "b"))
    assert found(evidence) == {"acknowledged"}
    evidence = clean()
    evidence.admission = facts(
        evidence.admission, lambda every: every.append(Repeated(job="j2", original="j1", vc="red"))
    )
    assert "acknowledged" in found(evidence)


def test_a_job_without_an_end_or_with_two() -> None:
    evidence = clean()
    evidence.allocator.pop()
    assert found(evidence) == {"acknowledged"}
    evidence = clean()
    evidence.allocator = facts(evidence.allocator, lambda every: every.append(ended("j1")))
    assert found(evidence) == {"acknowledged", "log"}


def test_one_key_that_became_two_jobs() -> None:
    evidence = clean()
    more = Admitted(job="j4", spec=spec("one", 2), submitted_at=Instant(1), key="a")

    def replace(every: list[Any]) -> None:
        every[-1] = more

    evidence.admission = facts(evidence.admission, replace)
    assert {"one-key", "acknowledged", "log"} <= found(evidence)


def test_a_job_that_nobody_submitted() -> None:
    evidence = clean()
    evidence.told.pop(0)
    assert found(evidence) == {"one-key"}
    evidence = clean()
    evidence.allocator = facts(evidence.allocator, lambda every: every.append(ended("j9")))
    assert "one-key" in found(evidence)


@pytest.mark.parametrize(
    "verdict",
    [
        {"job": "j3", "accepted": True},
        {"job": "j3", "accepted": False},
        {"job": "j3", "accepted": False, "reason": "because"},
        {"job": "j3", "accepted": False, "reason": "bad-value", "problems": [{"text": "no"}]},
    ],
    ids=["accepted", "no-reason", "unknown-reason", "problem-without-reason"],
)
def test_a_verdict_that_is_not_the_logs_or_has_no_reason(verdict: dict[str, Any]) -> None:
    evidence = clean()
    evidence.told[2].verdicts.append(verdict)
    assert found(evidence) == {"verdict"}


def test_one_key_that_is_told_to_be_two_jobs() -> None:
    evidence = clean()
    evidence.told[0].verdicts.append({"job": "j2", "accepted": True})
    assert found(evidence) == {"verdict"}


def test_a_cancel_refused_without_a_reason() -> None:
    evidence = clean()
    evidence.told[0].cancels.append({"job": "j1", "accepted": False})
    assert found(evidence) == {"verdict"}


def test_an_end_that_the_program_does_not_explain() -> None:
    evidence = clean()
    evidence.told[1].kind = "endless"
    assert found(evidence) == {"end"}
    evidence.told[1].cancel_sent = True
    assert found(evidence) == {"end"}


def test_a_success_whose_rank_did_not_end_well() -> None:
    evidence = clean()
    evidence.runs[1].code = None
    assert found(evidence) == {"end"}


def test_two_processes_in_one_slot() -> None:
    evidence = clean()
    evidence.runs[2] = run("j2", 12, 15, slot=1, code=3)
    assert found(evidence) == {"slots", "execution"}


def test_a_slot_in_turns_needs_gpus_given_back_and_regained() -> None:
    evidence = clean()
    evidence.runs[0].noted, evidence.runs[0].last = [13, 32, 40], 40
    evidence.runs[3].slots = (0,)
    texts = [each.text for each in Checker(evidence).check() if each.promise == "slots"]
    assert texts == [
        "slot 0 of n1 was used by j1.1.0 in 2 turns, by the log in at most 1; others then: j2.2.0"
    ]
    evidence.allocator = facts(
        evidence.allocator,
        lambda every: every.append(GpusRegained(job="j1", attempt=1, chain="cpu", at=Instant(1))),
    )
    assert "slots" not in found(evidence)
    evidence.runs[0].noted.insert(1, 20)
    assert "slots" in found(evidence)


def test_a_rank_executed_twice_is_found_unless_the_power_was_cut_between() -> None:
    evidence = clean()
    evidence.runs.insert(2, run("j1", 5, 6, world=2, steps=[]))
    assert found(evidence) == {"execution"}
    evidence.cuts = [8]
    assert found(evidence) == set()


def test_a_process_nobody_bound() -> None:
    evidence = clean()
    evidence.runs.append(run("j2", 40, 50, slot=2, attempt=3, from_step=4, steps=[5]))
    assert found(evidence) == {"execution"}


def test_attempts_at_once_need_a_node_that_was_lost() -> None:
    evidence = clean()
    evidence.runs[2].last = 18
    evidence.runs[2].slots = ()
    assert found(evidence) == {"execution"}
    texts = [violation.text for violation in Checker(evidence).check()]
    assert any("began while" in text for text in texts)

    def lose(every: list[Any]) -> None:
        index = next(
            i for i, fact in enumerate(every) if isinstance(fact, MemberGone) and fact.job == "j2"
        )
        every[index] = msgspec.structs.replace(every[index], free=False)
        every.insert(index, NodeLost(node="n1"))

    evidence.allocator = facts(evidence.allocator, lose)
    texts = [violation.text for violation in Checker(evidence).check()]
    assert not any("began while" in text for text in texts)


@pytest.mark.parametrize("steps", [[1, 3], [1, 1], [2, 1], [2]])
def test_steps_that_do_not_count_on(steps: list[int]) -> None:
    evidence = clean()
    evidence.runs[0].steps = steps
    assert found(evidence) == {"steps"}


def test_an_attempt_that_goes_back() -> None:
    evidence = clean()
    evidence.runs[3].from_step, evidence.runs[3].steps = 1, [2, 3]
    assert found(evidence) == {"steps"}


def test_what_is_left_over() -> None:
    evidence = clean()
    evidence.alive.append("pid 7")
    evidence.unfinished.append("j1 has no end")
    assert found(evidence) == {"orphan", "late"}


def test_a_log_with_a_gap_or_an_epoch_out_of_order() -> None:
    evidence = clean()
    del evidence.admission[3]
    assert "log" in found(evidence)
    evidence = clean()
    last = evidence.allocator[-1]
    evidence.allocator[-1] = msgspec.structs.replace(last, epoch=2)
    assert found(evidence) == {"log"}


def test_a_log_decided_from_records_the_other_lost() -> None:
    evidence = clean()
    evidence.allocator[-1] = msgspec.structs.replace(
        evidence.allocator[-1], positions={"ADMISSION": 99}
    )
    assert found(evidence) == {"log"}


def test_a_slot_given_twice_in_the_log() -> None:
    evidence = clean()

    def give(every: list[Any]) -> None:
        index = next(
            i for i, fact in enumerate(every) if isinstance(fact, JobBound) and fact.job == "j2"
        )
        every[index] = bound("j2", 2, 1)

    evidence.allocator = facts(evidence.allocator, give)
    assert {"log", "execution"} <= found(evidence)


def test_notes_are_read_as_written_and_torn_ones_are_told(tmp_path: Path) -> None:
    began = {
        "note": "began",
        "attempt": 1,
        "pid": 5,
        "at": 10,
        "job": "j1",
        "rank": 0,
        "world": 1,
        "node": "n1",
        "slots": [0],
        "from_step": 0,
    }
    step = {"note": "step", "attempt": 1, "pid": 5, "at": 12, "step": 1}
    lines = [json.dumps(began), json.dumps(step), '{"note": "st']
    (tmp_path / "j1.0").write_text("\n".join(lines) + "\n")
    runs, broken = read_notes(tmp_path)
    assert runs == [Run("j1", 1, 0, 1, "n1", (0,), 5, 10, 12, 0, [1], noted=[12])]
    assert len(broken) == 1
    assert broken[0].startswith("j1.0, line 3")


def test_a_pid_that_comes_again_is_another_process(tmp_path: Path) -> None:
    began = {
        "note": "began",
        "attempt": 1,
        "pid": 5,
        "at": 10,
        "job": "j1",
        "rank": 0,
        "world": 1,
        "node": "n1",
        "slots": [0],
        "from_step": 0,
    }
    lines = [
        began,
        {"note": "step", "attempt": 1, "pid": 5, "at": 12, "step": 1},
        began | {"at": 20, "from_step": 1},
    ]
    (tmp_path / "j1.0").write_text("\n".join(map(json.dumps, lines)) + "\n")
    runs, broken = read_notes(tmp_path)
    assert [(run.began, run.last, run.steps) for run in runs] == [(10, 12, [1]), (20, 20, [])]
    assert broken == []
