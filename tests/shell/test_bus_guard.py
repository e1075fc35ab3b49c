"""The first process of a bus server's container passes signals on, and ends a sick server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_services.compose.bus import EXIT_ANEW
from tests.shell.test_bus_watch import Monitor

SERVER = f"""#!{sys.executable} -S
import signal, sys

if "--version" in sys.argv:
    print("nats-server: v2.99.0")
    sys.exit()
signals = (signal.SIGHUP, signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("up", *sys.argv[1:], flush=True)
while signal.sigwait(signals) != signal.SIGTERM:
    print("hup", flush=True)
print("term", flush=True)
sys.exit(7)
"""
"""Stands for nats-server. It takes signals itself: a handler would wait for the second one if the
first came just before `pause`."""
ENDS_WITHIN_S = 60.0


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Monitor, subprocess.Popen[str]]]:
    """Yield a server's page and the process that runs the server."""
    fake = tmp_path / "fake-server"
    fake.write_text(SERVER)
    fake.chmod(0o755)
    monitor = Monitor(tmp_path)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "skep_services.compose.bus",
            "some.conf",
            "--monitor",
            f"http://127.0.0.1:{monitor.server.server_port}",
            "--folder",
            str(tmp_path),
        ],
        env={**os.environ, "NATS_SERVER_BIN": str(fake)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield monitor, process
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # Both are gone, as they should be.
    process.communicate()
    monitor.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_signals_and_the_exit_code_are_passed_on(
    guarded: tuple[Monitor, subprocess.Popen[str]],
) -> None:
    _, process = guarded
    assert line(process) == "up -c some.conf"
    process.send_signal(signal.SIGHUP)
    # A new account is connected with the others when the server reads it for the second time.
    assert [line(process), line(process)] == ["hup", "hup"]
    process.send_signal(signal.SIGTERM)
    assert line(process) == "term"
    assert process.wait(ENDS_WITHIN_S) == 7


def test_a_server_that_stores_nothing_is_ended_and_says_why(
    guarded: tuple[Monitor, subprocess.Popen[str]],
) -> None:
    monitor, process = guarded
    assert line(process) == "up -c some.conf"
    monitor.status, monitor.text = 503, "JetStream stream '$G > SUBMIT' is not current"
    monitor.wait_asked(2)
    assert process.poll() is None, "one that catches up is left alone"
    monitor.text = '{"error":"JetStream not enabled (10076)"}'
    assert process.wait(ENDS_WITHIN_S) == EXIT_ANEW
    assert line(process) == "", "it was killed, and the pipe is closed"
    assert process.stderr is not None
    assert "it stores nothing" in process.stderr.read()
