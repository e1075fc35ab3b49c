"""Commands are repeated until answered, and taken up again after a crash."""

from typing import Any

from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.outbox import RESEND_AFTER
from skep.machines.allocator.settings import NODE_LOST_AFTER
from skep.machines.base import Send
from skep.units import in_seconds
from skep.wire.node import Outcome
from tests.kit import (
    T0,
    TRACE,
    Driver,
    admitted,
    allocator,
    at,
    bind,
    cancel_asked,
    exited,
    heartbeat,
    joined,
    others,
    plans,
    started,
    stop,
)

BIND = Send("skep.v1.cmd.node-1", bind())
STOP = Send("skep.v1.cmd.node-1", stop(settled=1))


def one(**changes: Any) -> Driver[AllocatorMachine]:
    """Return an allocator that has bound j1 to one GPU of node-1."""
    decide = allocator(joined())
    decide(admitted(1, **changes))
    return decide


def test_a_bind_is_repeated_until_a_start_answers() -> None:
    decide = one()
    assert decide.tick(1.9) == []
    assert decide.tick(2) == [BIND]
    assert decide.tick(3) == []
    assert decide.tick(4) == [BIND]
    decide(started("j1"))
    assert decide.tick(6) == []
    assert decide.machine.tx.soft.timers.due == {}


def test_a_bind_is_repeated_until_an_end_answers() -> None:
    decide = one()
    decide(exited("j1"))
    assert decide.tick(2) == []
    assert decide.machine.tx.soft.timers.due == {}


def test_a_stop_takes_the_place_of_the_bind_and_is_repeated_alone() -> None:
    decide = one()
    decide(cancel_asked(1), 1)
    assert decide.tick(2) == []
    assert decide.tick(3) == [STOP]
    assert decide.tick(4) == []
    assert decide.tick(5) == [STOP]
    decide(exited("j1", outcome=Outcome.STOPPED))
    assert decide.tick(7) == []


def test_restarts_of_an_agent_do_not_multiply_the_reminders() -> None:
    decide = one()
    for incarnation in range(2, 9):
        decide(joined(incarnation=incarnation), 0.5)
    assert decide.tick(2.5) == [BIND]
    assert decide.tick(4.5) == [BIND]


def test_the_timer_is_the_earliest_of_all() -> None:
    decide = allocator()
    assert decide.machine.wake_at() is None
    decide(joined(), 10)
    assert decide.machine.wake_at() == at(11)  # The node is looked after every second.
    decide(admitted(1), 10)
    decide.tick(11.5)
    assert decide.machine.wake_at() == at(12)  # The bind.
    assert decide.machine.wake_at() == T0 + 10_000_000_000 + RESEND_AFTER


def test_after_a_crash_everything_unanswered_is_told_again_in_the_new_epoch() -> None:
    decide = allocator(joined("node-1", 2), joined("node-2", 2), nlp=4)
    decide(admitted(1, gpus=2, trace=TRACE))
    decide(admitted(2))
    decide(started("j1"))
    decide(admitted(3))
    decide(cancel_asked(2))
    # j1 runs on node-1 and has answered; j2 is to stop, j3 to start.
    told = [
        Send("skep.v1.cmd.node-2", stop("j2", node="node-2", order=4, settled=2, epoch=2)),
        Send(
            "skep.v1.cmd.node-2",
            bind(
                "j3",
                order=3,
                settled=2,
                epoch=2,
                node="node-2",
                ranks=plans((1,)),
                master_port=20001,
            ),
        ),
    ]
    assert decide.restart(9) == told
    decide(heartbeat(), 10)
    decide(heartbeat("node-2"), 10)
    assert decide.tick(11) == told


def test_after_a_crash_between_facts_and_sends_the_job_starts_all_the_same() -> None:
    decide = allocator(joined())
    decide.machine.decide(admitted(1), T0)  # Its facts were never durable.
    decide.restart(1)
    assert others(decide(admitted(1), 1)) == [Send("skep.v1.cmd.node-1", bind(epoch=2))]
    assert decide.restart(2) == [Send("skep.v1.cmd.node-1", bind(epoch=3))]
    decide(started("j1"))
    assert decide.restart(3) == []


def test_every_restart_gives_nodes_their_whole_time_to_speak() -> None:
    decide = one()
    lost_s = in_seconds(NODE_LOST_AFTER)
    decide.restart(100)
    assert others(decide.tick(100 + lost_s)) == [Send("skep.v1.cmd.node-1", bind(epoch=2))]
    assert not decide.machine.state.nodes["node-1"].lost


def test_a_restart_without_facts() -> None:
    decide = Driver(AllocatorMachine)
    assert decide.restart() == []
    assert decide.machine.wake_at() is None
    assert decide.machine.state.epoch == 1


def test_the_epoch_is_that_of_the_last_owner() -> None:
    decide = allocator(joined())
    decide.epoch = 6
    decide.restart()
    assert others(decide(admitted(1))) == [Send("skep.v1.cmd.node-1", bind(epoch=7))]


def test_a_port_just_released_is_not_used_at_once() -> None:
    decide = allocator(joined())
    for number in range(1, 4):
        sends = others(decide(admitted(number)))
        assert [effect.message.master_port for effect in sends if isinstance(effect, Send)] == [
            19_999 + number
        ]
        decide(exited(f"j{number}"))
