"""Listings as Slurm prints them."""

from __future__ import annotations

from typing import Any

import pytest

from skep.slurm import arrays, listing, states, values
from skep.slurm.options import RefusedError

SECOND = 10**9


def row(**more: Any) -> dict[str, Any]:
    return {
        "job": "j17",
        "name": "a-long-name",
        "vc": "default",
        "state": "running",
        "priority": 3,
        "gpus": 4,
        "workers": 2,
        "place": "node-1:0,1 node-2:0,1",
        "submitted_at": 0,
        "started_at": 10 * SECOND,
        "ended_at": None,
        "why": "best-fit-one-node",
        "owner": "",
    } | more


def record(**more: Any) -> listing.Record:
    return listing.job_record(row(**more), "ada", 75 * SECOND, lambda at: f"T{at // SECOND}")


def squeue(text: str, *records: listing.Record) -> list[str]:
    parts = listing.columns(text, listing.JOB_LETTERS)
    return [listing.line(parts, None), *(listing.line(parts, each) for each in records)]


def test_squeue_has_slurms_columns() -> None:
    waiting = record(state="queued", place="", started_at=None, why="waits-for-gpus")
    # Slurm 22.05 prints the first line and columns of these widths.
    assert squeue(listing.SQUEUE, record(), waiting) == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "                17   default a-long-n      ada  R       1:05      2 node-1,node-2",
        "                17   default a-long-n      ada PD       0:00      2 (Resources)",
    ]


def test_formats_have_widths_and_texts_between() -> None:
    assert squeue("%i|%5j|%.5T|%M", record()) == ["JOBID|NAME |STATE|TIME", "17|a-lon|RUNNI|1:05"]
    parts = listing.named_columns("JobID:6,Name:.8,State")
    assert listing.line(parts, record()) == "17    a-long-nRUNNING             "


@pytest.mark.parametrize("text", ["%y", "%.8y %i"])
def test_letters_that_are_not_there_are_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="Invalid job format specification: %y"):
        listing.columns(text, listing.JOB_LETTERS)


def test_sacct_cuts_fields_with_a_plus_and_has_a_parsable_form() -> None:
    whole = record(state="failed", ended_at=75 * SECOND, spec={}, attempts=[exits(15, 3)])
    parts = listing.sacct_columns("jobid,jobname,state,exitcode")
    assert listing.sacct_line(parts, None, "", last=False) == (
        "JobID           JobName      State ExitCode "
    )
    assert listing.sacct_line(parts, whole, "", last=False) == (
        "17           a-long-na+     FAILED      3:0 "
    )
    assert listing.sacct_line(parts, whole, "|", last=True) == "17|a-long-name|FAILED|3:0|"
    (wide,) = listing.sacct_columns("JobName%30")
    assert wide[1] == 30
    with pytest.raises(RefusedError, match='Invalid field requested: "Colour"'):
        listing.sacct_columns("JobID,Colour")


def exits(signal: int, code: int) -> dict[str, Any]:
    """The first process ended with a code, the other was ended because of that."""
    told = [{"rank": 0, "code": code}, {"rank": 1, "code": -signal}]
    return {"attempt": 1, "members": [{"exits": told}]}


def test_tasks_of_arrays_have_slurms_numbers() -> None:
    assert values.job_id("17_3") == "j17[3]"
    for bad in ("17_", "_3", "17_x", "job"):
        with pytest.raises(RefusedError, match="Invalid job id specified"):
            values.job_id(bad)
    tasks = [record(job=f"j2{n}", task=f"j17[{n}]") for n in (10, 3)]
    records = [record(job="j9"), *tasks]
    listed = [each["id"] for each in sorted(records, key=listing.order_of)]
    assert listed == ["9", "17_3", "17_10"]


def test_states_are_slurms() -> None:
    assert states.job_state("failed", "time-limit") == ("TIMEOUT", "TO")
    assert states.job_state("failed", "exited-nonzero") == ("FAILED", "F")
    assert states.reason("held-by-policy") == "held-by-policy"
    assert [states.node_state("up", 4, free) for free in (4, 1, 0)] == ["idle", "mix", "alloc"]
    assert states.node_state("lost", 4, 4) == "down*"


