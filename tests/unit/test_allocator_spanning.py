"""Growing and shrinking over several nodes: two rounds, who is told what, and what is put back."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ids import AttemptId
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.changes.resizing_across_nodes import ROUNDS_MAX
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.wire.changes import AskResize, AskSuspend, Goal, JobChanging, Result
from skep.wire.commands import BindJob, ChangeJob, RankPlan, Resize, StopJob, Suspend
from skep.wire.facts import JobBound, JobEnded, JobQueued, JobRequeued, JobStopping
from skep.wire.node import Manner, MemberReady, Outcome
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.spec import Elastic
from tests.kit import T0, Driver, admitted, allocator, cancel_asked, exited, joined, started
from tests.unit.test_allocator_changes import ask, changed, ends, known, of, over, told

CAN = ("suspend", "release", "resize")
SIZES = Elastic(min=1, max=6)
UNDONE = Manner.UNCHANGED


def elastic(*gpus: int, workers: int = 1, **more: Any) -> Driver[AllocatorMachine]:
    """Return an allocator that runs the elastic job j1 on nodes with so many GPUs each."""
    decide = allocator(*(joined(f"node-{i + 1}", count) for i, count in enumerate(gpus)))
    decide(admitted(1, **{"gpus": 1, "workers": workers, "elastic": SIZES, **more}))
    for node in decide.machine.state.jobs["j1"].live:
        decide(started("j1", node=node))
        decide(known("j1", node, can=CAN))
    return decide


def resize(decide: Driver[AllocatorMachine], workers: int, number: int = 2) -> list[Effect]:
    return decide(ask(number, AskResize(job="j1", workers=workers)))


def bound(effects: list[Effect]) -> list[BindJob]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, BindJob)
    ]


def stops(effects: list[Effect]) -> list[StopJob]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, StopJob)
    ]


def came(command: BindJob, **more: Any) -> Any:
    return started(command.job, command.attempt, command.node, order=command.order, **more)


def ready(command: ChangeJob) -> MemberReady:
    return MemberReady(
        node=command.node,
        identity=command.identity,
        job=command.job,
        doors=(),
        attempt=command.attempt,
        order=command.order,
        at=T0,
    )


def gone(command: BindJob, outcome: Outcome = Outcome.STOPPED, **more: Any) -> Any:
    return exited(command.job, command.attempt, command.node, outcome, order=command.order, **more)


def prepared(
    decide: Driver[AllocatorMachine], workers: int, number: int = 2
) -> tuple[list[ChangeJob], list[BindJob]]:
    """Have a gang be told to change its size together; return that, and what began parts."""
    effects = resize(decide, workers, number)
    begins, commands = bound(effects), told(effects)
    for begin in begins:
        commands += told(decide(came(begin)))
    assert all(of_size(one).prepare for one in commands)
    for command in commands:
        effects = decide(ready(command))
    return told(effects), begins


def resized(decide: Driver[AllocatorMachine], workers: int, number: int = 2) -> list[Effect]:
    commands, begins = prepared(decide, workers, number)
    effects: list[Effect] = []
    for command in commands:
        effects = decide(changed(command))
    for begin in begins:
        decide(known("j1", begin.node, can=CAN))
    return effects


def held(decide: Driver[AllocatorMachine]) -> dict[str, tuple[int, ...]]:
    """Return the ranks that j1 has GPUs for, having checked that all agree on them."""
    machine = decide.machine
    job = machine.state.jobs["j1"]
    hold = machine.state.cells.holds[AttemptId(f"j1.{job.attempt}")]
    assert hold.gpus == sum(len(one.devices) for one in job.members.values())
    assert {rank for one in job.members.values() for rank in one.numbers} >= set(range(job.size))
    return {name: member.numbers for name, member in job.members.items()}


def of_size(command: ChangeJob) -> Resize:
    assert isinstance(command.change, Resize)
    return command.change


def size(decide: Driver[AllocatorMachine]) -> int:
    return decide.machine.state.jobs["j1"].size


def test_a_gang_grows_onto_another_node_and_leaves_it_again() -> None:
    decide = elastic(2, 2)
    decide(admitted(3, gpus=1))
    effects = resize(decide, 3, 4)
    (more,) = of(effects, GangWidened)
    assert (more.member.node, more.member.first_rank) == ("node-2", 1)
    (begin,) = bound(effects)
    assert (begin.node, begin.world, begin.joins, begin.awaits) == (
        "node-2",
        3,
        begin.order,
        f"generation-{begin.order}",
    )
    assert begin.ranks == (
        RankPlan(rank=1, local_rank=0, devices=(0,)),
        RankPlan(rank=2, local_rank=1, devices=(1,)),
    )
    assert begin.master_address == "10.0.0.1"
    (first,) = told(effects)
    assert (first.node, of_size(first).at, of_size(first).prepare) == ("node-1", "node-1", True)
    (second,) = told(decide(came(begin)))
    assert (second.node, second.order, of_size(second).ranks) == (
        "node-2",
        first.order,
        begin.ranks,
    )
    assert told(decide(ready(second))) == []
    commands = told(decide(ready(first)))
    assert [one.node for one in commands] == ["node-1", "node-2"]
    for one in commands:
        change = one.change
        assert isinstance(change, Resize)
        assert (change.agree, change.world, change.at) == (True, 3, "node-1")
        assert (change.master_address, change.generation) == ("10.0.0.1", one.order)
    assert size(decide) == 1
    decide(changed(commands[1]))
    effects = decide(changed(commands[0]))
    assert (ends(effects), over(effects)) == (
        [(Goal.RESIZE, Result.DONE)],
        [(4, Result.DONE, None)],
    )
    assert (held(decide), size(decide)) == ({"node-1": (0,), "node-2": (1, 2)}, 3)
    decide(known("j1", "node-2", can=CAN))

    commands, begins = prepared(decide, 1, 5)
    assert begins == []
    assert [of_size(one).ranks for one in commands] == [
        (RankPlan(rank=0, local_rank=0, devices=(0,)),),
        (),
    ]
    decide(changed(commands[1]))
    assert held(decide)["node-2"] == (1, 2), "not before all have changed"
    effects = decide(changed(commands[0]))
    assert [(fact.node, fact.workers) for fact in of(effects, GangNarrowed)] == [("node-2", 0)]
    assert held(decide) == {"node-1": (0,)}
    assert decide(gone(begin, Outcome.SUCCEEDED)) == [], "it had said so already"
    assert decide.machine.state.nodes["node-2"].holdings == {}
    assert len(of(decide(exited("j1")), JobEnded)) == 1


def test_the_last_to_come_leaves_first_and_nobody_is_renumbered() -> None:
    decide = elastic(4, 4, workers=2)
    assert held(decide) == {"node-1": (0, 1)}
    decide(admitted(3, gpus=2))
    resized(decide, 4, 4)
    assert held(decide) == {"node-1": (0, 1), "node-2": (2, 3)}
    decide(admitted(5, gpus=2))
    decide(exited("j3"))
    resized(decide, 5, 6)
    assert held(decide) == {"node-1": (0, 1, 4), "node-2": (2, 3)}
    resized(decide, 3, 7)
    assert held(decide) == {"node-1": (0, 1), "node-2": (2,)}


def test_what_a_part_leaves_behind_is_not_taken_for_its_next_one() -> None:
    decide = elastic(1, 1)
    effects = resize(decide, 2)
    (begin,) = bound(effects)
    commands = [*told(effects), *told(decide(came(begin)))]
    for command in commands:
        effects = decide(ready(command))
    for command in told(effects):
        decide(changed(command))
    decide(known("j1", "node-2", can=CAN))
    resized(decide, 1, 3)
    effects = resize(decide, 2, 4)
    (again,) = bound(effects)
    assert again.order > begin.order
    # What is said of the part before, late or again, means nothing any more.
    assert decide(came(begin)) == []
    assert decide(gone(begin, Outcome.SUCCEEDED)) == []
    assert len(told(decide(came(again)))) == 1


def test_newcomers_that_fail_cost_the_gang_nothing() -> None:
    decide = elastic(1, 1)
    effects = resize(decide, 2)
    (begin,), (first,) = bound(effects), told(effects)
    effects = decide(gone(begin, Outcome.NOT_STARTED, detail="no such image"))
    (command,) = told(effects)
    change = command.change
    assert isinstance(change, Resize)
    assert (command.node, change.prepare, change.world) == ("node-1", True, 1)
    assert (held(decide), size(decide)) == ({"node-1": (0,)}, 1)
    assert decide(changed(first)) == [], "it is told another thing meanwhile"
    effects = decide(changed(command))
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert over(resized(decide, 2, 3)) == [(3, Result.DONE, None)]


def test_who_was_ready_is_sent_home_when_another_cannot_be() -> None:
    decide = elastic(1, 1, 1)
    effects = resize(decide, 3)
    one, two = bound(effects)
    (meets,) = told(effects)
    (ready_one,), (ready_two,) = told(decide(came(one))), told(decide(came(two)))
    decide(ready(meets))
    decide(ready(ready_one))
    effects = decide(changed(ready_two, UNDONE, detail="rank 2: no memory"))
    assert [(each.node, of_size(each).world) for each in told(effects)] == [
        ("node-1", 1),
        ("node-2", 1),
    ]
    for command in told(effects):
        effects = decide(changed(command))
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert held(decide) == {"node-1": (0,)}


def test_where_nobody_took_it_everything_is_as_before() -> None:
    decide = elastic(1, 1)
    commands, _ = prepared(decide, 2)
    decide(changed(commands[0], UNDONE, detail="rank 0: not every member was there"))
    effects = decide(changed(commands[1], UNDONE))
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert (held(decide), size(decide)) == ({"node-1": (0,)}, 1)


def test_what_some_took_and_some_did_not_is_put_back() -> None:
    decide = elastic(1, 1, 1, workers=2)
    commands, _ = prepared(decide, 3)
    assert [one.node for one in commands] == ["node-1", "node-2", "node-3"]
    decide(changed(commands[0]))
    decide(changed(commands[2]))
    effects = decide(changed(commands[1], UNDONE, detail="no answer"))
    (fact,) = of(effects, JobChanging)
    assert (fact.round, fact.undoing) == (2, True)
    back = told(effects)
    assert [(one.node, len(of_size(one).ranks), of_size(one).world) for one in back] == [
        ("node-1", 1, 2),
        ("node-2", 1, 2),
        ("node-3", 0, 2),
    ]
    assert of_size(back[0]).generation > of_size(commands[0]).generation
    for command in back:
        effects = decide(changed(command))
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert (held(decide), size(decide)) == ({"node-1": (0,), "node-2": (1,)}, 2)


def test_a_shrinking_that_some_took_goes_on() -> None:
    decide = elastic(1, 1, 1, workers=3)
    commands, _ = prepared(decide, 2)
    decide(changed(commands[0]))
    decide(changed(commands[1], UNDONE))
    effects = decide(changed(commands[2]))
    again = told(effects)
    assert [of_size(one).world for one in again] == [2, 2, 2]
    for command in again:
        effects = decide(changed(command))
    assert over(effects) == [(2, Result.DONE, None)]
    assert (held(decide), size(decide)) == ({"node-1": (0,), "node-2": (1,)}, 2)


def test_a_gang_that_can_be_brought_to_neither_size_is_repeated() -> None:
    decide = elastic(1, 1, 1, workers=2)
    commands, _ = prepared(decide, 3)
    for _ in range(1, ROUNDS_MAX):
        decide(changed(commands[0]))
        decide(changed(commands[2]))
        commands = told(decide(changed(commands[1], UNDONE)))
        assert len(commands) == 3
    decide(changed(commands[0]))
    decide(changed(commands[2]))
    effects = decide(changed(commands[1], UNDONE))
    (fact,) = of(effects, JobStopping)
    assert fact.why is Reason.NOT_TAKEN
    assert len(stops(effects)) == 3


def test_it_is_repeated_until_it_is_answered_also_after_a_crash() -> None:
    decide = elastic(1, 1)
    effects = resize(decide, 2)
    (begin,), (first,) = bound(effects), told(effects)
    effects = decide(Tick(), 23)
    assert (bound(effects), told(effects)) == ([begin], [first])
    assert [one.order for one in bound(decide(Restarted(2), 24))] == [begin.order]
    (second,) = told(decide(came(begin)))
    decide(ready(first))
    commands = told(decide(ready(second)))
    decide(changed(commands[0]))
    (left,) = told(decide(Restarted(3), 30))
    assert (left.node, left.order) == (commands[1].node, commands[1].order)
    assert over(decide(changed(commands[1]))) == [(2, Result.DONE, None)]


@pytest.mark.parametrize("stage", ["bound", "prepared", "told"])
def test_cancellation_wins_and_frees_everything_when_all_are_gone(stage: str) -> None:
    decide = elastic(1, 1)
    if stage == "told":
        _, (begin,) = prepared(decide, 2)
    else:
        (begin,) = bound(resize(decide, 2))
        if stage == "prepared":
            decide(came(begin))
    effects = decide(cancel_asked(1))
    assert over(effects) == [(2, Result.OVERTAKEN, Reason.OVERTAKEN)]
    assert [(one.node, one.joins) for one in stops(effects)] == [
        ("node-1", 0),
        ("node-2", begin.order),
    ]
    decide(exited("j1", outcome=Outcome.STOPPED))
    assert decide.machine.state.nodes["node-2"].holdings, "its newcomers may still be there"
    effects = decide(gone(begin))
    assert len(of(effects, JobEnded)) == 1
    assert decide.machine.state.cells.holds == {}


def test_a_gang_that_ends_meanwhile_has_succeeded_though_its_newcomers_are_stopped() -> None:
    decide = elastic(1, 1)
    (begin,) = bound(resize(decide, 2))
    decide(came(begin))
    effects = decide(exited("j1"))
    assert [one.node for one in stops(effects)] == ["node-2"]
    (fact,) = of(decide(gone(begin)), JobEnded)
    assert fact.why is Reason.SUCCEEDED


@pytest.mark.parametrize("first", [True, False])
def test_a_gang_ends_though_the_node_that_is_left_has_only_told_so(first: bool) -> None:
    decide = elastic(1, 1, workers=2)
    commands, _ = prepared(decide, 1)
    stays, leaves = sorted(commands, key=lambda one: one.node)
    decide(ask(3, AskSuspend(job="j1")))
    decide(changed(stays if first else leaves))
    effects = decide(exited("j1", 1, stays.node, Outcome.SUCCEEDED))
    if first:
        assert not of(effects, JobEnded), "a rank on the other node may still be told to stay"
        effects = decide(changed(leaves))
    assert [fact.node for fact in of(effects, GangNarrowed)] == [leaves.node]
    assert [fact.why for fact in of(effects, JobEnded)] == [Reason.SUCCEEDED]
    assert (3, Result.OVERTAKEN, Reason.OVERTAKEN) in over(effects)
    assert not decide(exited("j1", 1, leaves.node, Outcome.SUCCEEDED))


def test_a_node_that_is_lost_ends_the_attempt() -> None:
    decide = elastic(1, 1)
    prepared(decide, 2)
    effects = decide.tick(60)
    assert over(effects) == [(2, Result.OVERTAKEN, Reason.OVERTAKEN)]
    assert len(of(effects, JobRequeued)) == 1


def test_a_failed_rank_of_the_gang_ends_the_attempt() -> None:
    decide = elastic(1, 1, workers=1)
    (begin,) = bound(resize(decide, 2))
    effects = decide(exited("j1", outcome=Outcome.EXITED, detail="rank 0"))
    assert len(of(effects, JobStopping)) == 1
    effects = decide(gone(begin))
    assert len(of(effects, JobEnded)) == 1
    assert decide.machine.state.cells.holds == {}


def test_who_wants_all_on_one_node_does_not_leave_it() -> None:
    decide = elastic(1, 2, hard=True)
    name = decide.machine.state.jobs["j1"].live[0]
    assert name == "node-1"
    assert over(resize(decide, 2)) == [(2, Result.REFUSED, Reason.NO_ROOM)]


def test_its_own_nodes_come_first() -> None:
    decide = elastic(2, 2)
    (command,) = told(resize(decide, 2))
    assert (command.node, len(of_size(command).ranks)) == ("node-1", 2)


def victim(decide: Driver[AllocatorMachine], number: int = 5) -> list[Effect]:
    """Have a guaranteed job of another tenant need everything."""
    return decide(admitted(number, vc="lab", gpus=1, workers=2))


def borrowing() -> Driver[AllocatorMachine]:
    """Return an allocator where j1 borrows what lab owns."""
    decide = allocator(joined("node-1", 1), joined("node-2", 1), lab=2)
    decide(admitted(1, vc="lab", gpus=1, workers=1, elastic=SIZES, opportunistic=True))
    node = decide.machine.state.jobs["j1"].live[0]
    decide(started("j1", node=node))
    decide(known("j1", node, can=CAN))
    return decide


def test_who_must_make_room_while_newcomers_get_ready_gives_them_up_and_is_suspended() -> None:
    decide = borrowing()
    effects = resize(decide, 2)
    (begin,), (meets,) = bound(effects), told(effects)
    decide(came(begin))
    decide(ready(meets))
    effects = victim(decide)
    assert of(effects, JobQueued)
    assert not of(effects, JobStopping)
    back = told(effects)
    assert [of_size(one).world for one in back] == [1, 1]
    for command in back:
        effects = decide(changed(command))
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    (command,) = told(effects)
    assert command.change == Suspend(release=True)
    effects = decide(changed(command))
    assert decide.machine.state.jobs["j1"].state is State.SUSPENDED
    assert [fact.job for fact in of(effects, JobBound)] == ["j5"]


def test_who_must_make_room_while_the_gang_changes_is_suspended_when_it_has() -> None:
    decide = borrowing()
    commands, _ = prepared(decide, 2)
    assert told(victim(decide)) == []
    decide(changed(commands[0]))
    effects = decide(changed(commands[1]))
    assert over(effects) == [(2, Result.DONE, None)]
    assert told(effects) == [], "the new part has yet to say what it can"
    effects = decide(known("j1", commands[1].node, can=CAN))
    assert [one.change for one in told(effects)] == [Suspend(release=True, step=1)] * 2


def test_a_gang_that_takes_too_long_to_change_is_stopped() -> None:
    decide = borrowing()
    prepared(decide, 2)
    victim(decide)
    second = (decide.now - T0) / 1e9
    effects = decide(Tick(), second + 16)
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.PREEMPTED]


def test_another_request_waits_for_its_turn() -> None:
    decide = elastic(1, 1)
    commands, _ = prepared(decide, 2)
    assert told(decide(ask(3, AskSuspend(job="j1")))) == []
    decide(changed(commands[0]))
    effects = decide(changed(commands[1]))
    assert [one.change for one in told(effects)] == [Suspend(step=1)] * 2
