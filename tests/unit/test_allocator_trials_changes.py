"""Moves and growths on trial: measured as they are then, kept, put back, and never in the way."""

from typing import Any

import pytest
from msgspec import structs

from skep.ledger import trial_facts
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine, settings
from skep.machines.allocator.policies import trials
from skep.machines.base import Effect
from skep.policy.plan import Migrate, Preempt, Resize, Suspend
from skep.policy.registry import POLICIES
from skep.units import NS_PER_SECOND, seconds
from skep.wire.admin import SetVcs
from skep.wire.advice import JobPace, Outlook
from skep.wire.cluster import VirtualCluster
from skep.wire.commands import BindJob
from skep.wire.commands import Resize as ResizeChange
from skep.wire.facts import JobBound
from skep.wire.moves import JobMoved, SuccessorBound
from skep.wire.node import Manner, Outcome
from skep.wire.reasons import Reason
from skep.wire.resizes import GangWidened
from skep.wire.spec import Elastic, SizeHint
from skep.wire.trials import Judged, Kind, TrialBegun, TrialOver, Verdict
from tests.kit import Driver, admitted, allocator, at, exited, joined, started
from tests.unit.test_allocator_actions import CAN, WHY, Does, do, running
from tests.unit.test_allocator_changes import changed, known, of, told
from tests.unit.test_allocator_moves import commands, loaded, ready
from tests.unit.test_allocator_trials import opened

PACE = 4_000
MOVE = Migrate("j1", WHY, ("node-2",), trial=True, needed_milli=1010)
GROW = Resize("j1", WHY, 3, trial=True, needed_milli=1100)
ELASTIC: dict[str, Any] = {"gpus": 1, "workers": 2, "elastic": Elastic(min=1, max=4)}


class Rated(Does, frozen=True):
    """The same, and is told how jobs go."""

    sees_nodes = True
    sees_rates = True


@pytest.fixture(autouse=True)
def _policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Does.name, Rated)
    Does.actions.clear()
    Does.seen.clear()


def paced(decide: Driver[AllocatorMachine], attempt: int = 1, second: float = 5) -> None:
    decide(
        Outlook(
            at=at(second), jobs=(JobPace(job="j1", attempt=attempt, steps=10, rate_milli=PACE),)
        ),
        second,
    )


def runs(**fields: Any) -> Driver[AllocatorMachine]:
    """Return an allocator with a job that runs at a known pace on the first of two nodes."""
    decide = running(fields, nodes=2)
    paced(decide)
    return decide


def arrive(decide: Driver[AllocatorMachine], effects: list[Effect], second: float) -> None:
    """Have a move that was begun be done; what it left ends."""
    (bind,) = commands(effects, BindJob)
    before = decide.machine.state.jobs["j1"].attempt
    source = next(iter(decide.machine.state.jobs["j1"].members))
    can = structs.replace(known("j1", bind.node, CAN), attempt=bind.attempt)
    decide(can, second)
    (move,) = told(decide(ready(bind), second))
    decide(changed(move), second + 1)
    effects = decide(loaded(bind), second + 2)
    assert len(of(effects, JobMoved)) == 1
    (resume,) = told(effects)
    decide(changed(resume), second + 3)
    decide(exited("j1", attempt=before, node=source, outcome=Outcome.STOPPED), second + 4)


def moved(action: Migrate = MOVE) -> Driver[AllocatorMachine]:
    decide = runs(gpus=4, size=SizeHint(family="bert"))
    arrive(decide, do(decide, action), 20)
    return decide


def grown(action: Resize = GROW, **fields: Any) -> Driver[AllocatorMachine]:
    decide = runs(**{**ELASTIC, **fields})
    (command,) = told(do(decide, action))
    decide(changed(command), 20)
    decide(known("j1", can=CAN), 20)
    return decide


def judged(*, kept: bool, second: float = 90) -> Judged:
    return Judged(
        at=at(second),
        trial=1,
        kept=kept,
        gain_milli=200 if kept else -200,
        low_milli=-250,
        high_milli=250,
        after=(),
    )


def verdicts(effects: list[Effect]) -> list[tuple[Verdict, Reason]]:
    return [(fact.verdict, fact.why) for fact in of(effects, TrialOver)]


def shrinks(effects: list[Effect]) -> list[int]:
    return [each.change.world for each in told(effects) if isinstance(each.change, ResizeChange)]


# --- moves ---------------------------------------------------------------------------------------


def test_a_move_on_trial_is_recorded_with_it_and_measured_once_it_is_done() -> None:
    decide = runs(gpus=4)
    effects = do(decide, MOVE)
    (fact,) = of(effects, TrialBegun)
    assert (fact.kind, fact.needed_milli, fact.nodes) == (Kind.MIGRATE, 1010, ("node-1",))
    assert [(each.attempt, each.rate_milli) for each in fact.jobs] == [(2, PACE)]
    assert [each.since for message in opened(effects) for each in message.open] == [0]
    assert not of(decide(judged(kept=True), 11), TrialOver)  # Nobody can tell yet.
    arrive(decide, effects, 20)
    assert decide.machine.state.tries.done == {1: at(23)}
    assert [each.since for each in decide.machine.tx.soft.telling.told] == [at(23)]
    assert Does.seen[-1].jobs[0].trial == 1


