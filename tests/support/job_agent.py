"""A real Unix socket server in the agent's place, for tests of what runs inside a job."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from skep_job.link.frames import encode

LIBS = Path(__file__).parents[2] / "libs"

DEADLINE_S = float(os.environ.get("SKEP_TEST_DEADLINE_S", "120"))
"""Nothing here takes seconds unless the machine is far too busy; then this says so."""

FENCE = "\0skep-test-fence-"
"""How the names of connections begin (no files) that are none of a job."""

Message = dict[str, Any]


class JobAgent:
    """Accepts jobs and keeps what they say, in the order of arrival."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: list[Message] = []
        self.open_connections = 0
        self.accepted = 0
        self._fences = 0
        self.greetings: list[str] = []
        """The type of the first message of every connection that had one."""
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._peers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> JobAgent:
        self.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def listen(self) -> None:
        """Start to accept, on a fresh socket file."""
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{directory}/{self.path.name}")
        finally:
            os.close(directory)
        listener.listen()
        self._listener = listener
        self._start(self._accept, listener)

    def stop(self) -> None:
        """Go away as a crash does: every connection ends, the socket file stays."""
        with self._changed:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.shutdown(socket.SHUT_RDWR)  # Wakes the thread that is accepting.
            for peer in self._peers:
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), thread
        if listener is not None:
            listener.close()
        self._threads.clear()

    def tell(self, data: bytes) -> None:
        """Send `data` to every job that is connected."""
        with self._changed:
            for peer in self._peers:
                peer.sendall(data)

    def order(self, kind: str, order: int, **fields: object) -> None:
        """Send an order to every job that is connected."""
        self.tell(encode({"type": kind, "order": order, **fields}))

    def wait_until(self, condition: Callable[[JobAgent], object]) -> None:
        """Return once `condition` holds; it is looked at whenever something has arrived."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), DEADLINE_S):
                tail = "\n".join(map(str, self.received[-20:]))
                raise TimeoutError(f"did not happen; the last messages:\n{tail}")

    def settle(self) -> None:
        """Return once all has arrived that was said by jobs that have ended by now."""
        before = self._fences
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as fence:
                fence.bind(f"{FENCE}{os.getpid()}-{id(self)}-{before}")
                fence.connect(f"/proc/self/fd/{directory}/{self.path.name}")
                # Connections are accepted in their order: a job's may still be waiting for that.
                self.wait_until(lambda agent: agent._fences > before)
        finally:
            os.close(directory)
        self.wait_until(lambda agent: agent.open_connections == 0)

    def of_type(self, kind: str, **fields: object) -> list[Message]:
        """Return the messages of one type in which every field is as given."""
        return [
            message
            for message in list(self.received)
            if message["type"] == kind
            and all(message.get(name) == value for name, value in fields.items())
        ]

    def wait_for(self, count: int, kind: str, **fields: object) -> None:
        """Return once `count` messages like `of_type` gives have arrived."""
        self.wait_until(lambda agent: len(agent.of_type(kind, **fields)) >= count)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a job of this agent."""
        return environment(
            SKEP_SOCK=str(self.path), SKEP_JOB="j7", SKEP_GEN="3", SKEP_RANK_SECRET="t0ken", **more
        )

    def _start(self, target: Callable[[socket.socket], None], peer: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(peer,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, name = listener.accept()
            except OSError:
                return
            with self._changed:
                if os.fsdecode(name).startswith(FENCE):
                    peer.close()
                    self._fences += 1
                    self._changed.notify_all()
                    continue
                if self._listener is not listener:  # It came while the agent went away.
                    peer.close()
                    return
                self._peers.append(peer)
                self.open_connections += 1
                self.accepted += 1
                self._changed.notify_all()
                self._start(self._read, peer)

    def _read(self, peer: socket.socket) -> None:
        begun = False
        with peer, peer.makefile("rb") as stream, contextlib.suppress(OSError):
            while len(head := stream.read(4)) == 4:
                length = int.from_bytes(head, "big")
                assert length <= 64 * 1024, length
                message = json.loads(stream.read(length))
                with self._changed:
                    if not begun:
                        self.greetings.append(message["type"])
                    begun = True
                    self.received.append(message)
                    self._changed.notify_all()
        with self._changed:
            self._peers.remove(peer)
            self.open_connections -= 1
            self._changed.notify_all()


@contextlib.contextmanager
def job_agent() -> Iterator[JobAgent]:
    """Yield an agent that listens in a directory of its own, under a short path."""
    with (
        tempfile.TemporaryDirectory(prefix="skep-") as directory,
        JobAgent(Path(directory) / "agent.sock") as agent,
    ):
        yield agent


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what an agent sets, and with `more`."""
    ours = ("SKEP_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONPATH": str(LIBS)} | more


def launch(
    arguments: Sequence[str | Path], env: dict[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python -m skep_job` with `arguments` to its end."""
    return python(["-m", "skep_job", *arguments], env, **options)


def python(
    arguments: Sequence[str | Path], env: dict[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with `arguments` to its end."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **options,
    )
