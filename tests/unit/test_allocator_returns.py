"""Suspended attempts return to other GPUs of their nodes, where their ranks can go on with them."""

from typing import Any

import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.settings import YIELDS_WITHIN
from skep.machines.base import Tick
from skep.units import NS_PER_SECOND
from skep.wire.changes import AskResume, AskSuspend, Goal, GpusRegained, Result
from skep.wire.commands import ChangeJob, RankPlan, Resume, Suspend
from skep.wire.facts import JobBound, JobPromoted, JobRequeued, JobStopping
from skep.wire.node import Manner, Outcome
from skep.wire.reasons import Reason
from tests.kit import Driver, admitted, allocator, exited, joined, member, plans, started
from tests.unit.test_allocator_changes import ask, changed, ends, known, of, over, told

ABLE = ("suspend", "release", "rebind")
NODE = "node-1"


def full(can: tuple[str, ...] = ABLE, **more: Any) -> Driver[AllocatorMachine]:
    """Return an allocator that runs j1 on GPU 0 of four, and j2 to j4 on the others."""
    decide = allocator(joined())
    for number in range(1, 5):
        decide(admitted(number, gpus=1, **more))
        decide(started(f"j{number}"))
        decide(known(f"j{number}", can=can))
    assert devices(decide, "j1") == ((0,),)
    return decide


def devices(decide: Driver[AllocatorMachine], job: str) -> tuple[tuple[int, ...], ...]:
    (part,) = decide.machine.state.jobs[job].members.values()
    return part.devices


def stands_aside(decide: Driver[AllocatorMachine], job: str, number: int) -> None:
    """Have a job give its GPUs back."""
    (command,) = told(decide(ask(number, AskSuspend(job=job, release=True))))
    assert over(decide(changed(command))) == [(number, Result.DONE, None)]


def returns(decide: Driver[AllocatorMachine], job: str, number: int) -> ChangeJob:
    (command,) = told(decide(ask(number, AskResume(job=job))))
    return command


def test_a_job_goes_on_with_whichever_gpu_of_its_node_is_idle() -> None:
    decide = full()
    stands_aside(decide, "j1", 10)
    assert [fact.job for fact in of(decide(admitted(5, gpus=1)), JobBound)] == ["j5"]
    assert devices(decide, "j5") == ((0,),)
    assert told(decide(ask(11, AskResume(job="j1")))) == []
    assert decide.machine.state.jobs["j1"].waits == (Reason.WAITS_FOR_ITS_GPUS, "1 GPUs of node-1")

    effects = decide(exited("j3"))
    (gpus,) = of(effects, GpusRegained)
    assert gpus.members == (member(NODE, (2,)),)
    (command,) = told(effects)
    assert command.change == Resume(ranks=(RankPlan(rank=0, local_rank=0, devices=(2,)),))
    # Its VC's cells cover it there in the same decision: it is as good a place as any.
    assert len(of(effects, JobPromoted)) == 1
    assert over(decide(changed(command))) == [(11, Result.DONE, None)]
    job = decide.machine.state.jobs["j1"]
    assert (job.state, job.attempt, devices(decide, "j1")) == (State.RUNNING, 1, ((2,),))
    # What it had is nobody's but j5's, and what it has now comes free with its end.
    decide(exited("j1"))
    assert [fact.job for fact in of(decide(admitted(6, gpus=1)), JobBound)] == ["j6"]
    assert devices(decide, "j6") == ((2,),)


def test_its_own_gpus_are_the_first_choice() -> None:
    decide = full()
    stands_aside(decide, "j1", 10)
    decide(exited("j3"))
    effects = decide(ask(11, AskResume(job="j1")))
    assert [fact.members for fact in of(effects, GpusRegained)] == [()]
    assert [command.change for command in told(effects)] == [Resume()]


def test_a_job_that_keeps_its_gpus_for_life_waits_for_the_very_same() -> None:
    decide = full(can=("suspend", "release"))
    stands_aside(decide, "j1", 10)
    decide(admitted(5, gpus=1))
    decide(ask(11, AskResume(job="j1")))
    assert told(decide(exited("j3"))) == []
    assert decide.machine.state.jobs["j1"].waits == (Reason.WAITS_FOR_ITS_GPUS, "node-1:0")
    (command,) = told(decide(exited("j5")))
    assert command.change == Resume()


