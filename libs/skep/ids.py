"""Names of things. Ids derive from inputs, never from chance inside the core."""

from __future__ import annotations

import functools
import re
from typing import NewType

JobId = NewType("JobId", str)
"""`j` and the sequence of the submission in the SUBMIT stream: `j17`."""

NodeId = NewType("NodeId", str)
"""A node's name: one subject token."""

VcId = NewType("VcId", str)
"""A virtual cluster's (tenant's) name: one subject token."""

TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""What a node or VC may be called: it becomes one token of a NATS subject."""


JOB = re.compile(r"j([1-9][0-9]{0,17})")
"""A job id: the sequence is a stream's, without leading zeros. 18 digits are more than a stream
will ever have, and fit the signed integers of 64 bits that databases have."""


AttemptId = NewType("AttemptId", str)
"""One attempt of a job, as the cells and stored formats name it: `j17.2`. Only this module builds
and splits it. In scripts of cells, where a job has one attempt, it is the name of the job."""

NO_ATTEMPT = AttemptId("")
"""The name in a request for cells that is not for an attempt."""


def is_token(text: str) -> bool:
    """Return whether `text` can be one token of a subject."""
    return TOKEN.fullmatch(text) is not None


def job_id(sequence: int) -> JobId:
    """Return the id of the job submitted as message `sequence` of SUBMIT."""
    return JobId(f"j{sequence}")


@functools.lru_cache(maxsize=1024)
def job_sequence(job: str) -> int | None:
    """Return the submission's sequence behind a job id, or None if it is not a job id."""
    match = JOB.fullmatch(job)
    return int(match[1]) if match else None


# --- attempts and their processes ---------------------------------------------------------------


def attempt_id(job: str, number: int) -> AttemptId:
    """Return the name of a job's attempt."""
    # To call AttemptId costs a third of this, and this is done for every look at the cells.
    return f"{job}.{number}"  # type: ignore[return-value]


def job_of(attempt: AttemptId) -> str:
    """Return the job that an attempt is of."""
    return attempt.rpartition(".")[0]


def number_of(attempt: AttemptId) -> int:
    """Return an attempt's number."""
    return int(attempt.rpartition(".")[2])


def job_and_number(attempt: AttemptId) -> tuple[str, int]:
    """Return the job that an attempt is of, and the attempt's number."""
    job, _, number = attempt.rpartition(".")
    return job, int(number)


def run_token(job: str, number: int, rank: int) -> str:
    """Return the name of the process of one rank of an attempt: `j17.2.0`."""
    return f"{job}.{number}.{rank}"


def attempt_of_run(token: str) -> tuple[str, int]:
    """Return job and number of the attempt that a process is of."""
    job, number, _ = token.rsplit(".", 2)
    return job, int(number)


def job_of_run(token: str) -> str:
    """Return the job that a process is of."""
    return token.partition(".")[0]


def is_run_of(token: str, attempt: AttemptId) -> bool:
    """Return whether a text names a process of an attempt."""
    return token.rpartition(".")[0] == attempt
