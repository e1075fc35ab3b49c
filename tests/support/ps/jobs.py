"""Parameter-server jobs of real processes, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from skep_ps.ask import ask
from skep_ps.errors import Broken, Refused
from skep_ps.wire import Late, Message, Settings, settings

TRAINER = Path(__file__).parent / "trainer.py"
TOKEN = "a token that is only for tests"
WITHIN_S = 240.0
LOOK_S = 0.05

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str) -> T:
    """Return the first true value of `look`."""
    deadline = time.monotonic() + WITHIN_S
    while not (found := look()):
        if time.monotonic() > deadline:
            reason = f"not within {WITHIN_S:.0f} s: {what}"
            raise TimeoutError(reason)
        threading.Event().wait(LOOK_S)
    return found


class Zygote:
    """The process that starts all others: see tests/support/ps/zygote.py."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ps.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait(lambda: "" in self.pids, "PyTorch is imported")

    def start(self, order: dict[str, Any]) -> int:
        """Start a process; return its pid."""
        assert self._process.stdin is not None
        name = order["name"]
        assert name not in self.pids, name
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self.wait(lambda: name in self.pids, name)
        return self.pids[name]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Return once `condition` holds."""
        with self._changed:
            if not self._changed.wait_for(condition, WITHIN_S):
                reason = f"not within {WITHIN_S:.0f} s: {what}"
                raise TimeoutError(reason)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._changed:
                if "pid" in event:
                    self.pids[event["name"]] = event["pid"]
                else:
                    self.codes[event["name"]] = event["code"]
                self._changed.notify_all()


class Job:
    """One job: its processes by name, each with a log in `folder`."""

    count = 0

    def __init__(self, zygote: Zygote, folder: Path, **environment: str) -> None:
        Job.count += 1
        self.folder = folder
        self.environment = {
            "SKEP_PS": f"127.0.0.1:{_free_port()}",
            "SKEP_PS_TOKEN": TOKEN,
            "SKEP_PS_LOST_S": "1",
            **environment,
        }
        self._zygote, self._prefix = zygote, f"{Job.count}/"
        self._names: list[str] = []

    @property
    def where(self) -> Settings:
        """Return what a process of the job reads from its environment."""
        return settings(self.environment)

    def coordinator(
        self, servers: int, workers: int, *more: str, name: str = "coordinator"
    ) -> None:
        """Start the coordinator."""
        arguments = ["--servers", str(servers), "--workers", str(workers), *more]
        self.start(name, "coordinator", arguments)

    def server(self, name: str, **environment: str) -> None:
        """Start a server."""
        self.start(name, "server", [], **environment)

    def worker(self, name: str, rank: int, *arguments: str, **environment: str) -> None:
        """Start a training process."""
        more = ["--folder", str(self.folder), "--name", name, *arguments]
        self.start(name, str(TRAINER), more, RANK=str(rank), **environment)

    def start(self, name: str, role: str, arguments: Sequence[str], **environment: str) -> None:
        """Start a process."""
        self._names.append(name)
        self._zygote.start(
            {
                "name": self._prefix + name,
                "role": role,
                "arguments": list(arguments),
                "environment": {**self.environment, **environment},
                "log": str(self.folder / f"{name}.log"),
            }
        )

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal."""
        os.kill(self._zygote.pids[self._prefix + name], number)

    def ended(self, name: str) -> int:
        """Wait for a process's end; return its code."""
        key = self._prefix + name
        try:
            self._zygote.wait(lambda: key in self._zygote.codes, f"the end of {name}")
        except TimeoutError as error:
            reason = f"{error}\n{self.logs()}"
            raise TimeoutError(reason) from None
        return self._zygote.codes[key]

    def result(self, name: str) -> dict[str, Any]:
        """Wait for a worker's good end; return what it wrote."""
        code = self.ended(name)
        assert code == 0, f"{name} ended with {code}\n{self.logs()}"
        result: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return result

    def log(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> str:
        """Return what all have printed."""
        return "\n".join(f"--- {name}\n{self.log(name)}" for name in self._names)

    def at_gate(self, version: int, *ranks: int) -> None:
        """Wait until the workers stand at a gate."""
        paths = [self.folder / f"gate-{version}.{rank}" for rank in ranks]
        self._until(lambda: all(path.exists() for path in paths), f"gate {version}")

    def open_gate(self, version: int) -> None:
        """Let the workers go on."""
        (self.folder / f"gate-{version}.open").touch()

    def status(self) -> Message:
        """Return what the coordinator says."""
        return ask(self.where, {"type": "status"})

    def begun(self) -> None:
        """Wait until everybody is there that it begins with: who comes later is a newcomer."""
        self._until(lambda: bool(self.status()["state"] == "running"), "the beginning")

    def reaches(self, phase: str) -> None:
        """Wait until the scaling in progress is in a phase."""
        self._until(lambda: self.status()["scaling"].endswith(phase), phase)

    def held(self, worker: int) -> None:
        """Wait until a worker stands at the clock of the change in progress."""
        self._until(lambda: worker in self.status()["held"], f"worker {worker} at the clock")

    def scaled(self, times: int) -> list[Message]:
        """Wait until as many changes are over; return them."""
        self._until(lambda: len(self.status()["history"]) >= times, f"{times} changes")
        history: list[Message] = self.status()["history"]
        return history

    def remove(self, role: str, number: int) -> threading.Thread:
        """Ask for a removal, on a thread of its own; the outcome is in the status' history."""
        message = {"type": "remove", "role": role, "id": number}
        thread = threading.Thread(target=self._ask, args=(message,), daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Kill what is left."""
        for name in self._names:
            if self._prefix + name not in self._zygote.codes:
                with contextlib.suppress(ProcessLookupError):  # It has just ended by itself.
                    self.kill(name)
                self.ended(name)

    def _ask(self, message: Message) -> None:
        try:
            ask(self.where, message)
        except (Broken, Refused, Late):
            pass  # The coordinator was killed by the test.

    def _until(self, look: Callable[[], bool], what: str) -> None:
        def quietly() -> bool:
            try:
                return look()
            except (Broken, Late):
                return False

        try:
            until(quietly, what)
        except TimeoutError as error:
            reason = f"{error}\n{self.logs()}"
            raise TimeoutError(reason) from None


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
