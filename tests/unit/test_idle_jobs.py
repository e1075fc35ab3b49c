"""Jobs that do nothing: what an agent says of them, and what the allocator does about it."""

from typing import Any

import pytest

from skep.cells.clusterfile import parse_cluster
from skep.ledger.job_state import State
from skep.machines.agent import (
    AgentMachine,
    DevicesSeen,
    DeviceUse,
    RankSaid,
    RankStats,
    RunEvicted,
    RunFrozen,
    RunRestored,
    RunThawed,
)
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect, Send, Tick
from skep.units import seconds
from skep.wire.admin import SetVcs
from skep.wire.changes import AskResume, Goal, JobChanged, JobChanging
from skep.wire.cluster import IdleRule, VirtualCluster
from skep.wire.commands import Resume, Suspend
from skep.wire.node import Manner
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat, IdlePart, RankProgress
from skep.wire.talk import Idle
from tests.change_kit import GANG, ONE, change
from tests.change_kit import running as agent
from tests.kit import T0, Driver, admitted, allocator, at, bind, heartbeat, joined, plans, started
from tests.unit.test_allocator_changes import ask, changed, ends, known, of, told

DRIVER = ("release",)
"""What can be done with an opaque job where the driver's checkpoint is allowed."""


def running(*nodes: str, can: tuple[str, ...] = DRIVER) -> Driver[AllocatorMachine]:
    """Return an allocator that runs j1 in a VC whose jobs may do nothing for a minute."""
    vc = VirtualCluster(gpus=8, idle=IdleRule(suspend_after=60))
    decide = allocator(*(joined(node) for node in nodes))
    decide(SetVcs(vcs={"nlp": vc}))
    decide(admitted(1, workers=len(nodes), gpus=4, vc="nlp"))
    for node in nodes:
        decide(started("j1", node=node))
        decide(known("j1", node, can))
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    return decide


def idle(
    node: str = "node-1", idle_s: float = 60.0, job: str = "j1", attempt: int = 1
) -> Heartbeat:
    part = IdlePart(job=job, attempt=attempt, idle_ns=seconds(idle_s))
    return Heartbeat(node=node, identity=f"id-{node}", at=T0, idle=(part,))


def test_a_job_that_does_nothing_gives_its_gpus_back_until_it_is_resumed() -> None:
    decide = running("node-1")
    assert decide(idle(idle_s=59)) == []
    effects = decide(idle())
    (command,) = told(effects)
    assert command.change == Suspend(release=True)
    assert [(fact.why, fact.detail) for fact in of(effects, JobChanging)] == [
        (Reason.IDLE, "for 60 s")
    ]
    assert decide(idle()) == [], "it is under way"
    decide(changed(command, Manner.FROZEN, released=True))
    job = decide.machine.state.jobs["j1"]
    assert (job.state, job.released, job.held) == (State.SUSPENDED, True, Reason.IDLE)
    decide(heartbeat(), 30)
    assert of(decide(Tick(), 30), JobChanging) == [], "its owner has to ask for its return"
    effects = decide(ask(2, AskResume(job="j1")))
    (command,) = told(effects)
    assert isinstance(command.change, Resume)
    decide(changed(command))
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    assert len(told(decide(idle()))) == 1, "once it does nothing again"


def test_a_gang_is_idle_if_every_part_of_it_is() -> None:
    decide = running("node-1", "node-2")
    assert decide(idle("node-1"), 10) == []
    assert decide(idle("node-2"), 16) == [], "what node-1 said is no longer fresh"
    assert len(told(decide(idle("node-1"), 17))) == 2


def test_what_is_not_of_this_attempt_or_vc_changes_nothing() -> None:
    decide = running("node-1")
    assert decide(idle(attempt=2)) == decide(idle(job="j7")) == []
    plain = allocator(joined("node-1"))
    plain(admitted(1, gpus=4))
    plain(started("j1"))
    plain(known("j1", "node-1", DRIVER))
    assert plain(idle()) == []


