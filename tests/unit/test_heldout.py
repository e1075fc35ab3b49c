"""Evaluation traces are such that no training has seen."""

import pytest

from skep.units import seconds
from skep_lab.traces.generators.registry import GENERATORS, make
from skep_lab.traces.heldout import (
    HELD_OUT_FROM,
    HeldOutError,
    evaluation_seed,
    is_held_out,
    split,
    training_seed,
)
from skep_lab.traces.job import Trace, TraceJob
from skep_services.cli.main import main
from skep_services.simulations.inputs import WrongError, drawn

SMALL = {"hived": ":days=1,part=0.02", "sched2": ":jobs=40", "gandiva": ":jobs=40"}


def test_seeds_of_training_and_evaluation_are_disjoint() -> None:
    numbers = [0, 1, 17, HELD_OUT_FROM - 1]
    assert [training_seed(number) for number in numbers] == numbers
    assert not any(is_held_out(training_seed(number)) for number in numbers)
    assert all(is_held_out(evaluation_seed(number)) for number in numbers)
    assert len({evaluation_seed(number) for number in numbers}) == len(numbers)


@pytest.mark.parametrize("number", [-1, HELD_OUT_FROM, evaluation_seed(3)])
def test_training_gets_no_seed_of_evaluation(number: int) -> None:
    with pytest.raises(HeldOutError, match="training draws seeds 0 to 999,999,999"):
        training_seed(number)
    with pytest.raises(HeldOutError):
        evaluation_seed(number)


@pytest.mark.parametrize("name", GENERATORS)
def test_an_evaluation_trace_is_no_training_trace(name: str) -> None:
    words = name + SMALL.get(name, "")
    count = 1 if name == "hived" else 4  # A second each.
    training = [make(words, training_seed(number)).jobs for number in range(count)]
    for number in range(count):
        assert make(words, evaluation_seed(number)).jobs not in training


def test_a_file_is_split_by_time() -> None:
    jobs = tuple(
        TraceJob(id=f"j{n}", at=seconds(10 * n), run_time=seconds(1), gpus=1, deadline=seconds(200))
        for n in range(10)
    )
    training, evaluation = split(Trace(name="t", jobs=jobs, rows=tuple(range(2, 12))))
    assert training.jobs == jobs[:7]
    assert [job.id for job in evaluation.jobs] == ["j7", "j8", "j9"]
    assert [job.at for job in evaluation.jobs] == [0, seconds(10), seconds(20)]
    assert evaluation.jobs[0].deadline == seconds(130)
    assert (training.rows, evaluation.rows) == ((2, 3, 4, 5, 6, 7, 8), (9, 10, 11))
    with pytest.raises(HeldOutError, match="too few"):
        split(Trace(name="t", jobs=jobs[:1]))


def test_a_command_line_gets_evaluation_seeds_only_where_it_asks_for_them() -> None:
    assert drawn((0, 5), held_out=True) == (evaluation_seed(0), evaluation_seed(5))
    assert drawn((0, 5), held_out=False) == (0, 5)
    with pytest.raises(WrongError, match="write --held-out --seed 5"):
        drawn((0, evaluation_seed(5)), held_out=False)
    with pytest.raises(WrongError, match="count from 0 on"):
        drawn((-1,), held_out=True)


def test_traces_to_train_on_are_not_drawn_by_seeds_of_evaluation(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["traces", "generate", "sched2:jobs=5", "--seed", str(evaluation_seed(0))]
    assert main(words) == 2
    assert "is held out for evaluation" in capfd.readouterr().err
