"""Fact logs looked at as a whole: what is a record, what is foreign, what is missing or damaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from skep.units import Instant
from skep.wire import subjects
from skep.wire.access import AccessFact
from skep.wire.profile import AdvisorFact
from skep_services.adapters.records import Chain
from skep_services.links import head_of
from skep_services.ports import CorruptLogError, Delivery
from skep_services.replaying import SERVICES

FOREIGN, DOUBTFUL = "foreign", "doubtful"
BEGINS_CHARACTERS = 120


class Odd(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is no record of the log that it is in.

    `kind` is FOREIGN, or DOUBTFUL where it could be a record of a damaged log. `removable`: a
    record stands before it. Without it the stream would begin later, as one that lost its beginning
    does. `begins` is the start of its payload.
    """

    sequence: int
    kind: str
    why: str
    at: Instant
    size: int
    begins: str
    removable: bool


class Examined(msgspec.Struct, kw_only=True):
    """What a fact log holds.

    `sequence` and `hash` are of the last record. `gaps` counts sequences that were taken out.
    `broken` says what is wrong with the records; empty if nothing is.
    """

    stream: str
    messages: int = 0
    records: int = 0
    epoch: int = 0
    sequence: int = 0
    hash: str = ""
    gaps: int = 0
    odd: list[Odd] = []
    broken: str = ""

    @property
    def well(self) -> bool:
        """Return whether there is nothing to do about it."""
        return not self.broken and not any(each.removable for each in self.odd)


def examine_all(streams: Mapping[str, Sequence[Delivery]], only: str = "") -> list[Examined]:
    """Return what the fact logs among `streams` hold; one of them if `only` names it."""
    logs: dict[str, object] = {each.stream: each.facts for each in SERVICES.values()}
    # Nothing is noted there to be decided again.
    logs |= {subjects.PROFILES: AdvisorFact, subjects.ACCESS: AccessFact}
    return [
        examine(stream, facts, streams.get(stream, ()))
        for stream, facts in logs.items()
        if only in ("", stream)
    ]


def examine(stream: str, facts: object, messages: Iterable[Delivery]) -> Examined:
    """Return what a fact log holds.

    Args:
        stream: Its name.
        facts: The union of its fact classes.
        messages: All messages of the stream, in order.
    """
    found = Examined(stream=stream)
    chain = Chain(f"fact log {stream}", facts)
    last = 0
    try:
        for message in messages:
            found.messages += 1
            found.gaps += message.sequence - last - 1 if last or message.sequence == 1 else 0
            if not last and message.sequence > 1:
                _begin_behind(chain, message)
            last = message.sequence
            record = chain.read_at(message.payload, message.sequence)
            if isinstance(record, str):
                found.odd.append(_odd(message, record, removable=found.records > 0))
            else:
                found.records, found.epoch = record.counter, record.epoch
    except CorruptLogError as error:
        found.broken = str(error)
    found.sequence, found.hash = chain.links.sequence, chain.hash
    doubtful = chain.links.doubtful_at
    found.odd = [
        msgspec.structs.replace(each, kind=DOUBTFUL) if each.sequence == doubtful else each
        for each in found.odd
    ]
    return found


def _begin_behind(chain: Chain, message: Delivery) -> None:
    """Have a log begin at a record that is not its first: the others were archived elsewhere."""
    head = head_of(message.payload)
    if head is not None and head.n > 1:
        chain.resume(head.n - 1, head.epoch, head.prev)
        chain.links.took(head.n - 1, head.prev, message.sequence - 1)


def _odd(message: Delivery, why: str, *, removable: bool) -> Odd:
    text = message.payload[:BEGINS_CHARACTERS].decode(errors="backslashreplace")
    begins = "".join(each if each.isprintable() else "?" for each in text)[:BEGINS_CHARACTERS]
    return Odd(
        sequence=message.sequence,
        kind=FOREIGN,
        why=why,
        at=message.at,
        size=len(message.payload),
        begins=begins,
        removable=removable,
    )
