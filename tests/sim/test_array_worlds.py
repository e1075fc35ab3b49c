"""Worlds with arrays: what must hold of them holds, and is seen where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from skep.sim.arrayed import ArraysModel
from skep.sim.history import run_seed
from skep.sim.violation import ViolationError
from skep.sim.workload import ARRAYS_FROM, GATED_FROM
from skep.sim.world import Settings
from skep.wire.array import ArrayAdmitted, ArrayOver, TasksCancelled, TasksRetried
from skep.wire.facts import Admitted
from tests.kit import T0, spec

SEED = ARRAYS_FROM + 3


def test_every_invariant_holds() -> None:
    result = run_seed(SEED, Settings(check_every=10))

    assert not result.violation, result.violation
    assert result.crashes


def test_arrays_that_wait_and_are_waited_for_keep_every_invariant() -> None:
    result = run_seed(GATED_FROM + 28, Settings(check_every=50))

    assert not result.violation, result.violation
    assert result.crashes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [ARRAYS_FROM + 9, ARRAYS_FROM + 13, GATED_FROM + 3])
def test_every_invariant_holds_in_long_histories(seed: int) -> None:
    result = run_seed(seed, Settings(check_every=50))

    assert not result.violation, (seed, result.violation)


def model() -> ArraysModel:
    """Return a model of an array of three tasks, two at once, whose first two are jobs."""
    made = ArraysModel()
    made.take(ArrayAdmitted(array="j1", spec=spec(array="0-2%2"), submitted_at=T0))
    for job, index in (("j2", 0), ("j3", 1)):
        made.admitted(task(job, index))
    return made


def task(job: str, index: int) -> Admitted:
    return Admitted(job=job, spec=spec(task=f"j1[{index}]"), submitted_at=T0)


OVER = ArrayOver(array="j1", succeeded=2, failed=0, cancelled=1, at=T0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda made: made.admitted(task("j4", 2)),  # A third one at once.
        lambda made: made.admitted(task("j4", 1)),  # It is a job.
        lambda made: made.admitted(task("j4", 9)),
        lambda made: made.take(TasksCancelled(array="j1", tasks="1")),
        lambda made: made.take(TasksRetried(array="j1", number=9, tasks="1", at=T0)),
        lambda made: made.take(OVER),
        lambda made: made.take(TasksCancelled(array="j9", tasks="1")),
    ],
)
def test_what_must_not_be_is_seen(wrong: Any) -> None:
    with pytest.raises(ViolationError, match="I23"):
        wrong(model())


def test_an_array_ends_once() -> None:
    made = model()
    made.take(TasksCancelled(array="j1", tasks="2"))
    made.over("j2", "succeeded")
    made.over("j3", "succeeded")
    made.take(OVER)
    assert made.pending() == ""
    with pytest.raises(ViolationError, match="I23"):
        made.take(OVER)
