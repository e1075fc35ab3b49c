"""What an answer says comes true: the change that it names is made, by the machines themselves.

Random small clusters, with what a snapshot says of both machines compared before and after each
question. A job that would start with a change does so when it is cancelled and submitted with it;
one that would not does not; a plan's place is the place; a wait ends when it was said to.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from skep.ids import job_sequence
from skep.ledger.job_state import State
from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.what_if import what_if
from skep.machines.base import Record, Restarted, Send, Tick
from skep.units import Duration, Instant, after, seconds
from skep.wire import codec
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.commands import Suspend
from skep.wire.drafts import Answer, Judge, Judgement, Option, Outcome, Question, Start, Touch
from skep.wire.node import Manner, MemberChanged, MemberExited, MemberKnown, MemberStarted, Tier
from skep.wire.node import Outcome as Exit
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, SizeHint
from skep_services.what_if import JudgeOnly
from tests.kit import T0, at, joined, spec

WORLDS = 10
CAN = (
    (),
    ("suspend", "checkpoint"),
    ("suspend", "release"),
    ("suspend", "release", "checkpoint", "rebind"),
)
POLICIES = ("fifo", "fifo", "srtf", "las")


class World:
    """Admission and allocator; jobs that are bound run at once, and are stopped at once."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.draw, self.now, self.number = draw, at(1), 0
        self.admission, self.allocator = AdmissionMachine(), AllocatorMachine()
        self.tell(Restarted(1))
        kinds = ("v100", "k80") if draw.random() < 0.5 else ("v100",)
        vcs = {
            name: VirtualCluster(
                gpus=draw.randint(1, 8),
                policy=draw.choice(POLICIES),
                weight=draw.choice((1.0, 2.0)),
            )
            for name in ("a", "b")
        }
        self.tell(SetVcs(vcs=vcs))
        for number in range(draw.randint(2, 4)):
            self.tell(joined(f"node-{number}", {draw.choice(kinds): draw.choice((2, 4))}))
        self.kinds, self.able = kinds, draw.random() < 0.5

    def tell(self, event: Any) -> None:
        """Have both machines decide, and nodes do what they are told."""
        said: list[Any] = [event]
        while said:
            first = said.pop(0)
            told = codec.Facts | codec.Submission | codec.CancelRequest | SetVcs | Restarted
            if isinstance(first, told):
                self._takes(self.admission, first, said)
            if not isinstance(first, codec.Submission | codec.CancelRequest):
                self._takes(self.allocator, first, said)

    def _takes(self, machine: Any, event: Any, said: list[Any]) -> None:
        service = "admission" if machine is self.admission else "allocator"
        if isinstance(event, codec.Facts) and event.service == service:
            return
        effects = machine.decide(event, self.now)
        facts = tuple(effect.fact for effect in effects if isinstance(effect, Record))
        if facts:
            said.append(codec.Facts(service=service, at=self.now, facts=facts))
        for effect in effects:
            tag = type(effect.message).__name__ if isinstance(effect, Send) else ""
            if isinstance(effect, Send) and tag == "BindJob":
                order = effect.message
                said.append(
                    MemberStarted(
                        node=order.node,
                        identity=order.identity,
                        at=self.now,
                        job=order.job,
                        attempt=order.attempt,
                    )
                )
                if can := self.can(order.job):
                    said.append(
                        MemberKnown(
                            node=order.node,
                            identity=order.identity,
                            at=self.now,
                            job=order.job,
                            attempt=order.attempt,
                            can=can,
                            tier=Tier.COOPERATIVE,
                        )
                    )
            elif isinstance(effect, Send) and tag == "ChangeJob":
                order = effect.message
                gives = isinstance(order.change, Suspend) and order.change.release
                said.append(
                    MemberChanged(
                        node=order.node,
                        identity=order.identity,
                        at=self.now,
                        job=order.job,
                        attempt=order.attempt,
                        released=gives,
                        order=order.order,
                        manner=Manner.BOUNDARY,
                    )
                )
            elif isinstance(effect, Send) and tag == "StopJob":
                order = effect.message
                said.append(
                    MemberExited(
                        node=order.node,
                        identity=order.identity,
                        at=self.now,
                        job=order.job,
                        attempt=order.attempt,
                        outcome=Exit.STOPPED,
                    )
                )
        if machine is self.allocator and machine.tx.soft.check_at == self.now:
            said.append(Tick())

    def can(self, name: str) -> tuple[str, ...]:
        """Return what a job lets Skep do with it: some can give their GPUs back and go on."""
        return CAN[job_sequence(name) % len(CAN)] if self.able else ()  # type: ignore[operator]

    def submit(self, wanted: JobSpec | bytes, vc: str = "a") -> str:
        """Submit a job and return its id."""
        self.number = max(self.number, self.admission.last_sequence) + 1
        raw = wanted if isinstance(wanted, bytes) else codec.encode(wanted)
        vc = wanted.vc if isinstance(wanted, JobSpec) else vc
        self.tell(codec.Submission(job=f"j{self.number}", vc=vc, raw=raw, at=self.now))
        return f"j{self.number}"

    def cancel(self, name: str) -> None:
        raw = codec.encode({"job": name})
        vc = self.allocator.state.jobs[name].spec.vc
        self.tell(codec.CancelRequest(vc=vc, raw=raw, at=self.now))

    def ends(self, name: str) -> None:
        job = self.allocator.state.jobs[name]
        for node in list(job.live):
            self.tell(
                MemberExited(
                    node=node,
                    identity=job.members[node].identity,
                    job=name,
                    attempt=job.attempt,
                    outcome=Exit.SUCCEEDED,
                    at=self.now,
                )
            )

    def any_spec(self) -> JobSpec:
        draw = self.draw
        changes: dict[str, Any] = {}
        if len(self.kinds) > 1 and draw.random() < 0.5:
            changes["gpu_type"] = draw.choice(self.kinds)
        if draw.random() < 0.3:
            changes["over_quota"] = "opportunistic"
        return spec(
            vc=draw.choice("ab"),
            gpus=draw.choice((1, 1, 2, 4)),
            workers=draw.choice((1, 1, 2, 3)),
            priority=draw.choice((0, 0, 1, 5)),
            opportunistic=draw.random() < 0.2,
            cpus=draw.choice((0, 0, 40)),
            **changes,
        )

    def twin(self) -> World:
        """Return a world that is as this one is, and goes on by itself."""
        made = copy.copy(self)
        made.admission, made.allocator = copy.deepcopy(self.admission), twin(self.allocator)
        return made

    def lives(self, steps: int) -> None:
        """Have things happen."""
        for _ in range(steps):
            self.now = after(self.now, seconds(self.draw.randint(1, 20)))
            running = [
                job.job for job in self.allocator.state.jobs.values() if job.state is State.RUNNING
            ]
            if running and self.draw.random() < 0.3:
                self.ends(self.draw.choice(running))
            else:
                self.submit(self.any_spec())

    def ask(self, question: Question) -> Answer:
        """Ask the allocator; nothing may change by it."""
        machine = self.allocator
        before = codec.encode(machine.snapshot()), machine.wake_at()

        def apart(work: Callable[[AllocatorMachine], Outcome]) -> Outcome:
            found = work(twin(machine))
            return msgspec.json.decode(codec.encode(found), type=Outcome)

        answer = what_if.answer(machine, question, self.now, apart)
        assert before == (codec.encode(machine.snapshot()), machine.wake_at())
        outcomes = [one.outcome for one in (*answer.options, *answer.in_vain)]
        for outcome in (answer.outcome, *outcomes):
            for one in outcome.others if outcome is not None else ():
                # Nothing but a start can happen to a job that has no GPUs.
                assert one.what is Touch.STARTS or self.state(one.job) is not State.QUEUED, one
        return answer

    def judge(self, wanted: JobSpec, instead: str = "") -> JobSpec | None:
        before = codec.encode(self.admission.snapshot())
        asked = Judge(vc=wanted.vc, spec=codec.encode(wanted).decode(), instead=instead)
        judged = JudgeOnly(self.admission, None).look(codec.encode(asked))  # type: ignore[arg-type]
        assert codec.encode(self.admission.snapshot()) == before
        return msgspec.json.decode(judged, type=Judgement).spec

    def state(self, name: str) -> State | None:
        job = self.allocator.state.jobs.get(name)
        return None if job is None else job.state


