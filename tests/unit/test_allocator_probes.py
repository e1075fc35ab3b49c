"""Probes: begun where something is to be learned and no job could have the GPUs, and put back."""

from typing import Any

import pytest
from msgspec.structs import replace

from skep.ledger import probes as accounts
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator import AllocatorMachine, settings
from skep.machines.allocator.policies import probes
from skep.machines.base import Effect, Restarted
from skep.policy.plan import Resize as ResizeAction
from skep.policy.probing import Place
from skep.policy.registry import POLICIES
from skep.units import NS_PER_SECOND, Duration, Instant, after, seconds
from skep.wire.advice import FamilyScale, JobPace, Outlook, ScalePoint
from skep.wire.changes import AskSuspend
from skep.wire.commands import Resize
from skep.wire.facts import JobBound
from skep.wire.node import Manner, Outcome
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.spec import Elastic, Promised, SizeHint, Willing
from skep.wire.trials import After, Judged, Kind, TrialBegun, TrialOver, Verdict
from tests.kit import Driver, admitted, at, exited, started
from tests.unit.test_allocator_actions import CAN, WHY, Does, do, running
from tests.unit.test_allocator_changes import ask, changed, known, of, told
from tests.unit.test_allocator_trials import opened

PACE = 4_000
LASTS_S = settings.LASTS_PROBE / NS_PER_SECOND
JOB: dict[str, Any] = {
    "gpus": 1,
    "workers": 2,
    "elastic": Elastic(min=1, max=4),
    "size": SizeHint(family="bert"),
    "willing": Willing(profile="allowed"),
}


def answers(decide: Driver[AllocatorMachine], effects: list[Effect], second: float) -> list[Effect]:
    """Have a gang do the one thing that it was told to."""
    command = told(effects)[-1]  # It may have been repeated.
    return decide(changed(command), second)


@pytest.fixture(autouse=True)
def _policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Does.name, Does)
    Does.actions.clear()


