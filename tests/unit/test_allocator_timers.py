"""The allocator's timers: each kind is a class, and an instant has one order."""

from skep.base.timers import TimerHeap
from skep.machines.allocator.timers import (
    ClearNode,
    Resend,
    SuccessorDeadline,
    TimeLimit,
    Timer,
    YieldDeadline,
)

IN_ORDER: list[Timer] = [
    YieldDeadline("j1", 3),
    YieldDeadline("j1", 2),
    TimeLimit("j1", 2),
    SuccessorDeadline("j1", 2),
    TimeLimit("j1", 10),
    TimeLimit("j10", 1),
    YieldDeadline("j2", 1),
    TimeLimit("j2", 1),
    ClearNode("node-1"),
    Resend("node-1", "j1", 2),
    Resend("node-1", "j1", 10),
    Resend("node-1", "j2", 1),
    ClearNode("node-2"),
    Resend("node-2", "j1", 1),
]


def test_timers_of_an_instant_come_by_node_job_and_attempt() -> None:
    timers = TimerHeap[Timer]()
    for timer in reversed(IN_ORDER):
        timers.set_timer(timer, 5, timer.order())
    timers.set_timer(Resend("node-9", "j9", 1), 4, Resend("node-9", "j9", 1).order())
    assert timers.pop_due(5) == [Resend("node-9", "j9", 1), *IN_ORDER]


def test_timers_of_two_kinds_are_two() -> None:
    alike: list[Timer] = [TimeLimit("j1", 1), SuccessorDeadline("j1", 1), YieldDeadline("j1", 1)]
    assert len(set(alike)) == 3
    assert len({each.order() for each in IN_ORDER}) == len(set(IN_ORDER)) == len(IN_ORDER)


def test_setting_a_timer_again_at_the_same_instant_changes_nothing() -> None:
    timers = TimerHeap[Timer]()
    for _ in range(3):
        timers.set_timer(TimeLimit("j1", 1), 5, TimeLimit("j1", 1).order())
    assert timers.pop_due(5) == [TimeLimit("j1", 1)]
