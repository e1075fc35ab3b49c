"""What earlier runs say about how long a job will take."""

import pytest

from skep.perf import predict
from skep.perf.predict import FamilySpeeds
from skep.units import Duration, seconds

STEP = seconds(0.5)


def learned(speeds: FamilySpeeds, *steps_s: float, gpus: int = 1, gpu_type: str = "a100") -> None:
    for number, step_s in enumerate(steps_s):
        speeds.learn("resnet", gpus, gpu_type, f"{gpus}-{gpu_type}-{number}", seconds(step_s))


def test_a_run_that_succeeded_counts_whole() -> None:
    assert predict.run_step_ns(100, seconds(50.0), seconds(0.1), succeeded=True) == STEP
    assert predict.run_step_ns(1, seconds(0.5), 0, succeeded=True) == STEP
    assert predict.run_step_ns(10**12, 1, 0, succeeded=True) == 1


def test_a_run_whose_begin_is_unknown_counts_by_its_mini_batches() -> None:
    assert predict.run_step_ns(1, 0, STEP, succeeded=True) == STEP
    assert predict.run_step_ns(1, -5, STEP, succeeded=True) == STEP
    assert predict.run_step_ns(1, 0, 0, succeeded=True) is None


def test_a_run_that_did_not_succeed_counts_by_its_mini_batches_if_there_were_enough() -> None:
    assert predict.run_step_ns(20, seconds(3600.0), STEP, succeeded=False) == STEP
    assert predict.run_step_ns(19, seconds(3600.0), STEP, succeeded=False) is None
    assert predict.run_step_ns(100, seconds(50.0), 0, succeeded=False) is None


def test_a_run_without_mini_batches_says_nothing() -> None:
    assert predict.run_step_ns(0, seconds(50.0), STEP, succeeded=True) is None


def test_a_rate_is_turned_into_the_time_per_mini_batch() -> None:
    assert predict.rate_step_ns(2000) == STEP
    assert predict.rate_step_ns(0) is None
    assert predict.rate_step_ns(10**13) == 1


@pytest.mark.parametrize(
    "total, done, step_ns, expected",
    [
        (100, 0, STEP, seconds(50.0)),
        (100, 90, STEP, seconds(5.0)),
        (100, 120, STEP, 0),
        (None, 0, STEP, None),
        (100, 0, None, None),
        (10**15, 0, STEP, predict.REMAINING_MAX),
    ],
)
def test_what_remains(
    total: int | None, done: int, step_ns: Duration | None, expected: int | None
) -> None:
    assert predict.remaining(total, done, step_ns) == expected


def test_an_unknown_family_has_no_speed() -> None:
    speeds = FamilySpeeds()
    assert len(speeds) == 0
    assert speeds.step_ns("resnet", 1, "a100") is None


def test_the_deepest_kind_known_counts() -> None:
    speeds = FamilySpeeds()
    learned(speeds, 1.0, 1.0, 1.0, gpus=1, gpu_type="a100")
    learned(speeds, 4.0, gpus=1, gpu_type="k80")
    learned(speeds, 0.25, gpus=8, gpu_type="a100")
    speeds.check()
    assert len(speeds) == 6
    assert speeds.step_ns("resnet", 1, "a100") == seconds(1.0)
    assert speeds.step_ns("resnet", 8, "a100") == seconds(0.25)
    assert speeds.step_ns("resnet", 8, "k80") == seconds(0.25)  # Eight GPUs of any type.
    assert speeds.step_ns("resnet", 2, "a100") == seconds(1.0)  # Any of the family.


def test_a_run_on_an_unknown_type_counts_at_the_shallower_depths() -> None:
    speeds = FamilySpeeds()
    learned(speeds, 2.0, gpu_type="")
    assert len(speeds) == 2
    assert speeds.step_ns("resnet", 1, "a100") == seconds(2.0)
    assert speeds.step_ns("resnet", 1, "") == seconds(2.0)


def test_odd_runs_do_not_move_the_median() -> None:
    speeds = FamilySpeeds()
    learned(speeds, 1.0, 1.0, 1.0, 60.0, 0.001)
    assert speeds.step_ns("resnet", 1, "a100") == seconds(1.0)


def test_only_the_latest_runs_count() -> None:
    speeds = FamilySpeeds()
    learned(speeds, *[1.0] * 40, *[3.0] * predict.RUNS_MAX)
    speeds.check()
    assert speeds.step_ns("resnet", 1, "a100") == seconds(3.0)


def test_a_later_word_on_the_same_run_replaces_the_earlier() -> None:
    speeds = FamilySpeeds()
    speeds.learn("resnet", 1, "", "j1", seconds(1.0))
    speeds.learn("resnet", 1, "", "j2", seconds(1.0))
    speeds.learn("resnet", 1, "", "j1", seconds(3.0))
    assert speeds.step_ns("resnet", 1, "") == seconds(2.0)


def test_kinds_unheard_of_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "KINDS_MAX", 6)
    speeds = FamilySpeeds()
    for family in ("a", "b", "a", "c"):
        speeds.learn(family, 1, "k80", "j1", STEP)
        speeds.check()
    assert speeds.step_ns("b", 1, "k80") is None
    assert speeds.step_ns("a", 1, "k80") == STEP
    assert speeds.step_ns("c", 1, "k80") == STEP
