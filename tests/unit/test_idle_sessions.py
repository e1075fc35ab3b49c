"""A session into a job that was suspended because it did nothing asks for its return."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skep.wire.reasons import Reason
from skep.wire.terminal import Over
from skep_services.gateway.api import ApiError
from skep_services.gateway.callers import Caller
from skep_services.gateway.terminals import Terminals

CALLER = Caller("ann", "nlp")
SUSPENDED = Over(reason=Reason.JOB_SUSPENDED, text="j3 is suspended: skep resume j3")


class Jobs:
    """Takes what is asked for, or refuses it."""

    def __init__(self, refusal: ApiError | None = None) -> None:
        self.asked: list[str] = []
        self._refusal = refusal

    async def have_back(self, caller: Caller, job: Any) -> None:
        assert caller is CALLER
        if self._refusal is not None:
            raise self._refusal
        self.asked.append(job.row.job)


async def over(jobs: Jobs, why: Reason, placed: Over = SUSPENDED) -> Over:
    unused: Any = None
    held: Any = jobs
    terminals = Terminals(unused, "gateway", held, unused, unused)
    job: Any = SimpleNamespace(row=SimpleNamespace(job="j3", why=why))
    return await terminals._returning(CALLER, job, placed)


@pytest.mark.asyncio
async def test_an_idle_job_is_asked_to_return() -> None:
    jobs = Jobs()
    said = await over(jobs, Reason.IDLE)
    assert jobs.asked == ["j3"]
    assert (said.reason, said.text) == (
        Reason.JOB_SUSPENDED,
        "j3 did nothing and gave its GPUs back. It was asked to return: try again once it runs "
        "(skep show j3)",
    )


@pytest.mark.asyncio
async def test_one_that_its_owner_suspended_stays() -> None:
    jobs = Jobs()
    assert await over(jobs, Reason.REQUESTED) == SUSPENDED
    ended = Over(reason=Reason.NOT_RUNNING, text="j3 has ended")
    assert await over(jobs, Reason.IDLE, ended) == ended
    assert jobs.asked == []


@pytest.mark.asyncio
async def test_a_caller_that_may_not_resume_it_hears_so() -> None:
    jobs = Jobs(ApiError(403, Reason.ROLE_TOO_LOW, "a viewer changes no jobs"))
    said = await over(jobs, Reason.IDLE)
    assert (
        said.text
        == "j3 did nothing and gave its GPUs back; it cannot return: a viewer changes no jobs"
    )
