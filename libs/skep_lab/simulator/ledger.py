"""What became of every job, written down as the allocator's facts tell it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from skep.ids import attempt_id
from skep.units import Duration, Instant
from skep.wire.changes import Goal, GpusRegained, JobChanged, JobChanging, Result
from skep.wire.commands import Resume, Share
from skep.wire.facts import (
    CellsAlarm,
    CellsReserved,
    JobBound,
    JobDemoted,
    JobEnded,
    JobPromoted,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    Member,
    Refused,
)
from skep.wire.moves import JobMoved, SuccessorBound
from skep.wire.packs import GpusShared
from skep.wire.resizes import GangNarrowed, GangWidened
from skep_lab.outcome import PREEMPTED, JobOutcome, Span, stopped_by
from skep_lab.simulator.work import Work

BEGIN = Instant(1_700_000_000 * 10**9)
"""When the first instant of every trace is."""

DIGESTED = 512
"""Decisions that are hashed together: fewer calls."""


class AlarmError(RuntimeError):
    """The allocator found its own cells broken, or a policy failed: no figure would mean much."""


class Entry(msgspec.Struct):
    """One job. Times are instants; 0: not yet, or not at present."""

    work: Work
    spans: list[Span] = []
    began: int = 0
    ended: int = 0
    waited: int = 0
    queued_at: int = 0
    """Since when it waits."""
    ran_at: int = 0
    """Since when it runs where it is."""
    made_at: int = 0
    """What it had done then."""
    gpus: dict[str, int] = {}
    """By node; empty: it has none."""
    next_gpus: dict[str, int] = {}
    """What it had when it gave its GPUs back, or will have once it has grown or moved."""
    chain: str = ""
    next_chain: str = ""
    borrowed: bool = False
    shares: bool = False
    guest: bool = False
    """It is on another job's GPUs."""
    goes_on: bool = False
    """What its nodes were told last is to go on."""
    preempted: int = 0
    suspended: int = 0
    migrated: int = 0
    resized: int = 0
    packed: int = 0
    refused: str = ""
    each: int = 1
    """GPUs of one worker."""


