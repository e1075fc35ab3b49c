"""What a job makes alone that has shared GPUs: measured anew once it has been alone for a while."""

from typing import Any

import pytest
from msgspec import structs

from skep.ledger import sharing
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.policies import job_rates, trials
from skep.machines.base import Effect
from skep.perf.progress import WINDOW
from skep.policy.plan import Pack
from skep.policy.registry import POLICIES
from skep.units import NS_PER_SECOND
from skep.wire.advice import JobPace, Outlook
from skep.wire.changes import AskCheckpoint, AskResume, AskSuspend
from skep.wire.spec import SizeHint
from skep.wire.trials import Before, TrialBegun
from tests.kit import Driver, at, exited, heartbeat, started
from tests.unit.test_allocator_actions import CAN, WHY, Does, do, running
from tests.unit.test_allocator_changes import ask, changed, known, of, told
from tests.unit.test_allocator_trials import BERT, PACE, judged

SETTLES = trials.SETTLES / NS_PER_SECOND
AGAIN_AFTER = WINDOW / NS_PER_SECOND
"""So much later it is looked again at who was not told of."""
TRY = Pack("j2", "j1", WHY, trial=True)
AGAIN = Pack("j3", "j1", WHY, trial=True)
"""Of another family than the first guest: nothing keeps it from being tried."""
PARTED = 30
"""When the first guest has left."""
GOES = PARTED + SETTLES + 10
"""When the host goes on after it stood."""
GPT = structs.replace(BERT, family="gpt")


@pytest.fixture(autouse=True)
def _policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Does.name, Does)
    Does.actions.clear()


def paced(decide: Driver[AllocatorMachine], rate: int, second: float, **more: Any) -> None:
    """Have it told how j1 goes, and its node live on."""
    pace = JobPace(job="j1", attempt=1, steps=10, rate_milli=rate, **more)
    decide(Outlook(at=at(second), jobs=(pace,), families=(BERT, GPT)), second)
    decide(heartbeat(), second)


def done(decide: Driver[AllocatorMachine], effects: list[Effect], second: float) -> None:
    """Have all that is asked of ranks be done, and what is asked of them then."""
    for command in told(effects):
        done(decide, decide(changed(command), second), second)


def shared() -> Driver[AllocatorMachine]:
    """Return an allocator that tries the second job beside the first."""
    decide = running(
        *({"gpus": 4, "size": SizeHint(family=family)} for family in ("bert", "bert", "gpt"))
    )
    paced(decide, PACE, 5)
    done(decide, do(decide, TRY), 10)
    decide(started("j2"), 11)
    decide(known("j2", can=CAN), 11)
    return decide