def test_what_a_move_takes_is_seen_from_then_on() -> None:
    decide = moved()
    assert Does.seen[-1].jobs[0].pause == seconds(3)
    decide(admitted(2, gpus=4, size=SizeHint(family="gpt")), 40)
    assert [job.pause for job in Does.seen[-1].jobs] == [seconds(3)] * 2
    assert Does.seen[-1].quiet_since == decide.machine.state.jobs["j2"].submitted_at
    assert decide.machine.state.move_costs.pauses.keys() == {"j1", "nlp bert", "vc:nlp"}


def test_a_trial_is_compared_with_the_mean_of_many_windows_where_there_is_one() -> None:
    decide = runs(gpus=4)
    pace = JobPace(
        job="j1",
        attempt=1,
        steps=900,
        rate_milli=PACE + 90,
        mean_milli=PACE - 10,
        spread_milli=70,
        samples=8,
    )
    decide(Outlook(at=at(9), jobs=(pace,)), 9)
    ((before,),) = [fact.jobs for fact in of(do(decide, MOVE), TrialBegun)]
    assert (before.rate_milli, before.spread_milli, before.samples) == (PACE - 10, 70, 8)
    assert before.solo_milli == PACE - 10


def test_a_move_that_gains_is_kept() -> None:
    decide = moved()
    effects = decide(judged(kept=True), 90)
    assert verdicts(effects) == [(Verdict.KEPT, Reason.TRIAL_GAINS)]
    assert not of(effects, SuccessorBound)
    assert Does.seen[-1].cooling == ()


def test_a_move_that_loses_goes_back() -> None:
    decide = moved()
    effects = decide(judged(kept=False), 90)
    assert verdicts(effects) == [(Verdict.UNDONE, Reason.TRIAL_LOSES)]
    arrive(decide, effects, 100)
    assert list(decide.machine.state.jobs["j1"].members) == ["node-1"]
    assert [(each.kind, each.families) for each in Does.seen[-1].cooling] == [
        ("migrate", ("bert",))
    ]


def test_who_has_no_place_to_go_back_to_stays() -> None:
    decide = moved()
    (bound,) = of(decide(admitted(2, gpus=4), 50), JobBound)
    assert bound.members[0].node == "node-1"
    effects = decide(judged(kept=False), 90)
    assert verdicts(effects) == [(Verdict.KEPT, Reason.TRIAL_STAYS)]
    assert not of(effects, SuccessorBound)
    # It was no gain all the same: the like is not tried again soon.
    job = decide.machine.state.jobs["j1"]
    refused = trials.refusal(decide.machine.tx, Kind.MIGRATE, [job], at(95))
    assert refused is not None
    assert refused[0] is Reason.TRIAL_COOLS


def test_a_move_without_a_verdict_in_time_stays() -> None:
    decide = moved()
    effects = decide.tick(10 + settings.LASTS_MADE_READY / NS_PER_SECOND)
    assert [fact.verdict for fact in of(effects, TrialOver)] == [Verdict.VOID]
    assert not of(effects, SuccessorBound)
    assert decide.machine.state.tries.undoing == {}


