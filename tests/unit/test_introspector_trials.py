"""Trials are measured from when they are on, judged, and told until they are open no more."""

from typing import Any

import pytest

from skep.machines.base import Send, Tick
from skep.machines.introspector import IntrospectorMachine
from skep.perf.judge import KEPT_FROM, LOOKS, SAMPLE
from skep.perf.measure import SETTLES
from skep.units import NS_PER_SECOND, Instant, after, seconds
from skep.wire.profile import Timing
from skep.wire.reports import JobProgress, NodeReport, RankProgress
from skep.wire.trials import Before, Judged, Kind, OpenTrial, Trials

BEGIN = Instant(1_700_000_000 * NS_PER_SECOND)
FIRST = SETTLES // NS_PER_SECOND + KEPT_FROM * SAMPLE // NS_PER_SECOND
SOLO = 10_000


def at(second: float) -> Instant:
    return after(BEGIN, seconds(second))


class Cluster:
    """Jobs that report every second, or once for all."""

    def __init__(self, *, lasting: bool, attempt: int = 1) -> None:
        self.machine = IntrospectorMachine()
        self.now = 0
        self.lasting, self.attempt = lasting, attempt
        self.said: list[tuple[int, Judged]] = []
        self.looks = 0

    def hear(self, event: Any) -> None:
        for effect in self.machine.decide(event, at(self.now)):
            assert isinstance(effect, Send)
            if isinstance(effect.message, Judged):
                self.said.append((self.now, effect.message))
        self.machine.check()

    def go(self, until: int, **step_ms: int) -> None:
        """Let time pass; jobs make a mini-batch in so many milliseconds each."""
        begin = self.now
        while self.now < until:
            if self.now == begin or not self.lasting:
                for number, (job, step) in enumerate(step_ms.items()):
                    self.hear(self.report(number, job, step))
            self.now += 1
            wake = self.machine.wake_at()
            if wake is not None and wake <= at(self.now):
                self.looks += 1
                self.hear(Tick())

    def report(self, number: int, job: str, step_ms: int) -> NodeReport:
        step = seconds(step_ms / 1000)
        steps = 1 + self.now * 1000 // step_ms
        done_s = (steps - 1) * step_ms / 1000
        next_at = at(done_s + step_ms / 1000) if self.lasting else Instant(0)
        rank = RankProgress(
            rank=0, steps=steps, step_ns=step, last_step_at=at(done_s), next_at=next_at
        )
        progress = JobProgress(
            job=job, attempt=self.attempt, world=1, ranks=(rank,), lasts=self.lasting
        )
        return NodeReport(node=f"n{number}", at=at(self.now), jobs=(progress,))


def trial(since: float = 1, until: float = 600, **fields: Any) -> Trials:
    jobs = tuple(
        Before(job=job, attempt=1, gpus=1, rate_milli=SOLO, solo_milli=SOLO) for job in ("j1", "j2")
    )
    one = OpenTrial(
        trial=3,
        kind=Kind.PACK,
        since=at(since) if since else Instant(0),
        until=at(until),
        needed_milli=1000,
        jobs=jobs,
    )
    return Trials(at=at(0), open=(one,))


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("step_ms, kept, gain", [(125, True, 600), (250, False, -200)])
def test_a_pack_is_judged_by_the_sum_of_rates_over_rates_alone(
    lasting: bool, step_ms: int, kept: bool, gain: int
) -> None:
    cluster = Cluster(lasting=lasting)
    cluster.go(1, j1=step_ms, j2=step_ms)
    cluster.hear(trial())
    cluster.go(60, j1=step_ms, j2=step_ms)
    second, found = cluster.said[0]
    samples = KEPT_FROM if kept else LOOKS[0][0]  # What hurts is undone sooner.
    first = FIRST - (KEPT_FROM - samples) * SAMPLE // NS_PER_SECOND
    assert first <= second <= first + 4
    assert (found.trial, found.kept) == (3, kept)
    assert found.gain_milli == pytest.approx(gain, abs=20)
    assert found.low_milli <= found.gain_milli <= found.high_milli
    assert [(each.job, each.samples) for each in found.after] == [("j1", samples), ("j2", samples)]
    # It is said again every second, and no more once the trial has left the list.
    assert [now for now, _ in cluster.said] == list(range(second, 61))
    cluster.hear(Trials(at=at(60), open=()))
    cluster.go(70, j1=step_ms, j2=step_ms)
    assert cluster.said[-1][0] == 60


def test_reports_that_last_lead_to_the_same_verdict_in_the_same_second() -> None:
    told = []
    for lasting in (False, True):
        cluster = Cluster(lasting=lasting)
        cluster.go(1, j1=130, j2=470)
        cluster.hear(trial())
        cluster.go(150, j1=130, j2=470)
        told.append(cluster.said)
    assert told[0] == told[1] != []


def test_whom_nothing_is_tried_with_is_left_alone_again() -> None:
    cluster = Cluster(lasting=True)
    cluster.go(1, j1=100, j2=100)
    cluster.hear(trial())
    cluster.go(60, j1=100, j2=100)
    cluster.hear(Trials(at=at(60), open=()))
    looks = cluster.looks
    cluster.go(2000)
    assert cluster.looks - looks < 60


