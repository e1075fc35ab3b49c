"""The terminal of a shell that is a job: real pseudo-terminals, no cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_job.terminal import attach, forward, holder
from tests.support.terminal import WITHIN_S, Terminal

OWN = (sys.executable, "-I", "-S")


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
    second.resize(50, 90)
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
