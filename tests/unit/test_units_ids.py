"""Quantities and names."""

import pytest

from skep.ids import (
    attempt_id,
    attempt_of_run,
    is_run_of,
    is_token,
    job_and_number,
    job_id,
    job_of,
    job_of_run,
    job_sequence,
    number_of,
    run_token,
)
from skep.units import Duration, Instant, after, in_seconds, seconds


def test_seconds_are_nanoseconds_rounded_to_whole_ones() -> None:
    assert seconds(1.5) == 1_500_000_000
    assert seconds(0.000_000_000_6) == 1


def test_an_instant_moves_by_a_duration() -> None:
    assert after(Instant(5), Duration(7)) == 12


def test_a_duration_reads_as_seconds() -> None:
    assert in_seconds(2_500_000_000) == 2.5


def test_a_job_is_called_after_its_submission() -> None:
    assert job_id(17) == "j17"
    assert job_sequence(job_id(17)) == 17


@pytest.mark.parametrize(
    "text",
    [
        "",
        "j",
        "17",
        "jx",
        "J17",
        "j-1",
        "j0",
        "j017",
        "j1 ",
        "j١",
        "j1\n",
        "j" + "9" * 21,
        "j" + "9" * 5000,
    ],
)
def test_what_is_not_a_job_id_has_no_sequence(text: str) -> None:
    assert job_sequence(text) is None


def test_an_attempt_is_called_after_its_job_and_number() -> None:
    attempt = attempt_id("j17", 12)
    assert attempt == "j17.12"
    assert (job_of(attempt), number_of(attempt)) == job_and_number(attempt) == ("j17", 12)


def test_a_process_is_called_after_its_attempt_and_rank() -> None:
    token = run_token("j17", 12, 3)
    assert token == "j17.12.3"
    assert attempt_of_run(token) == ("j17", 12)
    assert job_of_run(token) == "j17"
    assert is_run_of(token, attempt_id("j17", 12))
    assert not is_run_of(token, attempt_id("j17", 1))


@pytest.mark.parametrize("text", ["a", "node-1", "A_b", "9", "x" * 63])
def test_tokens(text: str) -> None:
    assert is_token(text)


@pytest.mark.parametrize("text", ["", "-a", "_a", "a.b", "a b", "a*", "ä", "x" * 64, "a\n"])
def test_what_is_no_token(text: str) -> None:
    assert not is_token(text)
