"""What admission keeps of jobs whose VC keeps promises: facts in, state out; it decides nothing.

Every guaranteed job of such a VC is followed, for what it uses counts against the budget of its
class, and how long it ran tells how far off its owner was.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skep.base.timers import TimerHeap
from skep.cells.levels import gpus_in_cells
from skep.promises.book import Book
from skep.promises.cells import lost_parts, own_parts, spare_nodes
from skep.promises.length import SEEN_MAX, left
from skep.units import NS_PER_SECOND, Duration, Instant
from skep.wire.cluster import Cluster
from skep.wire.promises import (
    JobSeen,
    Lasts,
    LengthSeen,
    NodeAway,
    Place,
    PromiseBroken,
    PromiseFact,
    PromiseJudged,
    PromiseKept,
    PromiseMade,
    PromiseMoved,
)
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec

HOUR = 3600 * NS_PER_SECOND
DAY_HOURS = 24
NO_LENGTH = Lasts(p10=Duration(0), p50=Duration(0), p90=Duration(0))
CLASSES = ("urgent", "prior")


class Pledge(msgspec.Struct):
    """A job of a VC that keeps promises, until its end."""

    job: str
    spec: JobSpec
    due: Instant = Instant(0)
    """When it is to have ended; 0: at no time."""
    place: Place | None = None
    """Its place in the book: it has a promise."""
    lasts: Lasts = NO_LENGTH
    declared: int = 0
    """The length that its spec says, if the promise rests on that; in nanoseconds."""
    since: Instant = Instant(0)
    """Since when it runs; 0: it does not."""
    ran: int = 0
    """How long it had run by then, as far as that is not lost."""
    hurt: Reason | None = None
    """What it lost its GPUs by, last."""
    booked: bool = True
    """Its place is in the book: the cells still have it."""
    cancelled: bool = False
    loose: bool = False
    """It runs beyond its place in the book, because it began late: it has no other one."""

    @property
    def promised(self) -> bool:
        """Return whether it has a promise."""
        return self.place is not None

    def served(self, now: Instant) -> int:
        """Return how long it has run, in nanoseconds."""
        return self.ran + (max(now - self.since, 0) if self.since else 0)

    def left(self, now: Instant) -> Lasts:
        """Return how long it still runs."""
        return left(self.lasts, self.served(now))

    def check_at(self) -> Instant | None:
        """Return when it has to be judged again if nothing happens; None: never."""
        if self.place is not None:
            if not self.booked:
                return Instant(1)
            if not self.since:
                return self.due
            outruns = Instant(self.since + self.lasts.p90 - self.ran)
            return min(self.due, max(outruns, self.place.end) if self.loose else self.place.end)
        if self.due and self.spec.late == "cancel" and not self.cancelled:
            return self.due if self.since else Instant(self.due - self.lasts.p10)
        return None


class UsageKept(msgspec.Struct, frozen=True):
    """GPU time that each class used in an hour: VC, hour since 1970, nanoseconds by class."""

    vc: str
    hour: int
    used: tuple[int, ...]


class PledgesKept(msgspec.Struct, frozen=True, kw_only=True, tag="pledges-kept"):
    """A part of what is kept of promises beside their history."""

    pledges: tuple[Pledge, ...] = ()
    lengths: tuple[tuple[str, tuple[int, ...]], ...] = ()
    used: tuple[UsageKept, ...] = ()
    away: tuple[str, ...] = ()
    """Nodes that are lost."""
    drained: tuple[str, ...] = ()


class Pledges:
    """The books of all VCs, and their jobs. Only facts change it."""

    def __init__(self) -> None:
        """Begin without cells."""
        self.cells = Cluster()
        self.books: dict[str, Book] = {}
        self.jobs: dict[str, Pledge] = {}
        self.seen: dict[str, list[int]] = {}
        """By VC: in thousandths of what their specs said, how long its latest jobs ran."""
        self.used: dict[str, dict[int, list[int]]] = {}
        """By VC and hour: GPU-nanoseconds that urgent and prior jobs used."""
        self.lost: dict[str, None] = {}
        self.drained: dict[str, None] = {}
        self._checks = TimerHeap[str]()

    def next_check(self) -> tuple[Instant, str] | None:
        """Return when the next promise has to be judged again, and whose; None: none has to."""
        at = self._checks.first_due()
        if at is None:
            return None
        _, job = next(self._checks.upcoming(at + 1))
        return Instant(at), job

    def set_cells(self, cluster: Cluster) -> None:
        """Take over the cells in force: promises keep their places where these still exist."""
        self.cells = cluster
        self.books = {vc: Book(own_parts(cluster, vc)) for vc in sorted(cluster.vcs)}
        self._lose()
        for pledge in self.jobs.values():
            if pledge.place is not None:
                book = self.books.get(pledge.spec.vc)
                pledge.booked = book is not None and book.fits(pledge.place)
                if book is not None and pledge.booked:
                    book.put(pledge.job, pledge.place)
                self._time(pledge)

    def _lose(self) -> None:
        """Promise nothing new on as many nodes as are away, less those that no VC owns."""
        for name, chain in self.cells.chains.items():
            names = [cell.node for cell in chain.nodes]
            gone = sum(each in self.lost or each in self.drained for each in names)
            nodes = max(gone - spare_nodes(self.cells, name), 0)
            for vc, book in self.books.items():
                book.lose(*lost_parts(self.cells, vc, name, nodes))

    def add(self, job: str, spec: JobSpec) -> None:
        """Follow an admitted job, if its VC keeps promises."""
        if spec.promise is None:
            return
        pledge = Pledge(job=job, spec=_lean(spec), due=Instant(spec.promise.due))
        self.jobs[job] = pledge
        self._time(pledge)

    def cancel(self, job: str) -> None:
        """Take over that a job is being cancelled: what it is late for is not looked at again."""
        pledge = self.jobs.get(job)
        if pledge is not None:
            pledge.cancelled = True
            self._time(pledge)

    def remove(self, job: str) -> None:
        """Follow a job no more: it is over."""
        pledge = self.jobs.pop(job, None)
        if pledge is not None:
            self._checks.cancel(job)
            if pledge.place is not None and pledge.spec.vc in self.books:
                self.books[pledge.spec.vc].take(job)

    def apply(self, fact: PromiseFact) -> None:
        """Take over one fact."""
        match fact:
            case PromiseJudged():
                self._judged(fact)
            case PromiseMade():
                pledge = self.jobs[fact.job]
                pledge.due, pledge.lasts, pledge.declared = (
                    fact.judged.due,
                    fact.lasts,
                    fact.declared,
                )
                self._put(pledge, fact.place)
            case PromiseMoved():
                pledge = self.jobs[fact.job]
                pledge.loose = fact.at >= fact.place.end
                pledge.lasts = fact.lasts or pledge.lasts
                self._put(pledge, fact.place)
            case PromiseBroken() | PromiseKept():
                pledge = self.jobs[fact.job]
                if pledge.spec.vc in self.books:
                    self.books[pledge.spec.vc].take(fact.job)
                pledge.place = None
                self._time(pledge)
            case JobSeen():
                self._seen(fact)
            case LengthSeen():
                seen = self.seen.setdefault(fact.vc, [])
                seen.append(fact.milli)
                del seen[:-SEEN_MAX]
            case NodeAway():
                nodes = self.drained if fact.drained else self.lost
                nodes.pop(fact.node, None)
                if fact.away:
                    nodes[fact.node] = None
                self._lose()

    def _judged(self, fact: PromiseJudged) -> None:
        pledge = self.jobs.get(fact.job)
        if pledge is not None:
            pledge.due = fact.judged.due
            alone, promise = fact.judged.alone, pledge.spec.promise
            most = max(promise.lasts if promise is not None else 0, alone)
            pledge.lasts = Lasts(p10=alone, p50=alone, p90=Duration(most))
            self._time(pledge)

    def _put(self, pledge: Pledge, place: Place) -> None:
        book = self.books[pledge.spec.vc]
        pledge.place, pledge.booked = place, book.has(place)
        if pledge.booked:
            book.put(pledge.job, place)
        else:
            book.take(pledge.job)
        self._time(pledge)

    def _time(self, pledge: Pledge) -> None:
        at = pledge.check_at()
        if at is None:
            self._checks.cancel(pledge.job)
        else:
            self._checks.set_timer(pledge.job, at)

    def _seen(self, fact: JobSeen) -> None:
        pledge = self.jobs[fact.job]
        if pledge.since:
            self._use(pledge, fact.at)
            pledge.ran = pledge.served(fact.at)
        pledge.since = fact.at if fact.runs else Instant(0)
        if fact.lost:
            pledge.ran = 0
        if not fact.runs:
            pledge.hurt = fact.why
        self._time(pledge)

    def _use(self, pledge: Pledge, until: Instant) -> None:
        """Count the GPU time of a job whose class has a budget."""
        if pledge.spec.qos not in CLASSES:
            return
        which, hours = CLASSES.index(pledge.spec.qos), self.used.setdefault(pledge.spec.vc, {})
        begin = max(pledge.since, until - (DAY_HOURS + 1) * HOUR)
        for hour in range(begin // HOUR, until // HOUR + 1):
            spent = min(until, (hour + 1) * HOUR) - max(begin, hour * HOUR)
            if spent > 0:
                hours.setdefault(hour, [0, 0])[which] += spent * pledge.spec.gpus
        for hour in [hour for hour in hours if hour < until // HOUR - DAY_HOURS]:
            del hours[hour]

    def used_by(self, vc: str, qos: str, now: Instant) -> int:
        """Return the GPU time that a class has used in the last 24 hours, and may still ask for.

        Whole hours count, and what is left of jobs as it is nine times in ten: a budget that goes
        by the length that owners say would not hold where they are wrong.

        Args:
            vc: The VC.
            qos: The class.
            now: The time.

        Returns:
            GPU-nanoseconds.
        """
        which, oldest = CLASSES.index(qos), now // HOUR - DAY_HOURS
        hours = self.used.get(vc, {})
        used = sum(spent[which] for hour, spent in hours.items() if hour >= oldest)
        for pledge in self.jobs.values():
            if pledge.spec.vc == vc and pledge.spec.qos == qos:
                going = max(now - pledge.since, 0) if pledge.since else 0
                used += (going + pledge.left(now).p90) * pledge.spec.gpus
        return used

    def owned(self, vc: str) -> int:
        """Return the GPUs that a VC owns."""
        return gpus_in_cells(self.cells, vc) if vc in self.cells.vcs else 0

    # --- snapshots ---------------------------------------------------------------------------

    def snapshot(self, piece: int) -> Iterable[PledgesKept]:
        """Yield what rebuilds this state, in pieces.

        Args:
            piece: Jobs in one piece.
        """
        if self.lost or self.drained:
            yield PledgesKept(away=tuple(self.lost), drained=tuple(self.drained))
        # A VC has some kilobytes of lengths and hours.
        for vc in {**self.seen, **self.used}:
            hours = self.used.get(vc, {})
            used = tuple([UsageKept(vc, hour, tuple(spent)) for hour, spent in hours.items()])
            yield PledgesKept(lengths=((vc, tuple(self.seen.get(vc, ()))),), used=used)
        jobs = list(self.jobs.values())
        for begin in range(0, len(jobs), piece):
            yield PledgesKept(pledges=tuple(jobs[begin : begin + piece]))

    def summary(self) -> dict[str, object]:
        """Return all that is kept, comparable."""
        return {
            "cells": self.cells,
            "places": {vc: dict(book.places) for vc, book in self.books.items() if book.places},
            "jobs": self.jobs,
            "seen": self.seen,
            "used": {vc: hours for vc, hours in self.used.items() if hours},
            "lost": self.lost,
            "drained": self.drained,
            "next": self.next_check(),
        }

    def restore(self, kept: PledgesKept) -> None:
        """Take over one piece of a snapshot; the cells came before it."""
        for vc, seen in kept.lengths:
            if seen:
                self.seen[vc] = list(seen)
        for each in kept.used:
            self.used.setdefault(each.vc, {})[each.hour] = list(each.used)
        self.lost.update(dict.fromkeys(kept.away))
        self.drained.update(dict.fromkeys(kept.drained))
        if kept.away or kept.drained:
            self._lose()
        for pledge in kept.pledges:
            self.jobs[pledge.job] = pledge
            book = self.books.get(pledge.spec.vc)
            if pledge.place is not None and pledge.booked and book is not None:
                pledge.booked = book.has(pledge.place)
                if pledge.booked:
                    book.put(pledge.job, pledge.place)
            self._time(pledge)

    def check(self) -> None:
        """Assert that books hold exactly the promises, and no more than the cells.

        Raises:
            AssertionError: They do not.
        """
        for vc, book in self.books.items():
            book.check()
            promised = {
                job: pledge.place
                for job, pledge in self.jobs.items()
                if pledge.spec.vc == vc and pledge.place is not None and pledge.booked
            }
            assert book.places == promised, vc


def _lean(spec: JobSpec) -> JobSpec:
    """Return what of a spec matters here: commands and variables can be 64 KiB of it."""
    return JobSpec(
        name=spec.name,
        vc=spec.vc,
        resources=spec.resources,
        size=spec.size,
        elastic=spec.elastic,
        finish_by=spec.finish_by,
        qos=spec.qos,
        late=spec.late,
        willing=spec.willing,
        promise=spec.promise,
    )
