"""Tasks for the tests of engines, which workers import by name, and an ear that remembers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from skep_services.engines.deal import Ear, Engine
from skep_services.engines.stop import Stop
from skep_services.engines.task import Task, Watch

ROOT = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join(map(str, (ROOT / "libs", ROOT / "services", ROOT)))
"""For workers that do not inherit the path of the tests."""
LOOK_S = 0.02


def task(label: str, work: Callable[..., bytes], *inputs: bytes, watches: bool = True) -> Task:
    return Task(label, f"{__name__}:{work.__name__}", inputs, watches)


def twice(inputs: Sequence[bytes], watch: Watch) -> bytes:
    watch(0.5)
    return b"".join(inputs) * 2


def fails(inputs: Sequence[bytes], watch: Watch) -> bytes:
    text = "no such cell\nand more about it"
    raise ValueError(text)


def dies(inputs: Sequence[bytes], watch: Watch) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def hears(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """Return which of the signals in the input do not end this process, by number."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return bytes(number for number in inputs[0] if number in blocked)


def dies_once(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """The input is the path of a file that is made before the process dies."""
    there = Path(inputs[0].decode())
    if not there.exists():
        there.touch()
        dies(inputs, watch)
    return b"alive"


def waits(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """The input is the path of a file that is made as it begins; it ends when it is stopped."""
    Path(inputs[0].decode()).touch()
    while watch(0.5):
        threading.Event().wait(LOOK_S)
    return b"cut"


def waits_once(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """The same, but it ends at once if another attempt began before."""
    return b"again" if Path(inputs[0].decode()).exists() else waits(inputs, watch)


def deaf(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """It never ends, and does not look whether it should."""
    Path(inputs[0].decode()).touch()
    threading.Event().wait()
    return b""


class Kept:
    """What an engine told, and a stop; `when` is called as often as there is progress."""

    def __init__(self, tasks: int, when: Callable[[], bool] = lambda: False) -> None:
        self.results: list[bytes | None] = [None] * tasks
        self.parts: list[list[float]] = []
        self.said: list[str] = []
        self.stop = Stop()
        self.when = when
        """Whether to ask for the end now."""

    def take(self, place: int, data: bytes) -> None:
        assert self.results[place] is None, "a result comes once"
        self.results[place] = data

    def tell(self, parts: Sequence[float]) -> None:
        self.parts.append(list(parts))
        self.stop.asked |= self.when()


def run(engine: Engine, tasks: Sequence[Task], when: Callable[[], bool] = lambda: False) -> Kept:
    """Run tasks and return what was told."""
    kept = Kept(len(tasks), when)
    engine.run(tasks, Ear(kept.take, kept.tell, kept.said.append), kept.stop)
    return kept
