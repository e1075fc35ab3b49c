"""What admission's log says about arrays (I23), and what tenants do with them."""

from __future__ import annotations

import random
from typing import Any

from skep.sim.violation import require
from skep.wire.array import (
    ArrayAdmitted,
    ArrayFact,
    ArrayOpened,
    ArrayOver,
    TasksCancelled,
    TasksRetried,
    from_ranges,
    is_gated,
    task_of,
    tasks_of,
)
from skep.wire.facts import Admitted, End

WAITS = "waits"
TEXTS = ("0-5%2", "0-7:2", "3,1,2%1", "0-3", "7", "0-24%3", "0-19", "5-1", "0-3%0", "")
"""What tenants write, now and then wrong."""


class ModelArray:
    """An array: of each task that it waits, or which job it is, or how it ended."""

    def __init__(self, fact: ArrayAdmitted) -> None:
        """Start with every task waiting."""
        tasks = tasks_of(fact.spec.array or "")
        self.name, self.vc, self.most = fact.array, fact.spec.vc, tasks.most
        self.tasks: dict[int, str] = dict.fromkeys(tasks.indices(), WAITS)
        self.over = False
        self.gated = is_gated(fact.spec)

    @property
    def waiting(self) -> int:
        """Return how many tasks wait."""
        return sum(stand == WAITS for stand in self.tasks.values())

    def take(self, fact: ArrayFact) -> None:
        """Take a fact about the array."""
        match fact:
            case TasksCancelled():
                for index in from_ranges(fact.tasks):
                    self._move(index, WAITS, End.CANCELLED)
            case TasksRetried():
                for index in from_ranges(fact.tasks):
                    self._move(index, End.FAILED, WAITS)
                self.over = False
            case ArrayOver():
                counts = fact.succeeded, fact.failed, fact.cancelled
                seen = tuple(sum(stand == end for stand in self.tasks.values()) for end in End)
                require(not self.over, "I23", f"{self.name} ends twice")
                require(counts == seen, "I23", f"{self.name} ends as {counts}, and is {seen}")
                require(sum(seen) == len(self.tasks), "I23", f"{self.name} ends too early")
                self.over = True
            case ArrayOpened():
                require(self.gated, "I23", f"{self.name} waits for nothing")
                self.gated = False
            case ArrayAdmitted():
                require(False, "I23", f"{self.name} is admitted twice")

    def begins(self, index: int, job: str) -> None:
        """Take it that a task became a job."""
        require(not self.gated, "I22", f"task {index} of {self.name} begins, which waits")
        self._move(index, WAITS, job)
        live = [stand for stand in self.tasks.values() if stand.startswith("j")]
        most = self.most or len(self.tasks)
        require(len(live) <= most, "I23", f"{len(live)} jobs of {self.name} at once: {live}")

    def ends(self, index: int, job: str, end: str) -> None:
        """Take it that the job of a task has ended."""
        self._move(index, job, end)

    def _move(self, index: int, before: str, after: str) -> None:
        stand = self.tasks.get(index)
        text = f"task {index} of {self.name} becomes {after}: it is {stand}, not {before}"
        require(stand == before, "I23", text)
        self.tasks[index] = after


class ArraysModel:
    """All arrays."""

    def __init__(self) -> None:
        """Start without any."""
        self.arrays: dict[str, ModelArray] = {}
        self.jobs: dict[str, tuple[ModelArray, int]] = {}
        """Jobs that are tasks."""

    def take(self, fact: ArrayFact) -> None:
        """Take a fact about an array."""
        if isinstance(fact, ArrayAdmitted) and fact.array not in self.arrays:
            self.arrays[fact.array] = ModelArray(fact)
            return
        require(fact.array in self.arrays, "I23", f"there is no array {fact.array}")
        self.arrays[fact.array].take(fact)

    def admitted(self, fact: Admitted) -> None:
        """Take it that a job was admitted that is a task."""
        task = task_of(fact.spec.task)
        require(task is not None and task[0] in self.arrays, "I23", f"{fact.job} is of no array")
        assert task is not None
        array = self.arrays[task[0]]
        array.begins(task[1], fact.job)
        self.jobs[fact.job] = array, task[1]

    def over(self, job: str, end: str) -> None:
        """Take it that admission saw the end of a job."""
        if job in self.jobs:
            array, index = self.jobs[job]
            array.ends(index, job, end)

    def waiting(self, vc: str) -> int:
        """Return how many tasks of a VC's arrays are not jobs yet."""
        return sum(array.waiting for array in self.arrays.values() if array.vc == vc)

    def pending(self) -> str:
        """Return an array that has not ended, in words; empty: all have."""
        for name, array in self.arrays.items():
            if not array.over:
                return f"array {name} has not ended: {array.tasks}"
        return ""


def wish(
    rng: random.Random, arrays: list[str], spec: dict[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Return what a tenant wants of arrays: `submit`, `cancel` or `ask`, and what it publishes.

    Args:
        rng: Decides.
        arrays: What it has submitted: an id may be that of an array that was refused.
        spec: A job that may become an array.

    Returns:
        None: nothing.
    """
    roll = rng.random()
    if roll < 0.4 or not arrays:
        short = {**spec, "resources": {"gpus": 1}, "array": rng.choice(TEXTS)}
        for key in ("elastic", "finish_by", "qos", "late"):
            short.pop(key, None)
        return "submit", short
    name = rng.choice(arrays)
    if roll < 0.55:
        return "cancel", {"job": name}
    if roll < 0.7:
        return "cancel", {"job": f"{name}[{rng.randrange(8)}]"}
    return ("ask", {"ask": "retry", "job": name}) if roll < 0.9 else None
