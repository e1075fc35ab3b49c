"""The process that stays with Jupyter, and has an idle notebook suspended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from skep_job import notebook_idle
from skep_job.link.frames import FrameReader
from skep_job.link.settings import Settings
from skep_job.notebook_idle import ASKS_MAX, LOOK_TURNS, Agent, Jupyter, Watch
from tests.support.embedded import until


class Said:
    """Jupyter and the agent of a test: what the one says, and what the other is told."""

    def __init__(self) -> None:
        self.idle: float | None = 0.0
        self.asked = 0
        self.told: list[float] = []

    def idle_s(self) -> float | None:
        self.asked += 1
        return self.idle

    def tell(self, idle_s: float) -> None:
        self.told.append(idle_s)


def watch(said: Said, idle_s: float = 60.0) -> Watch:
    both: Any = said
    return Watch(both, both, idle_s, 1000.0)


def test_the_agent_is_told_once_nothing_has_happened_for_long_enough() -> None:
    said = Said()
    one = watch(said)
    for turn in range(1, 60):
        said.idle = float(turn)
        assert not one.turn(1000.0 + turn)
    assert said.told == [0.0] * 59
    assert said.asked <= 60 / LOOK_TURNS + LOOK_TURNS, "it is not asked every second"
    said.idle = 60.0
    assert not one.turn(1060.0)
    assert said.told[-1] == 60.0
    said.idle = 0.5
    one.turn(1061.0)
    assert said.told[-1] == 0.0, "something happened"


def test_a_job_that_comes_back_counts_anew() -> None:
    said = Said()
    one = watch(said, 2.0)
    said.idle = 10.0
    one.turn(1001.0)
    one.turn(1002.0)
    assert said.told == [0.0, 2.0], "what was before it began does not count"
    said.idle = 5000.0
    one.turn(6000.0)
    assert said.told[-1] == 0.0
    one.turn(6001.0)
    one.turn(6002.0)
    assert said.told[-2:] == [0.0, 2.0]


def test_it_ends_if_it_asks_in_vain_and_not_if_nothing_is_known() -> None:
    said = Said()
    one = watch(said, 5.0)
    said.idle = None
    assert not any(one.turn(1000.0 + turn) for turn in range(1, 500))
    assert not any(said.told), "what is not known counts as something that happens"
    said.idle = 10_000.0
    ends = [one.turn(1500.0 + turn) for turn in range(ASKS_MAX + 10)]
    assert ends.index(True) == 4 + ASKS_MAX


class Page(BaseHTTPRequestHandler):
    """What Jupyter answers; `asked` are the paths."""

    answers: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        good = self.headers["Authorization"] == "token t"
        body = self.answers.get(self.path.partition("?")[0], b"")
        self.send_response(200 if good else 403)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Page.answers, Page.asked = {}, []
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def status(ago_s: float, *kernels: str) -> dict[str, bytes]:
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - ago_s))
    states = [{"execution_state": each} for each in kernels]
    return {
        "/api/status": json.dumps({"last_activity": at}).encode(),
        "/api/kernels": json.dumps(states).encode(),
    }


def test_jupyter_says_when_something_happened_last(server: HTTPServer) -> None:
    jupyter = Jupyter(server.server_port, "t")
    Page.answers = status(100.0, "idle", "dead")
    found = jupyter.idle_s()
    assert found is not None
    assert 99.0 <= found <= 130.0
    assert all(path.endswith("?no_track_activity=1") for path in Page.asked)
    Page.answers = status(100.0, "idle", "busy")
    assert jupyter.idle_s() == 0.0, "a cell runs, and prints nothing"
    Page.answers = status(-100.0)
    assert jupyter.idle_s() == 0.0, "a clock that was set back"
    assert Jupyter(server.server_port, "x").idle_s() is None


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b'{"last_activity": 3}', b'{"last_activity": "x"}', b"\xff"]
)
def test_what_jupyter_cannot_say_is_not_known(server: HTTPServer, body: bytes) -> None:
    Page.answers = {"/api/status": body, "/api/kernels": body}
    assert Jupyter(server.server_port, "t").idle_s() is None
    Page.answers = {"/api/status": body, "/api/kernels": b"[]"}
    assert Jupyter(server.server_port, "t").idle_s() is None


def test_an_agent_that_is_away_is_greeted_again(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    agent = Agent(Settings(path, "j1", 2, 0, 1, "secret", 1.0))
    agent.tell(5.0)  # Nobody is there: nothing is lost by that.
    Agent(None).tell(5.0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        agent.tell(0.0)
        link = listener.accept()[0]
    with link:
        assert [each.get("can") for each in FrameReader().feed(link.recv(4096))] == [None, [], None]
        agent.tell(0.0)
        agent.tell(5.0)
        seen = FrameReader().feed(link.recv(4096))
        assert [each["type"] for each in seen] == ["idle", "can", "idle"]
        assert seen[1]["can"] == ["release"], "only while it asks"
    os.unlink(path)
    agent.tell(5.0)
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            agent.tell(5.0)
            link = listener.accept()[0]
        with link:
            seen = FrameReader().feed(link.recv(4096))
        assert [each["type"] for each in seen] == ["hello", "can", "idle"]
        assert (seen[0]["token"], seen[-2]["can"]) == ("secret", ["release"])
        assert seen[-1] == {
            "type": "idle",
            "job": "j1",
            "attempt": 2,
            "rank": 0,
            "idle_ns": 5_000_000_000,
        }
        os.unlink(path)
        agent.tell(5.0)  # It finds out that the agent has gone.


def test_jupyter_is_run_without_a_voice_and_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKEP_SOCK", "/nowhere/sock")
    tell = "import os, sys; sys.exit(7 if 'SKEP_SOCK' not in os.environ else 1)"
    assert notebook_idle.stay([sys.executable, "-c", tell], 1, "t", 60) == 7
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert notebook_idle.stay([sys.executable, "-c", killed], 1, "t", 60) == 137


def test_an_idle_notebook_that_stays_is_ended_and_one_that_is_told_to_end_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(notebook_idle, "TURN_S", 0.01)
    monkeypatch.setattr(notebook_idle.Watch, "turn", lambda *_: True)
    monkeypatch.setenv("SKEP_JOB", "j9")
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert notebook_idle.stay(sleeps, 1, "t", 60) == 0
    assert capsys.readouterr().out == (
        "[skep] nothing happened here for 60 s, and the notebook could not be suspended: it ends "
        "(skep events --job j9 says why)\n"
    )
    here = tmp_path / "here"
    marks = f"import pathlib, time; pathlib.Path({str(here)!r}).touch(); time.sleep(600)"
    stays = f"from skep_job.notebook_idle import stay; stay({sleeps[:2]!r} + [{marks!r}], 1, '', 9)"
    parent = subprocess.Popen([sys.executable, "-c", stays])
    until(here.exists, "Jupyter")
    parent.terminate()
    assert parent.wait(20) == 0
