"""Whatever agents report, the introspector stays in bounds and says what can be sent."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skep.machines import introspector
from skep.machines.base import Effect, Send, Tick
from skep.machines.introspector import IntrospectorMachine
from skep.units import NS_PER_SECOND, Instant
from skep.wire import codec
from skep.wire.codec import Facts
from skep.wire.facts import End, JobBound, JobEnded, JobRequeued
from skep.wire.findings import Rates
from skep.wire.reasons import Reason
from skep.wire.reports import JobProgress, NodeReport, RankProgress

BEGIN = 1_700_000_000 * NS_PER_SECOND
INTEGERS = st.integers(-(2**70), 2**70) | st.integers(0, 100)
STEPS = st.integers(0, 200) | INTEGERS
TIMES = st.integers(BEGIN, BEGIN + 200 * NS_PER_SECOND) | INTEGERS
JOBS = st.sampled_from(["j1", "j2", "j3", "x"]) | st.text(max_size=30)

ranks = st.builds(
    RankProgress,
    rank=st.integers(-1, 3),
    steps=STEPS,
    step_ns=INTEGERS,
    last_step_at=TIMES,
    utilisation=st.integers(0, 1000) | INTEGERS,
    memory=INTEGERS,
    next_at=TIMES | st.just(0),
)
progress = st.builds(
    JobProgress,
    job=JOBS,
    attempt=st.integers(1, 3) | INTEGERS,
    world=st.integers(0, 4),
    ranks=st.lists(ranks, max_size=3).map(tuple),
    trace=st.text(max_size=5),
    lasts=st.booleans(),
)
reports = st.builds(
    NodeReport,
    node=st.sampled_from(["n1", "n2"]),
    at=TIMES,
    jobs=st.lists(progress, max_size=3).map(tuple),
)
facts = st.one_of(
    st.builds(
        JobBound,
        job=JOBS,
        attempt=st.integers(1, 3),
        order=st.just(1),
        members=st.just(()),
        master_port=st.just(1),
        why=st.just(Reason.BEST_FIT_ONE_NODE),
        at=st.just(Instant(0)),
    ),
    st.builds(
        JobRequeued,
        job=JOBS,
        attempt=st.integers(1, 3),
        why=st.just(Reason.NODE_LOST),
        counted=st.just(False),
        at=st.just(Instant(0)),
    ),
    st.builds(
        JobEnded,
        job=JOBS,
        end=st.just(End.FAILED),
        why=st.just(Reason.CANCELLED),
        attempts=st.just(1),
        at=st.just(Instant(0)),
    ),
)
records = st.builds(
    Facts,
    service=st.just("allocator"),
    at=st.just(Instant(0)),
    facts=st.lists(facts, max_size=3).map(tuple),
)
events = st.lists(
    st.tuples(st.integers(0, 15 * NS_PER_SECOND), reports | records | st.just(Tick())), max_size=25
)


def spoken(machine: IntrospectorMachine, event: Any, now: int) -> list[Effect]:
    effects = machine.decide(event, Instant(now))
    machine.check()
    return effects


@given(events=events)
def test_whatever_comes_is_survived_and_what_is_said_can_be_sent(
    events: list[tuple[int, Any]],
) -> None:
    machine = IntrospectorMachine()
    now = BEGIN
    for pause, event in events:
        now += pause
        for effect in spoken(machine, event, now):
            assert isinstance(effect, Send)
            payload = codec.encode(effect.message)
            assert len(payload) <= introspector.RATES_BYTES_MAX
            assert codec.read(effect.subject, payload, {}, 0, Instant(0)) == effect.message
        due = machine.wake_at()
        assert due is None or now < due


@given(events=events, repeats=st.lists(st.integers(0, 2), min_size=25, max_size=25))
def test_reports_told_twice_change_nothing(
    events: list[tuple[int, Any]], repeats: list[int]
) -> None:
    once, often = IntrospectorMachine(), IntrospectorMachine()
    now = BEGIN
    for (pause, event), again in zip(events, repeats, strict=False):
        now += pause
        said = spoken(once, event, now)
        said_often = spoken(often, event, now)
        if isinstance(event, NodeReport):
            for _ in range(again):
                said_often += spoken(often, event, now)
        assert said_often == said


@given(
    lost=st.lists(st.booleans(), min_size=40, max_size=40),
    rate=st.integers(1, 100),
    restart=st.integers(1, 28),
)
def test_lost_reports_and_a_restart_are_made_up_for(
    lost: list[bool], rate: int, restart: int
) -> None:
    machine = IntrospectorMachine()
    said: list[Effect] = []
    for second in range(1, 41):
        if second == restart:
            machine = IntrospectorMachine()
        now = Instant(BEGIN + second * NS_PER_SECOND)
        rank = RankProgress(rank=0, steps=second * rate, last_step_at=now)
        job = JobProgress(job="j1", attempt=1, world=1, ranks=(rank,))
        if second > 38 or not lost[second - 1]:
            spoken(machine, NodeReport(node="n1", at=now, jobs=(job,)), now)
        if machine.wake_at() is not None:
            said = spoken(machine, Tick(), machine.wake_at() or 0)
    told = next(each.message for each in said if isinstance(each, Send))
    assert isinstance(told, Rates)
    assert [(each.steps, each.rate_milli) for each in told.jobs] == [(40 * rate, 1000 * rate)]
