"""Quarantine by rule: hardware that fails is found, and whoever fails everywhere finds nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from skep.ledger import gpu_health
from skep.ledger.snapshot import AllocatorKept
from skep.machines.allocator import AllocatorMachine
from skep.units import Instant, seconds
from skep.wire.admin import QuarantineGpu, SetVcs
from skep.wire.cluster import QuarantineRule
from skep.wire.facts import GpuQuarantined, JobBound, MemberRan
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.reports import DeviceTrouble, Heartbeat
from tests import effort
from tests.kit import Driver, admitted, exited, facts_of, heartbeat, joined, plain, started, vcs

Fate = Callable[[str, str, int], tuple[Outcome, float]]
"""How a job's attempt on a GPU (job, node, device) ends, and after how many seconds."""

RULE = QuarantineRule(jobs=3, within=60, window=7200, share=0.25)


class World:
    """Jobs of one GPU on two nodes of four, each attempt ending as `fate` says."""

    def __init__(self, fate: Fate, rule: QuarantineRule = RULE, *, thorough: bool = False) -> None:
        self.fate = fate
        self.decide = Driver(AllocatorMachine, thorough=thorough)
        self.decide.restart(0)
        self.decide(SetVcs(vcs=vcs(nlp=1000), quarantine=rule))
        for node in ("node-1", "node-2"):
            self.decide(joined(node))
        self.second = 10.0
        self.ends: list[tuple[float, str, int, str, Outcome]] = []
        self.number = 0

    @property
    def machine(self) -> AllocatorMachine:
        return self.decide.machine

    def tell(self, event: Any) -> None:
        effects = self.decide(event, self.second)
        for fact in facts_of(effects):
            if isinstance(fact, JobBound):
                [member] = fact.members
                outcome, lasts = self.fate(fact.job, member.node, member.devices[0][0])
                self.ends.append(
                    (self.second + lasts, fact.job, fact.attempt, member.node, outcome)
                )
                if outcome not in (Outcome.NOT_STARTED, Outcome.NODE_FAULT):
                    self.tell(started(fact.job, fact.attempt, member.node, at=self.decide.now))

    def submit(self, retries: int = 5) -> None:
        self.number += 1
        self.tell(
            admitted(self.number, retries=retries, retry_on=("exit", "signal", "not-started"))
        )

    def run(self, until: float) -> None:
        """Let attempts end and the timer ring up to a second of the test."""
        while self.second < until:
            self.second += 1.0
            soft = self.machine.tx.soft
            now = Instant(self.decide.now + seconds(1))
            soft.last_heard = dict.fromkeys(soft.last_heard, now)
            due = sorted(each for each in self.ends if each[0] <= self.second)
            self.ends = [each for each in self.ends if each[0] > self.second]
            for _, job, attempt, node, outcome in due:
                self.tell(exited(job, attempt, node, outcome))
            effects = self.decide.tick(self.second)
            for fact in facts_of(effects):
                assert not isinstance(fact, JobBound | MemberRan), "what came free is taken at once"

    @property
    def found(self) -> list[GpuQuarantined]:
        return [fact for fact in self.decide.facts if isinstance(fact, GpuQuarantined)]


def on_gpu(bad: set[tuple[str, int]], outcome: Outcome = Outcome.SIGNALLED) -> Fate:
    """Return a world in which attempts on some GPUs fail after a second, others take 90 s."""

    def fate(_: str, node: str, device: int) -> tuple[Outcome, float]:
        return (outcome, 1.0) if (node, device) in bad else (Outcome.SUCCEEDED, 90.0)

    return fate


def loaded(world: World, jobs: int = 20) -> World:
    """Submit jobs so that there is mostly some room: five or six of eight GPUs are in use."""
    for _ in range(jobs):
        world.submit()
        world.run(world.second + 17)
    world.run(world.second + 200)
    return world


