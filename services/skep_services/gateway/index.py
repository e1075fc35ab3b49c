"""The reader of the streams: folds each message at once, and writes what changed in batches.

    follow ──deliver──> fold (memory) ──wakes──> long polls
                          │
                     FLUSH_EVERY_S or later: one transaction of rows and positions
                          │
                          └──> events become visible to event streams

Answers about unfinished jobs come from memory and are as fresh as the last delivery. An event is
shown only once its number is stored: a client that resumes after a crash misses none and sees none
twice. Nothing is acknowledged anywhere: the stored positions say where to go on.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from skep.ids import job_id
from skep.ledger.blame.kept import keep as keep_blame
from skep.ledger.snapshot import keep
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep_services.gateway.fold import Changes, Fold
from skep_services.gateway.hub import Hub
from skep_services.gateway.intake import Intake
from skep_services.gateway.live import Live
from skep_services.gateway.model import (
    PHASE_ACTIVE,
    PHASE_ENDED,
    PHASE_HIDDEN,
    Batch,
    EventQuery,
    JobQuery,
    JobRow,
    Listed,
    Model,
    Saved,
)
from skep_services.gateway.rows import ACTIVE, ENDED, Job, Spanned
from skep_services.gateway.watch import Watch
from skep_services.ports import Clock, Delivery
from skep_services.tracing import Tracer

log = structlog.get_logger(service="gateway")

BATCH_MAX = 2_000
"""Deliveries folded and not yet written, about 100 ms of work; then delivery waits for the disk."""
SLICE = 32
"""Deliveries folded before others may run: about 2 ms in which no request is answered."""
FLUSH_EVERY_S = 0.02
"""What an event waits at most before it is shown, as long as a transaction costs a fraction."""
FLUSH_PAUSE = 9
FLUSH_PAUSE_S_MAX = 0.25
"""Between two writes pass nine times what the last one took, but never more than this. A busy
machine then spends a tenth of the time on writing, and writes the row of a job that is submitted,
admitted and queued in the meantime once instead of three times."""
KEEP_EVERY = 20_000
"""Facts between two kept states of the ledger: to fold so many takes half a second."""
SPANS_WAITING_MAX = 20_000
"""Spans between two writes; beyond it they are dropped, because they are not repeated."""
SPAN_BYTES_MAX = 8 * 1024
"""One stored span. A name, two ids, two instants and some attributes need 500 bytes."""

STREAMS = (subjects.SUBMIT, subjects.ADMISSION, subjects.ALLOC, subjects.NODE, subjects.ADMIN)
"""In the order a job passes them, so that while catching up little is heard before its cause."""

_SPANS = msgspec.json.Decoder(list[Spanned])

Answer = TypeVar("Answer")
Piece = tuple[int, bytes]
"""The number of a piece of a kept state, and the piece."""


class Indexer:
    """Owns the fold and the model's writer."""

    def __init__(self, model: Model, clock: Clock, watch: Watch, hub: Hub, tracer: Tracer) -> None:
        start = model.start
        self.model = model
        self.intake = Intake()
        self.fold = Fold(model.job)
        self.fold.restore(start.jobs, start.heard, start.newest, start.trials)
        self.fold.restore_state(start.kept, start.saved.alarms_raised, start.blame)
        self.fold.restore_history(start.points, start.saved.history_at)
        for each in start.templates:
            self.fold.templates.apply(each)
        self.fold.facts, self.fold.event_seq = start.saved.facts, start.saved.event_seq
        self.fold.promises = {vc: list(counts) for vc, counts in start.saved.promises.items()}
        self.fold.broken = {vc: dict(causes) for vc, causes in start.saved.broken.items()}
        self.live = Live(self.fold, clock.now())
        self.positions = dict.fromkeys(STREAMS, 0) | dict(start.saved.positions)
        self.state_at = start.saved.kept_at
        """The last message of ALLOC in the ledger's state; before `positions` after a start."""
        self.caught_up = asyncio.Event()
        """Set once the ledger's state has what the rows have."""
        if self.state_at >= self.positions[subjects.ALLOC]:
            self.caught_up.set()
        self._kept = start.saved
        self._keeping = False
        self.lag_ns = 0
        """How old the latest message was when it was folded: large while catching up."""
        self.deliveries = 0
        self.spans_dropped = 0
        self.waiting = 0
        """Deliveries folded and not yet written."""
        self._clock = clock
        self._watch = watch
        self._hub = hub
        self._tracer = tracer
        self._started_at = clock.now()
        self._spans: list[tuple[str, int, bytes]] = []
        self._failed: sqlite3.Error | None = None
        self._dirty = asyncio.Event()
        self._written = asyncio.Event()
        self._writing = asyncio.Lock()
        self._writer = ThreadPoolExecutor(1, "model-writer")
        self._reader = ThreadPoolExecutor(1, "model-reader")

    @property
    def passed_over(self) -> int:
        """Return how many messages, facts and rows this process could not take in."""
        return self.intake.passed_over + self.model.left_out

    @property
    def passed_latest(self) -> str:
        """Return what was not taken in last, and why."""
        return self.intake.latest or self.model.left_out_why

    # --- what arrives --------------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> None:
        """Fold one message of a followed stream."""
        if not self.caught_up.is_set() and delivery.stream == subjects.ALLOC:
            known = self.positions[subjects.ALLOC]
            if delivery.sequence <= known:
                await self._catch_up(delivery)
                return
            self.caught_up.set()
        while self.waiting >= BATCH_MAX or self._keeping:
            self._written.clear()
            await self._written.wait()
        event, fold = _read(delivery), self.fold
        if isinstance(event, codec.Unreadable):
            self.intake.refused(delivery, event.text)
        for each in one_by_one(event):
            self.intake.take(delivery, partial(fold.apply, each, delivery.at))
        self.positions[delivery.stream] = delivery.sequence
        if delivery.stream == subjects.ALLOC:
            self.state_at = delivery.sequence
        self.lag_ns = max(0, self._clock.now() - delivery.at)
        self.waiting += 1
        self.deliveries += 1
        if fold.touched:
            self._watch.wake(fold.touched)
            fold.touched.clear()
        self._dirty.set()
        if self.deliveries % SLICE == 0:
            await asyncio.sleep(0)

    async def _catch_up(self, delivery: Delivery) -> None:
        """Have the ledger's state take over a message that the rows have."""
        self.fold.catch_up(_read(delivery))
        self.state_at = delivery.sequence
        if self.state_at >= self.positions[subjects.ALLOC]:
            self.caught_up.set()
        if self.fold.blamed_waiting:
            self._dirty.set()
        if self.fold.blamed_waiting >= BATCH_MAX:
            await self.flush()
        if self.state_at % SLICE == 0:
            await asyncio.sleep(0)

    async def deliver_core(self, delivery: Delivery) -> None:
        """Take over a finding, a heartbeat or an advice."""
        message = codec.read(delivery.subject, delivery.payload, delivery.headers, 0, Instant(0))
        if isinstance(message, codec.Unreadable):
            self.intake.refused(delivery, message.text)
        self.intake.take(delivery, partial(self.live.apply, message, self._clock.now()))
        if self.fold.events_wait:
            self._dirty.set()

    async def deliver_spans(self, delivery: Delivery) -> None:
        """Keep finished trace spans; those that are not spans are dropped and counted."""
        try:
            spans = _SPANS.decode(delivery.payload)
        except UNDECODABLE:
            self.spans_dropped += 1
            return
        for span in spans:
            row = (span.trace_id, span.start_ns, codec.encode(span))
            if len(row[2]) > SPAN_BYTES_MAX or len(self._spans) >= SPANS_WAITING_MAX:
                self.spans_dropped += 1
            else:
                self._spans.append(row)
        self._dirty.set()

    # --- what is written -----------------------------------------------------------------------

    async def run(self) -> None:
        """Write what changed, again and again.

        Raises:
            sqlite3.Error: The disk fails.
        """
        while True:
            await self._dirty.wait()
            began = time.monotonic()
            await self.flush()
            pause_s = FLUSH_PAUSE * (time.monotonic() - began)
            await asyncio.sleep(min(max(pause_s, FLUSH_EVERY_S), FLUSH_PAUSE_S_MAX))

    async def flush(self) -> None:
        """Write everything folded so far in one transaction, then show its events.

        Raises:
            sqlite3.Error: The disk fails, or failed before: what was not written then is missing.
        """
        async with self._writing:
            if self._failed is not None:
                raise self._failed
            self._dirty.clear()
            changes = self.fold.take()
            self.waiting = 0
            spans, self._spans = self._spans, []
            kept, blame = await self._keep()
            batch = self._batch(changes, spans, kept, blame)
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._writer, self.model.write, batch)
            except sqlite3.Error as error:
                # A request may have asked for this write; `run` must hear of it too.
                self._failed = error
                self._dirty.set()
                raise
            self._written.set()
            self.fold.forget()
            self._hub.show(batch.events)
        self._trace(changes.ended)
        await self._tracer.flush()

    async def close(self) -> None:
        """Write what is left and close the file."""
        try:
            await self.flush()
        finally:
            self._writer.shutdown()
            self._reader.shutdown()
            self.model.close()

    async def _keep(self) -> tuple[list[Piece], list[Piece]]:
        """Return the ledger's state and blame, encoded, if it is time to keep it; else nothing.

        Nothing is folded meanwhile; requests are answered.
        """
        fold = self.fold
        due = fold.facts - self._kept.facts >= KEEP_EVERY or not self._kept.kept_at
        if (
            not due
            or fold.misfits
            or fold.blame_misfits
            or not self.caught_up.is_set()
            or not self.state_at
        ):
            return [], []
        self._kept = Saved(
            facts=fold.facts, kept_at=self.state_at, alarms_raised=fold.alarms_raised
        )
        self._keeping = True
        try:
            return (
                await _pieces(keep(fold.state)),
                await _pieces(keep_blame(fold.blame, self.state_at)),
            )
        finally:
            self._keeping = False

    def _trace(self, ended: list[tuple[Job, Instant]]) -> None:
        """Note in their traces that the ends of these jobs can be seen."""
        now = self._clock.now()
        for job, at in ended:
            # What ended before this process began was noted by an earlier one.
            if at >= self._started_at and codec.is_trace(job.trace):
                attributes = {"job": job.row.job, "end": job.row.state.value}
                # Another machine's clock may be ahead of this one's.
                self._tracer.span("gateway index", job.trace, at, max(at, now), attributes)

    def _batch(
        self,
        changes: Changes,
        spans: list[tuple[str, int, bytes]],
        kept: list[Piece],
        blame: list[Piece],
    ) -> Batch:
        encode = codec.encode
        saved = Saved(
            positions=dict(self.positions),
            facts=self.fold.facts,
            event_seq=self.fold.event_seq,
            kept_at=self._kept.kept_at,
            alarms_raised=self._kept.alarms_raised,
            promises={
                vc: (made, kept, broken) for vc, (made, kept, broken) in self.fold.promises.items()
            },
            broken={vc: dict(causes) for vc, causes in self.fold.broken.items()},
            history_at=self.fold.history.at,
        )
        return Batch(
            jobs=[_job_row(job) for job in changes.jobs.values()],
            specs=list(changes.specs.items()),
            heard=[(heard.node, encode(heard)) for heard in changes.heard.values()],
            events=[(event.seq, event.job, event.vc, encode(event)) for event in changes.events],
            spans=spans,
            saved=encode(saved),
            kept=kept,
            trials=[(tried.trial, encode(tried)) for tried in changes.trials],
            blame=blame,
            blamed=[(sequence, encode(told)) for sequence, told in changes.blamed],
            points=[(point.at, encode(point)) for point in changes.points],
            templates=[
                (*key, encode(fact) if fact is not None and fact.template is not None else b"")
                for key, fact in changes.templates.items()
            ],
        )

    # --- what is asked -------------------------------------------------------------------------

    async def ended(self, query: JobQuery) -> Listed:
        """Return ended jobs, those included that ended a moment ago."""
        await self.settle()
        return await self._read(self.model.ended, query)

    async def events(self, query: EventQuery) -> list[tuple[int, bytes]]:
        """Return stored events: number and JSON of each, in order."""
        return await self._read(self.model.events, query)

    async def spans(self, trace: str) -> list[bytes]:
        """Return the spans of a trace by their start, each as JSON."""
        await self.settle()
        return await self._read(self.model.spans, trace)

    async def blamed(self, job: Job) -> bytes | None:
        """Return where the time of a job went that has ended, as JSON; None if none is stored."""
        await self.settle()
        return self.model.blamed(job.sequence)

    async def task(self, task: str) -> Job | None:
        """Return the latest job of an array's task (`j7[3]`), or None if there is none."""
        await self.settle()
        sequence = self.model.task(task)
        return None if sequence is None else self.fold.find(job_id(sequence))

    async def spec(self, job: Job) -> bytes | None:
        """Return a job's spec as it was admitted, else as published; None if none is stored."""
        await self.settle()
        return self.model.spec(job.sequence)

    async def settle(self) -> None:
        """Return once everything folded so far is written."""
        if self._dirty.is_set():
            await self.flush()
        else:
            async with self._writing:
                pass

    async def _read(self, ask: Callable[[Any], Answer], query: Any) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._reader, ask, query)


async def _pieces(kept: Iterable[Any]) -> list[Piece]:
    """Return pieces, numbered and encoded; requests are answered meanwhile."""
    pieces: list[Piece] = []
    for piece in kept:
        pieces.append((len(pieces), codec.encode(piece)))
        if len(pieces) % SLICE == 0:
            await asyncio.sleep(0)
    return pieces


def _read(delivery: Delivery) -> Any:
    """Return what a message of a followed stream says."""
    return codec.read(
        delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
    )


def one_by_one(event: Any) -> Iterator[Any]:
    """Yield an event; of a record each fact apart, so that one may be passed over alone."""
    if isinstance(event, codec.Facts) and len(event.facts) > 1:
        for fact in event.facts:
            yield msgspec.structs.replace(event, facts=(fact,))
    else:
        yield event


def _job_row(job: Job) -> JobRow:
    row = job.row
    if row.state in ACTIVE:
        phase = PHASE_ACTIVE
    else:
        phase = PHASE_ENDED if row.state in ENDED else PHASE_HIDDEN
    return (
        job.sequence,
        phase,
        row.vc,
        row.state.value,
        row.name,
        codec.encode(row),
        codec.encode(job),
        row.owner,
        row.task,
    )
