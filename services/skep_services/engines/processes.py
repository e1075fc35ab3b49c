"""Tasks in processes of this machine, or in this very process.

Processes are spawned: they share nothing with their parent. Each runs one task after the other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

import msgspec

from skep_services.engines.deal import LOOK_S, Ear, Gone, Output, Part, Ready, Word, deal
from skep_services.engines.serve import END, STOP, serve
from skep_services.engines.stop import Stop, deaf_children
from skep_services.engines.task import Task, outcome, result_of

HERE = "this process"


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


class Processes(NamedTuple):
    """So many processes at a time; 0: as many as processors.

    One that is enough is this process itself, if tasks watch whether to end.
    """

    number: int = 0

    def run(self, tasks: Sequence[Task], ear: Ear, stop: Stop) -> None:
        """Run tasks; see `deal.Engine`."""
        number = min(self.number or processors(), len(tasks))
        if number <= 1 and all(task.watches for task in tasks):
            _one_by_one(tasks, ear, stop)
        else:
            deal(_Crew(), tasks, number, ear, stop)


def _one_by_one(tasks: Sequence[Task], ear: Ear, stop: Stop) -> None:
    done = [0.0] * len(tasks)
    for place, task in enumerate(tasks):
        if stop.asked:
            return
        told_at = 0.0

        def watch(part: float, place: int = place) -> bool:
            nonlocal told_at
            now = time.monotonic()
            if now - told_at >= LOOK_S:
                told_at = now
                done[place] = part
                ear.tell(done)
            return not stop.asked

        ear.take(place, result_of(task, outcome(task, watch), HERE))
        done[place] = 1.0
        ear.tell(done)


class _Worker(NamedTuple):
    process: SpawnProcess
    pipe: Connection

    @property
    def name(self) -> str:
        return f"process {self.process.pid}"


class _Crew:
    def __init__(self) -> None:
        self.workers: dict[int, _Worker] = {}
        self.words: list[Word] = []

    def hire(self, worker: int) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        with deaf_children():
            process.start()
            found = self.workers[worker] = _Worker(process, ours)
        theirs.close()
        self.words.append(Ready(worker, found.name))

    def give(self, worker: int, task: Task) -> None:
        send(self.workers[worker].pipe, msgspec.msgpack.encode(task))

    def hear(self, within_s: float) -> list[Word]:
        words, self.words = self.words, []
        if not words:
            pipes = {each.pipe: worker for worker, each in self.workers.items()}
            for pipe in wait(list(pipes), within_s):
                assert isinstance(pipe, Connection)
                worker = pipes[pipe]
                words.append(heard(worker, pipe) or self._gone(worker))
        return words

    def _gone(self, worker: int) -> Gone:
        found = self.workers.pop(worker)
        found.process.join()
        found.pipe.close()
        code = found.process.exitcode or 0
        why = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Gone(worker, found.name, why)

    def stop(self, worker: int) -> None:
        send(self.workers[worker].pipe, STOP)

    def close(self, *, kill: bool) -> None:
        for each in self.workers.values():
            if kill:
                each.process.kill()
            else:
                send(each.pipe, END)
        for each in self.workers.values():
            each.process.join()
            each.pipe.close()
        self.workers.clear()


def send(pipe: Connection, word: bytes) -> None:
    """Send a word to a worker. That it is gone shows when it is heard."""
    with contextlib.suppress(ConnectionError):
        pipe.send_bytes(word)


def heard(worker: int, pipe: Connection) -> Word | None:
    """Return what a worker said; None: it is gone.

    Args:
        worker: The worker.
        pipe: What connects it.
    """
    try:
        data = pipe.recv_bytes()
    except (EOFError, ConnectionError):
        return None
    if data[:1] == b"p":
        return Part(worker, msgspec.msgpack.decode(data[1:], type=float))
    return Output(worker, data)
