"""Which messages of a fact stream are records of its owner, and which are foreign.

Each record names its number and the SHA-256 of the record before it. A message that does not
continue this chain cannot be its owner's. The owner continues from what it knows to be stored, so
whatever stands between two records that follow each other is foreign:

    record 6    foreign    foreign    record 7 (names the hash of record 6)

What stands behind the last record is foreign too, unless it could be a record whose predecessor was
changed or lost. Such a message is doubtful until the chain goes on behind it. Two messages that
continue each other, and not the chain, are the sign of a damaged log: then reading ends. A follower
passes over two of them, and ends at a third (`RIVALS_MAX`).

The hash has no key. One that can read the log and write into its stream can forge a record; the
bus has to keep all but the owner from writing (ADR 0160).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from skep_services.ports import CorruptLogError

NO_RECORD = "0" * 64
"""What the first record names as its predecessor's hash."""
LATER_MAX = 100
"""Messages behind one record that are remembered, to see whether they continue each other."""
REPORTED_MAX = 100
"""Foreign messages that a process reports one by one; of the later ones each hundredth."""
RIVALS_MAX = 2
"""Messages that continue each other, and not the chain, which a follower passes over. Two may be
forged. It loses nothing by it: its position is that of the last record, and in a damaged log the
owner's next record is a third."""


class Head(msgspec.Struct, frozen=True):
    """What every record has: its number, the hash of the one before it, and its epoch."""

    n: int
    prev: str
    epoch: int
    facts: msgspec.Raw


_HEADS = msgspec.json.Decoder(Head)


def head_of(payload: bytes) -> Head | None:
    """Return a record's head, or None if a message has none."""
    try:
        return _HEADS.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def digest_of(payload: bytes) -> str:
    """Return what the next record names as the hash of this one."""
    return hashlib.sha256(payload).hexdigest()


class Links:
    """Where a reader stands in the chain of a fact stream."""

    def __init__(self, name: str, rivals: int = 1) -> None:
        """Stand before the first record.

        Args:
            name: How errors call the log.
            rivals: How many messages that continue each other, and not the chain, count as foreign.
                One more is the sign of a damaged log.
        """
        self.name = name
        self._rivals = rivals
        self.counter, self.digest, self.sequence = 0, NO_RECORD, 0
        """Of the last record: its number, hash and place in the stream."""
        self._later: dict[str, tuple[int, int, int]] = {}
        """Messages behind it that say they are later records, by hash: number, place, and how many
        continue each other up to this one."""
        self._doubtful: tuple[int, int] | None = None
        """The last one of them that could be, in a damaged log."""

    def took(self, counter: int, digest: str, sequence: int) -> None:
        """Stand behind this record."""
        self.counter, self.digest, self.sequence = counter, digest, sequence
        self._later.clear()
        self._doubtful = None

    def foreign(self, payload: bytes, sequence: int) -> str:
        """Return why a message is not the owner's next record, or "" if it is to be read as that.

        Args:
            payload: The message. Each one behind the last record is given once, in order.
            sequence: Its place in the stream.

        Raises:
            CorruptLogError: More messages than the `rivals` continue each other and not this chain.
        """
        head = head_of(payload)
        if head is not None and head.n == self.counter + 1 and head.prev == self.digest:
            return ""
        if head is None:
            return "it is no record"
        before = self._later.get(head.prev)
        continues = before is not None and before[0] == head.n - 1
        rivals = before[2] + 1 if before is not None and continues else 1
        if before is not None and rivals > self._rivals:
            text = (
                f"{self.name}: records {before[0]} and {head.n} at sequences {before[1]} and "
                f"{sequence} continue each other, but not record {self.counter} at "
                f"{self.sequence}: counter or hash chain is broken. The log was damaged or is "
                f"another one; `skep log check` shows it. Restore it from a backup."
            )
            raise CorruptLogError(text)
        if head.n <= self.counter:
            return f"it says that it is record {head.n}, which is already there"
        if len(self._later) < LATER_MAX:
            self._later[digest_of(payload)] = head.n, sequence, rivals
        if head.n - self.counter > sequence - self.sequence:
            return f"it says that it is record {head.n}, with no room for those before it"
        self._doubtful = head.n, sequence
        return f"it says that it is record {head.n} and does not continue record {self.counter}"

    @property
    def doubtful_at(self) -> int:
        """Return where the doubtful message behind the last record is; 0 if there is none."""
        return self._doubtful[1] if self._doubtful is not None else 0

    def doubt(self) -> str:
        """Return what is doubtful at the end of the log, in words; empty if nothing is."""
        if self._doubtful is None:
            return ""
        number, sequence = self._doubtful
        return (
            f"sequence {sequence}: it says that it is record {number} and does not continue the "
            f"hash chain of record {self.counter}, and nothing follows that does. It is foreign, "
            f"or the log was damaged: `skep log check` shows it"
        )


Foreign = Callable[[str, int, str], None]
"""Takes note of a foreign message: its stream, sequence, and why it is no record."""


class ForeignSeen:
    """Counts the foreign messages that a process met, and reports them."""

    def __init__(self, report: Callable[..., None]) -> None:
        """Report to `report`, which takes a sentence and what it is about."""
        self.count = 0
        self.latest = ""
        """The latest one: where it is, and why it is no record."""
        self._report = report

    def __call__(self, stream: str, sequence: int, why: str) -> None:
        """Take note of a foreign message."""
        self.count += 1
        self.latest = f"{stream} {sequence}: {why}"
        if self.count <= REPORTED_MAX or self.count % REPORTED_MAX == 0:
            self._report(
                "a foreign message in a fact stream was passed over",
                stream=stream,
                sequence=sequence,
                why=why,
                count=self.count,
            )


class Followed:
    """The records of a stream that another service writes, as a follower reads them."""

    def __init__(self, stream: str, position: int, foreign: Foreign) -> None:
        """Follow behind `position`: reading begins at `begin`.

        The message at the position is read once more: it is the record that was taken last, so the
        chain is known from there.

        Args:
            position: The place of the record that was taken last; 0: none was.
            foreign: Takes note of foreign messages.
        """
        self.position = position
        self.begin = max(0, position - 1)
        self._tell = foreign
        self._links = Links(f"stream {stream}", RIVALS_MAX)
        self._knows = position == 0
        self._stream = stream

    def takes(self, payload: bytes, sequence: int) -> bool:
        """Return whether a message is a record to be followed.

        False for what comes again before the position, and for foreign messages.

        Raises:
            CorruptLogError: The stream is damaged (`Links.foreign`).
        """
        why = self._foreign(payload, sequence)
        if why:
            self._tell(self._stream, sequence, why)
        return not why and sequence > self.position

    def _foreign(self, payload: bytes, sequence: int) -> str:
        if self._knows:
            why = self._links.foreign(payload, sequence)
            if not why:
                self._links.took(self._links.counter + 1, digest_of(payload), sequence)
            return why
        head = head_of(payload)
        if head is None:
            return "it is no record"
        # If the one at the position is no record, something behind it has to be believed.
        self._links.took(head.n, digest_of(payload), sequence)
        self._knows = True
        return ""
