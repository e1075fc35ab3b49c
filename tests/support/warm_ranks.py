"""Ranks that are forked from Skep's warm process, as a runner has it, for plays."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from skep_services.agent.runner_warm import IMPORTS_MAX, PER_RUN, PREFIXES
from tests.support.job_agent import environment

PR_SET_CHILD_SUBREAPER = 36
MESSAGE_BYTES_MAX = 1024 * 1024
LOAD_S = 120.0
FORK_S = 60.0


class Forked:
    """A rank, with what the tests need of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: int, stdout: int, errors: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = open(stdin, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self.stdout = open(stdout, encoding="utf-8")  # noqa: SIM115
        self.stderr = Errors(self, errors)
        self._ends = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, as `Popen.wait` has it."""
        ready, _, _ = select.select([self._ends], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired("a forked rank", timeout or 0.0)
        with self._lock:
            if self.returncode is None:
                _, status = os.waitpid(self.pid, 0)
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self.wait(0.0) if select.select([self._ends], [], [], 0.0)[0] else None

    def kill(self) -> None:
        """Kill it unless it has ended."""
        with self._lock:
            if self.returncode is None:
                signal.pidfd_send_signal(self._ends, signal.SIGKILL)


class Errors:
    """What a rank wrote to its standard error, once it has ended."""

    def __init__(self, process: Forked, path: Path) -> None:
        self._process, self._path = process, path

    def __iter__(self) -> Iterator[str]:
        self._process.wait()
        yield from self._path.read_text(errors="replace").splitlines(keepends=True)

    def close(self) -> None:
        """Do nothing: it is opened to be read only."""


class Warm:
    """A warm process for one script, ready once this is made."""

    def __init__(self, script: Path, env: Mapping[str, str], record: Path | None = None) -> None:
        """Start it.

        Args:
            script: The script.
            env: What its ranks have in common.
            record: What an earlier run noted of its imports (SKEP_IMPORTS).
        """
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = os.memfd_create("words")  # It reads there what imports write.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "skep_job.warm", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env=environment(**env),
                pass_fds=(theirs.fileno(),),
            )
        os.close(words)
        first = {
            "script": str(script),
            "env": environment(**env),
            "record": str(record or ""),
            "per_run": PER_RUN,
            "prefixes": PREFIXES,
            "most": IMPORTS_MAX,
            "seconds_min": 0.1,
        }
        self._channel.send(json.dumps(first).encode())
        self._channel.settimeout(LOAD_S)
        self.said = json.loads(self._channel.recv(MESSAGE_BYTES_MAX))
        """What it has imported, or why it is of no use."""
        assert "ready" in self.said, self.said

    def __enter__(self) -> Warm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def fork(self, argv: Sequence[str], env: Mapping[str, str], errors: Path) -> Forked:
        """Return a rank that has begun.

        Args:
            argv: Its arguments, as if it was executed.
            env: Its environment.
            errors: Where the script puts its standard error, by itself.
        """
        errors.touch()
        stdin, to_it = os.pipe()
        from_it, stdout = os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"argv": list(argv), "env": dict(env), "workdir": os.getcwd()}
        with ours, theirs:
            ends = [stdin, stdout, theirs.fileno()]
            socket.send_fds(self._channel, [json.dumps(request).encode()], ends)
            self._channel.settimeout(FORK_S)
            answer = json.loads(self._channel.recv(MESSAGE_BYTES_MAX))
            assert "pid" in answer, answer
            theirs.close()
            ours.settimeout(FORK_S)
            said = json.loads(ours.recv(MESSAGE_BYTES_MAX))
            assert "ready" in said, said
            ours.send(b"!")
        os.close(stdin)
        os.close(stdout)
        return Forked(answer["pid"], to_it, from_it, errors)
