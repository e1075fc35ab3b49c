"""What became of every job, from the fact logs and from the jobs' own notes. Pure.

Facts are the plain JSON of the logs, and notes are lines that jobs wrote themselves, so nothing
here believes what a service says of itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Fact = Mapping[str, Any]


class Note(NamedTuple):
    """A line of a job's own: what happened at `at` (ns of the host's monotonic clock)."""

    node: str
    what: str
    name: str
    attempt: int
    rank: int
    devices: tuple[int, ...]
    at: int


def read_notes(node: str, text: str) -> list[Note]:
    """Return the notes in a node's file; a line cut short by a kill is left out."""
    notes = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 6 and words[5].endswith(";"):
            what, name, attempt, rank, devices, at = words
            slots = tuple(int(one) for one in devices.split(","))
            notes.append(Note(node, what, name, int(attempt), int(rank), slots, int(at[:-1])))
    return notes


def facts_of(records: Sequence[Mapping[str, Any]]) -> list[Fact]:
    """Return all facts of a log's records, in order."""
    return [fact for record in records for fact in record["facts"]]


def problems(
    acknowledged: Sequence[str], admission: Sequence[Fact], alloc: Sequence[Fact]
) -> Iterator[str]:
    """Yield what is wrong with the fate of the submissions, which are known by their keys."""
    jobs: dict[str, list[str]] = {}
    for fact in admission:
        if fact["type"] == "admitted":
            jobs.setdefault(fact.get("key", ""), []).append(fact["job"])
        if fact["type"] == "refused":
            yield f"{fact['job']} was refused: {fact}"
    ends = Counter(fact["job"] for fact in alloc if fact["type"] == "job-ended")
    for key in acknowledged:
        admitted = jobs.get(key, [])
        if len(admitted) != 1:
            yield f"{key} was acknowledged and is {len(admitted)} jobs: {admitted}"
        for job in admitted:
            if ends[job] != 1:
                yield f"{key} ({job}) ended {ends[job]} times"
    for fact in alloc:
        if fact["type"] == "job-ended" and fact["end"] != "succeeded":
            why = f"{fact.get('why')} {fact.get('detail', '')}"
            yield f"{fact['job']} ended as {fact['end']}: {why}"
    yield from _held_twice(alloc)


def _held_twice(alloc: Sequence[Fact]) -> Iterator[str]:
    """Yield every slot that two attempts hold at once by the log's own order."""
    holders: dict[tuple[str, int], tuple[str, int]] = {}
    for fact in alloc:
        if fact["type"] == "job-bound":
            run = (fact["job"], fact["attempt"])
            for member in fact["members"]:
                for device in (one for devices in member["devices"] for one in devices):
                    slot = (member["node"], device)
                    if holders.get(slot, run) != run:
                        yield f"slot {slot} was given to {run} while {holders[slot]} held it"
                    holders[slot] = run
        elif fact["type"] == "member-gone" and fact.get("free", True):
            run = (fact["job"], fact["attempt"])
            for slot in [slot for slot, holder in holders.items() if holder == run]:
                if slot[0] == fact["node"]:
                    del holders[slot]


class Tally(NamedTuple):
    """What became of some submissions: three counts that must be 0, and attempts repeated."""

    refused: int
    failed: int
    doubled: int
    repeated: int


def tally(
    keys: Sequence[str],
    acknowledged: Collection[str],
    admission: Sequence[Fact],
    alloc: Sequence[Fact],
    notes: Sequence[Note],
) -> Tally:
    """Count what happened to the submissions `keys`, of which those `acknowledged` were in time.

    A job is doubled if its key became two jobs, if it ended twice, or if a rank of it noted its
    end twice: in another attempt as well, unlike a repetition of what was cut short.
    """
    wanted = set(keys)
    jobs: dict[str, str] = {}
    times: Counter[str] = Counter()
    refused = wanted - set(acknowledged)
    for fact in admission:
        if fact.get("key", "") in wanted and fact["type"] in {"admitted", "refused"}:
            jobs[fact["job"]] = fact["key"]
            times[fact["key"]] += fact["type"] == "admitted"
            refused |= {fact["key"]} if fact["type"] == "refused" else set()
    ends = [fact for fact in alloc if fact["type"] == "job-ended" and fact["job"] in jobs]
    ended = Counter(jobs[fact["job"]] for fact in ends)
    noted = Counter((one.name, one.rank) for one in notes if one.what == "end")
    doubled = {key for key in wanted if max(times[key], ended[key]) > 1}
    doubled |= {name for (name, _), count in noted.items() if count > 1 and name in wanted}
    return Tally(
        refused=len(refused),
        failed=sum(fact["end"] != "succeeded" for fact in ends),
        doubled=len(doubled),
        repeated=sum(fact["type"] == "job-requeued" and fact["job"] in jobs for fact in alloc),
    )


def noted_problems(notes: Sequence[Note], ranks: Mapping[str, int]) -> Iterator[str]:
    """Yield what the jobs' own notes say went wrong; `ranks` has the ranks of each job.

    An attempt that a crash took is repeated as another one, so a rank may end in several attempts,
    but once in each, and every rank ends in the last one.
    """
    times = Counter((one.what, one.name, one.attempt, one.rank) for one in notes)
    for (what, *run), count in times.items():
        if count != 1:
            yield f"{what} of {tuple(run)} was noted {count} times"
    last: dict[str, int] = {}
    for one in notes:
        last[one.name] = max(one.attempt, last.get(one.name, 0))
    for name, count in ranks.items():
        attempt = last.get(name, 0)
        for rank in range(count):
            if not times["end", name, attempt, rank]:
                yield f"rank {rank} of {name} did not run to its end in attempt {attempt}"
    yield from _overlaps(notes)


def _overlaps(notes: Sequence[Note]) -> Iterator[str]:
    """Yield every slot that two processes used at once; one that was killed has no end to use."""
    starts = {(one.name, one.attempt, one.rank): one for one in notes if one.what == "start"}
    used: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for one in notes:
        start = starts.get((one.name, one.attempt, one.rank))
        if one.what == "end" and start is not None:
            for device in one.devices:
                used.setdefault((one.node, device), []).append((start.at, one.at, one.name))
    for slot, spans in used.items():
        spans.sort()
        for (_, end, first), (start_at, _, second) in itertools.pairwise(spans):
            if start_at < end:
                yield f"{first} and {second} used slot {slot} at once"