@pytest.mark.parametrize("outcome", [Outcome.SIGNALLED, Outcome.NOT_STARTED, Outcome.NODE_FAULT])
def test_a_gpu_on_which_several_jobs_fail_that_run_elsewhere_is_quarantined(
    outcome: Outcome,
) -> None:
    world = loaded(World(on_gpu({("node-1", 2)}, outcome), thorough=True), jobs=14)
    [fact] = world.found
    assert (fact.node, fact.device, fact.quarantine) == ("node-1", 2, True)
    assert fact.why is Reason.REPEATED_FAILURES
    assert fact.detail.endswith("failed there and ran elsewhere")
    assert world.machine.state.nodes["node-1"].quarantined == {2: None}
    assert list(world.machine.state.suspicion.ruled) == ["node-1/2"]


def test_an_operator_takes_it_back_and_nothing_old_speaks_against_it() -> None:
    world = loaded(World(on_gpu({("node-1", 2)})))
    assert len(world.found) == 1
    world.fate = on_gpu(set())
    world.tell(QuarantineGpu(node="node-1", device=2, quarantine=False))
    assert world.machine.state.suspicion.ruled == {}
    loaded(world)
    assert [fact.quarantine for fact in world.found] == [True, False]


def test_a_status_of_its_own_says_nothing_unless_the_rule_counts_it() -> None:
    bad = {("node-1", 2)}
    assert loaded(World(on_gpu(bad, Outcome.EXITED))).found == []
    rule = QuarantineRule(jobs=3, within=60, signs=("exit",))
    assert len(loaded(World(on_gpu(bad, Outcome.EXITED), rule)).found) == 1
    assert loaded(World(on_gpu(bad), rule)).found == []


def test_no_rule_no_quarantine() -> None:
    assert loaded(World(on_gpu({("node-1", 2)}), QuarantineRule(jobs=0))).found == []
    assert loaded(World(on_gpu({("node-1", 2)}), QuarantineRule(share=0.0, within=60))).found == []


def test_at_most_a_share_of_a_chain_is_quarantined() -> None:
    bad = {("node-1", device) for device in range(4)}
    world = loaded(World(on_gpu(bad)), jobs=60)
    assert len(world.found) == 2, "a quarter of eight"
    little = QuarantineRule(jobs=3, within=60, share=0.01)
    world = loaded(World(on_gpu(bad), little), jobs=60)
    assert len(world.found) == 1, "one may always be"


def test_what_is_older_than_the_window_is_forgotten() -> None:
    rule = QuarantineRule(jobs=3, within=60, window=100)
    world = World(on_gpu({("node-1", 2)}), rule)
    for number in range(3):
        loaded(world, jobs=8)
        assert len(world.machine.state.suspicion.signs.get("node-1/2", {})) <= 9, number
    suspicion = world.machine.state.suspicion
    kept = {job for signs in suspicion.signs.values() for job in signs}
    assert set(suspicion.failed) | set(suspicion.ran) <= kept | set(world.machine.state.jobs)


def test_the_snapshot_keeps_it() -> None:
    world = World(on_gpu({("node-1", 2)}))
    for _ in range(4):
        world.submit()
    world.run(30)
    assert world.machine.state.suspicion.signs
    [kept] = [one for one in world.machine.snapshot() if isinstance(one, AllocatorKept)]
    assert kept.suspicion == world.machine.state.suspicion


@pytest.mark.parametrize("seed", effort.slow_after(3, range(16)))
def test_jobs_that_fail_wherever_they_run_have_nothing_quarantined(seed: int) -> None:
    """Bad scripts of all kinds among good ones, on sound hardware."""
    rng = random.Random(seed)
    bad = rng.choice([Outcome.SIGNALLED, Outcome.NOT_STARTED])

    def fate(job: str, _: str, __: int) -> tuple[Outcome, float]:
        wrong = random.Random(f"{seed} {job}").random() < 0.6
        return (bad, rng.choice([0.5, 20.0])) if wrong else (Outcome.SUCCEEDED, rng.uniform(1, 200))

    world = World(fate)
    for _ in range(60):
        world.submit(retries=rng.randrange(6))
        world.run(world.second + rng.randrange(20))
    world.run(world.second + 900)
    assert world.found == [], f"seed {seed}"
    assert len(world.machine.state.suspicion.signs) <= gpu_health.SUSPECTS_MAX


