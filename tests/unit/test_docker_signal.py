"""The script by which a container gives its processes a signal, on processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skep_services.adapters.docker_signal import command, trouble_of

CATCHES = """
import os, signal, time
first = os.getpid()
def warned(number, frame):
    os.write(1, f"warned {os.getpid() == first}\\n".encode())  # It may come amid a print.
signal.signal(signal.SIGUSR1, warned)
if os.fork():
    os.write(1, b"ready\\n")
for _ in range(600):  # A signal just before `signal.pause()` would be seen by the next one only.
    time.sleep(0.05)
"""


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_uppermost_process_with_a_handler_gets_it(shell: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CATCHES)
    inner = f"{sys.executable} -I -S {program} & wait; wait"
    tree = subprocess.Popen(
        ["sh", "-c", f"sh -c '{inner}' & wait; wait"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert tree.stdout is not None
    try:
        assert tree.stdout.readline() == "ready\n"
        code = given(shell, signal.SIGUSR2, "USR2", tree.pid)
        assert trouble_of(code, "USR2") == "none of its processes has a handler for SIGUSR2"
        for _ in range(2):
            assert trouble_of(given(shell, signal.SIGUSR1, "USR1", tree.pid), "USR1") == ""
            assert tree.stdout.readline() == "warned True\n"
    finally:
        os.killpg(tree.pid, signal.SIGKILL)
        tree.wait()
        tree.stdout.close()


def given(shell: str, number: signal.Signals, name: str, root: int) -> int:
    _, *words = command(number, name, root)
    return subprocess.run([shell, *words], check=False).returncode


def test_what_cannot_be_done_is_said() -> None:
    assert trouble_of(127, "USR1") == "the container's /bin/sh did not give SIGUSR1: exit code 127"
    assert "None" in trouble_of(None, "USR1")