def test_a_move_that_comes_to_nothing_is_void() -> None:
    decide = runs(gpus=4)
    (bind,) = commands(do(decide, MOVE), BindJob)
    effects = decide(exited("j1", attempt=2, node=bind.node, outcome=Outcome.EXITED), 20)
    assert verdicts(effects) == [(Verdict.VOID, Reason.TRIAL_DISTURBED)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def test_a_move_for_others_is_always_tried_and_may_cost_little() -> None:
    decide = runs(gpus=4)
    effects = do(decide, Migrate("j1", WHY, ("node-2",), defrag=True))
    assert [(fact.kind, fact.needed_milli) for fact in of(effects, TrialBegun)] == [
        (Kind.DEFRAG, trials.DEFRAG_MILLI)
    ]


def test_who_is_suspended_while_it_is_tried_leaves_at_once() -> None:
    decide = moved()
    effects = do(decide, Suspend("j1", WHY), second=40)
    assert verdicts(effects) == [(Verdict.VOID, Reason.TRIAL_DISTURBED)]
    assert [each.job for each in told(effects)] == ["j1"]


def test_moves_of_a_job_are_few_within_an_hour() -> None:
    decide = runs(gpus=4)
    decide.thorough = False
    decide.machine.state.tries.begun["moves j1"] = [at(1)] * trial_facts.JOB_MOVES_MAX
    decide.machine.tx.soft.touched["j1"] = None
    assert not of(do(decide, MOVE), SuccessorBound)
    refused = trials.refusal(
        decide.machine.tx, Kind.DEFRAG, [decide.machine.state.jobs["j1"]], at(20)
    )
    assert refused == (Reason.TRIALS_ENOUGH, "moves j1")


@pytest.mark.parametrize("action", [MOVE, GROW])
def test_whose_rate_nobody_knows_is_not_tried(action: Migrate | Resize) -> None:
    decide = running(ELASTIC, nodes=2)
    assert not of(do(decide, action), TrialBegun)
    assert decide.machine.state.jobs["j1"].change is None


# --- growth --------------------------------------------------------------------------------------


def test_a_growth_on_trial_is_recorded_with_it() -> None:
    decide = runs(**ELASTIC)
    effects = do(decide, GROW)
    (fact,) = of(effects, TrialBegun)
    assert (fact.kind, fact.workers, fact.grown, fact.jobs[0].attempt) == (Kind.GROW, 2, 3, 1)
    assert len(of(effects, GangWidened)) == 1
    assert [each.since for message in opened(effects) for each in message.open] == [0]
    (command,) = told(effects)
    decide(changed(command), 20)
    assert [each.since for each in decide.machine.tx.soft.telling.told] == [at(20)]


def test_a_growth_that_gains_is_kept() -> None:
    decide = grown()
    effects = decide(judged(kept=True), 90)
    assert verdicts(effects) == [(Verdict.KEPT, Reason.TRIAL_GAINS)]
    assert not shrinks(effects)


def back(decide: Driver[AllocatorMachine], effects: list[Effect], second: float) -> None:
    """Have a gang be as small as before."""
    assert shrinks(effects) == [2]
    (command,) = told(effects)
    decide(changed(command), second)
    assert decide.machine.state.jobs["j1"].size == 2
    assert decide.machine.state.tries.undoing == {}
    assert Does.seen[-1].jobs[0].trial == 0


def test_a_growth_that_loses_is_shrunk_back() -> None:
    decide = grown()
    effects = decide(judged(kept=False), 90)
    assert verdicts(effects) == [(Verdict.UNDONE, Reason.TRIAL_LOSES)]
    back(decide, effects, 91)


def test_a_growth_without_a_verdict_in_time_is_shrunk_back() -> None:
    decide = grown()
    effects = decide.tick(10 + settings.LASTS_MADE_READY / NS_PER_SECOND)
    # Its node was not heard of for so long that it is lost: nothing is left to be put back.
    assert [fact.verdict for fact in of(effects, TrialOver)] == [Verdict.VOID]
    assert decide.machine.state.tries.undoing == {}


def test_a_growth_that_is_undone_is_shrunk_back_after_a_restart() -> None:
    decide = grown()
    decide(judged(kept=False), 90)
    back(decide, decide.restart(91), 92)


def test_ranks_that_will_not_shrink_keep_their_size_in_the_end() -> None:
    decide = grown()
    effects = decide(judged(kept=False), 90)
    for second in range(91, 91 + trial_facts.SHRINKS_MAX):
        (command,) = told(effects)
        effects = decide(changed(command, Manner.UNCHANGED), second)
    assert not shrinks(effects)
    assert decide.machine.state.tries.undoing == {}


def test_a_growth_that_comes_to_nothing_is_void() -> None:
    decide = runs(**ELASTIC)
    (command,) = told(do(decide, GROW))
    effects = decide(changed(command, Manner.UNCHANGED), 20)
    assert verdicts(effects) == [(Verdict.VOID, Reason.TRIAL_DISTURBED)]
    assert decide.machine.state.tries.undoing == {}


def test_who_has_grown_shrinks_at_once_for_others() -> None:
    decide = grown()
    effects = do(decide, Resize("j1", WHY, 1), second=40)
    assert shrinks(effects) == [1]
    assert verdicts(effects) == [(Verdict.VOID, Reason.TRIAL_DISTURBED)]
    (command,) = told(effects)
    decide(changed(command), 41)
    assert decide.machine.state.jobs["j1"].size == 1
    assert decide.machine.state.tries.undoing == {}


def test_who_has_grown_and_is_suspended_is_as_small_as_before_once_it_runs_again() -> None:
    decide = grown()
    (command,) = told(do(decide, Preempt("j1", WHY), second=40))
    decide(changed(command, released=True), 41)
    assert decide.machine.state.tries.undoing["j1"].workers == 2
    decide(exited("j1"), 42)
    assert decide.machine.state.tries.undoing == {}


def test_a_shrink_is_no_trial() -> None:
    decide = runs(**ELASTIC)
    effects = do(decide, Resize("j1", WHY, 1, trial=True))
    assert shrinks(effects) == [1]
    assert not of(effects, TrialBegun)


def test_the_memory_of_a_gpu_is_seen() -> None:
    decide = allocator(joined("node-1", 4))
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=4, policy="does")}))
    decide(admitted(1, gpus=4))
    decide(started("j1"))
    memory = min(gpu.memory for gpu in joined("node-1", 4).gpus)
    assert [node.gpu_memory for node in Does.seen[-1].nodes] == [memory]


def test_a_rate_of_before_something_changed_is_not_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "SETTLES", seconds(10))
    decide = grown()
    decide(judged(kept=True), 21)
    again = Resize("j1", WHY, 4, trial=True)
    assert not of(do(decide, again, second=29), TrialBegun)
    assert decide.machine.tx.soft.planned["nlp"].look_at == at(30)
    assert len(of(do(decide, again, second=31), TrialBegun)) == 1
