"""What the introspector says about reports, effect list by effect list."""

from typing import Any

import pytest

from skep.machines import introspector
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.machines.introspector import IntrospectorMachine
from skep.perf.progress import RATE_MILLI_MAX
from skep.perf.reported import COUNT_MAX
from skep.perf.steady import WINDOWS
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire import codec
from skep.wire.bounds import ATTEMPT_MAX
from skep.wire.changes import Goal, JobChanged, Result
from skep.wire.codec import Facts, Unreadable
from skep.wire.facts import End, EpochBegan, JobBound, JobEnded, JobRequeued
from skep.wire.findings import JobRate, PhaseChanged, RateLearned, Rates, Stalled
from skep.wire.reasons import Reason
from skep.wire.reports import JobProgress, NodeReport, RankProgress
from skep.wire.standing import Standing

BEGIN = 1_700_000_000 * NS_PER_SECOND
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def at(offset: float) -> Instant:
    return Instant(BEGIN + seconds(offset))


def rank(number: int, steps: int, ended: float, step_s: float = 0.0, **more: Any) -> RankProgress:
    return RankProgress(
        rank=number, steps=steps, last_step_at=at(ended), step_ns=seconds(step_s), **more
    )


def job(
    name: str, *ranks: RankProgress, attempt: int = 1, world: int = 8, trace: str = TRACE
) -> JobProgress:
    return JobProgress(job=name, attempt=attempt, world=world, ranks=ranks, trace=trace)


def report(made: float, *jobs: JobProgress, node: str = "n1") -> NodeReport:
    return NodeReport(node=node, at=at(made), jobs=jobs)


def rates(told: float, *jobs: JobRate) -> Send:
    return Send("skep.v1.finding.rates", Rates(at=at(told), jobs=jobs))


def rate(name: str, steps: int, rate_milli: int, attempt: int = 1, **more: int) -> JobRate:
    fields = {"workers": 8} | more
    return JobRate(job=name, attempt=attempt, steps=steps, rate_milli=rate_milli, **fields)


def learned(told: float, name: str, rate_milli: int) -> Send:
    finding = RateLearned(at=at(told), job=name, attempt=1, rate_milli=rate_milli, trace=TRACE)
    return Send("skep.v1.finding.learned", finding)


def allocator(*facts: Any) -> Facts:
    return Facts(service="allocator", at=at(0), facts=facts)


def ended(name: str) -> JobEnded:
    return JobEnded(job=name, end=End.FAILED, why=Reason.CANCELLED, attempts=1, at=at(0))


def requeued(name: str, attempt: int) -> JobRequeued:
    return JobRequeued(job=name, attempt=attempt, why=Reason.NODE_LOST, counted=False, at=at(0))


def bound(name: str, attempt: int) -> JobBound:
    return JobBound(
        job=name,
        attempt=attempt,
        order=1,
        members=(),
        master_port=1,
        why=Reason.BEST_FIT_ONE_NODE,
        at=at(0),
    )


class Service:
    """A machine that is checked after every event, with a tick as asked for."""

    def __init__(self) -> None:
        self.machine = IntrospectorMachine()

    def hears(self, event: Any, told: float) -> list[Effect]:
        effects = self.machine.decide(event, at(told))
        self.machine.check()
        return effects

    def ticks(self) -> list[Effect]:
        due = self.machine.wake_at()
        assert due is not None
        effects = self.machine.decide(Tick(), due)
        self.machine.check()
        return effects

    def due(self) -> float | None:
        due = self.machine.wake_at()
        return None if due is None else (due - BEGIN) / NS_PER_SECOND


def is_rates(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, Rates)


@pytest.fixture
def service() -> Service:
    return Service()


def test_nothing_is_due_before_a_job_is_known(service: Service) -> None:
    assert service.hears(Restarted(epoch=3), 0) == []
    assert service.hears(Unreadable(subject="x", text="y"), 0) == []
    assert service.hears(Tick(), 0) == []
    assert service.hears(report(0.5), 0.5) == []
    assert service.due() is None


