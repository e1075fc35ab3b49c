"""Rows of arrays: the same in whatever order the streams arrive."""

from __future__ import annotations

from itertools import permutations

import pytest

from skep.wire import codec
from skep.wire.codec import AskRequest
from skep.wire.node import Outcome
from skep_services.gateway import arrays
from skep_services.gateway.fold import Fold
from tests.gateway_kit import Cluster, documents, fresh_fold, job_of, texts
from tests.kit import at, joined, spec

ORDERS = list(permutations(("SUBMIT", "ADMISSION", "ALLOC", "NODE", "ADMIN")))


def an_array() -> Cluster:
    """Return what was told of an array of five tasks, one failed and retried, one cancelled."""
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    cluster.join(joined())
    array = cluster.submit(spec(array="0-4%2"))
    cluster.cancel(f"{array}[4]")
    for job, outcome in ((2, Outcome.EXITED), (3, Outcome.SUCCEEDED), (4, Outcome.SUCCEEDED)):
        cluster.runs(f"j{job}")
        cluster.exits(f"j{job}", outcome=outcome)
    cluster.exits("j5")
    retry(cluster, array)
    return cluster


def retry(cluster: Cluster, array: str) -> None:
    raw = codec.encode({"ask": "retry", "job": array})
    cluster.submissions += 1
    event = AskRequest(vc="nlp", raw=raw, at=at(20), number=cluster.submissions)
    cluster._record("ADMISSION", "admission", cluster.admission(event, 20), 20)


def test_the_line_of_an_array_says_how_its_tasks_stand() -> None:
    cluster = an_array()
    row = job_of(cluster.fold, "j1").row
    assert row.tasks is not None
    assert (row.state, row.tasks.text()) == (
        "running",
        "5 tasks: 1 running, 3 succeeded, 1 cancelled",
    )
    assert (row.bound_at, row.started_at) == (at(1), at(3))
    newest = f"j{cluster.submissions}"
    assert job_of(cluster.fold, newest).row.task == "j1[0]"
    cluster.runs(newest, second=21)
    cluster.exits(newest, second=22)
    assert (row.state, row.ended_at, row.why) == ("cancelled", at(22), "cancelled")
    assert [line for line in texts(cluster.fold, "j1") if "task" in line] == [
        "is an array of the tasks 0-4%2",
        "cancellation of task 4 asked for",
        "all tasks have ended: 3 succeeded, 1 failed, 1 were cancelled",
        "the tasks 0 are begun again",
        "all tasks have ended: 4 succeeded, 0 failed, 1 were cancelled",
    ]


@pytest.mark.parametrize("order", ORDERS[::17])
def test_the_rows_are_the_same_in_every_order(order: tuple[str, ...]) -> None:
    cluster = an_array()
    fold: Fold = fresh_fold()
    for stream in order:
        for told, event in cluster.told:
            if told == stream:
                fold.apply(event, at(0))
    assert documents(fold) == documents(cluster.fold)


def test_what_becomes_a_task_is_taken_for_one_before_admission_says_so() -> None:
    fold = fresh_fold()
    for number, key in enumerate(("array/j1/0/1/x", "k"), start=2):
        event = codec.Submission(job=f"j{number}", vc="nlp", raw=b"{}", at=at(1), key=key)
        fold.apply(event, at(1))
    assert [arrays.is_task(job_of(fold, name)) for name in ("j2", "j3")] == [True, False]
