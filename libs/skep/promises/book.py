"""The book of a VC: which of its own GPUs are promised to which job, and when.

    find (earliest | latest) --> Place --put--> held --take--> free again

A VC's cells of one kind are parts of nodes. A promise has so many GPUs on each of some parts, from
its begin to its end, and no part ever has more promised than its GPUs: so what is promised at one
time can be packed, and a gang is never split where it may not be.

A gang of `workers` pieces of `gpus` GPUs can begin at `s` if at least so many *lanes* cover the
time from `s` on. A part has a lane for each piece that it can hold at once; lane `j` is free while
`j` pieces fit beside what is promised. The free intervals of all lanes are kept in two orders, by
begin and by end, so that one walk along them finds the earliest or the latest time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence

from skep.promises.cells import Kind
from skep.units import Duration, Instant
from skep.wire.promises import Place

FOREVER = 2**62
"""No deadline is later."""
NOT_YET = 0

Entry = tuple[int, int, int, str]
"""Begin, end, GPUs and job of a promise on a part."""
Interval = tuple[int, int, int, int]
"""A lane while it is free: its begin and end (or its end and begin), its part, its number."""


def kind_of(place: Place) -> Kind:
    """Return of which kind the GPUs of a place are."""
    return Kind(place.gpu_type, place.pin, place.chain)


class Part:
    """A part of a node."""

    def __init__(self, size: int) -> None:
        """Begin with nothing promised."""
        self.size = size
        self.entries: list[Entry] = []
        """Sorted by begin."""
        self.away = False
        """Its node is lost: nothing new is promised here."""

    def lanes(self, gpus: int, part: int) -> list[Interval]:
        """Return the free intervals of its lanes for pieces of so many GPUs.

        Args:
            gpus: Of one piece.
            part: Its own number.
        """
        lanes = 0 if self.away else self.size // gpus
        if not lanes:
            return []
        events: dict[int, int] = {}
        for begin, end, taken, _ in self.entries:
            events[begin] = events.get(begin, 0) + taken
            events[end] = events.get(end, 0) - taken
        found: list[Interval] = []
        opened = [NOT_YET] * lanes
        now_free, free = lanes, self.size
        for at in sorted(events):
            free -= events[at]
            fits = max(free, 0) // gpus
            while now_free > fits:
                now_free -= 1
                found.append((opened[now_free], at, part, now_free))
            while now_free < fits:
                opened[now_free] = at
                now_free += 1
        found += [(opened[lane], FOREVER, part, lane) for lane in range(now_free)]
        return [each for each in found if each[0] < each[1]]


class _Lanes:
    """The free intervals of all parts for pieces of one size, in both orders."""

    def __init__(self, parts: Sequence[Part], gpus: int) -> None:
        self._gpus = gpus
        self._of = [part.lanes(gpus, number) for number, part in enumerate(parts)]
        self.by_begin = sorted(lane for lanes in self._of for lane in lanes)
        self.by_end = sorted((b, a, part, lane) for a, b, part, lane in self.by_begin)

    def renew(self, parts: Sequence[Part], number: int) -> None:
        """Take over what changed of one part."""
        for a, b, part, lane in self._of[number]:
            del self.by_begin[bisect_left(self.by_begin, (a, b, part, lane))]
            del self.by_end[bisect_left(self.by_end, (b, a, part, lane))]
        self._of[number] = parts[number].lanes(self._gpus, number)
        for a, b, part, lane in self._of[number]:
            insort(self.by_begin, (a, b, part, lane))
            insort(self.by_end, (b, a, part, lane))

    def free(self, begin: int, end: int) -> dict[int, int]:
        """Return by part how many of its lanes are free for a span of time."""
        free: dict[int, int] = {}
        for opened, closed, part, _ in self.by_begin:
            if opened > begin:
                break
            if closed >= end:
                free[part] = free.get(part, 0) + 1
        return free

    def earliest(self, workers: int, lasts: int, begin: int, most: int) -> int | None:
        """Return the first time at which so many lanes are free for long enough, or None.

        Args:
            workers: How many lanes.
            lasts: For how long.
            begin: Not before.
            most: Not after.
        """
        count, gone, by_end = 0, 0, self.by_end
        for a, b, _, _ in self.by_begin:
            at = max(begin, a)
            if b - at < lasts:
                continue
            if at > most:
                return None
            last = at + lasts
            while by_end[gone][0] < last:
                end, opened, _, _ = by_end[gone]
                gone += 1
                if end - (max(begin, opened)) >= lasts:
                    count -= 1
            count += 1
            if count >= workers:
                return at
        return None

    def latest(self, workers: int, lasts: int, begin: int, due: int) -> int | None:
        """Return the last time at which so many lanes are free for long enough, or None.

        Args:
            workers: How many lanes.
            lasts: For how long.
            begin: Not before.
            due: When all has to be over.
        """
        count, by_begin = 0, self.by_begin
        gone = len(by_begin) - 1
        for b, a, _, _ in reversed(self.by_end):
            end = min(due, b)
            first = end - lasts
            if first < begin:
                return None
            if a > first:
                continue
            while by_begin[gone][0] > first:
                opened, closed, _, _ = by_begin[gone]
                gone -= 1
                if (min(due, closed)) - opened >= lasts:
                    count -= 1
            count += 1
            if count >= workers:
                return first
        return None


class Book:
    """The promises of one VC. `put` and `take` change it; what finds places does not."""

    def __init__(self, parts: dict[Kind, tuple[int, ...]]) -> None:
        """Begin without promises.

        Args:
            parts: The GPUs of each part of a node that it owns (`cells.own_parts`).
        """
        self.parts: dict[Kind, list[Part]] = {
            kind: [Part(size) for size in sizes] for kind, sizes in parts.items()
        }
        self.places: dict[str, Place] = {}
        """By job."""
        self._lanes: dict[tuple[Kind, int], _Lanes] = {}

    def holds(self, kind: Kind, gpus: int, workers: int) -> bool:
        """Return whether the cells hold a gang if nothing else is promised.

        Args:
            kind: The type of GPUs.
            gpus: Of each piece.
            workers: How many pieces.
        """
        there = self.parts.get(kind, ())
        return sum(part.size // gpus for part in there if not part.away) >= workers

    def find(
        self,
        kind: Kind,
        pieces: tuple[int, int],
        lasts: Duration,
        begin: Instant,
        due: Instant,
        *,
        late: bool = True,
    ) -> Place | None:
        """Return a place for a gang, the last one or the first one; None: there is none.

        Args:
            kind: The type of GPUs.
            pieces: GPUs of each piece, and how many pieces.
            lasts: For how long.
            begin: Not before.
            due: When it has to be over.
            late: The last one, so that what comes is not in the way of others; else the first.
        """
        gpus, workers = pieces
        lanes = self._lanes.get((kind, gpus))
        if lanes is None:
            lanes = self._lanes[kind, gpus] = _Lanes(self.parts.get(kind, ()), gpus)
        if late:
            at = lanes.latest(workers, lasts, begin, due)
        else:
            at = lanes.earliest(workers, lasts, begin, due - lasts)
        if at is None:
            return None
        free = lanes.free(at, at + lasts)
        return Place(
            gpu_type=kind.gpu_type,
            pin=kind.pin,
            chain=kind.chain,
            gpus=gpus,
            begin=Instant(at),
            end=Instant(at + lasts),
            nodes=self._choose(kind, pieces, free),
        )

    def _choose(
        self, kind: Kind, pieces: tuple[int, int], free: dict[int, int]
    ) -> tuple[tuple[int, int], ...]:
        """Return on which parts a gang is: as few as possible, those that fit best."""
        gpus, left = pieces
        parts = self.parts[kind]
        able = sorted((-count, parts[part].size, part) for part, count in free.items() if count > 0)
        chosen: list[tuple[int, int]] = []
        while left:
            fitting = [each for each in able if -each[0] >= left]
            best = (
                min(fitting, key=lambda each: (-each[0], each[1], each[2])) if fitting else able[0]
            )
            able.remove(best)
            here = min(-best[0], left)
            chosen.append((best[2], here * gpus))
            left -= here
        return tuple(sorted(chosen))

    def fits(self, place: Place) -> bool:
        """Return whether a place is free as a whole."""
        parts = self.parts.get(kind_of(place), ())
        for number, gpus in place.nodes:
            if number >= len(parts):
                return False
            part = parts[number]
            near = [each for each in part.entries if each[0] < place.end and each[1] > place.begin]
            times = [place.begin, *(each[0] for each in near if each[0] > place.begin)]
            most = max(sum(e[2] for e in near if e[0] <= at < e[1]) for at in times)
            if most + gpus > part.size:
                return False
        return True

    def has(self, place: Place) -> bool:
        """Return whether there are the parts of a place: logs from before kinds have others."""
        parts = self.parts.get(kind_of(place), ())
        return all(
            number < len(parts) and gpus <= parts[number].size for number, gpus in place.nodes
        )

    def put(self, job: str, place: Place) -> None:
        """Promise a place to a job; one that it had is free again."""
        self.take(job)
        self.places[job] = place
        for number, gpus in place.nodes:
            self._entry(place, number, (place.begin, place.end, gpus, job), add=True)

    def take(self, job: str) -> None:
        """Take a job's promise out, if it has one."""
        place = self.places.pop(job, None)
        if place is not None:
            for number, gpus in place.nodes:
                self._entry(place, number, (place.begin, place.end, gpus, job), add=False)

    def _entry(self, place: Place, number: int, entry: Entry, *, add: bool) -> None:
        kind = kind_of(place)
        parts = self.parts[kind]
        if add:
            insort(parts[number].entries, entry)
        else:
            parts[number].entries.remove(entry)
        self._renew(kind, number)

    def _renew(self, kind: Kind, number: int) -> None:
        for (other, _), lanes in self._lanes.items():
            if other == kind:
                lanes.renew(self.parts[kind], number)

    def lose(self, kind: Kind, gone: Collection[int]) -> None:
        """Promise nothing new on these parts of a kind, and again on its others.

        Args:
            kind: The kind of GPUs.
            gone: Numbers of parts (`cells.lost_parts`).
        """
        for number, part in enumerate(self.parts.get(kind, ())):
            away = number in gone
            if part.away is not away:
                part.away = away
                self._renew(kind, number)

    def between(self, begin: int, end: int, kinds: Iterable[Kind]) -> list[tuple[int, str]]:
        """Return the GPU time and name of each promise in a span of time, the most first.

        Args:
            begin: The begin of the span.
            end: Its end.
            kinds: The types of GPUs that count.
        """
        wanted, sums = tuple(kinds), dict[str, int]()
        for kind in wanted:
            for part in self.parts.get(kind, ()):
                for first, last, gpus, job in part.entries:
                    shared = min(last, end) - max(first, begin)
                    if shared > 0:
                        sums[job] = sums.get(job, 0) + shared * gpus
        return sorted(((taken, job) for job, taken in sums.items()), key=lambda e: (-e[0], e[1]))

    def check(self) -> None:
        """Assert that no part has more promised than its GPUs, and that lanes say the same.

        Raises:
            AssertionError: It has, or they do not.
        """
        for kind, parts in self.parts.items():
            for number, part in enumerate(parts):
                events: dict[int, int] = {}
                for begin, end, gpus, _ in part.entries:
                    events[begin] = events.get(begin, 0) + gpus
                    events[end] = events.get(end, 0) - gpus
                used = 0
                for at in sorted(events):
                    used += events[at]
                    assert used <= part.size, (kind, number, at, used, part.size)
                assert used == 0, (kind, number)
        for (kind, gpus), lanes in self._lanes.items():
            fresh = _Lanes(self.parts.get(kind, ()), gpus)
            assert lanes.by_begin == fresh.by_begin, (kind, gpus)
            assert lanes.by_end == fresh.by_end, (kind, gpus)