def test_rates_are_told_every_whole_second(service: Service) -> None:
    assert service.hears(report(0.5, job("j1", rank(0, 2, 0.4))), 0.6) == []
    assert service.due() == 1.0
    assert service.ticks() == [rates(1.0, rate("j1", 2, 0))]
    assert service.due() == 2.0
    assert service.hears(report(1.5, job("j1", rank(0, 6, 1.4))), 1.6) == []
    assert service.ticks() == [rates(2.0, rate("j1", 6, 4000))]


def test_rates_due_are_told_with_whatever_comes_late(service: Service) -> None:
    service.hears(report(0.5, job("j1", rank(0, 2, 0.4))), 0.6)
    effects = service.hears(report(3.5, job("j1", rank(0, 14, 3.4))), 3.6)
    assert effects == [rates(3.6, rate("j1", 14, 4000))]
    assert service.due() == 4.0


def test_a_job_goes_at_the_pace_of_its_slowest_rank_on_any_node(service: Service) -> None:
    for second in range(3):
        ranks = rank(0, 10 + 10 * second, second), rank(1, 10 + 12 * second, second)
        service.hears(report(second, job("j1", *ranks)), second)
        other = job("j1", rank(2, 8 + 8 * second, second))
        service.hears(report(second, other, node="n2"), second + 0.1)
    assert service.ticks() == [rates(3.0, rate("j1", 24, 8000))]


def test_a_rank_without_mini_batches_counts_for_utilisation_and_memory_only(
    service: Service,
) -> None:
    server = rank(1, 0, -BEGIN / NS_PER_SECOND, utilisation=101, memory=9)
    worker = rank(0, 2, 0.5, step_s=0.5, utilisation=800, memory=7)
    service.hears(report(0.5, job("j1", worker, server)), 0.5)
    assert service.ticks() == [rates(1.0, rate("j1", 2, 2000, utilisation=450, memory=9))]


def test_an_opaque_job_has_utilisation_and_no_rate(service: Service) -> None:
    opaque = RankProgress(rank=0, steps=0, utilisation=500, memory=5)
    service.hears(report(0.5, job("j1", opaque), job("j2")), 0.5)
    assert service.ticks() == [rates(1.0, rate("j1", 0, 0, utilisation=500, memory=5))]


def test_a_rate_is_learned_once_at_twenty_mini_batches_or_a_window(service: Service) -> None:
    told = []
    for second in range(15):
        fast = job("j1", rank(0, 1 + 10 * second, second))
        slow = job("j2", rank(0, 1 + second, second))
        service.hears(report(second + 0.5, fast, slow), second + 0.5)
        told += [(second + 1, each) for each in service.ticks() if not is_rates(each)]
    assert told == [(3, learned(3.0, "j1", 10_000)), (11, learned(11.0, "j2", 1000))]


def test_a_phase_change_is_told_with_both_levels(service: Service) -> None:
    told = []
    steps = 1
    for second in range(200):
        steps += 10 if second < 100 else 5
        service.hears(report(second, job("j1", rank(0, steps, second))), second)
        told += [each for each in service.ticks() if not is_rates(each)]
    change = PhaseChanged(
        at=at(132), job="j1", attempt=1, before_milli=10_000, after_milli=5_000, trace=TRACE
    )
    assert told == [learned(3.0, "j1", 10_000), Send("skep.v1.finding.phase", change)]


def test_a_stall_is_told_when_it_begins_and_when_it_is_over(service: Service) -> None:
    told = []
    for second in range(120):
        steps = 1 + min(second, 20) + max(second - 80, 0)
        latest = min(second, 20) if second <= 80 else second
        progress = job("j1", rank(0, steps, latest, step_s=1.0), rank(1, steps, latest + 0.5))
        service.hears(report(second, progress), second)
        told += [each for each in service.ticks() if not is_rates(each)]
    assert told[1:] == [
        Send(
            "skep.v1.finding.stall",
            Stalled(at=at(52), job="j1", attempt=1, since=at(20), trace=TRACE),
        ),
        Send(
            "skep.v1.finding.stall",
            Stalled(at=at(82), job="j1", attempt=1, since=at(20), over=True, trace=TRACE),
        ),
    ]


