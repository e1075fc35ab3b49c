"""Trials: begun with their change, ended by one verdict whatever happens, limited, put back."""

import msgspec
import pytest

from skep.ledger import records, trial_facts
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine, Kept, settings
from skep.machines.allocator.policies import job_rates, trial_limits, trials
from skep.machines.base import Effect, Restarted, Send
from skep.policy.plan import Pack
from skep.policy.registry import POLICIES
from skep.units import KIB, NS_PER_SECOND, Duration, seconds
from skep.wire import subjects
from skep.wire.advice import FamilyScale, JobPace, Outlook, ScalePoint
from skep.wire.commands import Suspend as SuspendChange
from skep.wire.facts import JobBound
from skep.wire.node import Outcome
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.spec import SizeHint
from skep.wire.trials import After, Judged, Kind, TrialBegun, TrialOver, Trials, Verdict
from tests.kit import Driver, at, exited, started
from tests.unit.test_allocator_actions import CAN, WHY, Does, do, running
from tests.unit.test_allocator_changes import changed, known, of, told

PACE = 4_000
TRY = Pack("j2", "j1", WHY, trial=True)


@pytest.fixture(autouse=True)
def _policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Does.name, Does)
    Does.actions.clear()


BERT = FamilyScale(
    family="bert",
    gpu_type="cpu",
    points=(ScalePoint(gpus=4, nodes=1, step_ns=Duration(NS_PER_SECOND // 4)),),
)


def measured() -> Driver[AllocatorMachine]:
    """Return an allocator with a job that runs and two that wait, of a family that is known."""
    decide = running(*({"gpus": 4, "size": SizeHint(family="bert")} for _ in range(3)))
    pace = JobPace(job="j1", attempt=1, steps=10, rate_milli=PACE)
    decide(Outlook(at=at(5), jobs=(pace,), families=(BERT,)), 5)
    return decide


def opened(effects: list[Effect]) -> list[Trials]:
    return [
        each.message
        for each in effects
        if isinstance(each, Send) and each.subject == subjects.TRIALS_OPEN
    ]


def begun() -> Driver[AllocatorMachine]:
    """Return an allocator whose trial is being measured."""
    decide = measured()
    for command in told(do(decide, TRY)):
        decide(changed(command), 10)
    decide(started("j2"), 11)
    decide(known("j2", can=CAN), 11)
    return decide


def judged(*, kept: bool, trial: int = 1, second: float = 60, loss: int = 100) -> Judged:
    return Judged(
        at=at(second),
        trial=trial,
        kept=kept,
        gain_milli=310 if kept else -loss,
        low_milli=200,
        high_milli=400,
        after=(After(job="j2", rate_milli=3000, samples=16),),
    )


def leaves(decide: Driver[AllocatorMachine], effects: list[Effect], second: float) -> None:
    """Assert that the guest is taken off and its host is not touched; have it done."""
    (command,) = [each for each in told(effects) if isinstance(each.change, SuspendChange)]
    assert (command.job, command.change) == ("j2", SuspendChange(release=True))
    decide(changed(command, released=True), second)
    assert decide.machine.state.tries.undoing == {}
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    decide.machine.check()


def test_a_pack_on_trial_is_recorded_with_the_pack() -> None:
    decide = measured()
    effects = do(decide, TRY)
    assert of(effects, GpusShared)
    assert of(effects, JobBound)
    (fact,) = of(effects, TrialBegun)
    assert all(job.measured for job in Does.seen[-1].jobs)
    assert (fact.trial, fact.kind, fact.vc, fact.why) == (1, Kind.PACK, "nlp", Reason.BY_POLICY)
    assert [(each.job, each.attempt, each.gpus, each.solo_milli) for each in fact.jobs] == [
        ("j2", 1, 4, PACE),
        ("j1", 1, 4, PACE),
    ]
    assert (fact.at, fact.until - fact.at) == (at(10), settings.LASTS)
    (message,) = opened(effects)
    assert [(each.trial, each.since) for each in message.open] == [(1, 0)]


def test_the_introspector_is_told_when_all_run_and_again_and_again() -> None:
    decide = measured()
    for command in told(do(decide, TRY)):
        decide(changed(command), 10)
    (message,) = opened(decide(started("j2"), 11))
    assert [each.since for each in message.open] == [at(10)]
    assert not opened(decide.tick(12))
    assert opened(decide.tick(13)) == [Trials(at=at(13), open=message.open)]


def test_what_gains_is_kept() -> None:
    decide = begun()
    effects = decide(judged(kept=True), 60)
    (fact,) = of(effects, TrialOver)
    assert (fact.trial, fact.jobs, fact.verdict, fact.why, fact.gain_milli) == (
        1,
        ("j2", "j1"),
        Verdict.KEPT,
        Reason.TRIAL_GAINS,
        310,
    )
    assert not [each for each in told(effects) if isinstance(each.change, SuspendChange)]
    assert opened(effects) == [Trials(at=at(60), open=())]
    assert decide.machine.tx.soft.telling.at is None


def test_what_loses_is_undone() -> None:
    decide = begun()
    effects = decide(judged(kept=False), 60)
    assert [(fact.verdict, fact.why) for fact in of(effects, TrialOver)] == [
        (Verdict.UNDONE, Reason.TRIAL_LOSES)
    ]
    leaves(decide, effects, 61)


def test_without_a_verdict_in_time_it_is_void_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LASTS", seconds(30))
    decide = begun()
    assert not of(decide.tick(39), TrialOver)
    assert (decide.machine.wake_at() or 0) <= at(40)
    effects = decide.tick(40)
    assert [(fact.verdict, fact.why) for fact in of(effects, TrialOver)] == [
        (Verdict.VOID, Reason.NO_VERDICT)
    ]
    leaves(decide, effects, 41)
    # Who makes nothing any more gives nothing to be judged by: that is no lesser failure.
    (cools,) = trial_limits.cooling(decide.machine.state, "nlp", trial_limits.Pairs(), at(41))
    assert cools.until == at(40) + records.COOLS


@pytest.mark.parametrize("name", ["j1", "j2"])
def test_the_end_of_a_job_makes_its_trial_void(name: str) -> None:
    decide = begun()
    effects = decide(exited(name), 30)
    (fact,) = of(effects, TrialOver)
    assert (fact.verdict, fact.why) == (Verdict.VOID, Reason.TRIAL_DISTURBED)
    assert name in fact.detail
    assert not [each for each in told(effects) if isinstance(each.change, SuspendChange)]
    assert decide.machine.state.tries.undoing == {}
    assert name not in decide.machine.state.tries.solo


def test_what_an_attempt_makes_alone_counts_more_than_what_an_earlier_one_made() -> None:
    decide = begun()
    machine = decide.machine
    decide(exited("j2"), 30)
    decide(exited("j1", outcome=Outcome.PORT_BUSY), 31)
    job = machine.state.jobs["j1"]
    assert (job.attempt, job.mixed, machine.state.tries.solo["j1"]) == (2, False, PACE)
    assert job_rates.solo(machine.tx, job) == PACE
    decide(started("j1", attempt=2), 40)
    pace = JobPace(job="j1", attempt=2, steps=10, rate_milli=PACE // 2)
    decide(Outlook(at=at(50), jobs=(pace,), families=(BERT,)), 50)
    assert job_rates.solo(machine.tx, job) == PACE // 2


def test_a_failed_attempt_makes_its_trial_void() -> None:
    decide = begun()
    effects = decide(exited("j2", outcome=Outcome.EXITED), 30)
    assert [fact.why for fact in of(effects, TrialOver)] == [Reason.TRIAL_DISTURBED]


def test_the_loss_of_its_node_makes_a_trial_void() -> None:
    decide = begun()
    (fact,) = of(decide.tick(60), TrialOver)
    assert (fact.verdict, fact.why) == (Verdict.VOID, Reason.TRIAL_DISTURBED)
    assert decide.machine.state.tries.undoing == {}


def test_a_verdict_comes_once_and_only_of_what_is_open_and_runs() -> None:
    decide = measured()
    do(decide, TRY)
    assert not of(decide(judged(kept=True), 10), TrialOver)  # It does not run yet.
    decide = begun()
    assert not of(decide(judged(kept=True, trial=7), 59), TrialOver)
    assert len(of(decide(judged(kept=True), 60), TrialOver)) == 1
    assert not of(decide(judged(kept=False), 61), TrialOver)


def test_an_undoing_that_is_due_is_done_after_a_restart() -> None:
    decide = begun()
    decide(judged(kept=False), 60)
    leaves(decide, decide.restart(61), 62)


def test_a_restart_tells_of_open_trials_again() -> None:
    decide = begun()
    assert [
        each.trial for message in opened(decide(Restarted(2), 30)) for each in message.open
    ] == [1]


def test_a_job_whose_rate_alone_nobody_knows_is_not_tried() -> None:
    decide = running({"gpus": 4}, {"gpus": 4})
    effects = do(decide, TRY)
    assert not of(effects, TrialBegun)
    assert not of(effects, GpusShared)
    assert trials.refusal(
        decide.machine.tx, Kind.PACK, [decide.machine.state.jobs["j1"]], at(1)
    ) == (Reason.NOT_MEASURED, "j1")
    assert not any(job.measured for job in Does.seen[-1].jobs)


def test_what_was_not_worth_it_is_not_tried_again_soon() -> None:
    decide = begun()
    leaves(decide, decide(judged(kept=False), 60), 61)
    cool = records.COOLS / NS_PER_SECOND
    assert not of(do(decide, TRY, second=70), TrialBegun)
    jobs = [decide.machine.state.jobs[name] for name in ("j2", "j1")]
    assert trials.refusal(decide.machine.tx, Kind.PACK, jobs, at(70)) == (
        Reason.TRIAL_COOLS,
        " ".join(trial_facts.families(jobs)),
    )
    assert trials.refusal(decide.machine.tx, Kind.PACK, jobs, at(60 + cool)) is None


def test_what_hurt_is_not_tried_again_for_twice_as_long() -> None:
    decide = begun()
    leaves(decide, decide(judged(kept=False, loss=-trial_facts.HURTS), 60), 61)
    cool = records.COOLS / NS_PER_SECOND
    jobs = [decide.machine.state.jobs[name] for name in ("j2", "j1")]
    assert trials.refusal(decide.machine.tx, Kind.PACK, jobs, at(59 + 2 * cool)) is not None
    assert trials.refusal(decide.machine.tx, Kind.PACK, jobs, at(60 + 2 * cool)) is None


def test_a_job_in_an_open_trial_is_in_no_other() -> None:
    decide = begun()
    assert not of(do(decide, Pack("j3", "j1", WHY, trial=True), second=20), GpusShared)
    jobs = [decide.machine.state.jobs[name] for name in ("j3", "j1")]
    assert trials.refusal(decide.machine.tx, Kind.PACK, jobs, at(20)) == (Reason.TRIAL_OPEN, "j1")


def test_whoever_joins_without_a_trial_makes_it_void() -> None:
    decide = begun()
    effects = do(decide, Pack("j3", "j1", WHY), second=20)
    assert [fact.why for fact in of(effects, TrialOver)] == [Reason.TRIAL_DISTURBED]
    (cools,) = trial_limits.cooling(decide.machine.state, "nlp", trial_limits.Pairs(), at(21))
    assert cools.until == at(20) + trial_facts.COOLS_VOID


def test_a_job_is_tried_so_often_within_an_hour() -> None:
    decide = measured()
    decide.thorough = False
    begun = decide.machine.state.tries.begun["j1"] = [at(9)] * trial_facts.JOB_MAX
    decide.machine.tx.soft.touched["j1"] = None
    assert not of(do(decide, TRY), TrialBegun)
    hour = trial_facts.HOUR / NS_PER_SECOND
    assert [each.trial_after for each in Does.seen[-1].jobs] == [at(9 + hour), 0, 0]
    begun.pop()
    decide.machine.tx.soft.touched["j1"] = None
    assert of(do(decide, TRY, second=11), TrialBegun)
    assert [each.trial_after for each in Does.seen[-1].jobs] == [0, 0, 0]
    decide.machine.state.tries.begun["vc:nlp"] = [at(9)] * trial_facts.VC_LEAST
    assert trial_limits.limits(decide.machine.state, "vc:nlp") == {
        "trial_after": at(9 + hour),
        "move_after": 0,
    }


def test_what_is_no_success_again_cools_for_twice_as_long() -> None:
    machine = measured().machine
    (begun,) = of(do(measured(), TRY), TrialBegun)
    cools = machine.state.tries.cooling
    now, rests = at(10), []
    for number in range(6):
        machine.state.tries.open[number] = msgspec.structs.replace(begun, trial=number)
        machine.state.tries.of_job |= {each.job: number for each in begun.jobs}
        over = TrialOver(
            trial=number, jobs=(), verdict=Verdict.UNDONE, why=Reason.TRIAL_LOSES, at=now
        )
        trial_facts.apply(machine.state, over)
        (cool,) = cools["nlp"].values()
        rests.append((cool.until - now) // records.COOLS)
        now = cool.until
    assert rests == [1, 2, 4, 8, 8, 8]


def test_what_is_no_success_while_it_cools_as_it_was_void_cools_for_an_hour() -> None:
    machine = measured().machine
    (begun,) = of(do(measured(), TRY), TrialBegun)
    for number, why in enumerate((Reason.TRIAL_DISTURBED, Reason.TRIAL_LOSES, Reason.TRIAL_LOSES)):
        machine.state.tries.open[number] = msgspec.structs.replace(begun, trial=number)
        machine.state.tries.of_job |= {each.job: number for each in begun.jobs}
        verdict = Verdict.VOID if why is Reason.TRIAL_DISTURBED else Verdict.UNDONE
        trial_facts.apply(
            machine.state, TrialOver(trial=number, jobs=(), verdict=verdict, why=why, at=at(10))
        )
    (cool,) = machine.state.tries.cooling["nlp"].values()
    assert (cool.until, cool.times) == (at(10) + records.COOLS, 1)


def test_a_larger_vc_may_try_more() -> None:
    machine = measured().machine
    machine.state.tries.begun = {
        "vc:nlp": [at(9)] * trial_facts.VC_LEAST,
        "moves vc:nlp": [at(9)] * trial_facts.VC_MOST,
    }
    vc = machine.state.cells.cluster.vcs["nlp"]
    machine.state.cells.cluster.vcs["nlp"] = msgspec.structs.replace(vc, gpus=64)
    assert trial_limits.limits(machine.state, "vc:nlp") == {
        "trial_after": 0,
        "move_after": at(9) + trial_facts.HOUR,
    }


def test_the_same_two_are_tried_so_often_within_an_hour_whatever_came_of_it() -> None:
    decide = measured()
    decide.thorough = False
    machine = decide.machine
    machine.state.tries.begun["pair nlp j1 j2"] = [at(7), at(8), at(9)]
    assert not of(do(decide, TRY), TrialBegun)
    (tired,) = trial_limits.cooling(machine.state, "nlp", trial_limits.Pairs(), at(10))
    assert (tired.jobs, tired.until) == (("j1", "j2"), at(7) + trial_facts.HOUR)
    assert of(do(decide, msgspec.structs.replace(TRY, job="j3"), second=11), TrialBegun)


def test_of_a_pair_it_is_forgotten_after_an_hour_that_it_was_tried() -> None:
    decide = measured()
    decide.thorough = False
    begun = decide.machine.state.tries.begun
    earlier = [at(6 - 3600)] * trial_facts.PAIR_MAX
    begun["pair nlp j1 j2"], begun["pair nlp j8 j9"] = list(earlier), list(earlier)
    assert trial_limits.cooling(decide.machine.state, "nlp", trial_limits.Pairs(), at(5))
    assert not trial_limits.cooling(decide.machine.state, "nlp", trial_limits.Pairs(), at(6))
    assert of(do(decide, TRY, second=10), TrialBegun)
    assert begun["pair nlp j1 j2"] == [at(10)]
    assert "pair nlp j8 j9" not in begun


def test_alike_are_jobs_of_one_family_else_of_one_name() -> None:
    decide = running({"gpus": 4, "size": SizeHint(family="bert")}, {"gpus": 4, "name": "digits"})
    assert trial_facts.families(list(decide.machine.state.jobs.values())) == ("bert", "nlp/digits")


def test_what_is_kept_of_many_trials_is_in_pieces() -> None:
    decide = begun()
    machine = decide.machine
    for number in range(1_000):
        machine.state.tries.begun[f"x{number}"] = [at(number)] * trial_facts.JOB_MAX
        machine.state.move_costs.pauses[f"vc:x{number}"] = [number]
    kept = [msgspec.json.encode(each) for each in machine.snapshot()]
    assert max(map(len, kept)) < 64 * KIB
    for number in range(20):
        machine.state.tries.begun[f"vc:{number}"] = [at(number)] * trial_facts.VC_MOST
        machine.state.tries.begun[f"moves vc:{number}"] = [at(number)] * (trial_facts.VC_MOST // 2)
    kept = [msgspec.json.encode(each) for each in machine.snapshot()]
    assert max(map(len, kept)) < 256 * KIB
    again = AllocatorMachine()
    for piece in kept:
        restored: Kept = msgspec.json.decode(piece, type=Kept)
        again.apply(restored)
    assert (again.state.tries, again.state.move_costs) == (
        machine.state.tries,
        machine.state.move_costs,
    )
    assert list(again.state.move_costs.pauses) == list(machine.state.move_costs.pauses)


def test_families_with_blanks_do_not_share_a_cool_down() -> None:
    one, other = ("a b", "c"), ("a", "b c")
    assert trial_facts.key(Kind.PACK, one) != trial_facts.key(Kind.PACK, other)
    assert trial_facts.key_by_rules_1(Kind.PACK, one) == trial_facts.key_by_rules_1(
        Kind.PACK, other
    )
    cool = records.Cooling(Kind.PACK, one, at(9))
    known = records.Tries(cooling={"nlp": {trial_facts.key_by_rules_1(Kind.PACK, one): cool}})
    trial_facts.raise_rules(known)
    assert known.cooling == {"nlp": {trial_facts.key(Kind.PACK, one): cool}}
