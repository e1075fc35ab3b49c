"""Jobs that wait outside of their queue: for other jobs, for a time, or to be released."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ledger import deferral_facts
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine, deferring
from skep.machines.base import Effect, Restarted, Tick
from skep.wire.admin import SetVcs
from skep.wire.changes import AskHold, AskOver, AskRelease, ChangeAsked, Result
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import JobBound, JobDeferred, JobEligible, JobEnded, ReservationDropped
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.spec import After
from tests.kit import (
    T0,
    Driver,
    admitted,
    allocator,
    at,
    cancel_asked,
    exited,
    facts_of,
    joined,
    started,
)

FAILED = Outcome.EXITED
NEVER = Reason.DEPENDENCY_NEVER_SATISFIED


def cluster(policy: str = "") -> Driver[AllocatorMachine]:
    """Return an allocator with one node of 4 GPUs."""
    decide = allocator(joined("node-1", 4))
    if policy:
        decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=4, policy=policy)}))
    return decide


def ends(decide: Driver[AllocatorMachine], job: str, outcome: Outcome = Outcome.SUCCEEDED) -> Any:
    """Have a job that is bound run and end; return what follows."""
    decide(started(job))
    return decide(exited(job, outcome=outcome))


def asked(number: int, wish: AskHold | AskRelease) -> Facts:
    return Facts(service="admission", at=T0, facts=(ChangeAsked(number=number, ask=wish, at=T0),))


def told(effects: list[Effect]) -> list[tuple[str, ...]]:
    """Return what is said of deferred jobs, and which jobs begin and end."""
    found: list[tuple[str, ...]] = []
    for fact in facts_of(effects):
        match fact:
            case JobDeferred():
                found.append((fact.job, str(fact.why), fact.needs))
            case JobEligible():
                found.append((fact.job, "eligible"))
            case JobBound():
                found.append((fact.job, "bound"))
            case JobEnded():
                found.append((fact.job, str(fact.end), str(fact.why)))
            case _:
                pass
    return found


def test_a_job_waits_for_another_and_starts_when_that_succeeds() -> None:
    decide = cluster()
    decide(admitted(1))
    assert told(decide(admitted(2, after=After(ok=("j1",))))) == [("j2", "waits-for-jobs", "j1")]
    assert decide.machine.state.jobs["j2"].state is State.DEFERRED

    assert told(ends(decide, "j1")) == [
        ("j1", "succeeded", "succeeded"),
        ("j2", "eligible"),
        ("j2", "bound"),
    ]
    assert not decide.machine.state.awaited


@pytest.mark.parametrize(
    "kind, outcome, starts",
    [
        ("ok", Outcome.SUCCEEDED, True),
        ("ok", FAILED, False),
        ("any", Outcome.SUCCEEDED, True),
        ("any", FAILED, True),
        ("fail", Outcome.SUCCEEDED, False),
        ("fail", FAILED, True),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_each_kind_is_fulfilled_by_its_ends(
    kind: str, outcome: Outcome, *, starts: bool, late: bool
) -> None:
    """`late`: the job comes when the other has ended already."""
    decide = cluster()
    decide(admitted(1))
    after = After(**{kind: ("j1",)})
    effects = [] if late else decide(admitted(2, after=after))
    effects = ends(decide, "j1", outcome)
    if late:
        effects = decide(admitted(2, after=after))

    last = told(effects)[-1]
    assert last == (("j2", "bound") if starts else ("j2", "cancelled", str(NEVER)))
    details = [
        fact.detail
        for fact in facts_of(effects)
        if isinstance(fact, JobEnded) and fact.why is NEVER
    ]
    assert [detail[:3] for detail in details] == ([] if starts else ["j1 "])


def test_a_cancelled_job_counts_as_failed() -> None:
    decide = cluster()
    decide(admitted(1, gpus=4))
    decide(admitted(2))
    decide(admitted(3, after=After(fail=("j2",))))
    assert told(decide(cancel_asked(2))) == [("j2", "cancelled", "cancelled"), ("j3", "eligible")]


def test_what_can_never_start_is_cancelled_down_the_line() -> None:
    decide = cluster()
    decide(admitted(1))
    for number in (2, 3, 4):
        decide(admitted(number, after=After(ok=(f"j{number - 1}",))))
    decide(admitted(5, after=After(fail=("j4",))))

    assert told(ends(decide, "j1", FAILED)) == [
        ("j1", "failed", "exited-nonzero"),
        *((f"j{number}", "cancelled", str(NEVER)) for number in (2, 3, 4)),
        ("j5", "eligible"),
        ("j5", "bound"),
    ]


def test_a_join_waits_for_all_and_says_which_is_next() -> None:
    decide = cluster()
    for number in (1, 2, 3):
        decide(admitted(number))
    effects = decide(admitted(4, after=After(ok=("j2", "j1"), any=("j3",))))
    assert told(effects) == [("j4", "waits-for-jobs", "j2")]
    assert ("j4", "waits-for-jobs", "j2") not in told(ends(decide, "j1"))  # Nothing new is said.
    assert told(ends(decide, "j2"))[-1] == ("j4", "waits-for-jobs", "j3")
    assert told(ends(decide, "j3", FAILED))[-1] == ("j4", "bound")


def test_an_end_that_is_not_known_is_none_to_wait_for() -> None:
    decide = cluster()
    decide(admitted(1, vc="nlp"))
    (end,) = [
        fact
        for fact in facts_of(decide(admitted(2, after=After(any=("j99",)))))
        if isinstance(fact, JobEnded)
    ]
    assert (end.why, end.detail) == (NEVER, "it is not known how j99 ended")
    # Another tenant's job is none either: its end would be told.
    (end,) = [
        fact
        for fact in facts_of(decide(admitted(3, vc="cv", after=After(any=("j1",)))))
        if isinstance(fact, JobEnded)
    ]
    assert (end.why, end.detail) == (NEVER, "it is not known how j1 ended")


def test_ends_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferral_facts, "ENDS_KEPT", 2)
    decide = cluster()
    decide(admitted(1))
    decide(admitted(2, gpus=4, hold=True, after=After(ok=("j1",))))
    for number in (3, 4, 5):
        decide(admitted(number))
    for job in ("j1", "j3", "j4"):
        ends(decide, job)
    assert list(decide.machine.state.ends) == ["j3", "j4"]
    # The end of j1 was judged when it came: that it is forgotten changes nothing.
    decide(Restarted(epoch=2))
    assert told(decide(asked(1, AskRelease(job="j2")))) == [("j2", "eligible")]


def test_a_job_waits_for_its_time() -> None:
    decide = cluster()
    effects = decide(admitted(1, begin=20))  # Submitted at the first second.
    assert told(effects) == [("j1", "waits-for-time", "2023-11-14T22:13:41Z")]
    assert decide.machine.wake_at() is not None
    assert told(decide(Tick(), 20.9)) == []
    assert told(decide(Tick(), 21)) == [("j1", "eligible"), ("j1", "bound")]


def test_a_time_that_has_come_is_not_waited_for() -> None:
    decide = cluster()
    assert told(decide(admitted(1, begin="2023-11-14T22:00:00Z"))) == [("j1", "bound")]


def test_a_held_job_waits_until_it_is_released() -> None:
    decide = cluster()
    assert told(decide(admitted(1, hold=True))) == [("j1", "held", "")]
    assert told(decide(asked(1, AskRelease(job="j1")))) == [("j1", "eligible"), ("j1", "bound")]
    over = [
        fact for fact in facts_of(decide(asked(2, AskHold(job="j1")))) if isinstance(fact, AskOver)
    ]
    assert [(fact.result, fact.why) for fact in over] == [(Result.REFUSED, Reason.HAS_GPUS)]


@pytest.mark.parametrize("policy", ["", "srtf", "las"])
def test_a_held_job_does_not_block_its_queue_and_keeps_its_place(policy: str) -> None:
    decide = cluster(policy)
    decide(admitted(1, gpus=4))
    for number in (2, 3, 4):
        decide(admitted(number, gpus=4))
    assert told(decide(asked(1, AskHold(job="j2")))) == [("j2", "held", "")]
    assert told(ends(decide, "j1"))[-1] == ("j3", "bound")
    decide(asked(2, AskRelease(job="j2")))
    assert decide.machine.state.jobs["j2"].submitted_at == at(2)
    assert told(ends(decide, "j3"))[-1] == ("j2", "bound")  # It came before j4.


def test_a_held_job_gives_up_what_is_reserved_for_it() -> None:
    decide = cluster()
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=4), "cv": VirtualCluster()}))
    decide(admitted(1, gpus=4, vc="cv", opportunistic=True))
    decide(started("j1"))
    decide(admitted(2, gpus=4))
    assert decide.machine.state.jobs["j2"].state is State.RESERVED
    effects = decide(asked(1, AskHold(job="j2")))
    dropped = [fact for fact in facts_of(effects) if isinstance(fact, ReservationDropped)]
    assert [(fact.job, fact.why) for fact in dropped] == [("j2", Reason.HELD)]
    assert told(effects) == [("j2", "held", "")]


def test_a_cancelled_deferred_job_ends_at_once() -> None:
    decide = cluster()
    decide(admitted(1))
    decide(admitted(2, after=After(ok=("j1",)), begin=3600, hold=True))
    assert told(decide(cancel_asked(2))) == [("j2", "cancelled", "cancelled")]
    assert not decide.machine.state.awaited


def test_everything_that_it_waits_for_has_to_come() -> None:
    decide = cluster()
    decide(admitted(1))
    decide(admitted(2, after=After(ok=("j1",)), begin=20, hold=True))
    effects = decide(asked(1, AskRelease(job="j2")))
    assert told(effects) == [("j2", "waits-for-jobs", "j1")]
    assert told(ends(decide, "j1"))[-1] == ("j2", "waits-for-time", "2023-11-14T22:13:42Z")
    assert told(decide(Tick(), 22)) == [("j2", "eligible"), ("j2", "bound")]


def test_many_followers_are_looked_at_in_several_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferring, "RESOLVED_MAX", 3)
    decide = cluster()
    decide(admitted(1))
    for number in range(2, 10):
        decide(admitted(number, gpus=4, after=After(ok=("j1",))))
    found = [line for line in told(ends(decide, "j1")) if line[1] == "eligible"]
    while decide.machine.state.deferred:
        wake = decide.machine.wake_at()
        assert wake is not None
        found += [line for line in told(decide(Tick(), (wake - T0) / 1e9)) if line[1] == "eligible"]
    assert found == [(f"j{number}", "eligible") for number in range(2, 10)]


def test_what_a_crash_left_undecided_is_decided_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferring, "RESOLVED_MAX", 1)
    decide = cluster()
    decide(admitted(1))
    for number in (2, 3):
        decide(admitted(number, after=After(ok=("j1",))))
    decide(admitted(4, begin=30))
    ends(decide, "j1", FAILED)
    assert list(decide.machine.state.deferred) == ["j3", "j4"]

    monkeypatch.setattr(deferring, "RESOLVED_MAX", 100)
    assert told(decide(Restarted(epoch=2))) == [("j3", "cancelled", str(NEVER))]
    assert told(decide(Tick(), 34)) == [("j4", "eligible"), ("j4", "bound")]


def test_a_snapshot_has_all_of_it() -> None:
    decide = cluster()
    decide(admitted(1))
    decide(admitted(2, after=After(ok=("j1",)), begin=20))
    decide(admitted(3, hold=True))
    decide(admitted(4))
    ends(decide, "j4")
    again = AllocatorMachine()
    for piece in decide.machine.snapshot():
        again.apply(piece)
    again.check()
    assert again.state.ends == decide.machine.state.ends
    assert list(again.state.deferred) == ["j2", "j3"]
    assert again.state.awaited == {"j1": {"j2": None}}
