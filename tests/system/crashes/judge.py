"""Whether a job trained as one that nobody touched, from its own notes and the allocator's facts.

Pure. A step is *confirmed* once a fact says that it is in a checkpoint, or in a state that was
suspended or moved. Nothing here believes what a service says of a job's training: only that it said
so, which has to be true.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Fact = Mapping[str, Any]

NEARLY = 1e-6
"""How far (relative) sums in double precision may lie apart that were added in another order, by
several ranks: after 5,000 mini-batches they were 1e-9 apart. One process has to reach the same
bits."""


class Begun(NamedTuple):
    """A process is there."""

    rank: int
    attempt: int
    pid: int


class Step(NamedTuple):
    """A process made a mini-batch, together with `world` in all; `total` is the exact sum."""

    rank: int
    attempt: int
    pid: int
    step: int
    world: int
    total: float


Line = Begun | Step


def read_lines(rank: int, text: str) -> list[Line]:
    """Return the notes of a rank; a line cut short by a kill is left out."""
    lines: list[Line] = []
    for words in (line.split() for line in text.split("\n")[:-1]):
        match words:
            case ["begin", attempt, pid]:
                lines.append(Begun(rank, int(attempt), int(pid)))
            case ["step", attempt, pid, step, world, total]:
                lines.append(
                    Step(rank, int(attempt), int(pid), int(step), int(world), float.fromhex(total))
                )
            case _:
                text = f"rank {rank} noted {words}"
                raise ValueError(text)
    return lines


def problems(
    facts: Sequence[Fact],
    notes: Mapping[int, Sequence[Line]],
    reference: Sequence[float],
    *,
    elastic: bool,
    stores: bool,
) -> Iterator[str]:
    """Yield what is wrong with a job's training.

    `facts` are the allocator's about this job, in order. `reference[s]` is the sum after step `s`
    of an uninterrupted run; steps beyond its end are not compared. `stores`: it goes on from
    checkpoints.
    """
    for rank, lines in sorted(notes.items()):
        steps = [line for line in lines if isinstance(line, Step)]
        yield from _not_alone(rank, lines)
        yield from _gaps(rank, lines)
        for one in steps:
            if one.step < len(reference) and not same(one.total, reference[one.step], elastic):
                yield (
                    f"rank {rank}, attempt {one.attempt}: the sum after step {one.step} is "
                    f"{one.total!r}, uninterrupted {reference[one.step]!r}"
                )
                break
    leader = [line for line in notes.get(0, ()) if isinstance(line, Step)]
    yield from _beginnings(facts, leader, stores=stores)


def same(total: float, wanted: float, elastic: bool) -> bool:
    """Tell whether two sums are of the same training."""
    return math.isclose(total, wanted, rel_tol=NEARLY) if elastic else total == wanted


def _not_alone(rank: int, lines: Sequence[Line]) -> Iterator[str]:
    """Yield each process that trained after another one of its rank had."""
    gone: set[int] = set()
    last: int | None = None
    for line in lines:
        if isinstance(line, Begun) or line.pid == last:
            continue
        if line.pid in gone:
            yield (
                f"rank {rank}: process {line.pid} of attempt {line.attempt} trained step "
                f"{line.step} after {last} had"
            )
        if last is not None:
            gone.add(last)
        last = line.pid


def _gaps(rank: int, lines: Sequence[Line]) -> Iterator[str]:
    """Yield each step that a process lost or made twice."""
    at: dict[int, int] = {}
    for line in lines:
        if not isinstance(line, Step):
            continue
        before = at.get(line.pid)
        if before is not None and line.step != before + 1:
            yield f"rank {rank}: process {line.pid} went from step {before} to {line.step}"
        at[line.pid] = line.step


def _beginnings(facts: Sequence[Fact], leader: Sequence[Step], *, stores: bool) -> Iterator[str]:
    """Yield each attempt that began to train elsewhere than where it had to."""
    first: dict[int, int] = {}
    for one in leader:
        first.setdefault(one.attempt, one.step)
    stored = 0
    for fact in facts:
        match fact["type"]:
            case "job-changed" if (fact["goal"], fact["result"]) == ("checkpoint", "done"):
                stored = max(stored, fact.get("step", 0))
            case "job-moved":
                begun = first.pop(fact["attempt"], None)
                if begun is not None and begun != fact["step"] + 1:
                    yield (
                        f"moved after step {fact['step']}, attempt {fact['attempt']} went on "
                        f"with step {begun}"
                    )
            case "job-bound":
                begun = first.pop(fact["attempt"], None)
                if begun is None:
                    continue
                if stores and begun <= stored:
                    yield (
                        f"attempt {fact['attempt']} began with step {begun}, though step "
                        f"{stored} had been stored"
                    )
                if not stores and begun != 1:
                    yield f"attempt {fact['attempt']} began with step {begun}"
            case _:
                pass
    for attempt, begun in first.items():
        yield f"attempt {attempt} trained step {begun} and never was the job"
