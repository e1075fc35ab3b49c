"""Probes take their part of a VC's GPU time at most, and no GPU that a waiting job could have."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.ledger import probes
from skep.ledger.job_state import State
from skep.ledger.records import Probe
from skep.machines.allocator import AllocatorMachine, settings
from skep.machines.base import Effect
from skep.policy import probing
from skep.policy.probing import Place
from skep.policy.registry import POLICIES
from skep.units import NS_PER_SECOND, Duration, Instant, after, seconds
from skep.wire.node import Outcome
from skep.wire.trials import Kind, TrialBegun
from tests.kit import Driver, admitted, at, exited, started
from tests.unit.test_allocator_actions import CAN, Does, running
from tests.unit.test_allocator_changes import changed, known, of, told
from tests.unit.test_allocator_probes import JOB, measured, outlook

LASTS = settings.LASTS_PROBE
LONGEST_S = (LASTS + probes.PUT_BACK) // NS_PER_SECOND


@given(
    owned=st.integers(1, 64),
    wishes=st.lists(
        st.tuples(
            st.integers(0, 40_000), st.integers(1, 64), st.integers(1, LONGEST_S), st.booleans()
        ),
        max_size=60,
    ),
)
def test_whatever_is_wished_for_the_part_is_kept_in_any_24_hours(
    owned: int, wishes: list[tuple[int, int, int, bool]]
) -> None:
    now, known_ones = Instant(10**18), list[Probe]()
    for number, (pause_s, takes, lasts_s, at_once) in enumerate(wishes):
        now = after(now, seconds(0 if at_once else pause_s))
        if probes.fits(known_ones, owned, takes, LASTS, now):
            until = after(now, Duration(LASTS + probes.PUT_BACK))
            one = Probe(number, "j1", "bert", "cpu", 1, 1, 1, takes, now, until)
            one.ended = after(now, seconds(lasts_s))
            known_ones.append(one)
    for last in known_ones:
        begin = last.ended - probes.DAY
        within = [
            each.takes * max(0, min(each.ended, last.ended) - max(each.at, begin))
            for each in known_ones
        ]
        assert sum(within) <= owned * probes.DAY * 20 // 1000


@given(takes=st.integers(1, 16), ended_s=st.integers(0, 500), ages_s=st.integers(0, 2 * 86_400))
def test_a_probe_counts_in_full_until_it_ended_a_day_ago(
    takes: int, ended_s: int, ages_s: int
) -> None:
    begun = Instant(10**18)
    one = Probe(1, "j1", "f", "cpu", 1, 1, 1, takes, begun, after(begun, LASTS))
    assert probes.used([one], begun) == takes * LASTS
    one.ended = after(begun, seconds(ended_s))
    now = after(one.ended, seconds(ages_s))
    counts = takes * ended_s * NS_PER_SECOND if ages_s < 86_400 else 0
    assert probes.used([one], now) == counts


@given(
    places=st.lists(
        st.builds(
            lambda workers, nodes: Place(workers, workers * 2, min(nodes, workers)),
            st.integers(1, 16),
            st.integers(1, 4),
        ),
        max_size=8,
    ),
    seen=st.sets(st.tuples(st.integers(1, 32), st.integers(1, 4)), max_size=4),
    tried=st.sets(st.tuples(st.integers(1, 32), st.integers(1, 4)), max_size=4),
)
def test_what_is_measured_next_is_new_and_needed(
    places: list[Place], seen: set[tuple[int, int]], tried: set[tuple[int, int]]
) -> None:
    found = probing.order(places, seen, tried)
    assert found == sorted(found, key=lambda each: (each.nodes, each.gpus))
    for place in found:
        assert (place.gpus, place.nodes) not in seen | tried
        missing = len(seen) < 3 or (place.nodes > 1 and all(nodes == 1 for _, nodes in seen))
        assert missing


class Life:
    """One allocator with elastic jobs of one VC; whatever it begins is looked at."""

    def __init__(self) -> None:
        self.decide: Driver[AllocatorMachine] = running(JOB, nodes=2)
        self.decide.machine.settings.node_lost_after = Duration(2**62)
        self.second, self.jobs, self.begun = 10.0, 1, 0

    def hear(self, event: Any) -> None:
        waiting = self._waiting()
        self._look(self.decide(event, self.second), waiting)

    def _look(self, effects: list[Effect], waited: list[str]) -> None:
        state = self.decide.machine.state
        for fact in of(effects, TrialBegun):
            self.begun += fact.kind is Kind.PROBE
            still = [name for name in waited if name in self._waiting()]
            assert not still, "a job waits that could have those GPUs"
            known_ones = [each for each in state.probes.of_vc["nlp"] if each.trial != fact.trial]
            takes = state.probes.open[fact.trial].takes
            assert all(each.ended for each in known_ones), "one at a time"
            now = self.decide.now
            most = 8 * probes.DAY * 20 // 1000
            assert probes.used(known_ones, now) + takes * (LASTS + probes.PUT_BACK) <= most
            assert "j1" not in state.borrowed, "it takes GPUs of its own VC only"
        for command in told(effects):
            self._look(self.decide(changed(command), self.second + 0.5), self._waiting())

    def _waiting(self) -> list[str]:
        jobs = self.decide.machine.state.jobs
        return [name for name, job in jobs.items() if job.state is State.QUEUED]

    def submit(self, gpus: int) -> None:
        self.jobs += 1
        self.hear(admitted(self.jobs, gpus=gpus))
        name = f"j{self.jobs}"
        job = self.decide.machine.state.jobs[name]
        for node in job.members:
            self.hear(started(name, node=node))
            self.hear(known(name, node, CAN))

    def end(self, which: int) -> None:
        jobs = self.decide.machine.state.jobs
        runs = [name for name, job in jobs.items() if job.members and name != "j1"]
        if runs:
            name = runs[which % len(runs)]
            for node in list(jobs[name].members):
                number = jobs[name].attempt
                self.hear(exited(name, number, node, Outcome.SUCCEEDED, at=at(self.second)))


@pytest.fixture
def _does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Does.name, Does)


@pytest.mark.usefixtures("_does")
def test_in_any_history_a_probe_takes_nothing_that_a_waiting_job_could_have() -> None:
    begun = 0
    for seed in range(12):
        rng, life = random.Random(seed), Life()
        for _ in range(30):
            life.second += rng.choice((1, 20, 40, 400, 4_000))
            what = rng.choice(("told", "told", "submit", "submit", "end", "tick", "judged"))
            if what == "told":
                life.hear(outlook((2, 1), *rng.sample([(1, 1), (4, 1)], rng.randrange(2))))
            elif what == "submit":
                life.submit(rng.choice((1, 2, 4)))
            elif what == "end":
                life.end(rng.randrange(8))
            elif what == "judged":
                for trial in list(life.decide.machine.state.probes.open):
                    life.hear(measured(life.second, trial))
            else:
                life._look(life.decide.tick(life.second), life._waiting())
        begun += life.begun
    assert begun >= 8, begun
