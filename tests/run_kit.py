"""Runs a training script in this process, whole and from every one of its boundaries."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from skep_job.cooperate.run import Run
from skep_job.state import random_state, snapshot
from skep_job.state.snapshot import Snapshot, place_of


class Recorder:
    """Takes a snapshot at every boundary, as if the process could end at each."""

    active = True
    passes_over: tuple[str, ...] = ("not tracked",)
    """What other runs of this process have left in memory is not tracked either."""

    def __init__(self, begin: Snapshot | None = None) -> None:
        self.begin = begin
        self.taken: list[Snapshot] = []
        self.seen: list[object] = []
        self.marks: list[int] = []  # how much was seen at each snapshot
        self.batches: list[object] = []
        self.notices: list[str] = []
        self.run: Run | None = None

    def start(self, run: Run) -> dict[str, Any] | None:
        self.run = run
        if self.begin is None:
            return None
        snapshot.load(run.tracked, self.begin.plain, self.begin.tensors)
        return place_of(self.begin.plain, self.begin.tensors)

    def tell_can(self) -> None: ...

    def arrive(self, chance_: random_state.State) -> None:
        random_state.restore(chance_)

    def see(self, batch: object) -> None:
        self.batches.append(batch)

    def count(self) -> None: ...

    def boundary(self) -> None:
        assert self.run is not None
        place = self.run.place() | {"chance": random_state.capture()}
        live = snapshot.take(self.run.tracked, place)
        self.taken.append(Snapshot(live.plain, {n: t.clone() for n, t in live.tensors.items()}))
        self.marks.append(len(self.seen))

    def report(self, values: dict[str, Any]) -> None: ...

    def shield(self, on: bool) -> None: ...

    def sums(self) -> dict[str, float]:
        return {}

    def go_on_from(self, sums: dict[str, float]) -> None: ...

    def notice(self, text: str) -> None:
        if not text.startswith(self.passes_over):
            self.notices.append(text)


Runs = TypeVar("Runs", bound=Run)
Script = Callable[[Runs, Callable[[object], None]], None]


def check(
    script: Script[Runs],
    *,
    notices: str = "",
    some: str = "",
    make: Callable[[Recorder], Runs] = Run,  # type: ignore[assignment]
    every: int = 1,
) -> list[object]:
    """Run the script whole; then begin at every boundary of it and compare what is seen.

    A process that goes on has to tell `notices` and nothing else; it may tell `some`. `every`: only
    every so many boundaries.
    """
    torch.manual_seed(0)
    random.seed(0)
    whole = Recorder()
    script(make(whole), whole.seen.append)
    assert whole.taken
    for begin, mark in list(zip(whole.taken, whole.marks, strict=True))[::every]:
        torch.manual_seed(99)  # A later process begins with anything.
        random.seed(99)
        later = Recorder(begin)
        script(make(later), later.seen.append)
        assert later.seen == whole.seen[mark:]
        told = [notice for notice in later.notices if not some or some not in notice]
        assert bool(told) == bool(notices), told
        assert all(notices in notice for notice in told)
    return whole.seen
