"""The cluster over the last days: what facts tell, however often its keeper begins anew."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from skep.ledger.history import (
    POINTS_MAX,
    STEP,
    History,
    Point,
    Tally,
    bucket_of,
    quantile,
    useful,
    wait_of,
)
from skep.units import NS_PER_SECOND
from skep.wire.node import Outcome
from tests.gateway_kit import Cluster
from tests.kit import at, joined, spec


def cluster() -> Cluster:
    made = Cluster()
    made.set_vcs(nlp=4)
    made.join(joined("node-1", 2))
    made.join(joined("node-2", 2))
    return made


def of(history: History, second: float) -> Tally:
    return history.sums(0, at(second)).get("nlp", Tally())


def test_a_job_waits_holds_trains_and_ends() -> None:
    made = cluster()
    first, second = (made.submit(spec(gpus=2, workers=2), 10) for _ in range(2))
    made.submit(spec(), 20)
    made.runs(first, second=30)
    history = made.fold.history
    made.exits(first, second=130)
    tally = of(history, 160)
    assert made.fold.active[second].row.state == "bound"
    assert (tally.started, tally.succeeded, tally.failed) == (2, 1, 0)
    # The second waited until 130, the third still does; the first had four GPUs, then the second.
    assert tally.waited_ns == (120 + 140) * NS_PER_SECOND
    assert tally.held_ns == 4 * (120 + 30) * NS_PER_SECOND
    assert tally.trained_ns == 4 * 100 * NS_PER_SECOND
    assert (quantile(tally.waits, 50), quantile(tally.waits, 90)) == (0.0, wait_of(118))
    points = history.shown(at(0), at(160))
    assert sum(point.started for point in points) == 2
    assert all(sum(point.gpus.values()) <= 4.01 for point in points)


def test_gpus_are_counted_by_state() -> None:
    made = cluster()
    history = made.fold.history
    assert history.gpus == {"free": 4, "held": 0, "bad": 0, "drained": 0, "lost": 0}
    job = made.submit(spec(), 10)
    assert history.gpus["held"] == 1
    made.runs(job, second=12)
    made.exits(job, second=20)
    assert history.gpus["held"] == 0
    (point,) = history.shown(at(15), at(20))
    assert point.gpus["free"] + point.gpus["held"] == 4


def test_lost_work_is_taken_from_the_time_in_which_it_was_done() -> None:
    made = cluster()
    job = made.submit(spec(), 10)
    made.runs(job, second=20)
    hour = 3600.0
    history = made.fold.history
    before = [useful_of(point.useful) for point in history.shown(at(1_200), at(hour))]
    assert min(before[1:-1]) == 1000
    made.exits(job, second=hour, outcome=Outcome.EXITED)
    tally = of(history, hour)
    assert tally.failed == 1
    assert tally.lost_ns > 0
    after = [useful_of(point.useful) for point in history.shown(at(1_200), at(hour))]
    assert max(after[1:-1]) < 100


def useful_of(value: int | None) -> int:
    assert value is not None
    return value


STORY = st.lists(
    st.tuples(st.sampled_from(("submit", "run", "exit", "lose")), st.integers(1, 900)), max_size=12
)


@given(STORY, st.lists(st.integers(0, 11), max_size=4))
def test_who_begins_anew_has_the_same_history(
    story: list[tuple[str, int]], restarts: list[int]
) -> None:
    """A keeper that stores its points, dies and reads on ends up where one does that never died."""
    made, now, live = cluster(), 10.0, []
    for number, (what, later) in enumerate(story):
        now += later
        if what == "submit":
            live.append(made.submit(spec(), now))
        elif live:
            job = live[0]
            state = made.allocator.machine.state.jobs.get(job)
            if state is None or not state.members:
                live.pop(0)
            elif what == "run":
                made.runs(job, state.attempt, second=now)
            else:
                outcome = Outcome.SUCCEEDED if what == "exit" else Outcome.NODE_FAULT
                made.exits(job, state.attempt, second=now, outcome=outcome)
        if number in restarts:
            _begin_anew(made)
    made.fold.history.begin(made.fold.state)
    end, other = now + 100, Cluster()
    for stream, event in made.told:
        moment = getattr(event, "at", at(0))
        if stream == "ALLOC":
            other.fold.apply(event, moment)
    shown = made.fold.history.shown(at(0), at(end))
    assert shown == other.fold.history.shown(at(0), at(end))


def _begin_anew(made: Cluster) -> None:
    history = made.fold.history
    history.settle()
    kept = [
        msgspec.json.decode(msgspec.json.encode(each), type=Point)
        for each in history.points.values()
    ]
    fresh = History()
    fresh.restore(kept, history.at)
    assert fresh.news() == []
    made.fold.history = fresh


def test_seven_days_are_kept() -> None:
    made = cluster()
    history = made.fold.history
    for day in range(1, 10):
        made.submit(spec(), day * 24 * 3600.0)
        history.settle()
    assert len(history.points) == POINTS_MAX
    assert max(history.points) - min(history.points) == (POINTS_MAX - 1) * STEP


def test_waits_are_told_within_an_eighth() -> None:
    for wait_ms in (0, 1, 7, 8, 9, 1_000, 12_345, 86_400_000):
        told = wait_of(bucket_of(wait_ms * 1_000_000)) * 1000
        assert abs(told - wait_ms) <= max(1, wait_ms / 8), wait_ms
    assert quantile({}, 50) is None
    assert useful(Tally()) is None
