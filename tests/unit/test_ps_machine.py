"""The coordinator's decisions: every phase, every end of a newcomer in it, and its own return."""

from __future__ import annotations

import random
from typing import Any

import pytest

from skep_ps import machine
from skep_ps.assign import Segment
from skep_ps.machine import MARGIN, Coordinator
from skep_ps.members import Close, Finish, Send, Wanted
from skep_ps.placement import Placement, Spec

SECOND = 1_000_000_000
SPEC = Spec((Segment(0, "float32", 40_000),), 1024, True, False, True, "d")
ANSWERS = {
    "prepare": "ready",
    "probe": "probed",
    "clock": "accepted",
    "move": "moved",
    "switch": "switched",
}
PHASES = list(ANSWERS)


class Member:
    """A process as the coordinator sees it, which does what it is told unless it is muted."""

    def __init__(self, world: World, role: str, number: int | None) -> None:
        self.world, self.role, self.number = world, role, number
        self.process = f"{role}-{len(world.everyone)}"
        self.link: int | None = None
        self.generation = self.pending = 0
        self.version = 7
        self.placement: Placement | None = None
        self.over = ""
        self.told: list[str] = []
        world.everyone.append(self)

    def connect(self) -> None:
        self.link = self.world.new_link(self)
        self.world.say(
            self,
            "hello",
            role=self.role,
            id=self.number,
            process=self.process,
            host="h",
            port=1,
            pending=self.pending,
            spec=SPEC.to_wire(),
            placement=self.placement and self.placement.to_wire(),
        )

    def take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        self.told.append(kind)
        if kind == "welcome":
            self.number = message["id"]
        elif kind in {"begin", "switch"}:
            self.placement = Placement.of(message["placement"])
            self.generation, self.pending = self.placement.generation, 0
        elif kind == "prepare":
            self.pending = message["generation"]
        elif kind == "called-off" and self.pending == message["generation"]:
            self.pending = 0
        elif kind == "roster" and self.placement and message["generation"] == self.generation:
            self.placement = self.placement._replace(workers=tuple(message["workers"]))
        elif kind in {"fail", "go", "over"}:
            self.over = kind
        if kind in ANSWERS:
            more: dict[str, Any] = {"bytes": 8, "copy_ns": 5, "puts": 1, "pause_ns": 3}
            fields = {**more, "generation": message["generation"], "version": self.version}
            self.world.say(self, ANSWERS[kind], **fields)
            if kind == "move":
                for worker in self.world.alive("worker"):
                    if worker.generation:
                        held = {**fields, "version": self.version + MARGIN}
                        self.world.say(worker, "held", **held)


class World:
    """Members and messages on their way; a message is delivered when the test says so."""

    def __init__(self, servers: int, workers: int) -> None:
        self.now = 0
        self.wanted = Wanted(servers, workers)
        self.machine = Coordinator(self.wanted, 0)
        self.everyone: list[Member] = []
        self.links: dict[int, Member] = {}
        self.count = 0
        self.in_flight: list[tuple[int, dict[str, Any]]] = []
        self.codes: list[int] = []
        for _ in range(servers):
            Member(self, "server", None).connect()
        for rank in range(workers):
            Member(self, "worker", rank).connect()
        self.settle()

    def new_link(self, member: Member) -> int:
        self.count += 1
        self.links[self.count] = member
        return self.count

    def say(self, member: Member, kind: str, **fields: Any) -> None:
        if member.link is not None:
            fields.setdefault("generation", member.generation)
            self.in_flight.append((member.link, {"type": kind, **fields}))

    def deliver(self, index: int = 0) -> None:
        link, message = self.in_flight.pop(index)
        self.now += 1000
        if link in self.links:
            self.carry_out(self.machine.heard(link, message, self.now))

    def carry_out(self, effects: list[Any]) -> None:
        self.machine.check()
        for effect in effects:
            if isinstance(effect, Send) and effect.link in self.links:
                self.links[effect.link].take(effect.message)
            elif isinstance(effect, Close):
                self.links.pop(effect.link, None)
            elif isinstance(effect, Finish):
                self.codes.append(effect.code)

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.in_flight:
                return
            self.deliver()
        pytest.fail("messages without end")

    def cut(self, member: Member) -> None:
        link, member.link = member.link, None
        if link in self.links:
            del self.links[link]
            self.in_flight = [each for each in self.in_flight if each[0] != link]
            self.carry_out(self.machine.lost(link, self.now))

    def kill(self, member: Member) -> None:
        member.over = "killed"
        self.cut(member)

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.carry_out(self.machine.tick(self.now))

    def restart(self) -> None:
        self.machine = Coordinator(self.wanted._replace(recover=True), self.now)
        self.in_flight = []
        self.links = {}
        for member in self.alive():
            member.connect()

    def alive(self, role: str = "") -> list[Member]:
        return [m for m in self.everyone if not m.over and role in {"", m.role}]

    def until_phase(self, phase: str) -> None:
        while self.machine.scaling is None or self.machine.scaling.phase != phase:
            self.deliver()

    @property
    def placement(self) -> Placement:
        assert self.machine.placement is not None
        return self.machine.placement

    def agree(self) -> None:
        """Assert that who is left agrees on everything."""
        assert self.machine.state == "running", self.machine.state
        assert self.machine.scaling is None
        members = self.alive()
        assert {m.generation for m in members} == {self.placement.generation}
        assert all(member.placement == self.placement for member in members)
        assert sorted(self.placement.servers) == sorted(
            m.number for m in members if m.role == "server" and m.number is not None
        )
        assert list(self.placement.workers) == sorted(
            m.number for m in members if m.role == "worker" and m.number is not None
        )
        assert len(self.placement.chunks) == len(SPEC.chunks())


