"""A session into a job that was suspended because it did nothing asks for its return."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from skep.wire import terminal
from skep.wire.reasons import Reason
from skep.wire.terminal import Frame, Kind, Over
from skep_services.gateway.api import ApiError
from skep_services.gateway.callers import Caller
from skep_services.gateway.terminals import Session, Terminals

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
    assert (jobs.asked, said.returns) == (["j3"], True)
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
    assert not said.returns
    assert (
        said.text
        == "j3 did nothing and gave its GPUs back; it cannot return: a viewer changes no jobs"
    )


class Socket:
    """A client that says some frames, and goes."""

    def __init__(self, *frames: Frame) -> None:
        self._left = [WSMessage(WSMsgType.BINARY, terminal.pack(each), None) for each in frames]

    async def receive(self, timeout: float) -> WSMessage:
        return self._left.pop(0) if self._left else WSMessage(WSMsgType.CLOSE, None, None)


class Bus:
    """Takes what an agent is told."""

    async def send(self, *_: Any) -> None:
        pass


async def asked_back(what: str, *said: bytes, away: bool = True) -> tuple[int, bool]:
    """Return how often a job's return was asked for, and whether it is looked at once more."""
    bus, count = Bus(), 0
    socket: Any = Socket(*(Frame(Kind.INPUT, each) for each in said))
    held: Any = bus
    session = Session(held, "gateway", socket)

    async def have_back() -> bool:
        nonlocal count
        count += 1
        return away

    session._have_back, session._forwards = have_back, what == "forward"
    await session._up()
    return count, session._has_said


@pytest.mark.asyncio
async def test_what_is_said_in_an_open_session_asks_for_the_return() -> None:
    request = b"GET /api/kernels HTTP/1.1\r\nHost: 127.0.0.1:8888\r\nAccept: */*\r\n\r\n"
    assert await asked_back("forward", request) == (1, True)
    assert await asked_back("forward", request, request, request) == (1, True), "once in a while"
    assert await asked_back("forward", request, request, away=False) == (2, True)
    assert await asked_back("forward", b"\x8a\x84pongpong") == (0, False), "a pong is no request"
    assert await asked_back("exec", b"l") == (1, True), "a key is"
