"""The shortest first among equals, without starving anybody."""

from skep.policy.order import Group, Ranked, Waiting, shortest_remaining_first
from skep.units import Duration, Instant
from skep.wire.reasons import Reason

A: Group = ("a", False, 0)
B: Group = ("b", False, 0)
YOUNG = Instant(100)
OLD = Instant(1)


def waiting(
    job: str, remaining: int | None, group: Group = A, submitted_at: Instant = YOUNG
) -> Waiting:
    return Waiting(job, group, submitted_at, None if remaining is None else Duration(remaining))


def names(ranked: list[Ranked]) -> str:
    return " ".join(
        each.waiting.job + ("*" if each.why is Reason.PREDICTED_SHORTEST else "") for each in ranked
    )


def order(*queue: Waiting) -> str:
    return names(shortest_remaining_first(queue, aged_before=Instant(50)))


def test_an_empty_queue_has_an_order() -> None:
    assert order() == ""


def test_predicted_jobs_are_shortest_first() -> None:
    assert order(waiting("x", 30), waiting("y", 10), waiting("z", 20)) == "y* z* x*"


def test_equal_predictions_keep_their_arrival() -> None:
    assert order(waiting("x", 10), waiting("y", 10), waiting("z", 5)) == "z* x* y*"


def test_jobs_without_a_prediction_keep_their_places() -> None:
    queue = waiting("x", 30), waiting("u", None), waiting("y", 10), waiting("v", None)
    assert order(*queue) == "y* u x* v"


def test_groups_share_no_places() -> None:
    queue = waiting("x", 30), waiting("p", 3, B), waiting("y", 10), waiting("q", 1, B)
    assert order(*queue) == "y* q* x* p*"


def test_an_aged_job_is_overtaken_by_nobody() -> None:
    queue = (
        waiting("x", 30),
        waiting("y", 20),
        waiting("old", 99, submitted_at=OLD),
        waiting("z", 10),
        waiting("w", 1),
    )
    assert order(*queue) == "y* x* old w* z*"


def test_an_aged_job_is_no_barrier_to_other_groups() -> None:
    queue = waiting("x", 30), waiting("old", None, B, OLD), waiting("y", 10)
    assert order(*queue) == "y* old x*"
