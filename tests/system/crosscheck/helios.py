"""Helios' SRTF, told from its published code, and carried out by Skep's machines.

Facts are from reading S-Lab-System-Group/HeliosArtifact (framework/QSSF Service/policies/srtf.py).
It steps by seconds. Each second it goes through all jobs by the time that they have left, and
counts GPUs: those that fit are to run, the others leave. Then it looks for places: a job that finds
none waits, and the GPUs that were counted for it stay idle. A policy must not keep anything from
one plan to the next, as this one does: it serves the cross-check alone.
"""

from __future__ import annotations

from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.plan import Plan, Preempt, Turn
from skep.policy.view import HOLDING, QUEUED, STOPPABLE, Phase, VcView
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.reasons import Reason

AGAIN_S = {1: 7.0, 2: 30.0, 9: 60.0}
"""What a preempted job has to do more, by its GPUs."""
LATE_S = 1.0
"""A job ends so much after its work is done: its end is looked for before its work is counted."""
SECOND = NS_PER_SECOND


class Book:
    """The lists of one virtual cluster."""

    def __init__(self) -> None:
        """Begin with no job."""
        self.at = Instant(-1)
        self.waits: list[str] = []
        self.runs: dict[str, int] = {}
        """Jobs that run, in the order of their starts, and since when."""
        self.left: dict[str, int] = {}
        """What each had left when it began or was preempted, in nanoseconds."""
        self.turns: list[str] = []
        self.stops: list[str] = []


class Srtf(Policy, frozen=True):
    """Shortest remaining time first, by counts of GPUs."""

    name: ClassVar[str] = "helios-srtf"
    source: ClassVar[str] = "HeliosArtifact, policies/srtf.py"
    books: ClassVar[dict[str, Book]] = {}

    def plan(self, view: VcView) -> Plan:
        """Return what is still to be done of that which was chosen in this second."""
        book = self.books.setdefault(view.vc, Book())
        jobs = {job.job: job for job in view.jobs}
        self._follow(book, view)
        if book.at != view.now:
            book.at = view.now
            self._choose(book, view)
        stops = [name for name in book.stops if jobs[name].phase in STOPPABLE]
        leaves = bool(stops) or any(job.phase is Phase.STOPPING for job in view.jobs)
        turns = [name for name in book.turns if not leaves and jobs[name].phase in QUEUED]
        return Plan(
            turns=tuple(Turn(name, Reason.LEAST_TIME) for name in turns),
            strict=False,
            actions=tuple(Preempt(name, Reason.OUTRANKED) for name in stops),
            look_at=self._look_at(book, view.now),
        )

    def _follow(self, book: Book, view: VcView) -> None:
        """Take over which jobs have come, have been placed, and are gone."""
        jobs = {job.job: job for job in view.jobs}
        book.waits = [name for name in book.waits if name in jobs]
        book.runs = {name: since for name, since in book.runs.items() if name in jobs}
        for name, job in jobs.items():
            if name not in book.left:
                assert job.expected is not None, job
                book.left[name] = job.expected - seconds(LATE_S)
                book.waits.append(name)
        for name in book.turns:
            if name in jobs and jobs[name].phase in HOLDING and name not in book.runs:
                book.waits.remove(name)
                book.runs[name] = book.at

    def _choose(self, book: Book, view: VcView) -> None:
        """Go through all jobs by what they have left; of equal ones those that wait come first."""
        jobs, now, quota = {job.job: job for job in view.jobs}, view.now, view.gpus
        left = {name: book.left[name] for name in book.waits}
        left |= {name: book.left[name] - (now - since) for name, since in book.runs.items()}
        book.turns, book.stops = [], []
        for name in sorted(left, key=lambda name: left[name]):
            if jobs[name].gpus <= quota:
                quota -= jobs[name].gpus
                if name not in book.runs:
                    book.turns.append(name)
            elif name in book.runs:
                book.stops.append(name)
        for name in book.stops:
            gpus = jobs[name].gpus
            cost = max(number for number in AGAIN_S if number <= gpus)
            book.left[name] = left[name] + seconds(AGAIN_S[cost])
            book.waits.append(name)
            del book.runs[name]

    def _look_at(self, book: Book, now: Instant) -> Instant | None:
        """Return when the order changes: soon after something did, or when one passes another."""
        if book.stops or now in book.runs.values():
            return Instant(now + SECOND)
        waiting = sorted(book.left[name] for name in book.waits)
        looks = []
        for name, since in book.runs.items():
            left = book.left[name] - (now - since)
            below = [other for other in waiting if other <= left]
            if below:
                looks.append(Instant(now + left - below[-1] + SECOND))
        return min(looks, default=None)


def begin() -> dict[str, type[Policy]]:
    """Forget everything that is kept, and return the policy of this file."""
    Srtf.books.clear()
    return {Srtf.name: Srtf}