class Ledger:
    """The jobs of a trace by their ids in the cluster, and a digest of what was decided."""

    def __init__(self, works: dict[str, Work]) -> None:
        """Write down nothing yet."""
        self.entries = {name: Entry(work) for name, work in works.items()}
        self.open = len(self.entries)
        """Jobs that are not over."""
        self.running = 0
        self.waiting = 0
        self.events = 0
        """Starts and ends of jobs."""
        self.changed = True
        """Whether anything was written since this was last made false."""
        self._digest = hashlib.sha256()
        self._lines: list[str] = []
        self._notes: dict[type, Callable[[Any, Entry, Instant], None]] = {
            JobQueued: self._queued,
            JobBound: self._bound,
            JobRan: self._ran,
            JobStopping: self._stopping,
            JobRequeued: self._requeued,
            JobEnded: self._ended,
            JobChanging: self._changing,
            JobChanged: self._changed,
            GpusRegained: self._regained,
            GpusShared: self._shared,
            SuccessorBound: self._successor,
            JobMoved: self._moved,
            GangWidened: self._widened,
            GangNarrowed: self._narrowed,
            JobDemoted: self._demoted,
            JobPromoted: self._promoted,
            CellsReserved: self._reserved,
        }

    def refuse(self, fact: Refused) -> None:
        """Note that the cluster would not have a job."""
        entry = self.entries[fact.job]
        entry.refused = "; ".join(problem.text for problem in fact.problems)
        self.open -= 1

    def note(self, fact: Any, now: Instant) -> None:
        """Note one fact of the allocator.

        Args:
            fact: The fact.
            now: The present instant.

        Raises:
            AlarmError: The fact is an alarm: the cells are broken, or a policy failed.
        """
        handle = self._notes.get(type(fact))
        if handle is None:
            if type(fact) is CellsAlarm and not fact.over:
                text = f"{fact.rule}: {fact.text}"
                raise AlarmError(text)
        else:
            handle(fact, self.entries[fact.job], now)
            self.changed = True

    # --- facts -----------------------------------------------------------------------------------

    def _queued(self, fact: JobQueued, entry: Entry, now: Instant) -> None:
        entry.queued_at = fact.submitted_at
        entry.each = fact.spec.resources.gpus
        self.waiting += 1

    def _bound(self, fact: JobBound, entry: Entry, now: Instant) -> None:
        entry.gpus, entry.chain = _gpus(fact.members), fact.chain
        entry.borrowed = not fact.members[0].levels
        self._waits_no_more(entry, now)
        self._decided(f"bind {attempt_id(fact.job, fact.attempt)} {_places(fact.members)}", now)

    def _ran(self, fact: JobRan, entry: Entry, now: Instant) -> None:
        if not entry.began:
            entry.began = now
            self.events += 1
        self._runs(entry, now)

    def _stopping(self, fact: JobStopping, entry: Entry, now: Instant) -> None:
        self._decided(f"stop {attempt_id(fact.job, fact.attempt)} {fact.why}", now)

    def _requeued(self, fact: JobRequeued, entry: Entry, now: Instant) -> None:
        why = stopped_by(fact.why)
        entry.preempted += why == PREEMPTED
        self._leaves(entry, now, why)
        self._waits(entry, now)

    def _ended(self, fact: JobEnded, entry: Entry, now: Instant) -> None:
        entry.ended = now
        self.open -= 1
        self.events += 1
        self._leaves(entry, now, "ended")
        self._waits_no_more(entry, now)

    def _changing(self, fact: JobChanging, entry: Entry, now: Instant) -> None:
        self._decided(
            f"{fact.goal} {attempt_id(fact.job, fact.attempt)} {fact.nodes} {fact.why}", now
        )
        entry.goes_on = isinstance(fact.change, Resume)
        if isinstance(fact.change, Share) and entry.ran_at:
            shares = bool(fact.change.beside)
            if shares is not entry.shares:
                self._again(entry, now, "packed" if shares else "unpacked")
                entry.shares, entry.guest = shares, entry.guest and shares
                entry.packed += shares

    def _changed(self, fact: JobChanged, entry: Entry, now: Instant) -> None:
        if fact.result is not Result.DONE:
            return
        match fact.goal:
            case Goal.SUSPEND:
                entry.suspended += bool(entry.ran_at)
                self._stands(entry, now, "suspended")
                if fact.released:
                    self._releases(entry, now)
            case Goal.RESUME:
                self._runs(entry, now)
            case Goal.MIGRATE:
                entry.migrated += 1
                if fact.released:
                    self._releases(entry, now)
                elif entry.goes_on:  # Else it was suspended, and stands there too.
                    self._runs(entry, now)
            case Goal.RESIZE:
                entry.resized += 1
                self._again(entry, now, "resized")
                entry.gpus = entry.next_gpus or entry.gpus
                entry.next_gpus = {}
            case _:
                pass

    def _regained(self, fact: GpusRegained, entry: Entry, now: Instant) -> None:
        entry.gpus = _gpus(fact.members) if fact.members else entry.next_gpus
        entry.borrowed, entry.next_gpus = True, {}
        self._waits_no_more(entry, now)
        self._decided(f"return {attempt_id(fact.job, fact.attempt)} {_places(fact.members)}", now)

    def _shared(self, fact: GpusShared, entry: Entry, now: Instant) -> None:
        entry.shares = entry.guest = True
        entry.packed += 1
        self._decided(f"pack {attempt_id(fact.job, fact.attempt)} {fact.node} {fact.beside}", now)

    def _successor(self, fact: SuccessorBound, entry: Entry, now: Instant) -> None:
        entry.next_gpus, entry.next_chain = _gpus(fact.members), fact.chain
        self._decided(f"move {attempt_id(fact.job, fact.attempt)} {_places(fact.members)}", now)

    def _moved(self, fact: JobMoved, entry: Entry, now: Instant) -> None:
        self._stands(entry, now, "migrated")
        self._waits_no_more(entry, now)
        entry.gpus, entry.chain = entry.next_gpus, entry.next_chain
        entry.shares, entry.guest, entry.next_gpus = False, False, {}

    def _widened(self, fact: GangWidened, entry: Entry, now: Instant) -> None:
        node, count = fact.member.node, sum(map(len, fact.member.devices))
        before = entry.next_gpus or entry.gpus
        entry.next_gpus = {**before, node: before.get(node, 0) + count}
        self._decided(f"widen {attempt_id(fact.job, fact.attempt)} {_places((fact.member,))}", now)

    def _narrowed(self, fact: GangNarrowed, entry: Entry, now: Instant) -> None:
        left = {**entry.gpus, fact.node: fact.workers * entry.each}
        entry.gpus = {node: count for node, count in left.items() if count}
        entry.next_gpus = {}

    def _demoted(self, fact: JobDemoted, entry: Entry, now: Instant) -> None:
        entry.borrowed = True
        self._decided(f"demote {attempt_id(fact.job, fact.attempt)}", now)

    def _promoted(self, fact: JobPromoted, entry: Entry, now: Instant) -> None:
        entry.borrowed = False

    def _reserved(self, fact: CellsReserved, entry: Entry, now: Instant) -> None:
        self._decided(f"claim {attempt_id(fact.job, fact.attempt)} {_places(fact.members)}", now)

    # --- stretches -------------------------------------------------------------------------------

    def _waits(self, entry: Entry, now: Instant) -> None:
        if not entry.queued_at:
            entry.queued_at = now
            self.waiting += 1

    def _waits_no_more(self, entry: Entry, now: Instant) -> None:
        if entry.queued_at:
            entry.waited += now - entry.queued_at
            entry.queued_at = 0
            self.waiting -= 1

    def _runs(self, entry: Entry, now: Instant) -> None:
        if not entry.ran_at:
            entry.ran_at, entry.made_at = now, _made(entry.work, now)
            self.running += 1

    def _again(self, entry: Entry, now: Instant, why: str) -> None:
        """End a stretch where the next one begins."""
        self._stands(entry, now, why)
        self._runs(entry, now)

    def _leaves(self, entry: Entry, now: Instant, why: str) -> None:
        self._stands(entry, now, why)
        entry.gpus, entry.shares, entry.guest = {}, False, False

    def _releases(self, entry: Entry, now: Instant) -> None:
        """Have it wait for GPUs such as it had: these are others'."""
        entry.next_gpus, entry.gpus = entry.gpus, {}
        entry.shares = entry.guest = False
        self._waits(entry, now)

    def _stands(self, entry: Entry, now: Instant, why: str) -> None:
        if not entry.ran_at:
            return
        self.running -= 1
        made = _made(entry.work, now) - entry.made_at
        span = now - entry.ran_at
        if span > 0:
            nodes = tuple(sorted(entry.gpus, key=entry.gpus.__getitem__, reverse=True))
            counts = tuple(entry.gpus[node] for node in nodes)
            entry.spans.append(
                Span(
                    began=Duration(entry.ran_at - BEGIN),
                    ended=Duration(now - BEGIN),
                    gpus=sum(counts),
                    spread=counts,
                    chain=entry.chain,
                    ended_by=why,
                    useful=Duration(made) if made != span else None,
                    packed=entry.shares,
                    borrowed=entry.borrowed,
                    nodes=nodes,
                    guest=entry.guest,
                )
            )
        entry.ran_at = 0

    # --- results ---------------------------------------------------------------------------------

    def _decided(self, what: str, now: Instant) -> None:
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
        work = entry.work
        self._stands(entry, now, "cut")
        waits = now - entry.queued_at if entry.queued_at else 0
        return JobOutcome(
            job=work.job,
            spans=tuple(entry.spans),
            began=Duration(entry.began - BEGIN) if entry.began else None,
            ended=Duration(entry.ended - BEGIN) if entry.ended else None,
            waited=Duration(entry.waited + waits),
            preempted=entry.preempted,
            suspended=entry.suspended,
            migrated=entry.migrated,
            resized=entry.resized,
            packed=entry.packed,
            lost=Duration(work.lost),
            overhead=Duration(work.overhead),
            hundred=Duration(work.hundred - BEGIN) if work.hundred else None,
            refused=entry.refused,
        )


def _made(work: Work, now: Instant) -> int:
    """Return all that a job has done so far."""
    if not work.rate:
        return work.made
    more = round(max(now - work.since - work.debt, 0) * work.rate)
    return work.made + min(more, work.job.run_time - work.done)


def _gpus(members: Iterable[Member]) -> dict[str, int]:
    return {member.node: sum(map(len, member.devices)) for member in members}


def _places(members: Iterable[Member]) -> str:
    return " ".join(f"{member.node}:{member.devices}" for member in members)
