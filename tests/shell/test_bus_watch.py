"""A bus server that has given up to store is told from one that is well, busy or away."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

import pytest

from skep_services.supervisor import bus_watch

PID = 77


class Monitor:
    """Stands for the server's own page: answers what it is told to."""

    def __init__(self, state: Path) -> None:
        self.status, self.text = 200, "ok"
        self._asked = Semaphore(0)
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(monitor.status)
                self.end_headers()
                self.wfile.write(monitor.text.encode())
                monitor._asked.release()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever)
        self.thread.start()
        ports = {"monitoring": [f"http://127.0.0.1:{self.server.server_port}"]}
        (state / f"nats-server_{PID}.ports").write_text(json.dumps(ports))

    def wait_asked(self, times: int) -> None:
        """Return once it was asked so many times more."""
        for _ in range(times):
            assert self._asked.acquire(timeout=60.0), "nobody asks"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[Monitor]:
    made = Monitor(tmp_path)
    yield made
    made.close()


def test_failed_writes_are_told_and_nothing_else_is(monitor: Monitor, tmp_path: Path) -> None:
    state = str(tmp_path)
    assert bus_watch.write_trouble(state, PID, 60) == ""
    monitor.status, monitor.text = 503, "JetStream stream '$G > SUBMIT' write error: no space left"
    assert "SUBMIT" in bus_watch.write_trouble(state, PID, 60)
    monitor.text = '{"status":"unavailable","error":"JetStream not enabled (10076)"}'
    assert "not enabled" in bus_watch.write_trouble(state, PID, 60)
    for passing in (
        "JetStream is not current with the meta leader",
        "JetStream has not established contact with a meta leader",
        "JetStream stream '$G > SUBMIT' is not current",
        "JetStream stream '$G > SUBMIT' could not be recovered",
        "failed to be ready for connections after 1ms",
    ):
        monitor.text = passing
        assert bus_watch.write_trouble(state, PID, 60) == "", passing


def test_a_server_that_is_away_or_another_is_not_judged(tmp_path: Path) -> None:
    gone = Monitor(tmp_path)
    gone.close()
    assert bus_watch.write_trouble(str(tmp_path), PID, 1) == ""
    assert bus_watch.write_trouble(str(tmp_path), PID + 1, 1) == ""
    (tmp_path / f"nats-server_{PID}.ports").write_text("{")
    assert bus_watch.write_trouble(str(tmp_path), PID, 1) == ""


def test_room_is_needed_before_a_new_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    monkeypatch.setattr(bus_watch, "ROOM_BYTES_MIN", disk.f_blocks * disk.f_frsize + 1)
    assert not bus_watch.has_room(str(tmp_path))
    monkeypatch.setattr(bus_watch, "ROOM_BYTES_MIN", 0)
    assert bus_watch.has_room(str(tmp_path))
    assert not bus_watch.has_room(str(tmp_path / "nowhere"))


def test_what_killed_servers_left_is_removed(tmp_path: Path) -> None:
    for name in ("nats-server_1.ports", "nats-server_2.ports", "nats-server.conf"):
        (tmp_path / name).touch()
    bus_watch.forget_ports(str(tmp_path))
    assert os.listdir(tmp_path) == ["nats-server.conf"]


def test_a_server_that_could_not_write_its_ports_is_in_trouble(tmp_path: Path) -> None:
    told = bus_watch.write_trouble(str(tmp_path), PID, bus_watch.PORTS_WITHIN_S + 1)
    assert told == "it did not write where it tells how it is"
