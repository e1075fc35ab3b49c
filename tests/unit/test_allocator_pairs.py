"""Suspended jobs that go on beside others: on other GPUs, and with whom they went well before."""

from __future__ import annotations

import pytest

from skep.ledger import pairs
from skep.ledger.delta import Delta, MoveCost
from skep.machines.allocator import caches
from skep.policy.plan import Unpack
from skep.policy.registry import POLICIES
from skep.wire.changes import AskSuspend, GpusRegained, JobChanging, Result
from skep.wire.commands import Resume
from skep.wire.node import Manner
from skep.wire.reasons import Reason
from tests.kit import admitted, allocator, joined, started
from tests.unit.test_allocator_actions import WHY, Does, do
from tests.unit.test_allocator_changes import EVERYTHING, ask, changed, known, of, over, told
from tests.unit.test_allocator_packs import PACK, held, pack
from tests.unit.test_allocator_trials import begun, judged


def test_a_suspended_job_goes_on_beside_who_is_on_other_gpus_if_it_can_rebind() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    for number in (1, 2):
        decide(admitted(number))
        decide(started(f"j{number}"))
        decide(known(f"j{number}", can=EVERYTHING))
    decide(admitted(3))
    (command,) = told(decide(ask(PACK, AskSuspend(job="j1", release=True))))
    decide(changed(command))
    decide(started("j3"))
    assert held(decide) == {"j2": [1], "j3": [0]}
    assert over(pack(decide, "j1", "j2", 51)) == [(51, Result.REFUSED, Reason.TIED_ELSEWHERE)]
    decide(known("j1", can=(*EVERYTHING, "rebind")))
    effects = pack(decide, "j1", "j2", 52)
    (fact,) = of(effects, GpusRegained)
    assert fact.members[0].devices == ((1,),)
    resume = next(one for one in told(effects) if one.job == "j1")
    assert isinstance(resume.change, Resume)
    assert [rank.devices for rank in resume.change.ranks] == [(1,)]
    assert held(decide) == {"j2": [1], "j3": [0], "j1": [1]}
    decide.machine.check()
    # It cannot after all: it stands as before, on none of them.
    decide(changed(resume, Manner.UNCHANGED, released=True))
    assert held(decide) == {"j2": [1], "j3": [0]}
    assert decide.machine.state.jobs["j1"].tied
    decide.machine.check()


@pytest.fixture
def _does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Does.name, Does)
    Does.actions.clear()


@pytest.mark.usefixtures("_does")
@pytest.mark.parametrize("kept", [True, False])
def test_a_verdict_says_who_goes_well_beside_whom_until_one_of_them_leaves(*, kept: bool) -> None:
    decide = begun()
    decide(judged(kept=kept), 20)
    (planned,) = decide.machine.tx.soft.planned.values()
    shown = {
        name: (each.proven_partner, each.proven_milli)
        for name, each in planned.views.items()
        if each is not None and each.proven_partner
    }
    assert shown == ({"j1": ("j2", 1310), "j2": ("j1", 1310)} if kept else {})
    if kept:
        assert of(do(decide, Unpack("j2", WHY), second=21), JobChanging)
        assert {job.proven_partner for job in decide.machine.state.jobs.values()} == {""}
    decide.machine.check()


@pytest.mark.usefixtures("_does")
def test_where_no_policy_plans_nobody_is_noted_to_be_seen_anew() -> None:
    decide = begun()
    decide(judged(kept=True), 20)
    machine = decide.machine
    machine.tx.soft.planned, machine.tx.soft.touched = {}, {}
    pairs.parted(machine.state, machine.state.jobs["j1"])
    caches.follow(machine.state.jobs, machine.tx.soft, Delta(views=("j1", MoveCost("j1"))))
    assert {job.proven_partner for job in machine.state.jobs.values()} == {""}
    assert machine.tx.soft.touched == {}