def test_a_job_that_asks_is_suspended_in_any_vc() -> None:
    plain = allocator(joined("node-1"))
    plain(admitted(1, gpus=4))
    plain(started("j1"))
    plain(known("j1", "node-1", ()))
    part = IdlePart(job="j1", attempt=1, idle_ns=seconds(90), asks=True)
    asks = Heartbeat(node="node-1", identity="id-node-1", at=T0, idle=(part,))
    assert plain(asks) == [], "what it can is not known yet"
    plain(known("j1", "node-1", DRIVER))
    effects = plain(asks)
    (command,) = told(effects)
    assert command.change == Suspend(release=True)
    assert [(fact.why, fact.detail) for fact in of(effects, JobChanging)] == [
        (Reason.IDLE, "for 90 s, as it says itself")
    ]
    plain(changed(command, Manner.UNCHANGED, detail="its process 7 uses device 0"))
    assert plain.machine.state.jobs["j1"].state is State.RUNNING
    assert plain(asks) == [], "it could not leave its GPUs, and is not tried again"


@pytest.mark.parametrize(
    "can, why",
    [
        (
            ("suspend", "release"),
            "idle for 60 s: it can be suspended between two mini-batches only, and makes none",
        ),
        (
            (),
            "idle for 60 s: its state cannot be taken off its GPUs (the driver's checkpoint is not "
            "offered)",
        ),
    ],
)
def test_a_job_that_cannot_give_its_gpus_back_stays_and_that_is_said_once(
    can: tuple[str, ...], why: str
) -> None:
    decide = running("node-1", can=can)
    effects = decide(idle())
    assert told(effects) == []
    assert [(fact.why, fact.detail) for fact in of(effects, JobChanged)] == [(Reason.CANNOT, why)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    assert decide(idle()) == []
    decide.restart(20)
    assert of(decide(idle(), 21), JobChanging) == []


def test_a_job_that_kept_its_gpus_goes_on() -> None:
    decide = running("node-1")
    (command,) = told(decide(idle()))
    effects = decide(changed(command, Manner.FROZEN, detail="cuda-checkpoint failed"))
    assert ends(effects) == [(Goal.SUSPEND, "done")]
    assert [fact.detail for fact in of(effects, JobChanging)] == [
        "it kept its GPUs: cuda-checkpoint failed"
    ]
    (command,) = told(effects)
    assert isinstance(command.change, Resume)
    decide(changed(command))
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    assert decide(idle()) == [], "it is not tried again"


# --- agents --------------------------------------------------------------------------------------


def beats(effects: list[Effect]) -> list[tuple[IdlePart, ...]]:
    return [
        effect.message.idle
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Heartbeat)
    ]


def watched() -> Driver[AgentMachine]:
    gang = bind(ranks=plans((0,), (1,)), world=2, idle_s=60)
    return agent(gang, can=None)


def use(*milli: int) -> DevicesSeen:
    return DevicesSeen(tuple(DeviceUse(index, each) for index, each in enumerate(milli)))


def test_an_agent_says_what_does_nothing_for_long_enough() -> None:
    decide = watched()
    decide(use(0, 3))
    assert beats(decide.tick(2)) == [()]
    assert beats(decide.tick(61)) == [()]
    assert beats(decide.tick(62)) == [(IdlePart(job="j1", attempt=1, idle_ns=seconds(60)),)]
    decide(use(0, 500))
    assert beats(decide.tick(63)) == [()]
    decide(use(0, 0))
    assert beats(decide.tick(64)) == beats(decide.tick(123)) == [()]
    assert len(beats(decide.tick(124))[0]) == 1


def test_a_mini_batch_is_not_nothing() -> None:
    decide = watched()
    decide(use(0, 0))
    assert beats(decide.tick(2)) == [()]
    done = RankProgress(rank=0, steps=1, step_ns=10**9, last_step_at=at(50))
    decide(RankStats("j1", 1, done))
    assert beats(decide.tick(62)) == [()]
    assert len(beats(decide.tick(122))[0]) == 1