def test_a_stall_says_which_rank_keeps_the_others(service: Service) -> None:
    waits = Standing(line="t.py:9 in step", collective="gloo:all_reduce", entered=6, waits=True)
    loads = Standing(line="t.py:4 in load", collective="gloo:all_reduce", entered=5)
    told = []
    for second in range(33):
        more = [{"stands": each} if second > 10 else {} for each in (waits, loads)]
        progress = job("j1", *(rank(n, 3, 0, step_s=1.0, **more[n]) for n in range(2)))
        service.hears(report(second, progress), second)
        told += [each for each in service.ticks() if not is_rates(each)]
    (finding,) = [each.message for each in told if isinstance(each, Send)]
    assert isinstance(finding, Stalled)
    assert (finding.code, finding.behind, finding.nodes) == ("rank-behind", (1,), ("n1",))
    assert finding.text == (
        "rank 1 has not entered collective 6 (gloo:all_reduce), in which 1 rank waits; "
        "at t.py:4 in load"
    )


def test_a_job_that_was_suspended_goes_as_it_does_since(service: Service) -> None:
    def changed(goal: Goal) -> Facts:
        return allocator(
            JobChanged(
                job="j1",
                attempt=1,
                goal=goal,
                result=Result.DONE,
                why=Reason.PREEMPTED_BY_POLICY,
                at=at(0),
            )
        )

    for second in range(1, 31):
        service.hears(report(second, job("j1", rank(0, 10 * second, second, 0.1))), second + 0.1)
    service.hears(changed(Goal.SUSPEND), 30.5)
    told = []
    for second in range(31, 91):
        told += service.hears(report(second, job("j1", rank(0, 300, 30, 0.1))), second + 0.1)
    assert told == [], "neither a rate nor a stall"
    service.hears(changed(Goal.RESUME), 90.2)
    assert service.ticks() == [rates(91, rate("j1", 300, 0))]
    service.hears(report(91.5, job("j1", rank(0, 305, 91.5, 0.1))), 91.6)
    assert service.ticks() == [rates(92, rate("j1", 305, 10_000))]
    service.hears(report(92.5, job("j1", rank(0, 315, 92.5, 0.1))), 92.6)
    assert service.ticks() == [rates(93, rate("j1", 315, 10_000))]


def test_a_job_of_long_mini_batches_may_be_silent_for_longer(service: Service) -> None:
    told = []
    for second in range(110):
        service.hears(report(second, job("j1", rank(0, 3, 0, step_s=5.0))), second)
        told += [each for each in service.ticks() if not is_rates(each)]
    stalled = Stalled(at=at(102), job="j1", attempt=1, since=at(0), trace=TRACE)
    assert told == [Send("skep.v1.finding.stall", stalled)]


def test_a_job_without_a_mini_batch_is_never_stalled(service: Service) -> None:
    for second in range(100):
        starting = RankProgress(rank=0, steps=0)
        service.hears(report(second, job("j1", starting)), second)
        assert service.ticks() == [rates(second + 1.0, rate("j1", 0, 0))]


def test_what_is_not_heard_of_leaves_the_rates_then_memory(service: Service) -> None:
    service.hears(report(0.5, job("j1", rank(0, 2, 0.5))), 0.5)
    said = [service.ticks() for _ in range(60)]
    assert all(
        each == [rates(second, rate("j1", 2, 0))] for second, each in enumerate(said[:10], start=1)
    )
    assert not any(said[10:])
    assert service.due() == 61.0
    assert service.ticks() == []
    assert service.due() is None


def test_doubled_and_overtaken_reports_change_nothing(service: Service) -> None:
    first = report(0.5, job("j1", rank(0, 2, 0.5)))
    second = report(1.5, job("j1", rank(0, 6, 1.5)))
    for event in (first, second, second, first):
        service.hears(event, 1.5)
    assert service.ticks() == [rates(2.0, rate("j1", 6, 4000))]


