"""The name under which the cells know an attempt of a job: `j3.2`."""

from __future__ import annotations


def holder(job: str, attempt: int) -> str:
    """Return the name under which cells know an attempt."""
    return f"{job}.{attempt}"


def job_of(name: str) -> str:
    """Return the job whose attempt cells know under a name."""
    return name.rpartition(".")[0]


def attempt_of(name: str) -> int:
    """Return the number of the attempt that cells know under a name."""
    return int(name.rpartition(".")[2])


def named(name: str) -> tuple[str, int]:
    """Return job and number of the attempt that cells know under a name."""
    return job_of(name), attempt_of(name)
