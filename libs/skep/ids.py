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
