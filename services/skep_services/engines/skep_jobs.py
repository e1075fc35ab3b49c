"""Tasks in the jobs of a Skep cluster: each job is a worker that connects to this command.

The command listens on one port; a key that only its jobs have lets them in. Inputs and results
travel by these connections, so that nodes need no folder in common with this machine, only the same
Skep for the same Python, at the same path. A job whose connection ends is over: either the cluster
begins it again (it was preempted, its node was lost), or another takes its place.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from typing import NamedTuple, Protocol

import msgspec

from skep_services.engines.deal import LOOK_S, Ear, Gone, Ready, Word, deal
from skep_services.engines.processes import heard, send
from skep_services.engines.serve import END, KEY, STOP, Hello, stay_alive
from skep_services.engines.stop import Stop
from skep_services.engines.task import Task

WORKERS = 4
"""Jobs unless more are asked for."""
WORKERS_MAX = 256
"""Each is a job with a GPU, and a connection."""
LOOK_EVERY_S = 0.5
"""Between two looks at jobs that are not connected."""
WAITS_S = 5.0
"""Without any worker for so long, a person is told why."""
LEFT_S = 30.0
"""How long jobs may take to end when they are told to: twice what an agent gives one."""
ARRIVALS_MAX = 32
"""Connections that have not shown that they know the key; more are turned away."""
HELLO_BYTES_MAX = 4096
HELLO_S = 10
"""For each word by which a worker shows that it knows the key."""
PASSED = ("PYTHONPATH", "SKEP_SHARED_DATA")
"""Variables of this command that its jobs get, too."""


class Seen(NamedTuple):
    """How a job is: `why` in words, and whether it has ended or is with its attempt's processes."""

    ended: bool
    runs: bool
    attempt: int
    why: str


class Jobs(Protocol):
    """The cluster, as far as the engine needs it."""

    def submit(self, command: Sequence[str], env: dict[str, str]) -> str:
        """Submit a job of one GPU and return its id.

        Args:
            command: What it runs.
            env: Variables it gets.
        """

    def look(self, job: str) -> Seen:
        """Return how a job is."""

    def cancel(self, job: str) -> None:
        """Have a job end, if it has not."""


class OnSkep(NamedTuple):
    """A Skep cluster; jobs connect to `host` and `port` (0: any port).

    `workers`: how many jobs; 0: a few.
    """

    jobs: Jobs
    host: str
    port: int = 0
    workers: int = 0

    def run(self, tasks: Sequence[Task], ear: Ear, stop: Stop) -> None:
        """Run tasks; see `deal.Engine`."""
        with Door(self.host, self.port) as door:
            crew = _Crew(self.jobs, door, ear.say)
            deal(crew, tasks, min(self.workers or WORKERS, WORKERS_MAX), ear, stop)


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a name or an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


class _Arrived(NamedTuple):
    hello: Hello
    pipe: Connection


