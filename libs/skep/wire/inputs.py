"""What a service decided on, noted in the records of its fact log, so that it can be decided again.

A machine's decision follows from its events and the time of each. Most events are kept in streams
anyway; what no stream has is when each was decided on, in which order those of several streams
came, and what came as a core message. So a record's `in` lists, in order, every event since the
record before it, as small as JSON allows. The first number is a time in ns: since 1970 for a
record's first event, since the event before it for the others.

    1000204311                      the timer
    [1000191022,1]                  the timer, and facts followed
    [512]                           a start, from the whole log
    [512,{"type":"recovered",…}]    a start from a snapshot and the log behind it
    [88211,2,41]                    message 41 of stream 2 (`NOTED_STREAMS`), and facts followed: of
                                    another service's record fact by fact, as far as this service
                                    wants them
    [88211,2,42,0]                  message 42, and none followed
    [88211,2,43,2]                  message 43, passed over: `decide` had raised on it
    [70512,{"type":"heartbeat"}]    a core message
    [70512,9,2000,15000000000,…]    advice, made 2000 ns before and in force for 15 s. Its jobs, in
                                    order: 17 is j17, as it was in the advice before, [17,1,8000] is
                                    j17 with other words: how it is ranked (`RANKED`), and its
                                    remaining ns or null; 0 in place of a list: the same jobs

    [70512,{"type":"too-long"}]     a core message that would take more than NOTE_BYTES_MAX

Core messages are noted if facts followed from them; advice always, as decisions go by it. A
heartbeat that led to nothing is not: it only says that its node was not silent, as does the absence
of a NodeLost.
"""

from __future__ import annotations

import msgspec

from skep.ids import job_id, job_sequence
from skep.units import Duration, Instant
from skep.wire import subjects
from skep.wire.advice import JobAdvice, Outlook, QueueAdvice
from skep.wire.bounds import LogDecoder
from skep.wire.findings import Measured
from skep.wire.learned import LearnedAdvice, SightWanted
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat
from skep.wire.served import ReplicaLate, Served
from skep.wire.trials import Judged

NOTED_STREAMS = (
    subjects.SUBMIT,
    subjects.ADMIN,
    subjects.NODE,
    subjects.ADMISSION,
    subjects.ALLOC,
    subjects.ACCESS,
)
"""Numbers of streams, for ever: new ones come behind."""


PASSED = 2
"""Behind a message's sequence: it was passed over. Versions that do not know it read it as 0."""

ADVICE = 9
"""Stands where the number of a stream would."""

RANKED = (Reason.ARRIVAL, Reason.PREDICTED_SHORTEST)
"""Why jobs are where they are in an advice: what it is that advisors say."""

NOTE_BYTES_MAX = 64 * 1024
"""What one event may take: three times the longest advice of ours. What is longer, somebody else
sent; it is not kept, and told as not known when the decisions are made again."""
TOO_LONG = b'{"type":"too-long"}'


class Recovered(Message, frozen=True, tag="recovered"):
    """The start was from the snapshot that stood for the log up to this record."""

    record: int


NotedMessage = (
    Heartbeat
    | QueueAdvice
    | Outlook
    | LearnedAdvice
    | SightWanted
    | Judged
    | Measured
    | Recovered
    | Served
    | ReplicaLate
)


class Input(msgspec.Struct, frozen=True):
    """One event that was decided on at `at`: the timer, unless one of the others is set."""

    at: Instant
    stream: str = ""
    sequence: int = 0
    message: (
        Heartbeat
        | QueueAdvice
        | Outlook
        | LearnedAdvice
        | SightWanted
        | Judged
        | Measured
        | Served
        | ReplicaLate
        | None
    ) = None
    unknown: str = ""
    """A core message that this program does not know."""
    restarted: bool = False
    snapshot: int = 0
    """The record that a start's snapshot stood for; 0: it was from the whole log."""
    led: bool = True
    """Facts followed, as far as is known."""
    passed: bool = False
    """It was not decided on: an earlier process had ended on it."""


