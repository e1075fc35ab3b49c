"""What policies are told of rates, and when; and what is predicted from what was measured."""

import pytest

from skep.perf import outlook, scaling
from skep.perf.outlook import Outlooks, Runner
from skep.perf.progress import RATE_MILLI_MAX
from skep.perf.scaling import Scaling
from skep.units import Duration, Instant, seconds
from skep.wire.advice import FamilyScale, Outlook, ScalePoint
from skep.wire.findings import JobRate


def at(second: float) -> Instant:
    return Instant(1_700_000_000_000_000_000 + seconds(second))


def runner(job: str = "j1", attempt: int = 1, nodes: int = 1) -> Runner:
    return Runner(job, attempt, ("bert", "v100"), each=2, nodes=nodes, total=1000)


def rate(milli: int, steps: int = 100, job: str = "j1", **more: int) -> JobRate:
    fields = {"workers": 2, "utilisation": 800} | more
    return JobRate(job=job, attempt=1, steps=steps, rate_milli=milli, **fields)


class Teller:
    """Measures once a second, and keeps what is told."""

    def __init__(self) -> None:
        self.outlooks = Outlooks()
        self.now = 0
        self.told: list[tuple[int, Outlook]] = []

    def measured(self, *rates: JobRate, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1
            for each in rates:
                self.outlooks.measured(each, at(self.now))
            self.take()

    def take(self) -> None:
        due = self.outlooks.wake_at()
        if due is not None and due <= at(self.now):
            self.told += [(self.now, each) for each in self.outlooks.take(at(self.now))]
        self.outlooks.check()


@pytest.fixture
def teller() -> Teller:
    made = Teller()
    made.outlooks.begin(runner())
    return made


def test_a_pace_is_told_once_it_is_steady_and_again_when_it_is_another(teller: Teller) -> None:
    teller.measured(rate(2000), times=30)
    ((first, told),) = teller.told
    assert first == 21
    (pace,) = told.jobs
    assert (pace.rate_milli, pace.utilisation) == (2000, 800)
    # Counted on from when the rate became what it is: 19 s at 2 mini-batches a second.
    assert pace.steps == 138
    assert pace.remaining == seconds((1000 - 138) / 2)
    assert told.families == (
        FamilyScale(
            family="bert",
            gpu_type="v100",
            points=(ScalePoint(gpus=4, nodes=1, step_ns=seconds(0.5)),),
        ),
    )
    teller.measured(rate(2100), times=60)
    teller.measured(rate(1000), times=5)
    assert [(second, each.jobs[0].rate_milli) for second, each in teller.told] == [
        (21, 2000),
        (92, 1000),
    ]


def test_a_small_difference_is_told_ten_minutes_later(teller: Teller) -> None:
    teller.measured(rate(2000), times=30)
    teller.measured(rate(2100), times=700)
    assert [second for second, _ in teller.told] == [21, 621]


def test_who_stands_for_a_moment_is_not_told_of(teller: Teller) -> None:
    teller.measured(rate(2000), times=30)
    teller.measured(rate(2000, utilisation=0), times=5)
    teller.measured(rate(2000), times=30)
    assert len(teller.told) == 1
    teller.measured(rate(2000, utilisation=0), times=12)
    assert teller.told[-1][1].jobs[0].utilisation == 0


def test_nothing_is_learned_of_a_family_from_a_gang_that_stands(teller: Teller) -> None:
    """While it changes its size its rate falls with its silence."""
    teller.measured(rate(2000), times=30)
    teller.measured(rate(100, utilisation=0, workers=4), times=60)
    assert teller.told[-1][1].jobs[0].rate_milli == 100
    assert not [each for _, each in teller.told[1:] if each.families]


def test_a_size_is_learned_from_when_the_rate_rests_on_it_alone(teller: Teller) -> None:
    teller.measured(rate(2000), times=30)
    teller.measured(rate(2000, workers=4), times=3)
    teller.measured(rate(3600, workers=4), times=40)
    (points,) = [each.families[0].points for _, each in teller.told[1:] if each.families]
    assert points == (
        ScalePoint(gpus=4, nodes=1, step_ns=seconds(0.5)),
        ScalePoint(gpus=8, nodes=1, step_ns=Duration(277_777_777)),
    )


def means(teller: Teller) -> list[tuple[int, int, int]]:
    """Return what was told of a job: its rate, and the mean of how many windows."""
    told = (each.jobs[0] for _, each in teller.told)
    return [(pace.rate_milli, pace.mean_milli, pace.samples) for pace in told]


def test_a_mean_is_forgotten_once_a_job_goes_otherwise_until_there_is_a_new_one(
    teller: Teller,
) -> None:
    teller.measured(rate(2000, mean_milli=2000, spread_milli=20, samples=8), times=30)
    teller.measured(rate(1000), times=30)
    assert means(teller) == [(2000, 2000, 8), (1000, 0, 0)]
    teller.measured(rate(1000, mean_milli=1010, spread_milli=10, samples=8), times=20)
    assert means(teller)[2:] == [(1000, 1010, 8)]


def test_a_mean_is_kept_while_a_job_goes_as_its_windows_did(teller: Teller) -> None:
    """Their spread is 100, and three times that is nothing new; one measurement says nothing."""
    teller.measured(rate(2000, mean_milli=2000, spread_milli=100, samples=8), times=30)
    teller.measured(rate(1000))
    teller.measured(rate(2300), times=30)
    assert means(teller) == [(2000, 2000, 8), (2300, 2000, 8)]
    teller.measured(rate(2301), times=700)
    assert means(teller)[1:] == [(2300, 2000, 8)]
    assert teller.outlooks.runners["j1"].base.samples == 0


def test_what_shares_its_gpus_says_nothing_of_its_family(teller: Teller) -> None:
    teller.outlooks.runners["j1"].shares = True
    teller.measured(rate(2000), times=30)
    ((_, told),) = teller.told
    assert told.jobs
    assert not told.families


def test_everything_is_told_again_in_bounded_messages(
    teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "JOBS_MAX", 2)
    teller.outlooks.begin(runner("j10"))
    teller.outlooks.begin(runner("j2"))
    rates = [rate(2000, job=job) for job in ("j10", "j2", "j1")]
    teller.measured(*rates, times=30)
    teller.told.clear()
    teller.outlooks.again(at(30))
    teller.measured(*rates, times=10)
    assert [[pace.job for pace in each.jobs] for _, each in teller.told] == [["j1", "j2"], ["j10"]]
    assert [second for second, _ in teller.told] == [35, 35]
    assert teller.told[0][1].families
    teller.outlooks.end("j10")
    teller.now += 3600
    teller.take()
    assert [pace.job for pace in teller.told[-1][1].jobs] == ["j1", "j2"]


def test_sizes_between_and_a_bit_beyond_those_measured_are_predicted() -> None:
    points = [
        ScalePoint(gpus=gpus, nodes=1, step_ns=seconds(step))
        for gpus, step in ((2, 1.0), (8, 0.25))
    ]
    assert scaling.rates(points, 2, range(1, 12)) == (
        (1, 1000),
        (2, 2000),
        (3, 3000),
        (4, 4000),
        (5, 5000),
        (6, 6000),
        (7, 7000),
        (8, 8000),
    )
    # Its own rate is what it is; the others are relative to it.
    assert scaling.rates(points, 2, range(1, 3), own=(2, 1000)) == ((1, 500), (2, 1000))
    assert scaling.rates(points[:1], 2, range(1, 4)) == ((1, 1000),)


def test_rates_that_jobs_invent_end_no_service() -> None:
    slow, fast = 10**14, 1
    points = tuple(
        ScalePoint(gpus=gpus, nodes=1, step_ns=Duration(step))
        for gpus, step in ((1, slow), (2, fast), (4, fast))
    )
    found = scaling.rates(points, 1, range(1, 9), own=(1, RATE_MILLI_MAX))
    assert [workers for workers, _ in found] == list(range(1, 9))
    assert all(0 < rate <= RATE_MILLI_MAX for _, rate in found)
    assert scaling.rates((), 2, range(1, 4), own=(2, 1000)) == ((2, 1000),)


def test_a_gang_that_gets_slower_with_size_is_not_thought_to_get_faster_beyond() -> None:
    points = [
        ScalePoint(gpus=gpus, nodes=1, step_ns=seconds(step)) for gpus, step in ((2, 1.0), (4, 1.5))
    ]
    assert scaling.rates(points, 1, range(4, 9))[-1] == (8, 667)


def test_slowdowns_are_medians_over_sizes_relative_to_the_fewest_nodes() -> None:
    points = [
        ScalePoint(gpus=gpus, nodes=nodes, step_ns=seconds(step))
        for gpus, nodes, step in ((4, 1, 1.0), (4, 2, 1.5), (8, 1, 2.0), (8, 2, 2.2), (16, 2, 1.0))
    ]
    assert scaling.slowdown(points) == ((1, 1000), (2, 1300))
    assert scaling.slowdown(points[-1:]) == ()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "FAMILIES_MAX", 2)
    monkeypatch.setattr(scaling, "POINTS_MAX", 3)
    known = Scaling()
    for number in range(5):
        for gpus in range(1, 6):
            known.learn((f"f{number}", "v100"), gpus, 1, "j1", seconds(1))
        known.check()
    assert list(known.keys()) == [("f3", "v100"), ("f4", "v100")]
    assert [point.gpus for point in known.points(("f4", "v100"))] == [3, 4, 5]