@pytest.mark.parametrize("milli", [(), (0,), (-1, -1), (0, 11)])
def test_what_is_not_known_counts_as_use(milli: tuple[int, ...]) -> None:
    decide = watched()
    decide(use(*milli))
    assert beats(decide.tick(2)) == beats(decide.tick(300)) == [()]


def test_nobody_is_told_of_jobs_whose_vc_does_not_want_to_know() -> None:
    decide = agent(GANG, can=None)
    decide(use(0, 0))
    assert beats(decide.tick(2)) == beats(decide.tick(300)) == [()]


def says(idle_s: float, rank: int = 0) -> RankSaid:
    return RankSaid(Idle(job="j1", attempt=1, rank=rank, idle_ns=seconds(idle_s)))


def test_ranks_that_say_they_do_nothing_are_believed_whatever_their_devices_do() -> None:
    decide = agent(GANG, can=None)
    decide(use(900, 900))
    decide(says(70), 2)
    assert beats(decide.tick(2)) == [()], "one rank of two"
    decide(says(80, rank=1), 3)
    assert beats(decide.tick(3)) == [
        (IdlePart(job="j1", attempt=1, idle_ns=seconds(70), asks=True),)
    ]
    decide(says(0), 4)
    assert beats(decide.tick(4)) == [()], "it does something again"
    decide(says(70), 5)
    assert len(beats(decide.tick(5))[0]) == 1
    assert beats(decide.tick(9)) == [()], "nothing was heard of it since"


def test_the_rule_of_the_vc_is_not_for_what_says_it_itself() -> None:
    decide = watched()
    decide(use(0, 0))
    for rank in range(2):
        decide(says(0, rank=rank), 2)
    assert beats(decide.tick(2)) == [()]
    for second in range(3, 70):
        for rank in range(2):
            decide(says(0, rank=rank), second)
        assert beats(decide.tick(second)) == [()]
    assert beats(decide.tick(80)) == [()], "it is silent: from now on the rule counts"
    assert len(beats(decide.tick(140))[0]) == 1


def test_a_part_that_has_just_gone_on_is_not_suspended_by_what_it_said_before() -> None:
    decide = agent(bind(), can=("release",))
    decide(says(70), 2)
    assert len(beats(decide.tick(2))[0]) == 1
    decide(change(Suspend(release=True), order=5), 3)
    decide(RunEvicted(ONE, 0, ""), 3)
    decide(RunFrozen(ONE, ""), 3)
    assert beats(decide.tick(4)) == [()]
    decide(change(Resume(), order=6), 20)
    decide(RunThawed(ONE, ""), 20)
    decide(RunRestored(ONE, ""), 20)
    decide(says(88), 21)
    assert beats(decide.tick(21)) == [()], "what it says is of before"
    decide(says(100), 36)
    assert len(beats(decide.tick(36))[0]) == 1


# --- the cluster file ----------------------------------------------------------------------------


def vc_of(idle: Any) -> Any:
    return parse_cluster({"vcs": {"lab": {"gpus": 8, "idle": idle}}})


def test_the_rule_is_read_from_the_cluster_file() -> None:
    assert vc_of({"suspend_after": "30m"}).vcs["lab"].idle == IdleRule(suspend_after=1800)
    assert vc_of({}).vcs["lab"].idle == IdleRule()
    assert vc_of(None).vcs["lab"].idle is None


@pytest.mark.parametrize(
    "idle, line",
    [
        ({"suspend_after": "1s"}, "`suspend_after` is 1 s; it must be 1m to 365d"),
        ({"suspend_after": "soon"}, "`suspend_after` must be a length of time"),
        ({"after": 60}, "unknown key `after`"),
        (60, "`idle` must be an object such as {suspend_after: 30m}"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(idle: Any, line: str) -> None:
    problems = vc_of(idle)
    assert isinstance(problems, list)
    assert problems[0].text.startswith(line), problems
