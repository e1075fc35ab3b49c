"""What became of every job, written down as it happens."""

from __future__ import annotations

import hashlib

import msgspec

from skep.sim.outcome import JobOutcome, Span
from skep.traces.job import TraceJob
from skep.units import Duration, Instant
from skep.wire.facts import (
    JobBound,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    Refused,
)
from skep.wire.reasons import Reason

BEGIN = Instant(1_700_000_000 * 10**9)
"""When the first instant of every trace is."""

DIGESTED = 512
"""Decisions that are hashed together: fewer calls."""


class Entry(msgspec.Struct):
    """One job. Times are instants; 0: not yet."""

    job: TraceJob
    spans: list[Span] = []
    began: int = 0
    ended: int = 0
    waited: int = 0
    queued_at: int = 0
    """Since when it waits; 0: it does not."""
    ran_at: int = 0
    """Since when it has the GPUs that it runs on; 0: it does not run."""
    gpus: int = 0
    spread: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    chain: str = ""
    done_at: int = 0
    """What of its work was done when the span began."""
    borrowed: bool = False
    packed_now: bool = False
    preempted: int = 0
    suspended: int = 0
    migrated: int = 0
    resized: int = 0
    packed: int = 0
    lost: int = 0
    overhead: int = 0
    hundred: int = 0
    refused: str = ""
    over: bool = False


class Ledger:
    """The jobs of a trace by id of the cluster, and a digest of what was decided."""

    def __init__(self, jobs: dict[str, TraceJob]) -> None:
        """Write down nothing yet."""
        self.entries = {name: Entry(job) for name, job in jobs.items()}
        self.open = len(self.entries)
        """Jobs that are not over."""
        self.running = 0
        self.waiting = 0
        self.allocated = 0
        self.events = 0
        """Starts and ends of jobs."""
        self._digest = hashlib.sha256()
        self._lines: list[str] = []

    def refuse(self, name: str, fact: Refused) -> None:
        """Note that the cluster would not have a job."""
        entry = self.entries[name]
        entry.refused = "; ".join(problem.text for problem in fact.problems)
        entry.over = True
        self.open -= 1

    def note(self, fact: object, now: Instant) -> None:
        """Note one fact of the allocator."""
        match fact:
            case JobQueued():
                self.entries[fact.job].queued_at = fact.submitted_at
                self.waiting += 1
            case JobBound():
                self._bound(self.entries[fact.job], fact, now)
            case JobRan():
                entry = self.entries[fact.job]
                entry.began = entry.began or now
                entry.ran_at = now
                self.running += 1
                self.events += 1
            case JobStopping():
                self.decided(f"stop {fact.job} {fact.why}", now)
            case JobRequeued():
                entry = self.entries[fact.job]
                entry.queued_at = now
                self.waiting += 1
                if fact.why is Reason.PREEMPTED:
                    entry.preempted += 1
                self.leave(entry, now, "preempted" if fact.why is Reason.PREEMPTED else "stopped")
            case JobEnded():
                entry = self.entries[fact.job]
                entry.ended, entry.over = now, True
                self.open -= 1
                self.events += 1
                self.leave(entry, now, "ended")
            case _:
                pass

    def _bound(self, entry: Entry, fact: JobBound, now: Instant) -> None:
        parts = [(sum(map(len, member.devices)), member.node) for member in fact.members]
        if len(parts) > 1:
            parts.sort(key=_largest_first)
        entry.spread = tuple(gpus for gpus, _ in parts)
        entry.nodes = tuple(node for _, node in parts)
        entry.gpus, entry.chain = sum(entry.spread), fact.chain
        entry.borrowed = not fact.members[0].levels
        if entry.queued_at:
            entry.waited += now - entry.queued_at
            entry.queued_at = 0
            self.waiting -= 1
        self.allocated += entry.gpus
        self.decided(f"bind {fact.job} {fact.attempt} {_places(fact)}", now)

    def leave(self, entry: Entry, now: Instant, why: str) -> None:
        """End a stretch in which a job had GPUs."""
        if entry.gpus:
            self.allocated -= entry.gpus
        if entry.ran_at:
            self.running -= 1
            entry.spans.append(Span(
                began=Duration(entry.ran_at - BEGIN), ended=Duration(now - BEGIN),
                gpus=entry.gpus, spread=entry.spread, chain=entry.chain, ended_by=why,
                packed=entry.packed_now, borrowed=entry.borrowed, nodes=entry.nodes,
            ))  # fmt: skip
        entry.ran_at = entry.gpus = 0

    def decided(self, what: str, now: Instant) -> None:
        """Add a decision to the digest."""
        self._lines.append(f"{now - BEGIN} {what}\n")
        if len(self._lines) == DIGESTED:
            self._hash()

    def digest(self) -> str:
        """Return the digest of all decisions so far."""
        self._hash()
        return self._digest.hexdigest()

    def _hash(self) -> None:
        self._digest.update("".join(self._lines).encode())
        self._lines.clear()

    def outcomes(self, now: Instant) -> tuple[JobOutcome, ...]:
        """Return every job's fate; what still runs is cut here."""
        return tuple(self._outcome(entry, now) for entry in self.entries.values())

    def _outcome(self, entry: Entry, now: Instant) -> JobOutcome:
        if entry.ran_at:
            self.leave(entry, now, "cut")
        return JobOutcome(
            job=entry.job,
            spans=tuple(entry.spans),
            began=Duration(entry.began - BEGIN) if entry.began else None,
            ended=Duration(entry.ended - BEGIN) if entry.ended else None,
            waited=Duration(entry.waited + (now - entry.queued_at if entry.queued_at else 0)),
            preempted=entry.preempted,
            suspended=entry.suspended,
            migrated=entry.migrated,
            resized=entry.resized,
            packed=entry.packed,
            lost=Duration(entry.lost),
            overhead=Duration(entry.overhead),
            hundred=Duration(entry.hundred - BEGIN) if entry.hundred else None,
            refused=entry.refused,
        )


def _places(fact: JobBound) -> str:
    return " ".join(f"{member.node}:{member.devices}" for member in fact.members)


def _largest_first(part: tuple[int, str]) -> int:
    return -part[0]
