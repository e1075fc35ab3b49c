"""Finding the cluster, patience, and what the gateway's refusals mean."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import client as module
from skep_services.cli import exits
from skep_services.cli.client import Client, EventParser, Target, find_target, query, refusal
from skep_services.cli.exits import CommandError
from skep_services.supervisor import home
from tests.cli_kit import Asked, FakeGateway, Told, fake_gateway


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SKEP_API", "SKEP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKEP_HOME", str(tmp_path))


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        yield made


def write_cluster(folder: Path, **changes: Any) -> None:
    cluster = {
        "version": 1,
        "gateway": {"url": "http://127.0.0.1:1", "tokens": {"operator": "op"}},
        **changes,
    }
    home.write_json(home.cluster_path(str(folder)), cluster)


def refused(code: int, target: Target, patience_s: float = 0.0) -> CommandError:
    with pytest.raises(CommandError) as caught:
        Client(target, patience_s).get("/v1/jobs")
    assert caught.value.code == code
    return caught.value


def test_cluster_is_found_by_variables_or_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match="no cluster here") as caught:
        find_target(None)
    assert caught.value.code == exits.UNREACHABLE
    assert "skep up" in caught.value.text
    write_cluster(tmp_path)
    found = find_target(None)
    assert found == Target("http://127.0.0.1:1", "op", str(tmp_path))
    assert found.local()
    monkeypatch.setenv("SKEP_TOKEN", "tenant")
    assert find_target(None).token == "tenant"
    monkeypatch.setenv("SKEP_API", "http://elsewhere:80")
    assert find_target(None) == Target("http://elsewhere:80", "tenant", "")
    monkeypatch.setenv("SKEP_CA", "ca.pem")
    assert find_target(None) == Target("http://elsewhere:80", "tenant", "", "ca.pem")
    # A folder that is named on the command line wins over the variable.
    assert find_target(str(tmp_path)).folder == str(tmp_path)


def test_the_authority_is_named_by_the_folder_or_a_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gateway = {"url": "https://h", "tokens": {"operator": "op"}, "ca": "pki/ca.pem"}
    home.write_json(home.cluster_path(str(tmp_path)), {"version": 1, "gateway": gateway})
    assert find_target(str(tmp_path)).ca == str(tmp_path / "pki" / "ca.pem")
    monkeypatch.setenv("SKEP_CA", "/other.pem")
    assert find_target(str(tmp_path)).ca == "/other.pem"


def test_a_gateway_that_cannot_be_believed_is_not_asked_again(tmp_path: Path) -> None:
    """Its patience is far above the test's deadline."""
    error = refused(
        exits.UNREACHABLE,
        Target("https://127.0.0.1:1", "", "", str(tmp_path / "absent")),
        patience_s=0.0,
    )
    assert error.error["reason"] != "not-believed"  # Nothing listens there.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        absent = str(tmp_path / "absent")
        error = refused(exits.UNREACHABLE, Target(url, "", "", absent), patience_s=1_000.0)
    assert error.error["reason"] == "not-believed"
    assert error.text == f"SKEP_CA: {absent}: No such file or directory"


