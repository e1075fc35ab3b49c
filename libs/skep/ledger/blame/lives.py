"""What is kept of a job that has not ended: its stretches of time, each with one cause.

The stretches follow one another from the submission on, so their lengths come to the elapsed time
whatever the facts say. A clock that is set back takes from the latest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from skep.ledger.blame.causes import Cause
from skep.ledger.blame.holders import add, largest
from skep.ledger.blame.rates import Condition

STRETCHES_MAX = 32
"""The newest stretches of a job; older ones are summed up. A job has five if nothing is done to
it, and three more with each attempt."""
CONDITIONS_MAX = 32
"""Conditions of a job; of further ones nothing is known."""
PARTIES = 8
"""Parties kept of a stretch: some more than the five that are shown of a job."""
MILLI = 1000
DAY_NS = 86_400_000_000_000
"""Days begin at midnight UTC."""
NO_DAY = -1
Ranks = tuple[tuple[int, ...], ...]


class Stretch(msgspec.Struct, omit_defaults=True):
    """A job's time from `begin` to `end`. `gpus` are thousandths of those that it held.

    `condition` is the number of its condition while it trained, else -1. `unsaved`: what it made is
    in no checkpoint. `parties`: nanoseconds by party.
    """

    begin: int
    end: int
    cause: Cause
    gpus: int = 0
    condition: int = -1
    unsaved: bool = False
    parties: dict[str, int] = {}
    kind: str = ""
    """The type of the GPUs."""

    @property
    def length(self) -> int:
        """Return its length in nanoseconds."""
        return self.end - self.begin


class Sum(msgspec.Struct, omit_defaults=True):
    """Stretches of one cause, condition, day and type of GPUs, summed up."""

    cause: Cause
    condition: int = -1
    unsaved: bool = False
    length: int = 0
    gpu_ns: int = 0
    parties: dict[str, int] = {}
    blamed: int = 0
    """How much of the length is of stretches that have parties."""
    day: int = NO_DAY
    """Days since 1970; NO_DAY: of several."""
    kind: str = ""


class Life(msgspec.Struct, omit_defaults=True):
    """A job that has not ended, and all its time so far."""

    job: str
    name: str
    vc: str
    opportunistic: bool
    gpu_type: str
    wanted: int
    """GPUs of the whole gang, as asked for."""
    workers: int
    begin: int
    at: int
    """When the stretch began that is not over."""
    cause: Cause = Cause.UNDECIDED
    in_line: bool = False
    """It waits for what others hold."""
    parties: dict[str, int] = {}
    """The parties of the stretch that is not over; by weight."""
    attempt: int = 0
    parts: dict[str, Ranks] = {}
    """By node: the GPUs of each of its ranks there."""
    next_parts: dict[str, Ranks] = {}
    """Those of its successor."""
    next_owns: bool = False
    next_chain: str = ""
    kept_parts: dict[str, Ranks] = {}
    """The parts of its latest GPUs that it gave back; it may return to them."""
    chain: str = ""
    owns: bool = False
    """Its GPUs are in cells of its VC."""
    gpus: int = 0
    """Thousandths of GPUs that it holds."""
    size: int = 0
    """Workers that train."""
    world: int = 0
    """Workers that a change under way leads to; 0: none does."""
    goes_on: bool = False
    """A change under way has it go on."""
    beside: tuple[str, ...] = ()
    """The parties on the same GPUs."""
    step_ns: int = 0
    """The longest mini-batch that parts of its attempt told at their end."""
    faulty: str = ""
    """The first node that could not start its part of the attempt."""
    stands: bool = False
    """It is suspended."""
    stands_for: Cause = Cause.SUSPENDED
    asked_back: int = 0
    """The number of the request by which its tenant wants it to go on; 0: there is none."""
    takers: dict[str, int] = {}
    """The parties that its GPUs were, or are to be, taken for; by GPUs."""
    took: tuple[str, ...] = ()
    """The jobs whose GPUs were taken for it."""
    conditions: list[Condition] = []
    condition: int = -1
    solo: dict[int, int] = {}
    stretches: list[Stretch] = []
    earlier: list[Sum] = []
    """What is older than the stretches."""
    user: str = ""
    """The person: its owner, else its label `user`."""
    project: str = ""
    """Its label `project`."""
    kind: str = ""
    """The type of the GPUs that it has, or had."""
    bound_at: int = 0
    """When it first got GPUs; 0: it has not."""
    share: int = 0
    """The part of one GPU that it asked for, in thousandths; 0: whole ones."""

    @property
    def weight(self) -> int:
        """Return what it counts on a GPU that it shares, in thousandths."""
        return self.share or MILLI

    @property
    def party(self) -> str:
        """Return its key as a party."""
        return job_party(self.vc, self.job)

    @property
    def trains(self) -> bool:
        """Return whether it trains."""
        return self.cause is Cause.RUNNING

    def stretch(
        self,
        begin: int,
        end: int,
        cause: Cause | None = None,
        parties: dict[str, int] | None = None,
    ) -> Stretch:
        """Return a stretch of it as it is.

        Args:
            begin: The instant.
            end: The instant.
            cause: What it was; None: what it is now.
            parties: Nanoseconds by party; None: there are none.
        """
        cause = cause or self.cause
        trains = cause is Cause.RUNNING
        return Stretch(
            begin,
            end,
            cause,
            self.gpus,
            self.condition if trains else -1,
            trains,
            largest(parties, PARTIES) if parties else {},
            self.kind if self.gpus else "",
        )

    def push(self, stretch: Stretch) -> None:
        """Add a stretch; one that goes on like the one before is added to that."""
        last = self.stretches[-1] if self.stretches else None
        if last is not None and _alike(last, stretch):
            last.end = stretch.end
            parties = dict(last.parties)
            add(parties, stretch.parties)
            last.parties = largest(parties, PARTIES)
            return
        self.stretches.append(stretch)
        if len(self.stretches) > STRETCHES_MAX:
            for part in by_day(self.stretches.pop(0)):
                merge(self.earlier, part)

    def rewind(self, now: int) -> None:
        """Take back what was said of the time behind an instant: the clock was set back."""
        while self.stretches and self.stretches[-1].begin >= now:
            self.stretches.pop()
        if self.stretches:
            last = self.stretches[-1]
            if last.end > now:
                last.parties = _scaled(last.parties, now - last.begin, last.length)
                last.end = now
        else:
            until = self.begin + sum(one.length for one in self.earlier)
            while self.earlier and until > max(now, self.begin):
                last_sum = self.earlier[-1]
                kept = max(0, last_sum.length - (until - max(now, self.begin)))
                until -= last_sum.length - kept
                if not kept:
                    self.earlier.pop()
                    continue
                last_sum.parties = _scaled(last_sum.parties, kept, last_sum.length)
                last_sum.gpu_ns = last_sum.gpu_ns * kept // last_sum.length
                last_sum.blamed = last_sum.blamed * kept // last_sum.length
                last_sum.length = kept
        self.at = max(now, self.begin)

    def stood(self, pause_ns: int) -> None:
        """Note that it stood still at last, for a change, in what was taken for training."""
        stood: list[Stretch] = []
        while pause_ns > 0 and self.stretches and self.stretches[-1].cause is Cause.RUNNING:
            last = self.stretches.pop()
            begin = max(last.begin, last.end - pause_ns)
            pause_ns -= last.end - begin
            stood.append(Stretch(begin, last.end, Cause.CHANGING, last.gpus, kind=last.kind))
            if begin > last.begin:
                last.end = begin
                self.stretches.append(last)
        for stretch in reversed(stood):
            self.push(stretch)

    def save(self) -> None:
        """Note that what it has made so far survives."""
        for stretch in self.stretches:
            stretch.unsaved = False
        if any(each.unsaved for each in self.earlier):
            before, self.earlier = self.earlier, []
            for each in before:
                each.unsaved = False
                merge(self.earlier, each)

    def lose(self, parties: Iterable[str]) -> None:
        """Note that what it has made since it was last saved is lost.

        Args:
            parties: Whose doing that was.
        """
        named = list(parties)
        for stretch in self.stretches:
            if stretch.unsaved:
                stretch.parties = evenly(stretch.length, named)
                stretch.cause, stretch.condition, stretch.unsaved = Cause.WORK_LOST, -1, False
        before, self.earlier = self.earlier, []
        for each in before:
            if each.unsaved:
                each.parties, each.blamed = evenly(each.length, named), each.length
                each.cause, each.condition, each.unsaved = Cause.WORK_LOST, -1, False
            merge(self.earlier, each)

    def enter(self, condition: Condition) -> None:
        """Have it train in a condition from now on."""
        for number, known in enumerate(self.conditions):
            if known.like(condition):
                self.condition = number
                return
        if len(self.conditions) >= CONDITIONS_MAX:
            self.condition = -1
            return
        self.conditions.append(condition)
        self.condition = len(self.conditions) - 1

    def measured(self, rate_milli: int) -> None:
        """Note at which rate it trains as it is."""
        if rate_milli > 0 and 0 <= self.condition < len(self.conditions):
            self.conditions[self.condition].rate_milli = rate_milli


def job_party(vc: str, job: str) -> str:
    """Return the key of a job as a party."""
    return f"job {vc} {job}"


def node_party(node: str) -> str:
    """Return the key of a node as a party."""
    return f"node {node}"


def reason_party(why: str) -> str:
    """Return the key of a reason as a party: where neither a job nor a node is to blame."""
    return f"reason {why}"


def evenly(length: int, named: list[str]) -> dict[str, int]:
    """Return a length divided evenly among parties, exactly; the first have what is left over."""
    if not named:
        return {}
    each, more = divmod(length, len(named))
    return {party: each + (number < more) for number, party in enumerate(named)}


def weighed(length: int, weights: dict[str, int]) -> dict[str, int]:
    """Return a length divided by weights; what rounding leaves is missing."""
    whole = sum(weights.values())
    return {party: length * weight // whole for party, weight in weights.items()} if whole else {}


def _scaled(parties: dict[str, int], length: int, before: int) -> dict[str, int]:
    return {party: ns * length // before for party, ns in parties.items()}


def _alike(one: Stretch, other: Stretch) -> bool:
    return (
        one.end == other.begin
        and one.cause is other.cause
        and one.gpus == other.gpus
        and one.condition == other.condition
        and one.unsaved == other.unsaved
        and one.kind == other.kind
        and one.parties.keys() == other.parties.keys()
    )


def by_day(stretch: Stretch) -> Iterator[Sum]:
    """Yield what a stretch comes to on each day; the GPU time of its days comes to its own."""
    at, told = stretch.begin, 0
    while at < stretch.end or at == stretch.begin:
        day = at // DAY_NS
        end = min(stretch.end, (day + 1) * DAY_NS)
        gpu_ns = (end - stretch.begin) * stretch.gpus // MILLI - told
        parties = stretch.parties
        if parties and end - at < stretch.length:
            parties = _scaled(parties, end - at, stretch.length)
        yield Sum(
            stretch.cause,
            stretch.condition,
            stretch.unsaved,
            end - at,
            gpu_ns,
            parties,
            end - at if parties else 0,
            day,
            stretch.kind,
        )
        if end >= stretch.end:
            return
        told += gpu_ns
        at = end


def sum_up(sums: list[Sum], stretch: Stretch) -> None:
    """Add a stretch to sums by cause and condition."""
    gpu_ns = stretch.length * stretch.gpus // MILLI
    one = Sum(
        stretch.cause,
        stretch.condition,
        stretch.unsaved,
        stretch.length,
        gpu_ns,
        stretch.parties,
        stretch.length if stretch.parties else 0,
    )
    merge(sums, one)


def merge(sums: list[Sum], more: Sum) -> None:
    """Add a sum to sums."""
    key = more.cause, more.condition, more.unsaved, more.day, more.kind
    for one in reversed(sums):  # The latest day is at the end.
        if (one.cause, one.condition, one.unsaved, one.day, one.kind) == key:
            one.length += more.length
            one.gpu_ns += more.gpu_ns
            one.blamed += more.blamed
            parties = dict(one.parties)
            add(parties, more.parties)
            one.parties = largest(parties, PARTIES)
            return
    sums.append(more)