def test_it_never_takes_what_a_guaranteed_job_has_claimed_or_has_a_right_to() -> None:
    decide = allocator(joined(), nlp=2, vision=2)
    decide(admitted(1, vc="vision", gpus=1, opportunistic=True))
    decide(admitted(2, vc="vision", gpus=1, opportunistic=True))
    for name in ("j1", "j2"):
        decide(started(name))
        decide(known(name, can=ABLE))
    # The owner of two GPUs comes: one makes room, and returns to what is idle, borrowed as before.
    effects = decide(admitted(3, vc="nlp", gpus=2))
    effects += decide(admitted(4, vc="vision", gpus=2))
    for command in told(effects):
        decide(changed(command))
    away = [job.job for job in decide.machine.state.away.values()]
    assert away == ["j1", "j2"]
    effects = decide(exited("j4"))
    assert [fact.job for fact in of(effects, GpusRegained)] == ["j1", "j2"]
    assert not decide.machine.state.borrowed, "they never were guaranteed"
    # It yields again at once to whoever owns the cells.
    for command in told(effects):
        decide(changed(command))
    again = told(decide(admitted(5, vc="vision", gpus=2)))
    assert sorted(command.job for command in again) == ["j1", "j2"]


def test_who_is_about_to_go_on_yields_once_it_does_and_loses_nothing() -> None:
    decide = allocator(joined(), nlp=2, vision=2)
    decide(admitted(1, vc="vision", gpus=1, opportunistic=True))
    decide(started("j1"))
    decide(known("j1", can=ABLE))
    effects = decide(admitted(2, vc="nlp", gpus=2)) + decide(admitted(3, vc="vision", gpus=2))
    for command in told(effects):
        decide(changed(command))
    (resume,) = told(decide(exited("j3")))
    assert resume.change == Resume()

    effects = decide(admitted(4, vc="vision", gpus=2))
    assert not of(effects, JobStopping)
    assert not told(effects)
    (suspend,) = [each for each in told(decide(changed(resume))) if each.job == "j1"]
    assert suspend.change == Suspend(release=True)
    assert [fact.job for fact in of(decide(changed(suspend)), JobBound)] == ["j4"]
    assert decide.machine.state.jobs["j1"].attempt == 1


def test_who_never_goes_on_yields_by_its_end() -> None:
    decide = allocator(joined(), nlp=2, vision=2)
    decide(admitted(1, vc="vision", gpus=1, opportunistic=True))
    decide(started("j1"))
    decide(known("j1", can=ABLE))
    effects = decide(admitted(2, vc="nlp", gpus=2)) + decide(admitted(3, vc="vision", gpus=2))
    for command in told(effects):
        decide(changed(command))
    decide(exited("j3"))
    decide(admitted(4, vc="vision", gpus=2))
    decide(Tick(), YIELDS_WITHIN / NS_PER_SECOND + 10)
    assert decide.machine.state.jobs["j1"].state is State.STOPPING


def test_a_gang_stays_on_its_nodes_and_each_rank_has_as_many_as_before() -> None:
    decide = allocator(joined("node-1"), joined("node-2"))
    decide(admitted(1, gpus=1, workers=6))
    for node in ("node-1", "node-2"):
        decide(started("j1", node=node))
        decide(known("j1", node, ABLE))
    before = dict(decide.machine.state.jobs["j1"].members)
    counts = {node: len(part.devices) for node, part in before.items()}
    assert sorted(counts.values()) == [2, 4]
    small = next(node for node, count in counts.items() if count == 2)
    decide(admitted(2, gpus=1))
    gone = told(decide(ask(10, AskSuspend(job="j1", release=True))))
    for command in gone:
        decide(changed(command, step=3))
    bound = [fact for number in (3, 4) for fact in of(decide(admitted(number, gpus=1)), JobBound)]
    assert len(bound) == 2
    effects = decide(ask(11, AskResume(job="j1")))
    (gpus,) = of(effects, GpusRegained) or [None]
    assert gpus is None or {part.node: len(part.devices) for part in gpus.members} == counts
    for command in told(effects):
        assert isinstance(command.change, Resume)
        assert {plan.rank for plan in command.change.ranks} == {
            before[command.node].first_rank + i for i in range(counts[command.node])
        }
    assert small


def stuck() -> tuple[Driver[AllocatorMachine], ChangeJob]:
    """Return an allocator whose j1 was told to go on with GPU 2 and not 0."""
    decide = full()
    stands_aside(decide, "j1", 10)
    decide(admitted(5, gpus=1))
    decide(exited("j3"))
    return decide, returns(decide, "j1", 11)


def test_who_cannot_go_on_there_gives_the_gpus_back_and_waits_for_its_own() -> None:
    decide, command = stuck()
    effects = decide(changed(command, Manner.UNCHANGED, released=True, detail="no memory there"))
    assert over(effects) == [(11, Result.UNDONE, Reason.NOT_TAKEN)]
    assert ends(effects) == [(Goal.RESUME, Result.UNDONE)]
    job = decide.machine.state.jobs["j1"]
    assert (job.state, job.released, devices(decide, "j1")) == (State.SUSPENDED, True, ((0,),))
    assert [fact.job for fact in of(decide(admitted(6, gpus=1)), JobBound)] == ["j6"]
    decide(exited("j6"))
    assert told(decide(ask(12, AskResume(job="j1")))) == []
    effects = decide(exited("j5"))
    (command,) = told(effects)
    # Its node is told all the same with which GPUs it goes on: there is no doubt about that.
    assert command.change == Resume(ranks=plans((0,)))
    assert over(decide(changed(command))) == [(12, Result.DONE, None)]


