"""Searches over a bad net: whatever is lost, late or said twice, every search comes to its end."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skep.machines.base import Tick
from skep.machines.searches import SearchesMachine
from skep.machines.searches.machine import Kept
from skep.units import Instant
from skep.wire.facts import End
from skep.wire.reasons import Reason
from skep.wire.search_facts import (
    SearchBegan,
    SearchEnding,
    SearchOver,
    SearchTrialAdded,
    SearchTrialMeasured,
    SearchTrialOver,
    SearchTrialTurned,
    Stand,
)
from tests.effort import examples
from tests.kit import assert_durable_alike
from tests.search_kit import World

RUNGS = {"first": 2, "last": 30, "eta": 2}
METHODS: list[dict[str, Any]] = [
    {"method": "curves", "exclusive": 1, "steps": 40},
    {"method": "curves", "target": 0.9, "give_up": 0.2, "exclusive": 1},
    {"method": "asha", "rungs": RUNGS},
    {"method": "asha", "rungs": {**RUNGS, "brackets": 2}, "live": 4},
    {"method": "curves", "budget": {"trials": 8, "gpu_time": 90}},
]
KEPT = msgspec.json.Decoder(Kept)


class Searches(RuleBasedStateMachine):
    """The model: every promise read off the facts, plainly, from the first one on."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(gpus=3)
        self.world.driver.thorough = False
        self.read = 0
        self.specs: dict[str, Any] = {}
        self.trials: dict[tuple[str, int], str] = {}
        self.runs: dict[tuple[str, int], bool] = {}
        self.best: dict[str, float | None] = {}
        self.ending: dict[str, Reason] = {}
        self.ended: dict[str, SearchOver] = {}

    @initialize(method=st.sampled_from(METHODS), parallel=st.integers(1, 3))
    def begin(self, method: dict[str, Any], parallel: int) -> None:
        self.world.begin(**{"parallel": parallel, "budget": {"trials": 8}, **method})

    @rule(method=st.sampled_from(METHODS))
    @precondition(lambda self: len(self.specs) < 3)
    def begin_another(self, method: dict[str, Any]) -> None:
        self.world.begin(**{"parallel": 2, "budget": {"trials": 8}, **method})

    # --- the net -------------------------------------------------------------------------------

    @rule(at=st.integers(0, 30), copies=st.integers(0, 3))
    @precondition(lambda self: self.world.air)
    def deliver(self, at: int, copies: int) -> None:
        """Deliver a message once, several times, also again later, or never."""
        send = self.world.air.pop(at % len(self.world.air))
        for _ in range(min(copies, 2)):
            self.world.deliver(send)
        if copies == 3:
            self.world.deliver(send)
            self.world.air.append(send)

    @rule(which=st.integers(0, 1), count=st.integers(1, 5))
    def read_stream(self, which: int, count: int) -> None:
        for _ in range(count):
            self.world.read_one(which)

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        world = self.world
        until = Instant(world.now + seconds * 10**9)
        while (wake := world.machine.wake_at()) is not None and wake <= until:
            world.driver.now = max(world.now, wake)
            world.event(Tick())
        world.driver.now = until

    @rule()
    def crash(self) -> None:
        self.world.restart()

    @rule()
    def die_before_the_next_sends(self) -> None:
        self.world.deaf = True

    # --- jobs ------------------------------------------------------------------------------------

    @rule()
    def start(self) -> None:
        self.world.start()

    @rule(at=st.integers(0, 5), more=st.integers(0, 9), value=st.floats(0, 1), late=st.booleans())
    @precondition(lambda self: self.world.jobs)
    def measure(self, at: int, more: int, value: float, late: bool) -> None:
        jobs = list(self.world.jobs.values()) if late else self.world.running()
        if jobs:
            job = jobs[at % len(jobs)]
            self.world.measure(job, job.step + more - 2, value)

    @rule(at=st.integers(0, 5), end=st.sampled_from([End.SUCCEEDED, End.FAILED]))
    @precondition(lambda self: self.world.running())
    def end_job(self, at: int, end: End) -> None:
        jobs = self.world.running()
        self.world.end(jobs[at % len(jobs)], end, Reason.SUCCEEDED)

    @rule(at=st.integers(0, 5))
    @precondition(lambda self: self.world.running())
    def lose_node(self, at: int) -> None:
        jobs = self.world.running()
        self.world.lose(jobs[at % len(jobs)])

    @rule(
        refuse=st.sampled_from([None, Reason.TOO_MANY_JOBS, Reason.BAD_VALUE]), fixed=st.booleans()
    )
    def weather(self, refuse: Reason | None, fixed: bool) -> None:
        self.world.refuse, self.world.fixed = refuse, fixed

    # --- requests ----------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(["s1", "s2", "s40"]),
        outside=st.booleans(),
        key=st.sampled_from(["", "k"]),
    )
    def ask(self, name: str, outside: bool, key: str) -> None:
        known = name in self.world.machine.searches
        verdict = self.world.ask(do="ask", search=name, outside=outside, key=key)
        assert verdict.accepted or verdict.problems
        assert known or not verdict.accepted

    @rule(number=st.integers(1, 8), value=st.floats(0, 1), over=st.sampled_from(["", "done"]))
    def tell(self, number: int, value: float, over: str) -> None:
        for name in list(self.world.machine.searches):
            self.world.ask(do="tell", search=name, trial=number, step=5, value=value, over=over)

    @rule(number=st.integers(1, 8), do=st.sampled_from(["demote", "promote"]))
    def rank(self, number: int, do: str) -> None:
        for name in list(self.world.machine.searches):
            verdict = self.world.ask(do=do, search=name, trial=number)
            assert verdict.accepted or verdict.reason is Reason.UNKNOWN_TRIAL

    @rule()
    def cancel(self) -> None:
        for name in list(self.world.machine.searches)[:1]:
            assert self.world.ask(do="cancel", search=name).accepted

    # --- what holds ------------------------------------------------------------------------------

    @invariant()
    def facts_keep_the_promises(self) -> None:
        for fact in self.world.driver.facts[self.read :]:
            self.judge(fact)
        self.read = len(self.world.driver.facts)

    def judge(self, fact: Any) -> None:
        match fact:
            case SearchBegan():
                self.specs[fact.search], self.best[fact.search] = fact.spec, None
            case SearchTrialAdded():
                place = fact.search, fact.trial
                assert place not in self.trials
                assert fact.search not in self.ending
                self.trials[place] = ""
                self.runs[place] = fact.run
                mine = [each for each in self.trials if each[0] == fact.search]
                assert len(mine) <= self.specs[fact.search].budget.trials
            case SearchTrialTurned():
                assert fact.search not in self.ending
                assert self.trials[fact.search, fact.trial] == ""
                self.runs[fact.search, fact.trial] = fact.run
            case SearchTrialMeasured():
                best = self.best[fact.search]
                self.best[fact.search] = fact.value if best is None else max(best, fact.value)
            case SearchTrialOver():
                place = fact.search, fact.trial
                assert self.trials[place] == "", "a trial has one end"
                self.trials[place] = fact.end
                self.runs[place] = False
            case SearchEnding():
                self.ending[fact.search] = fact.why
            case SearchOver():
                assert fact.search not in self.ended, "a search has one end"
                assert fact.why is self.ending[fact.search]
                assert fact.value == self.best[fact.search]
                ends = {at: end for at, end in self.trials.items() if at[0] == fact.search}
                assert all(ends.values())
                assert fact.trials == len(ends)
                self.ended[fact.search] = fact
            case _:
                pass

    @invariant()
    def places_are_kept_to(self) -> None:
        for search in self.world.machine.searches.values():
            holding = [trial for trial in search.trials.values() if trial.holds]
            assert len(holding) <= search.spec.parallel
            for trial in search.live:
                if search.ending is None and not trial.fixed and not trial.given_up:
                    assert trial.run == self.runs[search.search, trial.number]

    @invariant()
    def a_key_made_one_job(self) -> None:
        named = [
            job.spec.env["SKEP_SEARCH"] + "/" + job.spec.env["SKEP_TRIAL"]
            for job in self.world.jobs.values()
        ]
        assert len(named) == len(set(named))

    def teardown(self) -> None:
        """Heal: nothing is lost any more, jobs end, and everything comes to its end."""
        world = self.world
        world.deaf, world.refuse, world.fixed = False, None, False
        self.rebuilt_from_a_snapshot()
        world.driver.check_replay()
        for turn in range(400):
            world.pass_time(15)
            for job in world.running():
                world.measure(job, job.step + 20, 0.3 + 0.01 * (turn % 7))
                if job.step > 60:
                    world.end(job, End.SUCCEEDED, Reason.SUCCEEDED)
            for search in list(world.machine.searches.values()):
                for trial in search.live:
                    if trial.stand is Stand.OUTSIDE:
                        world.ask(do="tell", search=search.search, trial=trial.number, over="done")
            world.settle()
            if not world.machine.searches:
                break
        self.facts_keep_the_promises()
        assert set(self.ended) == set(self.specs), world.machine.searches
        assert {job.state for job in world.jobs.values()} <= {"ended"}
        assert not world.machine.jobs
        world.driver.check_replay()

    def rebuilt_from_a_snapshot(self) -> None:
        again = SearchesMachine()
        for piece in self.world.machine.snapshot():
            again.apply(KEPT.decode(msgspec.json.encode(piece)))
        again.check()
        assert_durable_alike(again, self.world.machine)


TestSearches = Searches.TestCase
TestSearches.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