def test_a_job_begins_once_all_are_there() -> None:
    world = World(2, 3)
    world.agree()
    assert list(world.placement.servers) == [1, 2]
    assert world.placement.workers == (0, 1, 2)


def test_a_job_that_is_not_complete_fails_in_time() -> None:
    world = World(1, 0)
    world.wanted = Wanted(1, 1)
    world.machine = Coordinator(world.wanted, 0)
    Member(world, "server", None).connect()
    world.settle()
    world.pass_time(world.wanted.wait_s + 1)
    assert world.codes == [1]


def test_a_worker_with_another_model_is_refused() -> None:
    world = World(1, 1)
    other = Member(world, "worker", 1)
    other.link = world.new_link(other)
    spec = SPEC._replace(digest="other").to_wire()
    world.say(
        other, "hello", role="worker", id=1, process="x", host="h", port=1, pending=0, spec=spec
    )
    world.settle()
    assert other.over == "fail"
    assert world.placement.workers == (0,)


@pytest.mark.parametrize("role", ["server", "worker"])
def test_somebody_comes_and_goes(role: str) -> None:
    world = World(1, 1)
    newcomer = Member(world, role, None)
    newcomer.connect()
    world.settle()
    world.agree()
    assert world.placement.generation == 2
    assert newcomer.generation == 2
    world.say(newcomer, "leave")
    world.settle()
    assert newcomer.over == "go"
    world.agree()
    assert world.placement.generation == 3


@pytest.mark.parametrize("role", ["server", "worker"])
@pytest.mark.parametrize("phase", PHASES[:-1])
def test_a_newcomer_that_dies_before_the_decision_changes_nothing(phase: str, role: str) -> None:
    world = World(2, 2)
    before = world.placement
    newcomer = Member(world, role, None)
    newcomer.connect()
    world.until_phase(phase)
    world.kill(newcomer)
    world.settle()
    world.agree()
    assert world.placement == before
    assert all(member.told[-1] == "called-off" for member in world.alive())
    another = Member(world, role, None)
    another.connect()
    world.settle()
    world.agree()
    assert another.generation > before.generation + 1, "a generation is never used again"


def test_a_newcomer_that_dies_after_the_decision_is_a_member_that_died() -> None:
    world = World(1, 2)
    newcomer = Member(world, "worker", None)
    newcomer.connect()
    world.until_phase("switch")
    world.kill(newcomer)
    world.settle()
    world.pass_time(world.wanted.lost_s + 1)
    world.settle()
    world.agree()
    assert world.placement.workers == (0, 1)


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_a_phase_without_an_answer_is_called_off_and_tried_again(phase: str) -> None:
    world = World(1, 2)
    newcomer = Member(world, "server", None)
    newcomer.connect()
    world.until_phase(phase)
    world.in_flight = []  # All answers are lost.
    world.pass_time(world.wanted.wait_s + 1)
    world.settle()
    world.agree()
    assert world.placement.generation == 3
    assert newcomer.generation == 3


def test_a_clock_that_a_server_has_passed_is_set_again_with_twice_the_margin() -> None:
    world = World(2, 1)
    Member(world, "worker", None).connect()
    world.until_phase("clock")
    scaling = world.machine.scaling
    assert scaling is not None
    first = max(scaling.clocks.values())
    index = next(i for i, (_, m) in enumerate(world.in_flight) if m["type"] == "accepted")
    link, message = world.in_flight[index]
    world.in_flight[index] = (link, {**message, "type": "late", "version": first})
    world.deliver(index)
    while world.machine.scaling is scaling and max(scaling.clocks.values()) == first:
        world.deliver()
    assert scaling.margin == 2 * MARGIN
    assert max(scaling.clocks.values()) >= first + 2 * MARGIN
    assert "released" in world.alive("worker")[0].told


def test_answers_of_an_earlier_generation_are_passed_over() -> None:
    world = World(1, 1)
    newcomer = Member(world, "server", None)
    newcomer.connect()
    world.until_phase("prepare")
    stale = list(world.in_flight)
    world.pass_time(world.wanted.prepare_s + 1)  # Called off, and begun again.
    world.in_flight = [*stale, *world.in_flight]
    for _ in stale:
        world.deliver()
        assert world.machine.scaling is not None
        assert world.machine.scaling.phase == "prepare"
    world.settle()