def test_a_node_whose_clock_was_set_back_is_heard(service: Service) -> None:
    service.hears(report(5000.0, job("j1", rank(0, 500, 5000.0))), 0.5)
    service.hears(report(1.0, job("j1", rank(0, 506, 1.0))), 1.5)
    service.hears(report(2.0, job("j1", rank(0, 516, 2.0))), 2.5)
    assert service.ticks() == [rates(3.0, rate("j1", 516, 10_000))]


def test_a_later_attempt_replaces_an_earlier_one_and_stays(service: Service) -> None:
    service.hears(report(0.5, job("j1", rank(0, 50, 0.5))), 0.5)
    service.hears(report(0.6, job("j1", rank(0, 3, 0.6), attempt=2), node="n2"), 0.6)
    service.hears(report(0.9, job("j1", rank(0, 90, 0.9))), 0.9)
    assert service.ticks() == [rates(1.0, rate("j1", 3, 0, attempt=2))]


@pytest.mark.parametrize("over", [ended("j1"), requeued("j1", 1), bound("j1", 2)])
def test_an_attempt_that_is_over_is_forgotten_for_good(service: Service, over: Any) -> None:
    service.hears(report(0.5, job("j1", rank(0, 50, 0.5))), 0.5)
    assert service.hears(allocator(EpochBegan(epoch=1, owner="x"), over), 0.7) == []
    service.hears(report(0.9, job("j1", rank(0, 60, 0.9))), 0.9)
    assert service.ticks() == []
    assert service.due() is None
    service.hears(report(1.9, job("j1", rank(0, 1, 1.9), attempt=2)), 1.9)
    assert (service.due() is None) is isinstance(over, JobEnded)


def test_a_first_attempt_bound_changes_nothing(service: Service) -> None:
    service.hears(report(0.5, job("j1", rank(0, 50, 0.5))), 0.5)
    service.hears(allocator(bound("j1", 1), requeued("j2", 1)), 0.7)
    assert service.ticks() == [rates(1.0, rate("j1", 50, 0))]


def test_a_fact_told_late_does_not_reopen_what_is_over(service: Service) -> None:
    service.hears(allocator(ended("j1"), bound("j1", 2)), 0.1)
    service.hears(report(0.5, job("j1", rank(0, 50, 0.5), attempt=2)), 0.5)
    assert service.due() is None


@pytest.mark.parametrize(
    "broken",
    [
        job("../j1", rank(0, 1, 0.4)),
        job("j" + "1" * 5000, rank(0, 1, 0.4)),
        job("j1", rank(0, 1, 0.4), attempt=0),
        job("j1", rank(0, 1, 0.4), attempt=10**9),
        job("j1", rank(-1, 1, 0.4)),
        job("j1", rank(8, 1, 0.4)),
        job("j1", rank(0, 1, 0.4), world=0),
    ],
)
def test_a_report_of_what_cannot_be_is_passed_over(service: Service, broken: JobProgress) -> None:
    good = job("j2", rank(0, 2, 0.4))
    service.hears(report(0.5, broken, good), 0.5)
    assert service.ticks() == [rates(1.0, rate("j2", 2, 0))]


@pytest.mark.parametrize(
    "broken",
    [
        RankProgress(rank=0, steps=-1),
        RankProgress(rank=0, steps=10**30),
        RankProgress(rank=0, steps=7, last_step_at=Instant(-5)),
        RankProgress(rank=0, steps=7, last_step_at=Instant(2**70)),
        RankProgress(rank=0, steps=7, step_ns=-1),
        RankProgress(rank=0, steps=7, utilisation=1001),
        RankProgress(rank=0, steps=7, memory=2**80),
    ],
)
def test_a_rank_with_values_out_of_range_is_passed_over(
    service: Service, broken: RankProgress
) -> None:
    service.hears(report(0.5, job("j1", broken)), 0.5)
    assert service.ticks() == [rates(1.0, rate("j1", 0, 0))]