def outlook(*places: tuple[int, int], second: float = 5, job: str = "j1") -> Outlook:
    """Return what is told: the pace of a job, and that its family was measured at these places."""
    step = Duration(NS_PER_SECOND // 4)
    points = tuple(ScalePoint(gpus=gpus, nodes=nodes, step_ns=step) for gpus, nodes in places)
    return Outlook(
        at=at(second),
        jobs=(JobPace(job=job, attempt=1, steps=10, rate_milli=PACE),),
        families=(FamilyScale(family="bert", gpu_type="cpu", points=points),),
    )


def ready(*others: dict[str, Any], nodes: int = 1, **fields: Any) -> Driver[AllocatorMachine]:
    """Return an allocator whose first job may be probed; nothing was told of it yet."""
    decide = running({**JOB, **fields}, *others, nodes=nodes)
    decide.machine.settings.node_lost_after = Duration(2**62)  # No node is heard of here.
    return decide


def look(decide: Driver[AllocatorMachine], second: float, *places: tuple[int, int]) -> list[Effect]:
    """Have it told what was measured, and look again whether a probe may begin."""
    effects = decide(outlook(*places, second=second), second)
    return effects + decide.tick(second + settings.PROBE_EVERY / NS_PER_SECOND)


def measured(second: float = 90, trial: int = 1) -> Judged:
    return Judged(
        at=at(second),
        trial=trial,
        kept=False,
        gain_milli=-400,
        low_milli=-400,
        high_milli=-400,
        after=(After(job="j1", rate_milli=2_400, samples=31),),
    )


def test_the_smallest_size_that_is_unknown_is_measured_and_put_back() -> None:
    decide = ready()
    effects = look(decide, 5, (2, 1))
    (fact,) = of(effects, TrialBegun)
    assert (fact.kind, fact.vc, fact.why) == (Kind.PROBE, "nlp", Reason.PROBING)
    assert (fact.workers, fact.grown, fact.nodes) == (2, 1, ("node-1",))
    assert fact.families == ("bert",)
    assert fact.until - fact.at == settings.LASTS_PROBE
    (before,) = fact.jobs
    assert (before.job, before.attempt, before.gpus, before.rate_milli) == ("j1", 1, 2, PACE)
    (command,) = told(effects)
    assert isinstance(command.change, Resize)
    assert command.change.world == 1
    (message,) = opened(effects)
    assert [(each.since, each.workers) for each in message.open] == [(0, 1)]

    (message,) = opened(decide(changed(command), 40))
    assert [each.since for each in message.open] == [at(40)]
    effects = decide(measured(60), 60)
    (over,) = of(effects, TrialOver)
    assert (over.verdict, over.why, over.after[0].samples) == (Verdict.UNDONE, Reason.PROBED, 31)
    (back,) = told(effects)
    assert isinstance(back.change, Resize)
    assert back.change.world == 2
    assert list(decide.machine.state.probes.open) == [1], "it takes time until it is back"
    decide(changed(back), 64)
    state = decide.machine.state
    assert (state.jobs["j1"].size, state.tries.undoing, state.probes.open) == (2, {}, {})
    (probe,) = state.probes.of_vc["nlp"]
    assert (probe.family, probe.gpu_type, probe.gpus, probe.nodes) == ("bert", "cpu", 1, 1)
    assert accounts.used([probe], at(100)) == 2 * (at(64) - fact.at)


def test_the_next_probe_measures_the_next_size_and_enough_is_enough() -> None:
    decide = ready()
    (command,) = told(look(decide, 5, (2, 1)))
    decide(changed(command), 40)
    answers(decide, decide(measured(60), 60), 64)
    # It was measured, and the advisor has not said so yet: it is not measured again.
    effects = look(decide, 70, (2, 1))
    (fact,) = of(effects, TrialBegun)
    assert (fact.workers, fact.grown) == (2, 4)
    (more,) = of(effects, GangWidened)
    assert len(more.member.devices) == 2
    answers(decide, effects, 110)
    effects = decide(measured(120, trial=2), 120)
    (back,) = told(effects)
    assert [each.workers for each in of(decide(changed(back), 124), GangNarrowed)] == [2]
    assert not of(look(decide, 200, (1, 1), (2, 1), (4, 1)), TrialBegun)


def test_several_nodes_come_last_and_only_they_are_wanted_at_the_end() -> None:
    fields: dict[str, Any] = {"elastic": Elastic(min=2, max=8), "workers": 2, "nodes": 2}
    decide = ready(**fields)
    assert [fact.grown for fact in of(look(decide, 5, (2, 1)), TrialBegun)] == [4]
    decide = ready(**fields)
    known_places = (1, 1), (2, 1), (3, 1)
    (fact,) = of(look(decide, 5, *known_places), TrialBegun)
    assert (fact.grown, fact.nodes) == (8, ("node-1", "node-2"))
    decide = ready(**fields)
    assert not of(look(decide, 5, *known_places, (6, 2)), TrialBegun)


@pytest.mark.parametrize(
    "fields",
    [
        {"willing": Willing()},
        {"size": SizeHint()},
        {"elastic": None},
        {"promise": Promised(answer="accepted")},
    ],
)
def test_a_job_that_must_not_or_need_not_be_probed_is_left_alone(fields: dict[str, Any]) -> None:
    decide = ready(**fields)
    assert not of(look(decide, 5, (2, 1)), TrialBegun)
    assert decide.machine.tx.soft.probe_at is None, "no timer is set for it"


def test_what_the_job_makes_where_it_is_comes_first() -> None:
    assert not of(look(ready(), 5, (4, 1)), TrialBegun)
    assert not of(ready().tick(100), TrialBegun)


def test_without_leave_to_shrink_it_only_grows() -> None:
    decide = ready(willing=Willing(profile="allowed", shrink=False))
    assert [fact.grown for fact in of(look(decide, 5, (2, 1)), TrialBegun)] == [4]


def test_a_job_that_ends_soon_is_not_probed() -> None:
    decide = ready()
    pace = JobPace(job="j1", attempt=1, steps=10, rate_milli=PACE, remaining=seconds(500))
    decide(replace(outlook((2, 1)), jobs=(pace,)), 5)
    assert not of(decide.tick(40), TrialBegun)


def test_no_probe_begins_while_a_job_waits_that_could_have_the_gpus() -> None:
    waits = {"gpus": 4}
    assert not of(look(ready(waits), 5, (2, 1)), TrialBegun)
    opportunistic = {"gpus": 4, "vc": "vision", "service_class": "opportunistic"}
    assert not of(look(ready(opportunistic), 5, (2, 1)), TrialBegun)
    other_type = {**opportunistic, "gpu_type": "a100"}
    assert of(look(ready(other_type), 5, (2, 1)), TrialBegun)


def test_a_probe_is_called_off_for_a_job_that_waits() -> None:
    decide = ready(elastic=Elastic(min=2, max=4))
    effects = look(decide, 5, (2, 1))
    (command,) = told(effects)
    decide(changed(command), 40)
    assert decide.machine.state.jobs["j1"].size == 4
    effects = decide(admitted(2, gpus=2), 45)
    (over,) = of(effects, TrialOver)
    assert (over.verdict, over.why, over.detail) == (Verdict.VOID, Reason.GPUS_NEEDED, "j2")
    (command,) = told(effects)
    effects = decide(changed(command), 47)
    assert [fact.job for fact in of(effects, JobBound)] == ["j2"]
    assert decide.machine.state.jobs["j1"].size == 2
    assert not decide.machine.state.probes.open


def test_a_probe_that_is_called_off_while_it_grows_is_put_back_too() -> None:
    decide = ready(elastic=Elastic(min=2, max=4))
    (command,) = told(look(decide, 5, (2, 1)))
    (over,) = of(decide(admitted(2, gpus=2), 36), TrialOver)
    assert (over.verdict, over.why) == (Verdict.VOID, Reason.GPUS_NEEDED)
    (back,) = told(decide(changed(command), 40))
    assert isinstance(back.change, Resize)
    assert back.change.world == 2
    effects = decide(changed(back), 43)
    assert [fact.job for fact in of(effects, JobBound)] == ["j2"]


def test_a_growth_over_nodes_of_which_no_node_was_told_is_withdrawn() -> None:
    decide = ready({"gpus": 2}, nodes=2, elastic=Elastic(min=2, max=6))
    effects = look(decide, 5, (1, 1), (2, 1), (3, 1))
    (fact,) = of(effects, TrialBegun)
    assert (fact.grown, len(fact.nodes)) == (6, 2)
    effects = decide(admitted(3, gpus=4), 36)
    assert [each.why for each in of(effects, TrialOver)] == [Reason.GPUS_NEEDED]
    change = decide.machine.state.jobs["j1"].change
    assert change is not None
    assert change.undoing


def test_what_is_done_to_its_job_meanwhile_stays() -> None:
    decide = ready(elastic=Elastic(min=2, max=4))
    answers(decide, look(decide, 5, (2, 1)), 40)
    (command,) = told(do(decide, ResizeAction("j1", WHY, 3)))
    effects = decide(changed(command), 50)
    assert not told(effects), "it has the size that its policy gave it"
    state = decide.machine.state
    assert (state.jobs["j1"].size, state.tries.undoing, state.probes.open) == (3, {}, {})


def test_a_suspended_job_is_put_back_when_it_goes_on() -> None:
    decide = ready(elastic=Elastic(min=2, max=4))
    answers(decide, look(decide, 5, (2, 1)), 40)
    effects = decide(ask(2, AskSuspend(job="j1")), 45)
    answers(decide, effects, 46)
    assert decide.machine.state.jobs["j1"].state is State.SUSPENDED
    assert decide.machine.state.tries.undoing["j1"].workers == 2


def test_one_that_ends_or_fails_leaves_nothing_behind() -> None:
    for outcome in (Outcome.SUCCEEDED, Outcome.EXITED):
        decide = ready(elastic=Elastic(min=2, max=4))
        answers(decide, look(decide, 5, (2, 1)), 40)
        effects = decide(exited("j1", outcome=outcome, at=at(50)), 50)
        assert [fact.verdict for fact in of(effects, TrialOver)] == [Verdict.VOID]
        state = decide.machine.state
        assert (state.probes.open, state.tries.undoing, state.tries.open) == ({}, {}, {})
        assert state.probes.of_vc["nlp"][0].ended == at(50)


def test_without_a_measurement_in_time_it_is_put_back() -> None:
    decide = ready(elastic=Elastic(min=2, max=4))
    effects = look(decide, 5, (2, 1))
    (fact,) = of(effects, TrialBegun)
    answers(decide, effects, 40)
    effects = decide.tick((fact.until - at(0)) / NS_PER_SECOND)
    assert [(each.verdict, each.why) for each in of(effects, TrialOver)] == [
        (Verdict.VOID, Reason.NO_VERDICT)
    ]
    answers(decide, effects, 345)
    # Nothing came of it: it is tried again after an hour.
    assert not of(look(decide, 400, (2, 1)), TrialBegun)
    assert of(look(decide, 4000, (2, 1)), TrialBegun)


def test_ranks_that_will_not_go_back_are_left_as_they_are() -> None:
    decide = ready(elastic=Elastic(min=2, max=4))
    answers(decide, look(decide, 5, (2, 1)), 40)
    effects = decide(measured(60), 60)
    for second in range(61, 64):
        (command,) = told(effects)
        effects = decide(changed(command, Manner.UNCHANGED, detail="no"), second)
    assert not told(effects)
    state = decide.machine.state
    assert (state.tries.undoing, state.probes.open) == ({}, {})


def test_the_budget_of_a_vc_is_kept_and_survives_a_restart() -> None:
    # 4 GPUs for a day are 345,600 GPU-seconds, of which 2 % are 6,912: probes of 4 GPUs.
    takes_s = 4 * (LASTS_S + accounts.PUT_BACK / NS_PER_SECOND)
    decide = ready(elastic=Elastic(min=2, max=4))
    began, second = 0, 5.0
    while second < 80_000:
        effects = look(decide, second, (2, 1))
        for fact in of(effects, TrialBegun):
            began += 1
            answers(decide, effects, second + 40)
            until = (fact.until - at(0)) / NS_PER_SECOND
            answers(decide, decide.tick(until), until + 10)
        if began == 2:
            decide(Restarted(2))
        second += 3_700
    assert began == int((6_912 - takes_s) // (4 * (LASTS_S + 10))) + 1
    known_probes = decide.machine.state.probes.of_vc["nlp"]
    used = accounts.used(known_probes, at(second))
    assert used <= accounts.most(4) == 6_912 * NS_PER_SECOND
    assert not accounts.fits(known_probes, 4, 4, settings.LASTS_PROBE, at(second))
    assert accounts.fits(known_probes, 4, 4, settings.LASTS_PROBE, after(at(80_000), accounts.DAY))


def test_only_probes_of_the_last_day_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "PROBES_MAX", 1)
    decide = ready()
    effects = look(decide, 5, (2, 1))
    assert of(effects, TrialBegun)
    answers(decide, effects, 40)
    answers(decide, decide(measured(60), 60), 64)
    assert not of(look(decide, 8_000, (2, 1)), TrialBegun)
    assert not of(look(decide, 86_000, (2, 1)), TrialBegun)
    assert of(look(decide, 90_000, (2, 1)), TrialBegun)


def test_of_many_jobs_a_few_are_looked_at_each_time_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, waiting, wanting = list[str](), list[str](), probes.wanting

    def places(_: object, job: JobState, __: Instant) -> list[Place]:
        looked.append(job.job)
        return []

    def waits(state: ClusterState, vc: str, gpu_type: str) -> str:
        waiting.append(gpu_type)
        return wanting(state, vc, gpu_type)

    monkeypatch.setattr(probes, "LOOKED_MAX", 1)
    monkeypatch.setattr(probes, "places", places)
    monkeypatch.setattr(probes, "wanting", waits)
    decide = ready({**JOB, "workers": 1}, elastic=Elastic(min=2, max=3))
    decide(started("j2"))
    decide(known("j2", can=CAN))
    decide(outlook((2, 1)), 5)
    decide(outlook((2, 1), job="j2"), 5)
    for second in (100, 200, 300, 400):
        decide.tick(second)
    assert looked == ["j1", "j2", "j1", "j2"]
    monkeypatch.setattr(probes, "LOOKED_MAX", 2)
    waiting.clear()
    decide.tick(500)
    assert looked[4:] == ["j1", "j2"]
    assert waiting == ["cpu"], "the jobs that wait for a type of GPU are looked through once"


def test_a_vc_has_one_probe_at_a_time() -> None:
    second = {**JOB, "workers": 1, "size": SizeHint(family="resnet")}
    decide = ready(second, elastic=Elastic(min=2, max=3))
    decide(started("j2"))
    decide(known("j2", can=CAN))
    decide(outlook((2, 1)), 5)
    other = replace(
        outlook((1, 1), job="j2"),
        families=(
            FamilyScale(
                family="resnet",
                gpu_type="cpu",
                points=(ScalePoint(gpus=1, nodes=1, step_ns=Duration(NS_PER_SECOND)),),
            ),
        ),
    )
    decide(other, 5)
    (fact,) = of(decide.tick(40), TrialBegun)
    assert fact.jobs[0].job == "j1"
    assert not of(decide.tick(80), TrialBegun)
