"""Which jobs held the GPUs that others waited for: by GPUs and time, with bounded memory.

A waiting second is divided among the holders of that second, by their GPUs. To add this up for each
waiting job would cost a step for each pair of a waiting job and a holder. So each group of holders
has a clock that goes slower the more GPUs are held: a holder of `g` GPUs is to blame for `g` times
what the clock went on, whatever the others do. The past is cut into slices of SLICE holders that
left. Of a slice only the KEPT largest holders are known, and the same of 2, 4, 8, ... slices
together: a wait is put together from a few of them, however long it was.

All of it is integers. What rounding leaves, and small holders, are blamed on "others".
"""

from __future__ import annotations

from itertools import islice
from operator import itemgetter

import msgspec

SCALE_BITS = 12
"""The clock counts nanoseconds of one thousandth of a GPU, times 2 ** 12: ten years fit 63 bits,
and a tick at 8,192 GPUs errs by 2 ns."""
SLICE = 64
"""Holders that left since the last slice: a query looks at each, at some 0.1 us."""
KEPT = 16
"""Holders known of a slice: three times as many as are shown."""
EARLIEST = 8
"""Holders looked at that have as many GPUs and are still there."""
SLICES_MAX = 256
"""Slices of a group; then what all waiting jobs have waited so far is taken, and they begin anew:
16,000 holders have left by then. Stored they take 200 kB."""