@pytest.mark.parametrize("made", [0, -7, 2**62])
def test_a_report_from_no_time_is_passed_over(service: Service, made: int) -> None:
    jobs = (job("j1", rank(0, 1, 0.4)),)
    service.hears(NodeReport(node="n1", at=Instant(made), jobs=jobs), 0.5)
    assert service.due() is None


def test_a_trace_that_is_none_is_left_out(service: Service) -> None:
    told: list[Effect] = []
    for second in range(3):
        progress = job("j1", rank(0, 1 + 10 * second, second), trace="; drop table")
        service.hears(report(second + 0.5, progress), second + 0.5)
        told = service.ticks()[1:]
    finding = RateLearned(at=at(3), job="j1", attempt=1, rate_milli=10_000)
    assert told == [Send("skep.v1.finding.learned", finding)]


def test_many_jobs_are_told_in_messages_of_bounded_size(service: Service) -> None:
    count = introspector.RATES_JOBS_MAX + 1
    for node in range(2):
        largest = rank(0, COUNT_MAX, 0.0, 0.0, utilisation=1000, memory=COUNT_MAX)
        begin = 10**17
        jobs = [
            job(f"j{begin + number}", largest, attempt=10**9 - 1)
            for number in range(node, count, 2)
        ]
        service.hears(report(0.5, *jobs, node=f"n{node}"), 0.5)
    effects = service.ticks()
    sizes = [len(effect.message.jobs) for effect in effects if isinstance(effect, Send)]
    assert sizes == [introspector.RATES_JOBS_MAX, 1]
    for effect in effects:
        assert isinstance(effect, Send)
        assert len(codec.encode(effect.message)) <= introspector.RATES_BYTES_MAX


def test_one_rate_fits_the_size_reckoned_with() -> None:
    largest = JobRate(
        job="j" + "9" * (introspector.JOB_LENGTH_MAX - 1),
        attempt=ATTEMPT_MAX - 1,
        steps=COUNT_MAX,
        rate_milli=RATE_MILLI_MAX,
        utilisation=1000,
        memory=COUNT_MAX,
        workers=introspector.RANKS_MAX,
        mean_milli=RATE_MILLI_MAX,
        spread_milli=RATE_MILLI_MAX,
        samples=WINDOWS,
    )
    assert len(codec.encode(largest)) + 1 <= introspector.JOB_RATE_BYTES_MAX


def test_findings_beyond_the_bound_are_told_a_second_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introspector, "TOLD_MAX", 2)
    told = []
    for second in range(6):
        jobs = [job(f"j{number}", rank(0, 1 + 30 * second, second)) for number in range(1, 6)]
        service.hears(report(second + 0.5, *jobs), second + 0.5)
        told.append([each for each in service.ticks() if not is_rates(each)])
    assert [len(each) for each in told] == [0, 2, 2, 1, 0, 0]


def test_ranks_attempts_and_nodes_beyond_the_bounds_are_shed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introspector, "RANKS_MAX", 3)
    monkeypatch.setattr(introspector, "ATTEMPTS_MAX", 2)
    monkeypatch.setattr(introspector, "NODES_MAX", 2)
    monkeypatch.setattr(introspector, "OVER_MAX", 2)
    for number in range(1, 4):
        progress = job(f"j{number}", rank(0, 2, 0.5), rank(1, 2, 0.5))
        service.hears(report(0.5, progress, node=f"n{number}"), 0.5)
    assert service.ticks() == [rates(1.0, rate("j1", 2, 0), rate("j2", 2, 0))]
    service.hears(allocator(*[ended(f"j{number}") for number in range(1, 5)]), 1.0)
    assert service.due() is not None
    assert service.ticks() == []


def test_a_fact_of_its_own_log_changes_nothing(service: Service) -> None:
    service.machine.apply(EpochBegan(epoch=1, owner="x"))
    service.machine.check()
