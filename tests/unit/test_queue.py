"""Who is next in one VC's queue, with and without advice."""

import pytest

from skep.ledger.queue import Entry, Head, JobQueue
from skep.wire.reasons import Reason

A, B, C = Entry(0, 1, "j1"), Entry(0, 2, "j2"), Entry(0, 3, "j3")
URGENT = Entry(-5, 4, "j4")


def queue_of(*entries: Entry) -> JobQueue:
    queue = JobQueue()
    for entry in entries:
        queue.add(entry)
    return queue


def drained(queue: JobQueue) -> list[str]:
    """Return the jobs in the order in which they would start."""
    order = []
    while (head := queue.head()) is not None:
        queue.remove(head.entry)
        order.append(head.entry.job)
    return order


def test_an_empty_queue_has_no_head() -> None:
    queue = JobQueue()
    assert queue.head() is None
    assert len(queue) == 0


def test_priority_then_arrival() -> None:
    queue = queue_of(C, A, URGENT, B)
    assert len(queue) == 4
    assert queue.head() == Head(URGENT, URGENT, Reason.ARRIVAL)
    assert drained(queue) == ["j4", "j1", "j2", "j3"]


def test_a_job_waits_once() -> None:
    queue = queue_of(A)
    assert queue.holds(A)
    assert not queue.holds(B)
    with pytest.raises(AssertionError):
        queue.add(A)
    with pytest.raises(AssertionError):
        queue.remove(B)


def test_advice_orders_equals_while_the_claim_stays_that_of_the_earliest() -> None:
    queue = queue_of(A, B, C)
    queue.advise([C, A, B])
    assert queue.head() == Head(C, A, Reason.PREDICTED_SHORTEST)
    queue.remove(C)
    assert queue.head() == Head(A, A, Reason.ARRIVAL)
    assert drained(queue) == ["j1", "j2"]


def test_advice_never_lifts_a_job_over_a_higher_priority() -> None:
    queue = queue_of(A, B)
    queue.advise([B, A])
    queue.add(URGENT)
    assert queue.head() == Head(URGENT, URGENT, Reason.ARRIVAL)
    queue.remove(URGENT)
    assert queue.head() == Head(B, A, Reason.PREDICTED_SHORTEST)


def test_advice_about_jobs_that_left_is_skipped() -> None:
    queue = queue_of(A, B, C)
    queue.advise([C, B])
    queue.remove(C)
    assert queue.head() == Head(B, A, Reason.PREDICTED_SHORTEST)
    queue.remove(B)
    assert queue.head() == Head(A, A, Reason.ARRIVAL)


def test_advice_is_followed_until_told_otherwise() -> None:
    queue = queue_of(A, B)
    queue.advise([B])
    queue.advise(())
    assert queue.head() == Head(A, A, Reason.ARRIVAL)


def test_a_job_that_comes_back_takes_its_old_place() -> None:
    queue = queue_of(A, B)
    queue.remove(A)
    queue.add(A)
    assert drained(queue) == ["j1", "j2"]
