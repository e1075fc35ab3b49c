"""The terminal of a shell that is a job: real pseudo-terminals, no cluster."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_job.terminal import attach, forward, holder

WITHIN_S = 20.0
OWN = (sys.executable, "-I", "-S")


class Terminal:
    """A process on a terminal of a person, who types and reads."""

    def __init__(self, argv: list[str], env: dict[str, str], rows: int = 24) -> None:
        self.said = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execve(argv[0], argv, env)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def see(self, pattern: str) -> None:
        """Read until a pattern is seen; what is behind it stays to be seen."""
        until = time.monotonic() + WITHIN_S
        while not (found := re.search(pattern.encode(), self.said)):
            ready, _, _ = select.select([self.master], [], [], until - time.monotonic())
            assert ready, self.said
            self.said += os.read(self.master, 65536)
        self.said = self.said[found.end() :]

    def end(self) -> int:
        """Read to the end and return the exit code, or minus a signal's number."""
        while True:
            try:
                if not os.read(self.master, 65536):
                    break
            except OSError:
                break
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    run = f"j1.1.{os.getpid()}"
    monkeypatch.setenv("SKEP_RUN", run)
    assert attach.address() == holder.address(run)
    libs = str(Path(holder.__file__).parents[2])
    return {"SKEP_RUN": run, "PATH": os.environ["PATH"], "PYTHONPATH": libs, "PS1": "$ "}


@pytest.fixture
def shell(env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "skep_job.terminal", "--", "/bin/sh"]
    made = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"[skep] a shell runs here: skep attach j1\n"
    yield made
    made.kill()
    made.wait()
    made.stdout.close()
    Path(holder.address(env["SKEP_RUN"])).unlink(missing_ok=True)


def test_a_shell_is_left_taken_over_and_ended(
    shell: subprocess.Popen[bytes], env: dict[str, str]
) -> None:
    argv = [*OWN, attach.__file__]
    first = Terminal(argv, env)
    first.type("X=remem; echo ${X}bered\r")
    first.see("\nremembered")
    second = Terminal(argv, env, rows=33)
    second.see("remembered")  # What was shown before.
    assert first.end() == -signal.SIGUSR2, "it was taken over"
    second.type("stty size; trap 'echo re''sized' WINCH; echo $X\r")
    second.see(r"33 80\r\nremem")
    fcntl.ioctl(second.master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 90, 0, 0))
    second.type("\r")
    second.see("resized")
    os.kill(second.pid, signal.SIGKILL)  # A client that is gone leaves the shell alone.
    second.end()
    third = Terminal(argv, env)
    third.type("seq 100000; exit 7\r")
    third.see(r"\n100000\r")
    assert third.end() == 7
    assert shell.wait(WITHIN_S) == 7
    assert Terminal(argv, env).end() == -signal.SIGUSR1, "there is no shell any more"


def test_a_cancelled_shell_is_hung_up_on(
    shell: subprocess.Popen[bytes], env: dict[str, str]
) -> None:
    one = Terminal([*OWN, attach.__file__], env)
    one.type("echo re''ady\r")
    one.see("ready")
    shell.terminate()
    assert shell.wait(WITHIN_S) == 128 + signal.SIGHUP
    assert one.end() == 128 + signal.SIGHUP


def test_a_folder_of_another_account_is_not_used(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "open-to-all"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    monkeypatch.setattr(holder, "folder", lambda: str(place))
    with pytest.raises(OSError, match="not a folder of this account alone"):
        holder.listen(env["SKEP_RUN"])


def test_a_port_is_reached_from_standard_input(env: dict[str, str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        argv = [*OWN, forward.__file__, str(port)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
            link, _ = server.accept()
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write(b"ask" * 100_000)
            one.stdin.close()
            with link:
                assert b"".join(iter(lambda: link.recv(65536), b"")) == b"ask" * 100_000
                link.sendall(b"answer" * 100_000)
            assert one.stdout.read() == b"answer" * 100_000
        assert one.returncode == 0
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == -signal.SIGUSR1