class Door:
    """Lets workers in that know the key."""

    def __init__(self, host: str, port: int) -> None:
        self.listener = listener(host, port)
        self.address = self.listener.getsockname()[:2]
        self.key = secrets.token_bytes(32)
        self.arrived: queue.SimpleQueue[_Arrived] = queue.SimpleQueue()
        self.bell, self.ring = socket.socketpair()
        """What says that a worker arrived, to those who wait for several things at once."""
        self.places = threading.BoundedSemaphore(ARRIVALS_MAX)

    def __enter__(self) -> Door:
        threading.Thread(target=self._accept, name="engine-door", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        for each in (self.listener, self.bell, self.ring):
            each.close()
        while not self.arrived.empty():
            self.arrived.get().pipe.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return  # It is closed.
            if self.places.acquire(blocking=False):
                threading.Thread(target=self._let_in, args=(link,), daemon=True).start()
            else:
                link.close()

    def _let_in(self, link: socket.socket) -> None:
        stay_alive(link)
        pipe = Connection(os.dup(link.fileno()))
        try:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", HELLO_S, 0))
            deliver_challenge(pipe, self.key)
            answer_challenge(pipe, self.key)
            hello = msgspec.msgpack.decode(pipe.recv_bytes(HELLO_BYTES_MAX), type=Hello)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
            self.arrived.put(_Arrived(hello, pipe))
            self.ring.send(b".")
        except (OSError, EOFError, AuthenticationError, msgspec.MsgspecError):
            pipe.close()
        finally:
            link.close()
            self.places.release()


class _Worker:
    def __init__(self, job: str) -> None:
        self.job = job
        self.pipe: Connection | None = None
        self.attempt = 0
        self.lost = False
        """Its connection ended, and what became of it is not known yet."""

    @property
    def name(self) -> str:
        return f"job {self.job}"

    def lose(self) -> None:
        """Have no connection any more."""
        if self.pipe is not None:
            self.pipe.close()
        self.pipe, self.lost = None, True


class _Crew:
    def __init__(self, jobs: Jobs, door: Door, say: Callable[[str], None]) -> None:
        self.jobs, self.door, self.say = jobs, door, say
        self.workers: dict[int, _Worker] = {}
        self.began = time.monotonic()
        self.looked_at = 0.0
        self.told = False

    def hire(self, worker: int) -> None:
        host, port = self.door.address
        module = "skep_services.engines.serve"
        command = [sys.executable, "-m", module, str(host), str(port), str(worker)]
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        job = self.jobs.submit(command, {**passed, KEY: self.door.key.hex()})
        self.workers[worker] = _Worker(job)
        self.say(f"{job} is submitted: a worker, on one idle GPU")

    def give(self, worker: int, task: Task) -> None:
        pipe = self.workers[worker].pipe
        if pipe is not None:
            send(pipe, msgspec.msgpack.encode(task))

    def hear(self, within_s: float) -> list[Word]:
        pipes = {each.pipe: number for number, each in self.workers.items() if each.pipe}
        words: list[Word] = []
        for there in wait([*pipes, self.door.bell], within_s):
            if isinstance(there, Connection):
                word = heard(pipes[there], there)
                if word is None:
                    self.workers[pipes[there]].lose()
                else:
                    words.append(word)
            else:
                self.door.bell.recv(ARRIVALS_MAX)
                words += self._arrivals()
        return words + self._look()

    def _arrivals(self) -> list[Word]:
        words: list[Word] = []
        while not self.door.arrived.empty():
            hello, pipe = self.door.arrived.get()
            worker = self.workers.get(hello.worker)
            if worker is None:
                pipe.close()
                continue
            if worker.pipe is not None or worker.lost:  # The earlier attempt's node may be lost.
                worker.lose()
                why = "was begun again by the cluster"
                words.append(Gone(hello.worker, worker.name, why, returns=True))
            worker.pipe, worker.lost, worker.attempt = pipe, False, hello.attempt
            self.told = True
            words.append(Ready(hello.worker, worker.name, hello.about))
        return words

    def _look(self) -> list[Word]:
        """Return what became of jobs that are not connected."""
        now = time.monotonic()
        if now - self.looked_at < LOOK_EVERY_S:
            return []
        self.looked_at = now
        words: list[Word] = []
        for number, worker in list(self.workers.items()):
            if worker.pipe is None:
                seen = self.jobs.look(worker.job)
                if seen.ended:
                    del self.workers[number]
                    hint = f"skep logs {worker.job} may say why"
                    words.append(Gone(number, worker.name, seen.why, hint=hint))
                elif worker.lost and (not seen.runs or seen.attempt > worker.attempt):
                    worker.lost = False
                    words.append(Gone(number, worker.name, "was stopped by the cluster", True))
                else:
                    self._tell(worker, seen)
        return words

    def _tell(self, worker: _Worker, seen: Seen) -> None:
        if not self.told and time.monotonic() - self.began > WAITS_S:
            self.told = True
            host, port = self.door.address
            why = (
                f"does not reach this command at {host}:{port} yet"
                if seen.runs
                else f"is {seen.why}"
            )
            self.say(f"{worker.name} {why}")

    def stop(self, worker: int) -> None:
        pipe = self.workers[worker].pipe
        if pipe is not None:
            send(pipe, STOP)

    def close(self, *, kill: bool) -> None:
        """End the jobs: a worker whose connection is closed ends by itself, one that waits not."""
        for worker in self.workers.values():
            if worker.pipe is not None and not kill:
                send(worker.pipe, END)
            else:
                worker.lose()
                self.jobs.cancel(worker.job)
        end_by = time.monotonic() + LEFT_S
        left = list(self.workers.values())
        while left and time.monotonic() < end_by:
            left = [worker for worker in left if not self.jobs.look(worker.job).ended]
            if left:
                time.sleep(LOOK_S)
        if left:
            names = " ".join(worker.job for worker in left)
            self.say(f"these jobs have not ended yet: skep cancel {names}")
        for worker in self.workers.values():
            worker.lose()