def twin(machine: AllocatorMachine) -> AllocatorMachine:
    """Return a copy of an allocator; where the watch over its cells was, no copy can tell."""
    return copy.deepcopy(machine, {id(machine.tx.soft.patrol): None})


def waiting(world: World) -> list[str]:
    return [name for name, job in world.allocator.state.jobs.items() if job.state is State.QUEUED]


@pytest.mark.parametrize("seed", range(WORLDS))
def test_what_an_answer_says_comes_true(seed: int) -> None:
    world = World(seed)
    for _ in range(3):
        world.lives(6)
        names = waiting(world)
        if names:
            name = world.draw.choice(names)
            answer = world.ask(Question(job=name, others=True))
            assert answer.outcome is not None
            for option in (*answer.options, *answer.in_vain):
                _comes_true(world, name, option)
        _plans(world)


def _comes_true(world: World, name: str, option: Option) -> None:
    """Make a change for real, on other copies of both machines, and look what becomes of it."""
    if option.spec is None:
        return
    if world.judge(option.spec, instead=name) != option.spec:
        return  # It would never come that far, or be another job than the one that was tried.
    real = world.twin()
    real.cancel(name)
    other = real.submit(option.spec)
    runs = real.state(other) not in (State.QUEUED, State.RESERVED)
    expected = option.outcome.start in (Start.NOW, Start.AFTER)
    assert runs == expected, (option, real.allocator.state.jobs[other])
    if option.outcome.start is Start.NOW:
        assert tuple(real.allocator.state.jobs[other].members.values()) == option.outcome.members