_part = itemgetter(1)


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A holder that left, or has another number of GPUs now: from when to when, by the clock."""

    party: str
    gpus: int
    since: int
    until: int


class Mark(msgspec.Struct, gc=False):
    """When a job began to wait: by the clock, by the time in which GPUs were held, and the slice.

    `named` is what was taken of the slices before that (nanoseconds by holder).
    """

    clock: int
    busy: int
    slice: int
    named: dict[str, int] = {}


class Holders(msgspec.Struct):
    """The jobs that hold GPUs of one kind by one right, and the jobs that wait for such GPUs.

    GPUs are counted in thousandths, as those that are shared count for each of their jobs in part.
    """

    at: int = 0
    gpus: int = 0
    clock: int = 0
    busy: int = 0
    """Nanoseconds in which any of them held GPUs."""
    since: int = 0
    """The clock at the beginning of the slice that is not full."""
    held: dict[str, int] = {}
    """By holder: its GPUs."""
    sizes: dict[int, dict[str, int]] = {}
    """By number of GPUs, by holder: since when it has them, by the clock, the earliest first."""
    left: list[Left] = []
    slices: list[list[dict[str, int]]] = msgspec.field(default_factory=lambda: [[]])
    """By level: `slices[k][i]` is of the slices from `i * 2**k` on, `2**k` of them."""
    marks: dict[str, Mark] = {}
    """By waiting job."""
    fresh: dict[str, None] = {}
    """Those of them that came in the slice that is not full."""

    def advance(self, now: int) -> None:
        """Let time pass.

        Args:
            now: The instant; an earlier one than before changes nothing.
        """
        passed = now - self.at
        if passed <= 0:
            return
        self.at = now
        if self.gpus:
            self.clock += (passed << SCALE_BITS) // self.gpus
            self.busy += passed

    def hold(self, party: str, gpus: int, now: int) -> None:
        """Have a job hold so many GPUs from now on.

        Args:
            party: The job.
            gpus: Thousandths; 0: none any more.
            now: The instant.
        """
        before = self.held.get(party, 0)
        if before == gpus:
            return
        self.advance(now)
        if before:
            alike = self.sizes[before]
            since = alike.pop(party)
            if not alike:
                del self.sizes[before]
            del self.held[party]
            self.gpus -= before
            if since < self.clock:
                self.left.append(Left(party, before, since, self.clock))
        if gpus:
            self.held[party] = gpus
            self.sizes.setdefault(gpus, {})[party] = self.clock
            self.gpus += gpus
        if len(self.left) >= SLICE:
            self._close()

    def wait(self, job: str, now: int) -> None:
        """Have a job wait from now on."""
        self.advance(now)
        self.marks[job] = Mark(self.clock, self.busy, len(self.slices[0]))
        self.fresh[job] = None

    def waits_no_more(self, job: str) -> None:
        """Have a job wait no more."""
        self.marks.pop(job, None)
        self.fresh.pop(job, None)

    def blamed(self, job: str, now: int) -> tuple[int, dict[str, int]]:
        """Return for how long holders kept a job waiting, and which of them the most.

        Args:
            job: It waits here; else nothing is returned.
            now: The instant, not before the last change.

        Returns:
            Nanoseconds in which there were holders, and by holder its part of them. The parts come
            to no more than the whole; what is missing are others.
        """
        mark = self.marks.get(job)
        if mark is None:
            return 0, {}
        passed = max(0, now - self.at) if self.gpus else 0
        clock = self.clock + ((passed << SCALE_BITS) // self.gpus if passed else 0)
        named = self._taken(mark)
        older = mark.slice < len(self.slices[0])
        self._add_open(named, self.since if older else mark.clock, clock)
        return self.busy + passed - mark.busy, largest(named)

    def _taken(self, mark: Mark) -> dict[str, int]:
        """Return what holders of whole slices are to blame for, since a mark."""
        named, level, low, high = dict(mark.named), 0, mark.slice, len(self.slices[0])
        while low < high:
            if low & 1:
                add(named, self.slices[level][low])
                low += 1
            if high & 1:
                high -= 1
                add(named, self.slices[level][high])
            low, high, level = low >> 1, high >> 1, level + 1
        return named

    def _add_open(self, named: dict[str, int], since: int, clock: int) -> None:
        """Add what holders of the slice that is not full are to blame for, from `since` on."""
        for one in self.left:
            if one.until > since:
                begin = max(since, one.since)
                part = one.gpus * (one.until - begin) >> SCALE_BITS
                named[one.party] = named.get(one.party, 0) + part
        for gpus, alike in self.sizes.items():
            # With as many GPUs the earliest are the most to blame.
            for party, began in islice(alike.items(), EARLIEST):
                part = gpus * (clock - max(since, began)) >> SCALE_BITS
                named[party] = named.get(party, 0) + part

    def _close(self) -> None:
        """Begin another slice."""
        if not self.marks:  # No job asks for what was before.
            self._begin_slice()
            self.slices = [[]]
            return
        for job in self.fresh:
            mark = self.marks[job]
            self._add_open(mark.named, mark.clock, self.clock)
            mark.named, mark.slice = largest(mark.named), len(self.slices[0]) + 1
        self.fresh.clear()
        named: dict[str, int] = {}
        self._add_open(named, self.since, self.clock)
        self._begin_slice()
        self._keep(largest(named))
        if len(self.slices[0]) >= SLICES_MAX:
            for mark in self.marks.values():
                mark.named, mark.slice = largest(self._taken(mark)), 0
            self.slices = [[]]

    def _begin_slice(self) -> None:
        self.since = self.clock
        self.left.clear()
        for alike in self.sizes.values():
            for party in alike:
                alike[party] = self.clock

    def _keep(self, named: dict[str, int]) -> None:
        """Keep a slice, and what it makes whole."""
        level = 0
        while True:
            if level == len(self.slices):
                self.slices.append([])
            kept = self.slices[level]
            kept.append(named)
            if len(kept) % 2:
                return
            both = dict(kept[-2])
            add(both, named)
            named, level = largest(both), level + 1


def add(named: dict[str, int], more: dict[str, int]) -> None:
    """Add parts to parts.

    Args:
        named: Changed: nanoseconds by holder.
        more: What is added.
    """
    for party, part in more.items():
        named[party] = named.get(party, 0) + part


def largest(named: dict[str, int], count: int = KEPT) -> dict[str, int]:
    """Return the largest parts, the largest first; among equals the first.

    Args:
        named: Parts by holder; those of 0 are left out.
        count: How many at most.
    """
    if len(named) <= count and all(named.values()):
        parts = list(named.items())
    else:
        parts = [each for each in named.items() if each[1] > 0]
    parts.sort(key=_part, reverse=True)
    return dict(parts[:count])