class InputNotes:
    """Gathers what a process decides on until its next record."""

    def __init__(self) -> None:
        """Start with nothing noted."""
        self.size = 0
        """Bytes that `take` would return."""
        self._pieces: list[bytes] = []
        self._at = 0
        self._advised: dict[str, JobAdvice] = {}
        self.snapshot = 0
        """The record up to which this process began from a snapshot."""

    def tick(self, now: Instant, *, led: bool) -> None:
        """Note that the timer came.

        Args:
            now: When it was decided on.
            led: Whether facts followed.
        """
        self._add((b"[%d,1]" if led else b"%d") % self._since(now))

    def restarted(self, now: Instant) -> None:
        """Note a start."""
        if self.snapshot:
            told = _ENCODER.encode(Recovered(record=self.snapshot))
            self._add(b"[%d,%s]" % (self._since(now), told))
        else:
            self._add(b"[%d]" % self._since(now))

    def streamed(self, stream: str, sequence: int, now: Instant, *, led: bool) -> None:
        """Note a message of a stream.

        Args:
            stream: One of NOTED_STREAMS.
            sequence: The message's sequence there.
            now: When it was decided on.
            led: Whether facts followed.
        """
        numbers = self._since(now), NOTED_STREAMS.index(stream), sequence
        self._add((b"[%d,%d,%d]" if led else b"[%d,%d,%d,0]") % numbers)

    def passed(self, stream: str, sequence: int, now: Instant) -> None:
        """Note a message of a stream that was not decided on, because `decide` raises on it.

        Args:
            stream: One of NOTED_STREAMS.
            sequence: The message's sequence there.
            now: When it was passed over.
        """
        numbers = self._since(now), NOTED_STREAMS.index(stream), sequence, PASSED
        self._add(b"[%d,%d,%d,%d]" % numbers)

    def heard(self, message: Message, now: Instant) -> None:
        """Note a core message."""
        if isinstance(message, QueueAdvice) and _is_short(message):
            self._advice(message, now)
        else:
            self._message(_ENCODER.encode(message), now)

    def _message(self, told: bytes, now: Instant) -> None:
        kept = told if len(told) <= NOTE_BYTES_MAX else TOO_LONG
        self._add(b"[%d,%s]" % (self._since(now), kept))

    def _advice(self, advice: QueueAdvice, now: Instant) -> None:
        known = self._advised
        jobs: object = 0
        if tuple(known.values()) != advice.jobs:
            jobs = [
                job_sequence(each.job)
                if known.get(each.job) == each
                else (job_sequence(each.job), RANKED.index(each.why), each.remaining)
                for each in advice.jobs
            ]
        rest = _ENCODER.encode((ADVICE, now - advice.at, advice.expires_at - advice.at, jobs))
        if len(rest) > NOTE_BYTES_MAX:
            self._message(TOO_LONG, now)
            return
        self._advised = {each.job: each for each in advice.jobs}
        self._add(b"[%d,%s" % (self._since(now), rest[1:]))

    def take(self) -> bytes:
        """Return what was noted, as JSON, and begin anew; nothing if nothing was."""
        if not self._pieces:
            return b""
        taken = b"[" + b",".join(self._pieces) + b"]"
        self._pieces, self._at, self.size = [], 0, 0
        return taken

    def _since(self, now: Instant) -> int:
        since, self._at = now - self._at, now
        return since

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.size += len(piece) + 1


class NotesReader:
    """Reads the notes of one process, record by record."""

    def __init__(self) -> None:
        """Start without advice."""
        self._advised: dict[str, JobAdvice] = {}

    def read(self, noted: bytes) -> list[Input]:
        """Return the inputs noted in one record.

        Args:
            noted: What `take` returned, of one process and record after record: advice says what
                changed.

        Raises:
            msgspec.MsgspecError: The notes are not what `take` returns.
        """
        at, found = 0, []
        for each in _DECODER.decode(noted):
            if isinstance(each, int):
                at += each
                found.append(Input(Instant(at), led=False))
                continue
            at += _NUMBERS.decode(each[0])
            found.append(self._input(Instant(at), each[1:]))
        return found

    def start(self, noted: bytes) -> int:
        """Return the record whose snapshot a process began from.

        Args:
            noted: Its first notes.

        Returns:
            The number of the record; 0: it began from the whole log.
        """
        first = self.read(noted)[:1]
        return first[0].snapshot if first else 0

    def _input(self, at: Instant, parts: list[msgspec.Raw]) -> Input:
        if not parts:
            return Input(at, restarted=True)
        if len(parts) == ADVICE_PARTS:
            return Input(at, message=self._advice(at, parts))
        if len(parts) > 1:
            stream = NOTED_STREAMS[_NUMBERS.decode(parts[0])]
            passed = len(parts) > 2 and _NUMBERS.decode(parts[2]) == PASSED
            return Input(
                at,
                stream=stream,
                sequence=_NUMBERS.decode(parts[1]),
                led=len(parts) == 2,
                passed=passed,
            )
        if bytes(parts[0]) == b"1":
            return Input(at)
        try:
            message = _MESSAGES.decode(parts[0])
        except msgspec.ValidationError:
            return Input(at, unknown=bytes(parts[0]).decode())
        if isinstance(message, Recovered):
            return Input(at, restarted=True, snapshot=message.record)
        return Input(at, message=message)

    def _advice(self, at: Instant, parts: list[msgspec.Raw]) -> QueueAdvice:
        before, lasts = (_NUMBERS.decode(part) for part in parts[1:3])
        jobs = _JOBS.decode(parts[3])
        if isinstance(jobs, list):
            each = [
                self._advised[job_id(told)]
                if isinstance(told, int)
                else JobAdvice(job=job_id(told[0]), why=RANKED[told[1]], remaining=told[2])
                for told in jobs
            ]
            self._advised = {one.job: one for one in each}
        made = Instant(at - before)
        return QueueAdvice(
            at=made, expires_at=Instant(made + lasts), jobs=tuple(self._advised.values())
        )


def _is_short(advice: QueueAdvice) -> bool:
    """Return whether an advice is as our advisor's are: each job once, by its number."""
    jobs = advice.jobs
    return len({each.job for each in jobs}) == len(jobs) and all(
        each.why in RANKED and job_sequence(each.job) is not None for each in jobs
    )


ADVICE_PARTS = 4
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[int | list[msgspec.Raw]])
_NUMBERS = msgspec.json.Decoder(int)
_JOBS = msgspec.json.Decoder(int | list[int | tuple[int, int, Duration | None]])
_MESSAGES: LogDecoder[NotedMessage] = LogDecoder(NotedMessage)