def test_changes_that_cross_are_queued_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "QUEUE_MAX", 6)
    world = World(1, 1)
    newcomers = [Member(world, "server", None) for _ in range(10)]
    for newcomer in newcomers:
        newcomer.connect()
    world.say(newcomers[0], "leave")
    world.settle()
    refused = [m for m in newcomers if m.over == "fail"]
    assert len(refused) == 3  # One is being added, six wait.
    world.agree()


def test_a_lost_server_ends_the_job() -> None:
    world = World(2, 2)
    world.kill(world.alive("server")[0])
    assert world.codes == []
    world.pass_time(world.wanted.lost_s + 1)
    assert world.codes == [1]
    assert all(member.over == "fail" for member in world.everyone[1:])


def test_a_connection_may_break_and_come_back() -> None:
    world = World(2, 2)
    for member in world.alive():
        world.cut(member)
        world.pass_time(world.wanted.lost_s - 1)
        member.connect()
        world.settle()
    world.pass_time(world.wanted.lost_s + 1)
    world.agree()


def test_a_worker_that_was_given_up_is_told_so() -> None:
    world = World(1, 2)
    worker = world.alive("worker")[1]
    world.cut(worker)
    world.pass_time(world.wanted.lost_s + 1)
    worker.connect()
    world.settle()
    assert worker.over == "fail"
    assert world.placement.workers == (0,)


def test_the_job_is_over_when_every_worker_is_done() -> None:
    world = World(1, 2)
    for worker in world.alive("worker"):
        world.say(worker, "bye")
        worker.over = "done"
    world.settle()
    assert world.codes == [0]
    assert world.alive() == []


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("deliveries", range(4))
def test_the_coordinator_dies_in_a_phase_and_comes_back(phase: str, deliveries: int) -> None:
    world = World(2, 2)
    newcomer = Member(world, "server", None)
    newcomer.connect()
    world.until_phase(phase)
    for _ in range(min(deliveries, len(world.in_flight))):
        world.deliver()
    world.restart()
    world.settle()
    world.agree()
    assert sorted(world.placement.servers) == [1, 2, newcomer.number]


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_newcomer_that_has_not_heard_it_was_decided_belongs_to_a_coordinator_that_comes_back(
    role: str,
) -> None:
    world = World(2, 2)
    newcomer = Member(world, role, None)
    newcomer.connect()
    world.until_phase("move")
    assert newcomer.link is not None
    del world.links[newcomer.link]  # The coordinator dies before it has told this one.
    while world.machine.scaling is not None and world.machine.scaling.phase == "move":
        world.deliver()
    assert (newcomer.generation, newcomer.pending) == (0, 2)
    world.restart()
    world.settle()
    world.agree()
    assert world.placement.generation == newcomer.generation == 2


def test_who_does_not_come_back_to_a_coordinator_is_gone() -> None:
    world = World(1, 3)
    lost = world.alive("worker")[2]
    lost.over = "killed"
    world.restart()
    world.settle()
    assert world.machine.state == "gathering"
    world.pass_time(2 * world.wanted.lost_s + 1)
    world.settle()
    world.agree()
    assert world.placement.workers == (0, 1)


def test_a_coordinator_without_a_server_gives_up() -> None:
    world = World(2, 1)
    world.alive("server")[0].over = "killed"
    world.restart()
    world.settle()
    world.pass_time(2 * world.wanted.lost_s + 1)
    assert world.codes == [1]


@pytest.mark.parametrize("seed", range(150))
def test_random_histories_end_in_agreement(seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    world = World(rng.randint(1, 3), rng.randint(2, 3))
    for _ in range(60):
        chance = rng.random()
        members = [m for m in world.alive() if m.link is not None]
        belonging = [m for m in members if m.generation]
        if chance < 0.1:
            Member(world, rng.choice(["server", "worker"]), None).connect()
        elif chance < 0.2 and belonging:
            world.say(rng.choice(belonging), "leave")
        elif chance < 0.25 and (new := [m for m in members if not m.generation]):
            world.kill(rng.choice(new))
        elif chance < 0.3 and members:
            world.cut(rng.choice(members))
        elif chance < 0.33 and world.machine.state == "running":
            world.restart()
        for _ in range(rng.randint(0, 6)):
            if world.in_flight:
                # Connections keep their own order; which is heard next is anybody's guess.
                link = rng.choice(world.in_flight)[0]
                world.deliver(next(i for i, e in enumerate(world.in_flight) if e[0] == link))
        if rng.random() < 0.5:
            for member in world.alive():
                if member.link is None:
                    member.connect()
    for _ in range(5):
        for member in world.alive():
            if member.link is None:
                member.connect()
        world.settle()
        world.pass_time(world.wanted.wait_s + 1)
    world.settle()
    world.agree()
