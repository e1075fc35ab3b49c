"""What became of cells and of who held them, from the allocator's log and from jobs' own notes.

Pure. Facts are the plain JSON of the log and notes are lines that jobs wrote themselves, so nothing
here believes what a service says of itself. `leaks` folds the log into a machine of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from skep.cells.state import Cells
from skep.machines.allocator import AllocatorMachine, Kept
from skep.wire.facts import EpochBegan
from tests.system.account import Fact, Note

Slot = tuple[str, int]


def of_job(facts: Sequence[Fact], kind: str, job: str) -> list[Fact]:
    """Return a job's facts of one kind, in order."""
    return [fact for fact in facts if fact["type"] == kind and fact["job"] == job]


def slots(fact: Fact) -> set[Slot]:
    """Return the GPUs (node, device) that a placement names."""
    return {
        (member["node"], device)
        for member in fact["members"]
        for devices in member["devices"]
        for device in devices
    }


def preemption_problems(
    facts: Sequence[Fact],
    notes: Sequence[Note],
    names: Mapping[str, str],
    preemptor: str,
    plans_max: int = 1,
) -> Iterator[str]:
    """Yield what went wrong in a preemption; `names` has the job that each name stands for.

    The preemptor runs once, where it reserved, after the victims and nobody else; and every victim
    is stopped for it once and runs again. Where the cells changed meanwhile it may have had to plan
    anew, `plans_max` plans in all: the last one counts.
    """
    job = names[preemptor]
    reserved, bound = of_job(facts, "cells-reserved", job), of_job(facts, "job-bound", job)
    if not 1 <= len(reserved) <= plans_max or len(bound) != 1:
        yield f"{preemptor} reserved {len(reserved)} times and was bound {len(bound)} times"
        return
    if slots(reserved[-1]) != slots(bound[0]):
        yield f"{preemptor} reserved {slots(reserved[-1])} and got {slots(bound[0])}"
    begun, done = facts.index(reserved[-1]), facts.index(bound[0])
    for fact in facts[begun:done]:
        if fact["type"] == "job-bound" and slots(fact) & slots(reserved[-1]):
            yield f"{fact['job']} was given cells reserved for {preemptor}: {slots(fact)}"
    stops = {victim for plan in reserved for victim in plan["victims"]}
    victims = {name for name, one in names.items() if one in stops}
    if len(victims) != len(stops) or not victims:
        yield f"{preemptor} stops others than this round's: {stops}"
    for name, one in names.items():
        stopped = of_job(facts, "job-stopping", one)
        attempts = [fact["attempt"] for fact in of_job(facts, "job-bound", one)]
        if name in victims and (
            [fact["why"] for fact in stopped] != ["preempted"] or attempts != [1, 2]
        ):
            yield f"{name} was stopped {len(stopped)} times and had attempts {attempts}"
        if name not in victims and (stopped or attempts != [1]):
            yield f"{name} is no victim: stopped {len(stopped)} times, attempts {attempts}"
    yield from _taken_from(notes, victims, preemptor)


def _taken_from(notes: Sequence[Note], victims: Collection[str], preemptor: str) -> Iterator[str]:
    """Yield each GPU of a preemptor's that somebody but a victim had right before it."""
    starts = [note for note in notes if note.what == "start"]
    for mine in (note for note in starts if note.name == preemptor):
        for device in mine.devices:
            before = [
                note
                for note in starts
                if note.node == mine.node and device in note.devices and note.at < mine.at
            ]
            last = max(before, key=lambda note: note.at, default=None)
            if last is None or last.name not in victims:
                yield f"{mine.node}/{device} went from {last and last.name} to {preemptor}"


def untouched_problems(
    facts: Sequence[Fact], notes: Sequence[Note], names: Mapping[str, str]
) -> Iterator[str]:
    """Yield every job that did not run once from its start to its own end."""
    noted = Counter((note.what, note.name, note.rank) for note in notes if note.name in names)
    for (what, name, rank), count in noted.items():
        if what == "stop":
            yield f"rank {rank} of {name} was asked to stop"
        elif count != 1:
            yield f"rank {rank} of {name} noted its {what} {count} times"
    for name, job in names.items():
        attempts = [fact["attempt"] for fact in of_job(facts, "job-bound", job)]
        ran, stopped = of_job(facts, "job-ran", job), of_job(facts, "job-stopping", job)
        if attempts != [1] or len(ran) != 1 or stopped:
            yield (
                f"{name}: attempts {attempts}, ran {len(ran)} times, stopped {len(stopped)} times"
            )


def unfinished(notes: Sequence[Note]) -> Iterator[str]:
    """Yield every process that was gone before it could say so: killed outright."""
    ends = {(note.name, note.attempt, note.rank) for note in notes if note.what == "end"}
    for note in notes:
        if note.what == "start" and (note.name, note.attempt, note.rank) not in ends:
            yield f"rank {note.rank} of {note.name} was killed in attempt {note.attempt}"


def leaks(records: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield what is wrong with the cells in a log at whose end nothing runs.

    `records` has the facts of each record, as messages. After each of them every invariant must
    hold: at any of them a successor may have to go on. At the end all must be as if new.
    """
    machine = AllocatorMachine()
    for number, record in enumerate(records, 1):
        try:
            for fact in record:
                machine.apply(fact)
            machine.check()
            if any(isinstance(fact, EpochBegan) for fact in record):
                yield from _kept(machine, number)
        except (AssertionError, LookupError) as error:
            yield f"after record {number}: {type(error).__name__} {error}"
            return
    cells, fresh = machine.state.cells, Cells(machine.state.cells.cluster)
    left: dict[str, Collection[object]] = {
        "jobs": machine.state.jobs,
        "holds": cells.holds,
        "GPUs off chain": cells.off_chain,
        "borrowed GPUs": [vc for vc, count in cells.borrowed.items() if count],
        "used nodes": [name for name, node in machine.state.nodes.items() if node.holdings],
    }
    yield from (f"at the end {what} are left: {list(some)}" for what, some in left.items() if some)
    if cells != fresh:
        yield "at the end the cells differ from new ones"
    for name, chain in cells.chains.items():
        new = fresh.chains[name]
        if [set(free) for free in chain.forest.free] != [set(free) for free in new.forest.free]:
            yield f"at the end not every cell of {name} is free: {chain.forest.free}"
        if any(chain.bound) or chain.forest.owed != new.forest.owed:
            yield f"at the end cells of {name} are bound: {chain.bound}"


def _kept(machine: AllocatorMachine, number: int) -> Iterator[str]:
    """Yield a difference between a machine and what a snapshot of it restores."""
    copy = AllocatorMachine()
    for piece in msgspec.json.decode(msgspec.json.encode(machine.snapshot()), type=list[Kept]):
        copy.apply(piece)
    copy.check()
    if copy.state.cells != machine.state.cells or copy.state.jobs != machine.state.jobs:
        yield f"after record {number}: a snapshot restores something else"
