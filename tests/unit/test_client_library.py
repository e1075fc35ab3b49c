"""The client library without a cluster: both clients alike, bad input, answers that are none."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import skep
from skep_client import AsyncClient, Client, errors, steps
from skep_services.gateway.answers import ChangeTaken

API = "http://127.0.0.1:9"


def client(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    """Return a client whose gateway is a function."""
    made = Client(API, "token", patience_s=0)
    made._http = httpx.Client(transport=httpx.MockTransport(answer), headers=made._route.headers)
    return made


def told(status: int, body: bytes) -> httpx.Response:
    return httpx.Response(status, stream=httpx.ByteStream(body))


def as_json(tree: Any) -> httpx.Response:
    return told(200, json.dumps(tree).encode())


def always(status: int, body: bytes) -> Client:
    return client(lambda _: told(status, body))


def test_both_clients_have_the_same_methods() -> None:
    for name in {name for name in (*dir(Client), *dir(AsyncClient)) if not name.startswith("_")}:
        one, other = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.getdoc(one) == inspect.getdoc(other), name
        if callable(one):
            parameters = [inspect.signature(each).parameters for each in (one, other)]
            assert str(parameters[0]) == str(parameters[1]), name
    assert str(inspect.signature(Client)) == str(inspect.signature(AsyncClient))


def test_what_decides_never_has_httpx() -> None:
    """`skep` imports its client when it is asked for it, and not before."""
    look = (
        "import sys, skep; before = 'httpx' in sys.modules; skep.Client; "
        "print(before, 'httpx' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], check=True, capture_output=True, text=True, env=_environment()
    )
    assert done.stdout.split() == ["False", "True"]
    assert skep.Client is Client
    with pytest.raises(AttributeError, match="has no attribute 'Clint'"):
        _ = skep.Clint  # type: ignore[attr-defined]


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(path for path in sys.path if path)}


BAD: list[tuple[Callable[[Any], Any], str]] = [
    (lambda it: it.job(""), "not a job: '' (give its id, such as 'j17', or its name)"),
    (lambda it: it.job(17), "not a job: 17 (give its id, such as 'j17', or its name)"),
    (lambda it: it.search(""), "not a search: '' (give its id, such as 's4')"),
    (
        lambda it: it.submit(),
        "there is no spec: give a JobSpec or a dict, or keywords such as name=",
    ),
    (lambda it: it.submit([1]), "a spec is a JobSpec or a dict, not list"),
    (lambda it: it.submit({"env": {"a": object()}}), "the spec cannot be sent as JSON: "),
    (lambda it: it.submit(vc="nlp", name="a" * 70_000), "the spec has 70022 bytes; at most 65536"),
    (lambda it: it.submit(vc="nlp", name="a", key="ä"), "a key has printable ASCII characters"),
    (lambda it: it.wait("j1", until="lunch"), "until='lunch': wait until 'started' or 'ended'"),
    (lambda it: it.wait_change("j1"), "not a change: 'j1' (give what suspend, resume, ..."),
    (lambda it: it.get("/etc/passwd"), "not a path of the API: '/etc/passwd'"),
    (lambda it: next(it.logs("j1", rank=-1)), "rank=-1: a whole number, 0 or more"),
    (lambda it: next(it.logs("j1", attempt=0)), "attempt=0: a whole number, 1 or more"),
    (lambda _: Client("ftp://x"), "not an address: 'ftp://x' (like http://127.0.0.1:8470)"),
    (lambda _: Client(API, "tök"), "the token is not printable ASCII: check SKEP_TOKEN"),
    (lambda _: Client(API, patience_s=-1), "patience_s is -1: it is a number of seconds"),
]


@pytest.mark.parametrize("call, text", BAD, ids=[text[:24] for _, text in BAD])
def test_a_bad_call_sends_nothing_and_says_why(call: Callable[[Any], Any], text: str) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    with pytest.raises(errors.BadCallError) as error:
        call(client(fail))
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.reason == "bad-value"


@pytest.mark.parametrize(
    "status, body, kind, reason",
    [
        (200, b"<html>", errors.BadAnswerError, "bad-answer"),
        (200, b'{"job": 1}', errors.BadAnswerError, "bad-answer"),
        (200, b"[" * 100_000, errors.BadAnswerError, "bad-answer"),
        (302, b"", errors.RefusedError, "302"),
        (404, b'{"error": {"reason": "unknown-job", "text": "no\\nj1"}}', errors.NotFoundError, ""),
        (418, b"\xff", errors.RefusedError, "418"),
        (
            429,
            b'{"error": {"reason": "too-many-requests", "text": "x"}, "retry_after_s": 9}',
            *(errors.TooManyError, "too-many-requests"),
        ),
        (502, b"bad gateway", errors.UnavailableError, "502"),
    ],
)
def test_any_answer_is_an_error_of_one_line(
    status: int, body: bytes, kind: type[errors.SkepError], reason: str
) -> None:
    with pytest.raises(kind) as error:
        always(status, body).job("j1")
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    assert error.value.reason == (reason or "unknown-job")


def test_no_gateway_and_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(request.url.host, request=request)

    with pytest.raises(errors.UnreachableError, match="the cluster cannot be reached: http://127"):
        client(refuse).nodes()
    for name in ("SKEP_API", "SKEP_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        errors.NoClusterError, match=r"no cluster here: .* start one with `skep up`"
    ):
        Client(home=str(tmp_path))


def test_it_turns_to_the_next_gateway() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "one":
            raise httpx.ConnectTimeout(request.url.host, request=request)
        return as_json({"near": []})

    made = Client("http://one,http://two", patience_s=0)
    made._http = httpx.Client(transport=httpx.MockTransport(answer))
    assert made.get("/v1/limits") == {"near": []}
    assert made.get("/v1/limits") == {"near": []}
    assert asked == ["one", "two", "two"]


class Cut(httpx.SyncByteStream):
    """Bytes, and then a connection that ends."""

    def __init__(self, data: bytes, *, lost: bool) -> None:
        self.data, self.lost = data, lost

    def __iter__(self) -> Iterator[bytes]:
        yield self.data
        if self.lost:
            text = "lost"
            raise httpx.ReadError(text)


def test_logs_go_on_at_the_byte_where_they_stopped() -> None:
    log, asked = b"eins\nzwei\ndrei", list[str]()
    row = {"job": "j1", "state": "succeeded", "attempt": 1, "attempts": []}

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/logs"):
            return as_json(row)
        asked.append(request.url.query.decode())
        offset = int(request.url.params.get("offset", 0))
        end = offset + 6
        return httpx.Response(200, stream=Cut(log[offset:end], lost=end < len(log)))

    assert list(client(answer).logs("j1", follow=True)) == ["eins", "zwei", "drei"]
    assert asked == [f"rank=0&attempt=1&follow=1{more}" for more in ("", "&offset=6", "&offset=12")]


def test_events_go_on_behind_the_last_one() -> None:
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if "follow" not in request.url.params:
            return as_json({"events": [_event(4)]})
        since = int(request.url.params["since"])
        asked.append(since)
        text = f": alive\n\nid: {since + 1}\ndata: {json.dumps(_event(since + 1))}\n\nid: 99\nda"
        return httpx.Response(200, stream=Cut(text.encode(), lost=True))

    events = client(answer).watch(vc="nlp")
    assert [next(events).seq for _ in range(3)] == [5, 6, 7]
    assert asked == [4, 5, 6]


def _event(seq: int) -> dict[str, Any]:
    return {"seq": seq, "at": 1, "kind": "x", "text": "y"}


def test_what_sends_no_events_is_no_gateway() -> None:
    procedure = steps.watched(None, None, 0, 1.0)
    next(procedure)
    procedure.send(None)
    for _ in range(10):
        procedure.send(b"x" * 100_000)
    with pytest.raises(errors.BadAnswerError, match="sends no events"):
        procedure.send(b"x" * 100_000)


def test_a_change_that_came_to_nothing_is_an_error() -> None:
    ask = {"number": 9, "ask": "suspend", "result": "undone", "why": "rank-silent"}
    row = {"job": "j1", "state": "running", "asks": [ask]}
    change = ChangeTaken(job="j1", ask="suspend", number=9, accepted=True)
    with pytest.raises(errors.ChangeFailedError, match=r"^j1: suspend is undone \(rank-silent\)$"):
        always(200, json.dumps(row).encode()).wait_change(change)


def test_an_async_client_is_told_the_same() -> None:
    async def run() -> None:
        made = AsyncClient(API, "token", patience_s=0)
        transport = httpx.MockTransport(lambda _: told(404, b"{}"))
        made._http = httpx.AsyncClient(transport=transport)
        async with made:
            with pytest.raises(errors.NotFoundError):
                await made.job("j1")
            with pytest.raises(errors.BadCallError):
                await made.submit()

    asyncio.run(run())