@pytest.mark.parametrize(
    "seconds, short, full",
    [
        (5, "0:05", "00:00:05"),
        (3723, "1:02:03", "01:02:03"),
        (93784, "1-02:03:04", "1-02:03:04"),
        (None, "UNLIMITED", "UNLIMITED"),
    ],
)
def test_lengths_of_time(seconds: int | None, short: str, full: str) -> None:
    assert listing.clock(seconds) == short
    assert listing.clock_full(seconds) == full


# --- arrays ---------------------------------------------------------------------------------------


def array(**counts: Any) -> dict[str, Any]:
    usual = dict.fromkeys(("queued", "running", "succeeded", "failed", "cancelled"), 0)
    tasks = {"total": 10, "most": 0, "indices": "0-9", "skipped": "", **usual, **counts}
    return row(job="j7", state="running", place="", gpus=1, workers=1, tasks=tasks)


def task(index: int, state: str, **more: Any) -> dict[str, Any]:
    told = {"place": "node-1:0", "gpus": 1, "workers": 1, **more}
    return row(job=f"j{20 + index}", task=f"j7[{index}]", state=state, **told)


def shown(whole: dict[str, Any], *jobs: dict[str, Any], apart: bool = False) -> list[str]:
    lines = arrays.rows_of(whole, jobs, apart=apart)
    return squeue("%i %A %F %K %t %r", *(record(**each) for each in lines))[1:]


def test_tasks_that_wait_are_one_line_with_their_bound() -> None:
    whole = array(most=2, running=1, queued=1, succeeded=2, indices="0-9%2")
    jobs = [task(2, "running"), task(3, "queued", place="", why="waits-for-gpus")]
    assert shown(whole, *jobs) == ["7_2 22 7 2 R None", "7_[3-9%2] 7 7 3-9%2 PD Resources"]
    assert shown(array(most=2, running=2), task(0, "running"), task(1, "running"))[-1] == (
        "7_[2-9%2] 7 7 2-9%2 PD JobArrayTaskLimit"
    )


def test_tasks_that_wait_have_a_line_each_if_wanted() -> None:
    lines = shown(array(running=1, succeeded=7), task(7, "running"), apart=True)
    assert [line.split()[0] for line in lines] == ["7_7", "7_8", "7_9"]


def test_tasks_that_were_never_jobs_are_cancelled() -> None:
    whole = array(succeeded=4, cancelled=2, skipped="5,7")
    assert shown(whole) == ["7_[4,6,8-9] 7 7 4,6,8-9 PD None", "7_[5,7] 7 7 5,7 CA None"]
    assert (arrays.row_of(whole, 7) or {})["state"] == "cancelled"
    assert (arrays.row_of(whole, 8) or {})["state"] == "queued"
    assert arrays.row_of(whole, 11) is None


def test_tasks_that_begin_again_are_to_come_and_no_others() -> None:
    whole = array(succeeded=7, failed=1, indices="2,5,8")
    assert arrays.to_come(whole["tasks"]) == [5, 8]
    assert arrays.to_come(array(succeeded=10)["tasks"]) == []


@pytest.mark.parametrize(
    "text, ids",
    [
        ("17", ["j17"]),
        ("17,18_3,", ["j17", "j18[3]"]),
        ("19_[1-2,7]", ["j19[1]", "j19[2]", "j19[7]"]),
        ("19_[0-4:2],3", ["j19[0]", "j19[2]", "j19[4]", "j3"]),
        ("", []),
    ],
)
def test_ids_are_taken_as_slurm_takes_them(text: str, ids: list[str]) -> None:
    assert values.job_ids(text) == ids


@pytest.mark.parametrize("text", ["17_[", "17_[x]", "17_[3-1]", "17_[1]2", "17_[0-99999]", "[1]"])
def test_ids_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="Invalid job id specified: "):
        values.job_ids(text)


@pytest.mark.parametrize(
    "why, word",
    [("held", "JobHeldUser"), ("waits-for-jobs", "Dependency"), ("waits-for-time", "BeginTime")],
)
def test_an_array_that_waits_as_a_whole_says_for_what(why: str, word: str) -> None:
    (line,) = arrays.rows_of({**array(most=2), "why": why}, (), apart=False)
    assert (line["slurm_id"], line["state"]) == ("7_[0-9%2]", "queued")
    assert states.reason(line["why"]) == word
