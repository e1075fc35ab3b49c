"""A tenant's part of the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec
import pytest

from skep.units import MIB
from skep_services.adapters.memory import MemoryBus
from skep_services.gateway.api import ApiError
from skep_services.gateway.callers import Caller
from skep_services.gateway.limits import (
    REQUESTS_BURST,
    REQUESTS_PER_S,
    STREAMS_MAX,
    Limits,
    submissions_near,
)
from skep_services.ports import Delivery

NLP, VISION, OPERATOR = Caller("vc-nlp", "nlp"), Caller("vc-vision", "vision"), Caller("op", "")


class Time:
    def __init__(self) -> None:
        self.s = 1000.0

    def now(self) -> float:
        return self.s


class Answers(MemoryBus):
    """A bus that tells of the stream of submissions what it is given; nothing by default."""

    def __init__(self, told: object = None) -> None:
        self._told = told

    async def request(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Delivery | None:
        assert subject == "$JS.API.STREAM.INFO.SUBMIT"
        told = msgspec.json.encode(self._told)
        return None if self._told is None else Delivery(subject="x", payload=told)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "used, told", [(79, []), (80, ["the stream of submissions holds 80 of 100 MiB"])]
)
async def test_a_stream_of_submissions_that_fills_up_is_told(used: int, told: list[str]) -> None:
    info = {"config": {"max_bytes": 100 * MIB}, "state": {"bytes": used * MIB, "messages": 5}}
    found = await submissions_near(Answers(info))
    assert [text.split(":")[0] for text in found] == told
    assert await submissions_near(Answers()) == []
    assert await submissions_near(Answers([])) == []


def used_up(limits: Limits) -> None:
    for _ in range(REQUESTS_BURST):
        limits.request(NLP)


def test_a_tenant_beyond_its_rate_is_told_when_to_repeat() -> None:
    time = Time()
    limits = Limits(time.now, Answers())
    used_up(limits)
    with pytest.raises(ApiError) as caught:
        limits.request(NLP)
    assert caught.value.status == 429
    error = caught.value.body["error"]
    assert error["reason"] == "too-many-requests"
    assert "VC nlp makes more than 200 requests a second" in error["text"]
    limits.request(VISION)
    time.s += caught.value.body["retry_after_s"]
    limits.request(NLP)
    time.s += 2.0
    for _ in range(2 * REQUESTS_PER_S):
        limits.request(NLP)
    with pytest.raises(ApiError):
        limits.request(NLP)


def test_a_quiet_tenant_saves_no_more_than_its_burst() -> None:
    time = Time()
    limits = Limits(time.now, Answers())
    limits.request(NLP)
    time.s += 1e6
    used_up(limits)
    with pytest.raises(ApiError):
        limits.request(NLP)


def test_an_operator_has_no_rate() -> None:
    limits = Limits(Time().now, Answers())
    for _ in range(2 * REQUESTS_BURST):
        limits.request(OPERATOR)
    assert limits.near() == []


def test_streams_of_a_tenant_are_bounded_and_given_back() -> None:
    limits = Limits(Time().now, Answers())
    with contextlib.ExitStack() as opened:
        for _ in range(STREAMS_MAX):
            opened.enter_context(limits.one_of(NLP, "event streams", STREAMS_MAX))
        with pytest.raises(ApiError) as caught, limits.one_of(NLP, "event streams", STREAMS_MAX):
            pass
        assert caught.value.status == 429
        assert caught.value.body["error"]["reason"] == "too-many-streams"
        assert "VC nlp has 16 event streams open" in caught.value.body["error"]["text"]
        for caller in (VISION, OPERATOR):
            with limits.one_of(caller, "event streams", STREAMS_MAX):
                pass
        assert limits.near() == [
            "VC nlp has 16 of 16 event streams open",
            "VC nlp met its limits at the gateway 1 times since its start",
        ]
        assert limits.near("vision") == []
    with limits.one_of(NLP, "event streams", STREAMS_MAX):
        pass