def change(kind: Kind, before: int, needed: int) -> Trials:
    jobs = (Before(job="j1", attempt=1, gpus=1, rate_milli=before, solo_milli=SOLO),)
    one = OpenTrial(trial=4, kind=kind, since=at(1), until=at(900), needed_milli=needed, jobs=jobs)
    return Trials(at=at(0), open=(one,))


@pytest.mark.parametrize("before, kept", [(6_000, True), (9_000, False)])
def test_a_move_is_judged_by_the_rate_over_that_before_it(before: int, kept: bool) -> None:
    cluster = Cluster(lasting=True)
    cluster.go(1, j1=125)
    cluster.hear(change(Kind.MIGRATE, before, 1_000))
    cluster.go(60, j1=125)
    (_, found), *_ = cluster.said
    assert found.kept is kept
    assert found.gain_milli == pytest.approx(8_000_000 / before - 1_000, abs=10)


@pytest.mark.parametrize("kind, said", [(Kind.DEFRAG, True), (Kind.MIGRATE, False)])
def test_who_was_moved_for_others_stays_unless_it_lost(kind: Kind, said: bool) -> None:
    cluster = Cluster(lasting=True)
    cluster.go(1, j1=125)
    cluster.hear(change(kind, 8_000, 1_000))  # It is as fast as it has to be, to the last digit.
    cluster.go(400, j1=125)
    assert [found.kept for _, found in cluster.said[:1]] == [True] * said


@pytest.mark.parametrize("kind", [Kind.DEFRAG, Kind.MIGRATE])
def test_of_what_there_is_nothing_to_compare_with_nothing_is_said(kind: Kind) -> None:
    cluster = Cluster(lasting=True)
    cluster.go(1, j1=125)
    cluster.hear(change(kind, 0, 980))
    cluster.go(400, j1=125)
    assert cluster.said == []


@pytest.mark.parametrize("attempt, since", [(2, 1), (1, 0)])
def test_another_attempt_is_not_measured_and_nothing_before_it_is_on(
    attempt: int, since: int
) -> None:
    cluster = Cluster(lasting=False, attempt=attempt)
    cluster.hear(trial(since=since))
    cluster.go(100, j1=100, j2=100)
    assert cluster.said == []


def test_a_trial_past_its_time_is_forgotten() -> None:
    cluster = Cluster(lasting=True)
    cluster.hear(trial(until=30))
    cluster.go(100, j1=100, j2=100)
    assert cluster.said == []
    assert cluster.machine.wake_at() is None


def test_repeating_what_is_open_changes_nothing() -> None:
    told = []
    for repeats in (False, True):
        cluster = Cluster(lasting=False)
        for second in range(1, 60):
            if second == 1 or repeats:
                cluster.hear(trial())
            cluster.go(second, j1=110, j2=110)
        told.append(cluster.said)
    assert told[0] == told[1] != []


# --- probes --------------------------------------------------------------------------------------


def probe(workers: int = 1, since: float = 1) -> Trials:
    before = Before(job="j1", attempt=1, gpus=2, rate_milli=SOLO)
    one = OpenTrial(
        trial=5,
        kind=Kind.PROBE,
        since=at(since),
        until=at(300),
        needed_milli=1000,
        jobs=(before,),
        workers=workers,
    )
    return Trials(at=at(0), open=(one,))


@pytest.mark.parametrize("lasting", [False, True])
def test_a_probe_is_measured_until_its_rate_is_known_well_enough(lasting: bool) -> None:
    cluster = Cluster(lasting=lasting)
    cluster.go(1, j1=50)
    cluster.hear(probe())
    cluster.go(40, j1=50)
    second, verdict = cluster.said[0]
    # Eight stretches of two seconds: one that goes evenly is not measured for longer.
    assert second <= SETTLES // NS_PER_SECOND + 8 * SAMPLE // NS_PER_SECOND + 3
    (after_it,) = verdict.after
    assert (verdict.trial, verdict.kept) == (5, False)
    assert after_it.rate_milli == pytest.approx(20_000, rel=0.02)
    assert verdict.gain_milli == pytest.approx(1_000, rel=0.04)


def test_what_a_job_times_itself_ends_a_probe_at_once_but_not_what_it_timed_before() -> None:
    machine = IntrospectorMachine()

    def report(second: int, world: int, steps: int, samples: int) -> list[Judged]:
        timing = Timing(
            samples=samples,
            mean_ns=50_000_000,
            deviation_ns=1_000_000,
            p10_ns=48_000_000,
            p50_ns=50_000_000,
            p90_ns=52_000_000,
        )
        rank = RankProgress(
            rank=0, steps=steps, step_ns=seconds(0.05), last_step_at=at(second), timing=timing
        )
        job = JobProgress(job="j1", attempt=1, world=world, ranks=(rank,))
        machine.decide(NodeReport(node="n1", at=at(second), jobs=(job,)), at(second))
        effects = machine.decide(Tick(), at(second + 1))
        messages = [each.message for each in effects if isinstance(each, Send)]
        return [each for each in messages if isinstance(each, Judged)]

    assert not report(1, 2, 100, 64)
    machine.decide(probe(workers=4), at(2))
    assert not report(2, 2, 120, 64), "that was before the gang grew"
    assert not report(3, 4, 125, 64), "so were most of these"
    assert not report(4, 4, 130, 5), "too few"
    (verdict,) = report(5, 4, 145, 15)
    assert [(each.rate_milli, each.samples) for each in verdict.after] == [(20_000, 15)]
