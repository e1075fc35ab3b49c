"""Hands tasks to workers one at a time, and takes what comes of them, in any order.

A worker says when it is there, how far its task is, what came of it, or is gone. The task of a
worker that is gone is run again by another; if that one is lost too, the task itself may be the
reason, and all ends. The first task that raises an exception ends all.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from skep_services.engines.stop import Stop
from skep_services.engines.task import (
    About,
    DiedError,
    DiffersError,
    Task,
    about,
    difference,
    result_of,
)

LOOK_S = 0.2
"""Between two looks for the end, for Ctrl-C, and two words about progress."""
STOP_S = 30.0
"""What tasks may take to tell what they have after they were told to stop."""
TRIES_MAX = 2
"""How many workers a task may cost: a machine fails once, a task that kills them does it again."""


class Ear(NamedTuple):
    """What is told while tasks run."""

    take: Callable[[int, bytes], None]
    """What came of a task, by its place."""
    tell: Callable[[Sequence[float]], None]
    """How far each task is, 0 to 1, in their order."""
    say: Callable[[str], None]
    """A line for a person."""


class Engine(Protocol):
    """Runs tasks."""

    def run(self, tasks: Sequence[Task], ear: Ear, stop: Stop) -> None:
        """Run tasks; what comes of each is told by its place.

        Args:
            tasks: The tasks.
            ear: What is called with results and progress.
            stop: Once it is asked for, no further task begins, and those under way end early: those
                that watch tell what they have.

        Raises:
            EngineError: A task failed, workers died or differ, or there are none.
        """


# --- what workers say -----------------------------------------------------------------------------


class Ready(NamedTuple):
    """A worker is there, with its name and, where it may differ, its program."""

    worker: int
    name: str
    about: About | None = None


class Part(NamedTuple):
    """A worker has done so much of its task, 0 to 1."""

    worker: int
    part: float


class Output(NamedTuple):
    """What `task.outcome` returned to a worker."""

    worker: int
    data: bytes


class Gone(NamedTuple):
    """A worker is gone. `returns`: it is begun again by what runs it, and will be `Ready`."""

    worker: int
    name: str
    why: str
    returns: bool = False
    hint: str = ""
    """Where more of it is said."""


Word = Ready | Part | Output | Gone


class Crew(Protocol):
    """Workers of one kind, known by numbers that are given only once."""

    def hire(self, worker: int) -> None:
        """Begin a worker, which will be `Ready` or `Gone`."""

    def give(self, worker: int, task: Task) -> None:
        """Have a worker that is ready run a task."""

    def hear(self, within_s: float) -> list[Word]:
        """Return what workers said since the last time, waiting for it (seconds)."""

    def stop(self, worker: int) -> None:
        """Have a worker end its task early."""

    def close(self, *, kill: bool) -> None:
        """End all workers: `kill` those that have tasks; others have none."""


def deal(crew: Crew, tasks: Sequence[Task], workers: int, ear: Ear, stop: Stop) -> None:
    """Run tasks with a crew, which is closed at the end.

    Args:
        crew: The workers.
        tasks: The tasks.
        workers: How many workers there are at a time.
        ear: What is called with results and progress.
        stop: Whether all is to end early.

    Raises:
        EngineError: A task failed, or workers died or differ.
    """
    _Deal(crew, tasks, ear, stop).run(workers)


class _Deal:
    def __init__(self, crew: Crew, tasks: Sequence[Task], ear: Ear, stop: Stop) -> None:
        self.crew, self.tasks, self.ear, self.stop = crew, tasks, ear, stop
        self.done = [0.0] * len(tasks)
        self.waiting = deque(range(len(tasks)))
        self.given: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.idle: list[int] = []
        self.lost: Counter[int] = Counter()
        self.hired = 0
        self.stop_by = 0.0

    def run(self, workers: int) -> None:
        finished = False
        try:
            for _ in range(min(workers, len(self.tasks))):
                self._hire()
            while self.given or (self.waiting and not self.stop.asked):
                for word in self.crew.hear(LOOK_S):
                    self._hear(word)
                self.ear.tell(self.done)
                if self.stop.asked and not self._goes_on():
                    return
            finished = not self.waiting
        finally:
            self.crew.close(kill=not finished)

    def _hire(self) -> None:
        self.hired += 1
        self.crew.hire(self.hired)

    def _hear(self, word: Word) -> None:
        match word:
            case Ready():
                self._ready(word)
            case Part():
                if word.worker in self.given:
                    self.done[self.given[word.worker]] = word.part
            case Output():
                place = self.given.pop(word.worker)
                result = result_of(self.tasks[place], word.data, self.names[word.worker])
                self.ear.take(place, result)
                self.done[place] = 1.0
                self._feed(word.worker)
            case Gone():
                self._gone(word)

    def _ready(self, word: Ready) -> None:
        if word.about is not None and (how := difference(about(), word.about)):
            text = f"{word.name} cannot be used: {how}"
            raise DiffersError(text)
        self.names[word.worker] = word.name
        self._feed(word.worker)

    def _feed(self, worker: int) -> None:
        if not self.waiting or self.stop.asked:
            self.idle.append(worker)
            return
        place = self.given[worker] = self.waiting.popleft()
        self.crew.give(worker, self.tasks[place])

    def _gone(self, word: Gone) -> None:
        was_there = self.names.pop(word.worker, None) is not None
        place = self.given.pop(word.worker, None)
        if word.worker in self.idle:
            self.idle.remove(word.worker)
        if place is not None:
            self._again(place, word)
        elif not was_there and not word.returns:
            hint = word.hint and f"; {word.hint}"
            text = f"{word.name} {word.why} before it ran anything{hint}"
            raise DiedError(text)
        if not word.returns and self.waiting and not self.stop.asked:
            self._hire()

    def _again(self, place: int, word: Gone) -> None:
        label = self.tasks[place].label
        self.done[place] = 0.0
        if not word.returns:
            self.lost[place] += 1
        if self.lost[place] >= TRIES_MAX:
            text = (
                f"the run {label!r} ended without a result: {word.name} {word.why}, as the worker "
                "before it did; it may need more memory than there is"
            )
            raise DiedError(text)
        if not self.stop.asked:
            self.ear.say(f"{word.name} {word.why}: the run {label!r} is run again")
            self.waiting.appendleft(place)
            if self.idle:
                self._feed(self.idle.pop())

    def _goes_on(self) -> bool:
        """Have tasks end early; return whether some may still tell what they have."""
        if not self.stop_by:
            self.stop_by = time.monotonic() + STOP_S
            for worker, place in self.given.items():
                if self.tasks[place].watches:
                    self.crew.stop(worker)
        watch = any(self.tasks[place].watches for place in self.given.values())
        return watch and time.monotonic() < self.stop_by