@pytest.mark.parametrize(
    "content, told",
    [
        ("{", "cannot be read"),
        ('{"version": 2}', "not a cluster file of version 1"),
        ("[]", "not a cluster file"),
        ('{"version": 1}', "no gateway address"),
        ('{"version": 1, "gateway": 3}', "no gateway address"),
    ],
)
def test_damaged_cluster_file_is_named(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(CommandError, match=told) as caught:
        find_target(None)
    assert str(tmp_path) in caught.value.text


def test_query_and_quoting() -> None:
    assert query("/v1/jobs", a=None) == "/v1/jobs"
    assert query("/v1/jobs", a=1, b="x y/ü", c=None) == "/v1/jobs?a=1&b=x%20y%2F%C3%BC"


@pytest.mark.parametrize("text", ["a\r\nHost: b", "a\n", "ü"])
def test_what_no_header_can_hold_is_refused(gateway: FakeGateway, text: str) -> None:
    with pytest.raises(CommandError, match="SKEP_TOKEN") as caught:
        Client(Target(gateway.url, text, ""))
    assert caught.value.code == exits.USAGE
    client = Client(Target(gateway.url, "", ""))
    with pytest.raises(CommandError, match="Idempotency-Key is not printable ASCII") as caught:
        client.send("POST", "/v1/searches", b"{}", {"Idempotency-Key": text})
    assert caught.value.code == exits.USAGE
    assert not gateway.asked


def test_a_connection_that_does_not_come_about_is_tried_again(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.on("GET /v1/jobs", lambda _: Told(200, {"jobs": []}))
    connect, tried = socket.create_connection, []

    def first_in_vain(*given: Any, **more: Any) -> socket.socket:
        tried.append(given)
        if len(tried) == 1:
            raise TimeoutError
        return connect(*given, **more)

    monkeypatch.setattr(socket, "create_connection", first_in_vain)
    assert Client(Target(gateway.url, "", "")).get("/v1/jobs") == {"jobs": []}
    assert len(tried) == 2


def test_address_must_be_one() -> None:
    with pytest.raises(CommandError, match="not an address") as caught:
        Client(Target("elsewhere:80", "", ""))
    assert caught.value.code == exits.USAGE


@pytest.mark.parametrize(
    "status, code",
    [(400, 2), (401, 1), (403, 1), (404, 3), (409, 1), (413, 1), (422, 1), (503, 4), (500, 1)],
)
def test_refusals_become_exit_codes(status: int, code: int) -> None:
    body = {"error": {"reason": "some-reason", "text": "said", "problems": [1]}, "job": "j7"}
    error = refusal(status, json.dumps(body).encode())
    assert error.code == code
    assert error.text.startswith("said")
    assert error.error["reason"] == "some-reason"
    assert error.error["problems"] == [1]
    assert error.error["job"] == "j7"


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"error": "text"}'])
def test_refusal_of_another_shape_still_says_something(data: bytes) -> None:
    error = refusal(500, data)
    assert error.text
    assert error.code == exits.FAILED


def test_answers_are_decoded(gateway: FakeGateway) -> None:
    gateway.on("GET /v1/jobs", {"jobs": []})
    gateway.on("POST /v1/jobs", {"job": "j1"}, 201)
    client = Client(Target(gateway.url, "secret", ""))
    assert client.address.port == int(gateway.url.rpartition(":")[2])
    assert client.get("/v1/jobs") == {"jobs": []}
    assert client.post("/v1/jobs", {"name": "x"}, {"Idempotency-Key": "k"}) == {"job": "j1"}
    asked = gateway.last("POST /v1/jobs")
    assert asked.json() == {"name": "x"}
    assert asked.headers["idempotency-key"] == "k"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["authorization"] == "Bearer secret"
    assert refused(exits.NOT_FOUND, Target(f"{gateway.url}/other", "", "")).text
    gateway.on("GET /v1/jobs", lambda _: Told(200, None, [b"not json"]))
    assert "not JSON" in refused(exits.UNREACHABLE, Target(gateway.url, "", "")).text
    with pytest.raises(CommandError):
        client.stream("/v1/nothing", 10.0)
    client.close()


def test_request_is_repeated_while_the_gateway_is_away(gateway: FakeGateway) -> None:
    lost = iter([True, True, False])

    def answer(asked: Asked) -> Told:
        return Told(200, None, [b"{"], cut=True) if next(lost) else Told(200, {"jobs": [1]})

    gateway.on("GET /v1/jobs", answer)
    client = Client(Target(gateway.url, "", ""), 20.0)
    assert client.get("/v1/jobs") == {"jobs": [1]}
    client.pause()
    assert len(gateway.asked) == 3


def test_gateway_that_does_not_answer_is_not_asked_twice(gateway: FakeGateway) -> None:
    def hang(asked: Asked) -> Told:
        def pieces() -> Iterator[bytes]:
            yield b"{"
            os.read(waiting, 1)

        return Told(200, None, pieces())

    waiting, done = os.pipe()
    gateway.on("GET /v1/jobs", hang)
    client = Client(Target(gateway.url, "", ""), 20.0)
    with pytest.raises(CommandError, match="did not answer") as caught:
        client.get("/v1/jobs", 0.05)
    assert caught.value.code == exits.UNREACHABLE
    client.close()
    os.close(done)
    assert len(gateway.asked) == 1


def test_unreachable_cluster_says_what_to_do(free_port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port}"
    assert "check SKEP_API" in refused(exits.UNREACHABLE, Target(url, "", "")).text
    local = Target(url, "", str(tmp_path))
    assert "start it again with `skep up`" in refused(exits.UNREACHABLE, local).text
    own = {"pid": os.getpid(), "start_ticks": home.start_ticks(os.getpid())}
    for state, told in [
        ("failed", "its start failed"),
        ("stopping", "is being stopped"),
        ("running", "its supervisor is running"),
    ]:
        write_cluster(tmp_path, supervisor={**own, "state": state})
        assert told in refused(exits.UNREACHABLE, local).text
    (tmp_path / "cluster.json").write_text("{")
    assert "start it again" in refused(exits.UNREACHABLE, local, module.PATIENCE_S).text


def test_follower_waits_for_a_cluster_that_is_down(
    free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "RETRY_AFTER_S", 0.01)
    url = f"http://127.0.0.1:{free_port}"
    begin = time.monotonic()
    refused(exits.UNREACHABLE, Target(url, "", str(tmp_path)), 0.1)
    assert time.monotonic() - begin > 0.05


def test_events_are_taken_apart_wherever_they_are_cut() -> None:
    stream = b': hello\n\nid: 7\ndata: {"a":\r\ndata: 1}\nretry: 3\n\ndata: x\n\n\n'
    whole = list(EventParser().feed(stream))
    assert whole == [("7", '{"a":\n1}'), ("7", "x")]
    for cut in range(len(stream)):
        parser = EventParser()
        assert [*parser.feed(stream[:cut]), *parser.feed(stream[cut:])] == whole


def test_a_request_beyond_the_rate_is_repeated_when_it_may_be(gateway: FakeGateway) -> None:
    error = {"reason": "too-many-requests", "text": "VC nlp makes more than 200 requests a second"}
    told = [Told(429, {"error": error, "retry_after_s": 0.001}), Told(200, {"jobs": []})]
    gateway.on("GET /v1/jobs", lambda _: told.pop(0))
    assert Client(Target(gateway.url, "t", ""), 5.0).get("/v1/jobs") == {"jobs": []}
    assert not told
    gateway.on("GET /v1/jobs", lambda _: Told(429, {"error": error, "retry_after_s": 60}))
    failed = refused(exits.FAILED, Target(gateway.url, "t", ""), 5.0)
    assert failed.error["reason"] == "too-many-requests"
    # What an operator or a person has to close does not close itself.
    gateway.refuse("GET /v1/jobs", 429, "too-many-streams", "VC nlp has 16 event streams open")
    assert refused(exits.FAILED, Target(gateway.url, "t", ""), 5.0).error["reason"] == (
        "too-many-streams"
    )
