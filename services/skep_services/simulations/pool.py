"""Several runs at a time, each in a process of its own, with progress and an orderly stop.

What comes of a run depends on its order and the trace alone, so the number of processes changes
nothing but the time. Processes are spawned: they share nothing with their parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import NamedTuple

import msgspec

from skep_lab.traces.job import Trace
from skep_lab.workloads.situation import Speeds
from skep_services.simulations.models import speeds
from skep_services.simulations.order import Order, Played, play

TOLD_EVERY_S = 0.2
"""Between two words about a run's progress."""
STOP_S = 30.0
"""What runs may take to tell what they have after they were told to stop."""

Tell = Callable[[Sequence[float]], None]
"""Told how far each run is, 0 to 1, in their order."""


class DiedError(Exception):
    """A run's process ended without a result."""


class Stop:
    """Whether somebody pressed Ctrl-C. Once it is asked for everything ends in order."""

    def __init__(self) -> None:
        """Go on until told otherwise."""
        self.asked = False

    @contextlib.contextmanager
    def on_interrupt(self) -> Iterator[Stop]:
        """Have the first Ctrl-C ask for the end, and a second one end it at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = True
            signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Have processes that begin in here hear no Ctrl-C, from their first instruction on.

    It reaches every process of a terminal, and the parent says what to do. The parent itself hears
    one that comes meanwhile when this is over.
    """
    resource_tracker.ensure_running()  # Its start, if it were later, would undo the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def play_all(
    orders: Sequence[Order], traces: Mapping[int, Trace], processes: int, tell: Tell, stop: Stop
) -> list[Played | None]:
    """Return what comes of each order, None where it was never begun because of `stop`.

    Args:
        orders: The runs.
        traces: The jobs by seed.
        processes: How many runs go on at a time; up to 1: in this process, one after the other.
        tell: Told how far each run is, 0 to 1, in their order.
        stop: Once it is asked for, no further run begins, and those that go on end early.

    Raises:
        DiedError: The process of a run ended without a result.
    """
    if processes <= 1 or len(orders) == 1:
        return _one_by_one(orders, traces, tell, stop)
    return _Pool(orders, traces, tell, stop).run(processes)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def _one_by_one(
    orders: Sequence[Order], traces: Mapping[int, Trace], tell: Tell, stop: Stop
) -> list[Played | None]:
    done = [0.0] * len(orders)
    found: list[Played | None] = [None] * len(orders)
    for place, order in enumerate(orders):
        if stop.asked:
            break
        told_at = 0.0

        def watch(over: int, jobs: int, place: int = place) -> bool:
            nonlocal told_at
            now = time.monotonic()
            if now - told_at >= TOLD_EVERY_S:
                told_at = now
                done[place] = over / max(jobs, 1)
                tell(done)
            return not stop.asked

        found[place] = play(order, traces[order.settings.seed], speeds_of(order), watch)
        done[place] = 1.0
        tell(done)
    return found


def speeds_of(order: Order) -> Speeds:
    """Return the workload model of an order."""
    return speeds(order.models, order.cluster)


# --- processes ------------------------------------------------------------------------------------


class _Run(NamedTuple):
    place: int
    process: SpawnProcess
    pipe: Connection


class _Pool:
    def __init__(
        self, orders: Sequence[Order], traces: Mapping[int, Trace], tell: Tell, stop: Stop
    ) -> None:
        self.orders, self.tell, self.stop = orders, tell, stop
        self.traces = traces
        self.done = [0.0] * len(orders)
        self.found: list[Played | None] = [None] * len(orders)
        self.running: dict[int, _Run] = {}
        self.stop_by = 0.0

    def run(self, processes: int) -> list[Played | None]:
        waiting = list(range(len(self.orders)))
        try:
            while self.running or (waiting and not self.stop.asked):
                while waiting and len(self.running) < processes and not self.stop.asked:
                    self._begin(waiting.pop(0))
                for pipe in wait([run.pipe for run in self.running.values()], TOLD_EVERY_S):
                    self._hear(next(run for run in self.running.values() if run.pipe is pipe))
                self.tell(self.done)
                self._end_in_order()
        finally:
            for run in self.running.values():
                run.process.kill()
        return self.found

    def _begin(self, place: int) -> None:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_child, args=(theirs,), daemon=True)
        with deaf_children():
            process.start()
        theirs.close()
        run = self.running[place] = _Run(place, process, mine)
        order = self.orders[place]
        try:
            mine.send_bytes(msgspec.msgpack.encode(order))
            mine.send_bytes(msgspec.msgpack.encode(self.traces[order.settings.seed]))
        except ConnectionError:
            raise self._died(run) from None

    def _died(self, run: _Run) -> DiedError:
        run.process.join()
        label, code = self.orders[run.place].label, run.process.exitcode
        return DiedError(f"the run {label!r} ended without a result (exit code {code})")

    def _hear(self, run: _Run) -> None:
        try:
            word = run.pipe.recv_bytes()
        except (EOFError, ConnectionError):
            raise self._died(run) from None
        if word[:1] == b"p":
            self.done[run.place] = msgspec.msgpack.decode(word[1:], type=float)
            return
        self.found[run.place] = msgspec.msgpack.decode(word[1:], type=Played)
        self.done[run.place] = 1.0
        run.process.join()
        run.pipe.close()
        del self.running[run.place]

    def _end_in_order(self) -> None:
        """Tell runs to stop if that is asked for, and end those that do not listen."""
        if not self.stop.asked:
            return
        if not self.stop_by:
            self.stop_by = time.monotonic() + STOP_S
            for run in self.running.values():
                with contextlib.suppress(ConnectionError):
                    run.pipe.send_bytes(b"stop")
        elif time.monotonic() > self.stop_by:
            for run in self.running.values():
                run.process.kill()
            self.running.clear()


def _child(pipe: Connection) -> None:
    """Play one order."""
    order = msgspec.msgpack.decode(pipe.recv_bytes(), type=Order)
    trace = msgspec.msgpack.decode(pipe.recv_bytes(), type=Trace)
    told_at, goes_on = 0.0, True

    def watch(over: int, jobs: int) -> bool:
        nonlocal told_at, goes_on
        now = time.monotonic()
        if now - told_at >= TOLD_EVERY_S:
            told_at = now
            pipe.send_bytes(b"p" + msgspec.msgpack.encode(over / max(jobs, 1)))
            if pipe.poll():
                pipe.recv_bytes()
                goes_on = False
        return goes_on

    with contextlib.suppress(BrokenPipeError):  # Nobody is there any more to tell.
        played = play(order, trace, speeds_of(order), watch)
        pipe.send_bytes(b"r" + msgspec.msgpack.encode(played))