def test_who_may_be_anywhere_is_stopped_and_repeated() -> None:
    decide, command = stuck()
    for _ in range(2):
        effects = decide(changed(command, Manner.UNCHANGED, detail="it says nothing"))
        (command,) = told(effects)
        assert command.change == Resume(ranks=plans((2,)))
    effects = decide(changed(command, Manner.UNCHANGED, detail="it says nothing"))
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.NOT_TAKEN]
    assert not of(decide(admitted(6, gpus=1)), JobBound), "its GPU is taken until it is gone"
    effects = decide(exited("j1", outcome=Outcome.STOPPED))
    assert [fact.job for fact in of(effects, JobRequeued)] == ["j1"]


@pytest.mark.parametrize("suspended", [False, True])
def test_a_job_that_goes_on_elsewhere_is_told_where_in_whatever_follows(suspended: bool) -> None:
    decide, command = stuck()
    decide(changed(command))
    (command,) = told(decide(ask(12, AskSuspend(job="j1"))))
    decide(changed(command))
    if suspended:
        decide.restart(50)
    assert returns(decide, "j1", 13).change == Resume(ranks=plans((2,)))


def other_node(node: str) -> str:
    return "node-2" if node == "node-1" else "node-1"


def runs(decide: Driver[AllocatorMachine], number: int, **fields: Any) -> str:
    """Have a job of one node start; return that node."""
    decide(admitted(number, **fields))
    (node,) = decide.machine.state.jobs[f"j{number}"].members
    decide(started(f"j{number}", node=node))
    decide(known(f"j{number}", node, ABLE))
    return node


def test_a_job_that_returns_has_its_vcs_cell_though_another_would_have_been_tighter() -> None:
    decide = allocator(joined("node-1"), joined("node-2"))
    home = runs(decide, 1, gpus=2)
    stands_aside(decide, "j1", 10)
    on = {runs(decide, number, gpus=4): number for number in (2, 3)}
    decide(exited(f"j{on[other_node(home)]}", node=other_node(home)))
    assert runs(decide, 4, gpus=1) == other_node(home), "a new job of 2 GPUs would go beside it"
    decide(exited(f"j{on[home]}", node=home))

    effects = decide(ask(11, AskResume(job="j1")))
    assert [fact.job for fact in of(effects, GpusRegained)] == ["j1"]
    assert [fact.job for fact in of(effects, JobPromoted)] == ["j1"]
    assert not decide.machine.state.borrowed


def test_a_job_that_returns_is_promoted_once_a_cell_of_its_vc_covers_it() -> None:
    decide = allocator(joined("node-1"), joined("node-2"), nlp=4, vision=4)
    home = runs(decide, 1, gpus=2)
    stands_aside(decide, "j1", 10)
    on = {runs(decide, 2, gpus=4): 2, runs(decide, 3, vc="vision", gpus=4): 3}
    assert on[home] == 3, "its VC's cell is on the other node by now"
    decide(exited("j3", node=home))
    effects = decide(ask(11, AskResume(job="j1")))
    assert not of(effects, JobPromoted)
    assert list(decide.machine.state.borrowed) == ["j1"]
    effects = decide(exited("j2", node=other_node(home)))
    assert [fact.job for fact in of(effects, JobPromoted)] == ["j1"]


def test_opportunistic_jobs_leave_the_gpus_of_a_job_that_is_to_go_on() -> None:
    decide = allocator(joined())
    runs(decide, 1, gpus=2)
    stands_aside(decide, "j1", 10)
    for number in (2, 3, 4, 5):
        runs(decide, number, gpus=1, opportunistic=True)

    commands = told(decide(ask(11, AskResume(job="j1"))))
    assert [command.change for command in commands] == [Suspend(release=True)] * 2
    first, second = commands
    # Meanwhile no other job is offered what the first of them left.
    assert not of(decide(changed(first)), GpusRegained)
    assert not of(decide(admitted(6, gpus=1)), JobBound)
    assert not of(decide(admitted(7, gpus=1, opportunistic=True)), JobBound)
    effects = decide(changed(second))
    assert [fact.job for fact in of(effects, GpusRegained)] == ["j1"]
    assert [fact.job for fact in of(effects, JobPromoted)] == ["j1"]


def test_a_job_that_is_to_go_on_does_not_go_ahead_of_one_that_waits_before_it() -> None:
    decide = allocator(joined())
    runs(decide, 1, gpus=2)
    stands_aside(decide, "j1", 10)
    runs(decide, 2, gpus=2, priority=1)
    for number in (3, 4):
        runs(decide, number, gpus=1, opportunistic=True)
    decide(admitted(5, gpus=4, priority=1))
    assert told(decide(ask(11, AskResume(job="j1")))) == []
    assert decide.machine.state.jobs["j1"].away