@pytest.mark.slow
def test_a_bad_gpu_is_found_among_bad_scripts_and_no_other_is_taken() -> None:
    found = 0
    for seed in range(10):
        sick, taken = _sick_among_bad_scripts(seed)
        assert taken in ([], [sick]), f"seed {seed}"
        found += taken == [sick]
    assert found >= 8, "the others' is seldom used"


def _sick_among_bad_scripts(seed: int) -> tuple[tuple[str, int], list[tuple[str, int]]]:
    rng = random.Random(seed)
    sick = f"node-{rng.randint(1, 2)}", rng.randrange(4)

    def fate(job: str, node: str, device: int) -> tuple[Outcome, float]:
        wrong = random.Random(f"{seed} {job}").random() < 0.2
        if wrong or (node, device) == sick:
            return Outcome.SIGNALLED, rng.uniform(0.5, 20)
        return Outcome.SUCCEEDED, rng.uniform(70, 200)

    world = World(fate)
    for _ in range(60):
        world.submit()
        world.run(world.second + rng.randrange(60))
    world.run(world.second + 900)
    world.decide.check_replay()
    return sick, [(fact.node, fact.device) for fact in world.found]


# --- what devices say themselves -----------------------------------------------------------------


def beat(*trouble: tuple[int, str], node: str = "node-1", identity: str = "") -> Heartbeat:
    """Return a heartbeat with what devices say."""
    told = tuple(DeviceTrouble(index=index, text=text) for index, text in trouble)
    return msgspec.structs.replace(heartbeat(node, identity), trouble=told)


def troubled(rule: QuarantineRule = RULE) -> Driver[AllocatorMachine]:
    decide = Driver(AllocatorMachine)
    decide.restart(0)
    decide(SetVcs(vcs=vcs(nlp=1000), quarantine=rule))
    for node in ("node-1", "node-2"):
        decide(joined(node))
    return decide


def test_a_device_that_says_it_is_broken_is_quarantined_once() -> None:
    decide = troubled()
    facts = facts_of(plain(decide(beat((2, "XID 79")))))
    assert facts == [
        GpuQuarantined(
            node="node-1", device=2, quarantine=True, detail="XID 79", why=Reason.DEVICE_TROUBLE
        )
    ]
    assert facts_of(decide(beat((2, "XID 79")))) == []
    assert facts_of(decide(beat((2, "XID 79, seen 2 times")))) == []
    assert facts_of(decide(beat((9, "there is no such device")))) == []
    assert facts_of(decide(beat((1, "XID 79"), identity="somebody else"))) == []


def test_what_an_operator_took_back_stays_until_it_says_something_else() -> None:
    decide = troubled()
    decide(beat((2, "XID 79")))
    decide(QuarantineGpu(node="node-1", device=2, quarantine=False))
    assert facts_of(decide(beat((2, "XID 79")))) == []
    decide.restart()
    assert facts_of(decide(beat((2, "XID 79")))) == []
    (fact,) = facts_of(plain(decide(beat((2, "XID 79, seen 2 times")))))
    assert fact.detail == "XID 79, seen 2 times"


def test_devices_take_no_more_than_the_share_and_only_by_the_rule() -> None:
    decide = troubled()
    facts = facts_of(plain(decide(beat((0, "a"), (1, "b"), (2, "c")))))
    assert [fact.device for fact in facts] == [0, 1]
    decide = troubled(QuarantineRule(jobs=0))
    assert facts_of(decide(beat((0, "a")))) == []