def parted() -> Driver[AllocatorMachine]:
    """Return one in which that was no success: the first job is alone again."""
    decide = shared()
    paced(decide, PACE // 3, 20)
    done(decide, decide(judged(kept=False, second=PARTED), PARTED), PARTED)
    assert not sharing.shares(decide.machine.state, decide.machine.state.jobs["j1"])
    return decide


def host(effects: list[Effect]) -> Before:
    """Return what the next trial compares the first job's rate with."""
    (fact,) = of(effects, TrialBegun)
    (before,) = (each for each in fact.jobs if each.job == "j1")
    assert isinstance(before, Before)
    return before


def test_who_has_just_shared_gpus_is_compared_with_what_it_made_alone_before() -> None:
    decide = parted()
    paced(decide, PACE // 2, PARTED + 10)
    before = host(do(decide, AGAIN, second=PARTED + SETTLES - 1))
    assert (before.solo_milli, before.rate_milli, before.samples) == (PACE, PACE // 2, 0)
    assert Does.seen[-1].jobs[0].measured


def test_who_has_been_alone_for_long_enough_is_compared_with_what_it_makes_now() -> None:
    decide = parted()
    paced(decide, PACE // 2, PARTED + 10)
    paced(decide, PACE // 2, PARTED + SETTLES)
    before = host(do(decide, AGAIN, second=PARTED + SETTLES + 1))
    assert (before.solo_milli, before.rate_milli) == (PACE // 2, PACE // 2)


def test_the_mean_of_many_windows_is_compared_with_where_it_is_known() -> None:
    decide = parted()
    many: dict[str, Any] = {"mean_milli": PACE // 2 - 10, "spread_milli": 30, "samples": 8}
    paced(decide, PACE // 2, PARTED + SETTLES, **many)
    before = host(do(decide, AGAIN, second=PARTED + SETTLES + 1))
    assert (before.solo_milli, before.spread_milli, before.samples) == (PACE // 2 - 10, 30, 8)


def test_what_is_told_while_gpus_are_shared_again_says_nothing_of_a_job_alone() -> None:
    """The policy sees what it would make alone by what it made when it was."""
    decide = parted()
    paced(decide, PACE // 2, PARTED + SETTLES)
    done(decide, do(decide, AGAIN, second=PARTED + SETTLES + 1), PARTED + SETTLES + 1)
    paced(decide, PACE // 4, PARTED + SETTLES + 10)
    paced(decide, PACE // 4, PARTED + 2 * SETTLES + 10)
    seen = next(job for job in Does.seen[-1].jobs if job.job == "j1")
    assert (seen.partners, seen.rate_milli) == (("j3",), PACE // 4)
    assert dict(seen.rates) == {1: PACE // 2}


def test_what_it_made_alone_before_it_stood_counts_until_it_has_gone_on_for_a_while() -> None:
    def stood() -> Driver[AllocatorMachine]:
        decide = parted()
        paced(decide, PACE // 2, PARTED + SETTLES)
        done(decide, decide(ask(10, AskSuspend(job="j1")), GOES), GOES)
        done(decide, decide(ask(11, AskResume(job="j1")), GOES), GOES)
        assert decide.machine.state.jobs["j1"].state is State.RUNNING
        paced(decide, PACE // 8, GOES + 5)
        return decide

    soon = stood()
    before = host(do(soon, AGAIN, second=GOES + SETTLES - 1))
    assert (before.solo_milli, before.rate_milli) == (PACE // 2, PACE // 8)
    late = stood()
    paced(late, PACE // 4, GOES + SETTLES)
    assert host(do(late, AGAIN, second=GOES + SETTLES + 1)).solo_milli == PACE // 4


def waits(decide: Driver[AllocatorMachine], first: float, last: float) -> None:
    """Have so many seconds pass in which nothing is told of j1."""
    second = first
    while second <= last:
        decide.tick(second)
        decide(heartbeat(), second)
        second += 5


def test_what_was_told_while_gpus_were_shared_is_never_taken_as_of_a_job_alone() -> None:
    """Slow mini-batches are told of late: then that counts."""
    decide = parted()
    late = PARTED + 3 * SETTLES
    waits(decide, PARTED + 5, late)
    assert decide.machine.tx.soft.paces["j1"][0].rate_milli == PACE // 3
    assert job_rates.solo(decide.machine.tx, decide.machine.state.jobs["j1"]) == PACE
    paced(decide, PACE // 2, late + 1)
    waits(decide, late + 2, late + 2 + AGAIN_AFTER)
    before = host(do(decide, AGAIN, second=late + 3 + AGAIN_AFTER))
    assert (before.solo_milli, before.rate_milli) == (PACE // 2, PACE // 2)


def test_who_is_being_changed_when_it_is_looked_at_is_looked_at_again() -> None:
    decide = parted()
    paced(decide, PACE // 2, PARTED + SETTLES - 5)
    effects = decide(ask(10, AskCheckpoint(job="j1")), PARTED + SETTLES - 1)
    waits(decide, PARTED + SETTLES, PARTED + SETTLES)
    assert decide.machine.state.jobs["j1"].change is not None
    assert decide.machine.tx.soft.telling.settled == {}
    done(decide, effects, PARTED + SETTLES + 2)
    waits(decide, PARTED + SETTLES + 3, PARTED + SETTLES + 3 + AGAIN_AFTER)
    before = host(do(decide, AGAIN, second=PARTED + SETTLES + 4 + AGAIN_AFTER))
    assert (before.solo_milli, before.rate_milli) == (PACE // 2, PACE // 2)


def test_a_rate_told_at_once_is_still_of_gpus_that_were_shared() -> None:
    decide = parted()
    paced(decide, PACE // 3, PARTED + AGAIN_AFTER)
    waits(decide, PARTED + SETTLES, PARTED + 2 * SETTLES)
    assert job_rates.solo(decide.machine.tx, decide.machine.state.jobs["j1"]) == PACE
    paced(decide, PACE // 2, PARTED + 2 * SETTLES + 1)
    waits(decide, PARTED + 2 * SETTLES + 2, PARTED + 2 * SETTLES + 2 + AGAIN_AFTER)
    assert job_rates.solo(decide.machine.tx, decide.machine.state.jobs["j1"]) == PACE // 2


def test_who_has_shared_gpus_is_measured_alone_after_a_restart_too() -> None:
    decide = parted()
    decide.restart(PARTED + 1)
    paced(decide, PACE // 2, PARTED + SETTLES)
    waits(decide, PARTED + SETTLES + 2, PARTED + SETTLES + 2)
    assert job_rates.solo(decide.machine.tx, decide.machine.state.jobs["j1"]) == PACE // 2


def test_of_whom_it_is_settled_is_forgotten_when_it_is_over() -> None:
    decide = parted()
    paced(decide, PACE // 2, PARTED + 5)
    decide(exited("j1"), PARTED + 6)
    waits(decide, PARTED + 10, PARTED + 2 * SETTLES)
    telling = decide.machine.tx.soft.telling
    assert (telling.unsettled, telling.settled, telling.alone, telling.unsure) == ({}, {}, {}, {})
    assert "j1" not in decide.machine.tx.soft.paces
