"""What a policy does to jobs is done, by facts and commands; what it may not do is refused."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.policies import policy_actions
from skep.machines.base import Effect
from skep.policy.api import Policy
from skep.policy.plan import Action, Migrate, Pack, Plan, Preempt, Resize, Suspend, Turn, Unpack
from skep.policy.registry import POLICIES
from skep.policy.view import Phase, VcView
from skep.units import seconds
from skep.wire.admin import SetVcs
from skep.wire.advice import (
    FamilyFit,
    FamilyScale,
    FitError,
    FittedForm,
    JobPace,
    Outlook,
    ScalePoint,
)
from skep.wire.changes import AskSuspend, JobChanged, Result
from skep.wire.cluster import VirtualCluster
from skep.wire.commands import BindJob, ChangeJob
from skep.wire.commands import Resize as ResizeChange
from skep.wire.commands import Suspend as SuspendChange
from skep.wire.facts import CellsAlarm, JobBound, JobRequeued, JobStopping
from skep.wire.moves import JobMoved, SuccessorBound
from skep.wire.node import Outcome
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.resizes import GangWidened
from skep.wire.spec import Elastic, SizeHint
from tests.kit import Driver, admitted, allocator, at, exited, facts_of, joined, started
from tests.unit.test_allocator_changes import ask, changed, known, of, told
from tests.unit.test_allocator_moves import commands, loaded, ready

CAN = ("suspend", "release", "checkpoint", "migrate", "resize")
WHY = Reason.BY_POLICY


class Does(Policy, frozen=True):
    """Places in order of arrival, and does once what it is told to."""

    name: ClassVar[str] = "does"
    source: ClassVar[str] = "a test"
    actions: ClassVar[list[Action]] = []
    seen: ClassVar[list[VcView]] = []
    sees_cells: ClassVar[bool] = True

    def plan(self, view: VcView) -> Plan:
        self.seen.append(view)
        actions, self.actions[:] = tuple(self.actions), []
        left = {action.job for action in actions}
        turns = tuple(
            Turn(job.job, Reason.ARRIVAL)
            for job in view.jobs
            if job.phase is Phase.WAITING and job.job not in left
        )
        return Plan(turns=turns, actions=actions)


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(POLICIES, Does.name, Does)
    Does.actions.clear()
    Does.seen.clear()
    yield
    assert not Does.actions, "a test whose policy was not asked shows nothing"


def running(
    *jobs: dict[str, Any], can: tuple[str, ...] = CAN, nodes: int = 1
) -> Driver[AllocatorMachine]:
    """Return an allocator with these jobs; those that got GPUs run, with what they can do."""
    decide = allocator(*(joined(f"node-{number + 1}", 4) for number in range(nodes)))
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=4 * nodes, policy="does")}))
    for number, fields in enumerate(jobs, 1):
        for bound in of(decide(admitted(number, **fields)), JobBound):
            decide(started(bound.job, node=bound.members[0].node))
            decide(known(bound.job, bound.members[0].node, can))
    return decide


def do(decide: Driver[AllocatorMachine], *actions: Action, second: float = 10) -> list[Effect]:
    """Have the policy take actions: with the next thing that happens in its VC."""
    Does.actions.extend(actions)
    decide.machine.tx.soft.planned["nlp"].due = True
    return decide.tick(second)


def refusals(effects: list[Effect]) -> list[str]:
    return [
        fact.text
        for fact in facts_of(effects)
        if isinstance(fact, CellsAlarm) and fact.rule is Reason.NOT_ITS_JOB and not fact.over
    ]


def quiet(decide: Driver[AllocatorMachine], effects: list[Effect], why: Reason) -> None:
    """Assert that nothing was begun, and that the reason is told."""
    (text,) = refusals(effects)
    assert str(why) in text
    assert not told(effects)
    assert all(job.change is None for job in decide.machine.state.jobs.values())


def test_a_job_that_is_suspended_gives_its_gpus_to_the_next() -> None:
    decide = running({"gpus": 4}, {"gpus": 4})
    (command,) = told(do(decide, Suspend("j1", WHY)))
    assert command.change == SuspendChange(release=True)
    effects = decide(changed(command, released=True), 11)
    assert [fact.result for fact in of(effects, JobChanged)] == [Result.DONE]
    assert [fact.job for fact in of(effects, JobBound)] == ["j2"]
    assert decide.machine.state.jobs["j1"].state is State.SUSPENDED


def test_who_cannot_release_is_not_suspended_by_a_policy() -> None:
    decide = running({"gpus": 4}, can=("suspend",))
    quiet(decide, do(decide, Suspend("j1", WHY)), Reason.CANNOT)


def test_a_preempted_job_is_stopped_where_it_can_nothing_else_and_waits_again() -> None:
    decide = running({"gpus": 4}, can=())
    effects = do(decide, Preempt("j1", WHY))
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.PREEMPTED_BY_POLICY]
    effects = decide(exited("j1", outcome=Outcome.STOPPED), 12)
    assert [fact.why for fact in of(effects, JobRequeued)] == [Reason.PREEMPTED_BY_POLICY]


def test_a_job_of_nobody_is_not_preempted() -> None:
    decide = running({"gpus": 4})
    assert "no such job" in refusals(do(decide, Preempt("j9", WHY)))[0]


def test_a_job_that_waits_is_packed_beside_another_and_taken_off_again() -> None:
    decide = running({"gpus": 4}, {"gpus": 4})
    effects = do(decide, Pack("j2", "j1", WHY))
    (shared,) = of(effects, GpusShared)
    assert (shared.job, shared.beside, shared.why) == ("j2", (("j1", 1),), WHY)
    assert [fact.job for fact in of(effects, JobBound)] == ["j2"]
    for command in told(effects):
        decide(changed(command))
    decide(started("j2"), 11)
    decide(known("j2", can=CAN))
    assert {job.job: job.partners for job in Does.seen[-1].jobs} == {"j1": ("j2",), "j2": ("j1",)}
    (command,) = [
        each
        for each in told(do(decide, Unpack("j2", WHY), second=20))
        if isinstance(each.change, SuspendChange)
    ]
    assert (command.job, command.change) == ("j2", SuspendChange(release=True))
    effects = decide(changed(command, released=True), 21)
    assert decide.machine.state.jobs["j2"].held is Reason.UNPACKED
    assert not of(effects, GpusShared)


@pytest.mark.parametrize("beside", ["j9", "j3", "j2"])
def test_nobody_is_packed_beside_who_is_not_of_his_vc(beside: str) -> None:
    decide = allocator(joined("node-1", 4))
    decide(
        SetVcs(vcs={"nlp": VirtualCluster(gpus=2, policy="does"), "vision": VirtualCluster(gpus=2)})
    )
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=2))
    decide(admitted(3, gpus=2, vc="vision"))
    effects = do(decide, Pack("j2", beside, WHY))
    quiet(decide, effects, Reason.NOT_ITS_JOB)
    assert not of(effects, GpusShared)


def test_who_shares_with_nobody_is_not_unpacked() -> None:
    decide = running({"gpus": 2})
    quiet(decide, do(decide, Unpack("j1", WHY)), Reason.NOT_PACKED)


def test_a_job_moves_to_the_nodes_that_are_named() -> None:
    decide = running({"gpus": 4}, nodes=2)
    effects = do(decide, Migrate("j1", WHY, ("node-2",)))
    (bound,) = of(effects, SuccessorBound)
    assert [member.node for member in bound.members] == ["node-2"]
    (bind,) = commands(effects, BindJob)
    (move,) = told(decide(ready(bind), 20))
    decide(changed(move), 21)
    assert [fact.job for fact in of(decide(loaded(bind), 22), JobMoved)] == ["j1"]
    assert list(decide.machine.state.jobs["j1"].members) == ["node-2"]


def test_without_room_a_move_is_no_mistake_and_nothing_begins() -> None:
    decide = running({"gpus": 4}, {"gpus": 4}, nodes=2)
    effects = do(decide, Migrate("j1", WHY, ("node-2",)))
    assert not refusals(effects)
    assert not of(effects, SuccessorBound)


def test_who_cannot_migrate_is_not_moved() -> None:
    decide = running({"gpus": 4}, can=("suspend",), nodes=2)
    quiet(decide, do(decide, Migrate("j1", WHY)), Reason.CANNOT)


ELASTIC: dict[str, Any] = {"gpus": 1, "workers": 2, "elastic": Elastic(min=1, max=3)}


def test_a_gang_grows_and_shrinks_to_the_size_that_is_named() -> None:
    decide = running(ELASTIC)
    effects = do(decide, Resize("j1", WHY, 3))
    assert len(of(effects, GangWidened)) == 1
    (command,) = told(effects)
    assert isinstance(command.change, ResizeChange)
    assert command.change.world == 3
    decide(changed(command), 11)
    assert decide.machine.state.jobs["j1"].size == 3
    (command,) = told(do(decide, Resize("j1", WHY, 1), second=20))
    decide(changed(command), 21)
    assert decide.machine.state.jobs["j1"].size == 1
    assert Does.seen[-1].free == 3


@pytest.mark.parametrize(
    "fields, workers, can",
    [
        pytest.param(ELASTIC, 4, CAN, id="more than its spec allows"),
        pytest.param({"gpus": 1, "workers": 2}, 3, CAN, id="not elastic"),
        pytest.param(ELASTIC, 3, ("suspend",), id="its ranks cannot"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    fields: dict[str, Any], workers: int, can: tuple[str, ...]
) -> None:
    decide = running(fields, can=can)
    effects = do(decide, Resize("j1", WHY, workers))
    assert refusals(effects)
    assert not told(effects)
    assert decide.machine.state.jobs["j1"].size == 2


def test_a_size_that_its_ranks_do_not_offer_is_no_mistake_and_is_not_tried() -> None:
    decide = running(ELASTIC)
    decide(known("j1", can=CAN, sizes=(1, 2)))
    effects = do(decide, Resize("j1", WHY, 3))
    assert (refusals(effects), told(effects)) == ([], [])
    assert told(do(decide, Resize("j1", WHY, 1), second=11)), "one that they offer is"


def test_what_is_under_way_is_no_mistake_and_goes_on() -> None:
    decide = running(ELASTIC)
    (command,) = told(do(decide, Resize("j1", WHY, 3)))
    effects = do(decide, Suspend("j1", WHY), second=11)
    assert not refusals(effects)
    assert not [each for each in told(effects) if each.order != command.order]


def test_whom_its_tenant_suspends_no_policy_touches() -> None:
    decide = running({"gpus": 4})
    (command,) = told(decide(ask(50, AskSuspend(job="j1"))))
    assert isinstance(command, ChangeJob)
    effects = do(decide, Migrate("j1", WHY))
    assert not of(effects, SuccessorBound)


# --- what it goes by -----------------------------------------------------------------------------


def test_a_view_tells_how_a_job_goes_and_how_it_would() -> None:
    decide = running(ELASTIC | {"size": SizeHint(mini_batches=1000, family="bert")}, nodes=2)
    assert (Does.seen[-1].jobs[0].rate_milli, Does.seen[-1].jobs[0].utilisation) == (0, -1)
    pace = JobPace(
        job="j1", attempt=1, steps=100, rate_milli=4000, utilisation=700, remaining=seconds(225)
    )
    points = (
        ScalePoint(gpus=1, nodes=1, step_ns=seconds(0.5)),
        ScalePoint(gpus=4, nodes=1, step_ns=seconds(0.125)),
        ScalePoint(gpus=4, nodes=2, step_ns=seconds(0.25)),
    )
    kind = next(iter(decide.machine.state.cells.chains.values())).topology.gpu
    scale = FamilyScale(family="bert", gpu_type=kind, points=points)
    decide(Outlook(at=at(20), jobs=(pace,), families=(scale,)), 20)
    (job,) = Does.seen[-1].jobs
    assert (job.steps, job.steps_at, job.rate_milli, job.utilisation) == (100, at(20), 4000, 700)
    assert job.remaining(at(25)) == seconds(220)
    assert job.rates == ((1, 2000), (2, 4000), (3, 6000))
    assert job.slowdown == ((1, 1000), (2, 2000))
    # Of an attempt that is over nothing is known any more; how its family scales is.
    decide(exited("j1", outcome=Outcome.STOPPED), 30)
    job = next(view.jobs[0] for view in reversed(Does.seen) if view.jobs[0].starts == 1)
    assert (job.steps, job.rate_milli, job.slowdown) == (0, 0, ((1, 1000), (2, 2000)))


def test_a_view_tells_what_a_fit_predicts_where_nothing_was_measured() -> None:
    """Points win, a size without one is the fit's P50, and the job's own rate moves all of them."""
    size = SizeHint(mini_batches=1000, family="bert")
    decide = running(ELASTIC | {"size": size}, nodes=2)
    kind = next(iter(decide.machine.state.cells.chains.values())).topology.gpu
    numbers = (1e9, 0.0, 1e9, 0.0, 3e9, 0.0, 0.0, 1.0, 1.0)
    fit = FamilyFit(
        vc="nlp",
        family="bert",
        gpu_type=kind,
        forms=(FittedForm(kind="theta", numbers=numbers, near=1.0, far=1.0),),
        errors=(FitError(low=-0.1, high=0.1),) * 3,
        points=3,
        gpus=2,
        nodes=2,
    )
    decide(Outlook(at=at(10), fits=(msgspec.structs.replace(fit, points=2),)), 10)
    (job,) = Does.seen[-1].jobs
    assert job.rates == (), "by two places no gang would become faster, and none would be tried"
    decide(Outlook(at=at(20), fits=(fit,)), 20)
    (job,) = Does.seen[-1].jobs
    assert job.rates == ((1, 1000), (2, 500), (3, 500)), "1 s alone, 2 s on more"
    assert job.slowdown == ((1, 1000), (2, 2000))
    assert job.rates_low == ((1, 905), (2, 452), (3, 452)), "P90 is a tenth more of a logarithm"
    assert job.slowdown_high == ((1, 1000), (2, 2210))
    point = ScalePoint(gpus=2, nodes=1, step_ns=seconds(1.0))
    scale = FamilyScale(family="bert", gpu_type=kind, points=(point,))
    decide(Outlook(at=at(21), families=(scale,)), 21)
    (job,) = Does.seen[-1].jobs
    assert job.rates == ((1, 1000), (2, 1000), (3, 500))
    assert job.rates_low == ((1, 905), (2, 1000), (3, 452)), "two were measured"
    pace = JobPace(job="j1", attempt=1, steps=100, rate_milli=4000)
    decide(Outlook(at=at(30), jobs=(pace,)), 30)
    (job,) = Does.seen[-1].jobs
    assert job.rates == ((1, 4000), (2, 4000), (3, 2000))
    assert job.rates_low == ((1, 3619), (2, 4000), (3, 1810)), "what it makes itself is known"
    other = msgspec.structs.replace(fit, vc="other")
    decide(Outlook(at=at(40), fits=(other,)), 40)
    assert len(decide.machine.tx.soft.fits) == 1, "of VCs with a policy"
    decide(Outlook(at=at(41), fits=(msgspec.structs.replace(fit, forms=()),)), 41)
    assert len(decide.machine.tx.soft.fits) == 0


def test_what_is_told_of_another_attempt_or_of_one_that_stands_is_passed_over() -> None:
    decide = running({"gpus": 4})
    decide(Outlook(at=at(5), jobs=(JobPace(job="j1", attempt=2, steps=1, rate_milli=9),)), 5)
    (command,) = told(do(decide, Suspend("j1", WHY)))
    decide(Outlook(at=at(11), jobs=(JobPace(job="j1", attempt=1, steps=1, rate_milli=9),)), 11)
    decide(changed(command, released=True), 12)
    assert all(job.rate_milli == 0 for view in Does.seen for job in view.jobs)


def test_a_view_tells_free_cells_by_level_to_whom_asks_for_them() -> None:
    decide = running({"gpus": 1}, nodes=2)
    (levels,) = Does.seen[-1].free_cells.values()
    sizes = next(iter(decide.machine.state.cells.chains.values())).topology.size[1:]
    assert sum(count * size for count, size in zip(levels, sizes, strict=True)) == 7
    assert levels[-1] == 1


def test_who_goes_home_has_its_vcs_cells_there_whatever_that_breaks_up() -> None:
    """Else it borrowed what others who are at home there take back, and they and it took turns."""
    decide = running({"gpus": 3}, {"gpus": 1}, {"gpus": 3}, nodes=2)
    machine = decide.machine
    assert [job.live for job in machine.state.jobs.values()] == [["node-1"], ["node-1"], ["node-2"]]
    (command,) = told(do(decide, Suspend("j2", WHY)))
    decide(changed(command, released=True), 11)
    decide(exited("j1", outcome=Outcome.SUCCEEDED), 12)
    decide.thorough = False
    job = machine.state.jobs["j2"]
    assert policy_actions.go_on(machine.tx, job, (), at(13))
    assert not job.released
    assert job.job not in machine.state.borrowed
    machine.check()