def _plans(world: World) -> None:
    wanted = world.any_spec()
    admitted = world.judge(wanted)
    real = world.twin()
    name = real.submit(wanted)
    assert (admitted is None) == (name not in real.allocator.state.jobs)
    if admitted is None:
        return
    outcome = world.ask(Question(spec=admitted)).outcome
    assert outcome is not None
    job = real.allocator.state.jobs[name]
    runs = job.state not in (State.QUEUED, State.RESERVED)
    assert runs == (outcome.start in (Start.NOW, Start.AFTER)), (outcome, job)
    if outcome.start is Start.NOW:
        assert tuple(job.members.values()) == outcome.members
    stopped = {one.job for one in outcome.others if one.what in ("stops", "stores")}
    assert stopped == {
        each.job
        for each in world.allocator.state.jobs.values()
        if each.state in (State.RUNNING, State.SUSPENDED)
        and (
            real.state(each.job) is State.QUEUED
            or real.allocator.state.jobs[each.job].attempt > each.attempt
        )
    }


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_wait_ends_when_it_was_said_to(seed: int) -> None:
    world = World(seed)
    world.lives(12)
    names = waiting(world)
    if not names:
        return
    name = world.draw.choice(names)
    left = {
        job.job: Duration(seconds(world.draw.randint(1, 100)))
        for job in world.allocator.state.jobs.values()
        if job.state is State.RUNNING
    }
    outcome = world.ask(Question(job=name, remaining=left)).outcome
    assert outcome is not None
    begin, attempts = (
        world.now,
        {job.job: job.attempt for job in world.allocator.state.jobs.values()},
    )
    for other, lasts in sorted(left.items(), key=lambda one: one[1]):
        if world.state(name) not in (State.QUEUED, State.RESERVED):
            break
        world.now = Instant(begin + lasts)
        job = world.allocator.state.jobs.get(other)
        # One that was stopped meanwhile has run for less, and ends later.
        if job is not None and job.state is State.RUNNING and job.attempt == attempts[other]:
            world.ends(other)
    job = world.allocator.state.jobs[name]
    if outcome.start is Start.LATER and job.attempt == attempts[name] + 1:
        assert job.bound_at == outcome.at, (outcome, job)
    if job.state in (State.QUEUED, State.RESERVED):
        assert outcome.start is not Start.NOW


def test_an_owner_s_word_tells_when_it_ends() -> None:
    world = World(2)
    world.tell(SetVcs(vcs={"a": VirtualCluster(gpus=4), "b": VirtualCluster()}))
    hinted = spec(vc="a", size=SizeHint(run_time=90.0), time=300)
    outcome = world.ask(Question(spec=hinted)).outcome
    assert outcome is not None
    assert outcome.start is Start.NOW
    assert outcome.ends_at == after(world.now, seconds(90))
    assert outcome.ends_most == after(world.now, seconds(300))
    name = world.submit(spec(vc="a"))
    running = world.ask(Question(job=name))
    assert running.problem == f"{name} does not wait for GPUs: it is running"
    assert "j99" in world.ask(Question(job="j99")).problem
    assert world.now > T0
    assert Reason.ONCE_OTHERS_END in what_if.ORDER


def test_a_time_limit_ends_a_wait_at_the_latest() -> None:
    world = World(2)
    world.tell(SetVcs(vcs={"a": VirtualCluster(gpus=1), "b": VirtualCluster()}))
    first, second = world.submit(spec(vc="a", time=300)), world.submit(spec(vc="a"))
    assert world.state(first) is State.RUNNING
    outcome = world.ask(Question(job=second)).outcome
    assert outcome is not None
    assert (outcome.start, outcome.awaits, outcome.limits) == (Start.LATER, (first,), True)
    assert outcome.at == after(world.now, seconds(300))
