"""From bytes to events and back: the one place that knows which subject carries what."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from skep.ids import is_token, job_id, job_sequence
from skep.units import Instant, seconds
from skep.wire import subjects
from skep.wire.access import AccessAsked, AccessFact, AskAccess
from skep.wire.admin import Admin, SetVcs, vcs_problems
from skep.wire.advice import Advice
from skep.wire.bounds import UNDECODABLE, LogDecoder, one_line
from skep.wire.commands import Command
from skep.wire.facts import AdmissionFact, AllocatorFact
from skep.wire.findings import Finding
from skep.wire.learned import Sight
from skep.wire.node import NodeEvent, NodeJoined, join_problem
from skep.wire.profile import AdvisorFact
from skep.wire.reports import Heartbeat, NodeReport
from skep.wire.search_facts import SearchFact, SearchRequest
from skep.wire.served import ReplicaLate, Served
from skep.wire.trials import Trials

RECORD_BYTES_MAX = 512 * 1024
AHEAD_MAX = seconds(24 * 3600.0)
"""How far a node's clock may be ahead of the bus's. A time beyond that is no time at all, and the
bus's own is taken in its place, as the event itself may be true."""

ENCODER = msgspec.json.Encoder()

_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "admin": msgspec.json.Decoder(Admin),
    "node": msgspec.json.Decoder(NodeEvent),
    "cmd": msgspec.json.Decoder(Command),
    "heartbeat": msgspec.json.Decoder(Heartbeat),
    "report": msgspec.json.Decoder(NodeReport),
    "finding": msgspec.json.Decoder(Finding),
    "advice": msgspec.json.Decoder(Advice),
    "trial": msgspec.json.Decoder(Trials),
    "sight": msgspec.json.Decoder(Sight),
    "served": msgspec.json.Decoder(Served),
    "late": msgspec.json.Decoder(ReplicaLate),
}
_ASK_ACCESS = msgspec.json.Decoder(AskAccess)


ServiceFact = AdmissionFact | AllocatorFact | SearchFact | AdvisorFact | AccessFact
"""A fact that other services may follow."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job spec was published. `raw` is whatever was sent."""

    job: str
    vc: str
    raw: bytes
    at: Instant
    key: str = ""
    reply: str = ""
    trace: str = ""
    owner: str = ""
    """The person that published it; empty: the VC as a whole."""


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A cancellation was published: JSON `{"job": "j17"}`. `person` is as `Submission.owner`."""

    vc: str
    raw: bytes
    at: Instant
    reply: str = ""
    person: str = ""


class AskRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a job was asked for; `number` is the request's place in SUBMIT.

    `person` is as `Submission.owner`.
    """

    vc: str
    raw: bytes
    at: Instant
    number: int
    reply: str = ""
    person: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Another service's record, as far as a follower cares: its facts, in order."""

    service: str
    at: Instant
    facts: tuple[ServiceFact, ...]


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A message that does not say what its subject promises. Nothing is decided on it."""

    subject: str
    text: str


BusEvent = (
    Submission
    | CancelRequest
    | AskRequest
    | SearchRequest
    | AccessAsked
    | Facts
    | Unreadable
    | Admin
    | NodeEvent
    | Command
    | Heartbeat
    | NodeReport
    | Finding
    | Advice
    | Trials
    | Sight
    | Served
    | ReplicaLate
)
"""Everything that `read` returns. It says Any: who subscribes to what is not known to types, and a
test holds each service's subscriptions against its machine's events instead."""


def encode(message: Any) -> bytes:
    """Return a message as JSON."""
    return ENCODER.encode(message)


def read(
    subject: str, payload: bytes, headers: Mapping[str, str], sequence: int, at: Instant
) -> Any:
    """Return the event that a delivered message is.

    Args:
        subject: Where it was published.
        payload: What was published.
        headers: Its headers: key, trace, and where the reply goes.
        sequence: Its sequence in the stream; 0 for a core message.
        at: When the stream took it; 0 for a core message.

    Returns:
        A `BusEvent`; `Unreadable` says why it is none.
    """
    if subject == subjects.ACCESS_ASKED:
        return _access(payload, headers)
    parsed = subjects.parse(subject)
    if parsed is None:
        return Unreadable(subject=subject, text="not one of our subjects")
    person = parsed.second
    if person and parsed.kind in subjects.ASKED_OF_VCS and not is_token(person):
        return Unreadable(subject=subject, text=f"{person!r} is no name of a person")
    match parsed.kind:
        case "submit":
            return _submission(parsed, payload, headers, sequence, at)
        case "cancel":
            return CancelRequest(
                vc=parsed.first,
                raw=payload,
                at=at,
                reply=headers.get(subjects.REPLY_HEADER, ""),
                person=person,
            )
        case "ask":
            return AskRequest(
                vc=parsed.first,
                raw=payload,
                at=at,
                number=sequence,
                reply=headers.get(subjects.REPLY_HEADER, ""),
                person=person,
            )
        case "search":
            return SearchRequest(
                vc=parsed.first,
                raw=payload,
                at=at,
                number=sequence,
                key=headers.get(subjects.KEY_HEADER, ""),
                reply=headers.get(subjects.REPLY_HEADER, ""),
                person=person,
            )
        case "fact":
            return _facts(parsed.first, subject, payload)
        case _:
            return _typed(parsed, subject, payload, at)


def _access(payload: bytes, headers: Mapping[str, str]) -> AccessAsked | Unreadable:
    try:
        ask = _ASK_ACCESS.decode(payload)
    except UNDECODABLE as error:
        return Unreadable(subject=subjects.ACCESS_ASKED, text=one_line(error))
    return AccessAsked(ask=ask, reply=headers.get(subjects.REPLY_HEADER, ""))


def _typed(parsed: subjects.Parsed, subject: str, payload: bytes, at: Instant) -> Any:
    decoder = _DECODERS.get(parsed.kind)
    if decoder is None:
        return Unreadable(subject=subject, text=f"nothing is read from `{parsed.kind}`")
    try:
        message = decoder.decode(payload)
    except UNDECODABLE as error:
        return Unreadable(subject=subject, text=one_line(error))
    speaker = message.gateway if isinstance(message, Served) else parsed.first
    if speaker != parsed.first:
        text = f"speaks for gateway {speaker!r} on the subject of {parsed.first!r}"
        return Unreadable(subject=subject, text=text)
    speaker = getattr(message, "node", parsed.first)
    if parsed.kind in {"node", "heartbeat", "report", "cmd"} and speaker != parsed.first:
        text = f"speaks of node {speaker!r} on the subject of {parsed.first!r}"
        return Unreadable(subject=subject, text=text)
    if isinstance(message, NodeJoined) and (wrong := join_problem(message)):
        return Unreadable(subject=subject, text=wrong)
    if parsed.kind == "node" and at and getattr(message, "at", at) > at + AHEAD_MAX:
        return msgspec.structs.replace(message, at=at)
    if isinstance(message, SetVcs):
        for problem in vcs_problems(message.vcs):
            # Taken as a whole or not at all: half a list of tenants is nobody's wish.
            text = f"{problem.path}: {problem.text} ({problem.reason})"
            return Unreadable(subject=subject, text=text)
    return message


def _submission(
    parsed: subjects.Parsed, payload: bytes, headers: Mapping[str, str], sequence: int, at: Instant
) -> Submission:
    vc, trace = parsed.first, headers.get(subjects.TRACE_HEADER, "")
    return Submission(
        job=job_id(sequence),
        vc=vc,
        raw=payload,
        at=at,
        key=headers.get(subjects.KEY_HEADER, ""),
        reply=headers.get(subjects.REPLY_HEADER, ""),
        trace=trace if is_trace(trace) else fresh_trace(vc, sequence, at),
        owner=parsed.second,
    )


class _AdmissionRecord(msgspec.Struct, frozen=True):
    at: Instant
    facts: tuple[AdmissionFact, ...]


class _AllocatorRecord(msgspec.Struct, frozen=True):
    at: Instant
    facts: tuple[AllocatorFact, ...]


class _SearchRecord(msgspec.Struct, frozen=True):
    at: Instant
    facts: tuple[SearchFact, ...]


class _AdvisorRecord(msgspec.Struct, frozen=True):
    at: Instant
    facts: tuple[AdvisorFact, ...]


class _AccessRecord(msgspec.Struct, frozen=True):
    at: Instant
    facts: tuple[AccessFact, ...]


_RECORDS: dict[str, LogDecoder[Any]] = {
    "admission": LogDecoder(_AdmissionRecord),
    "allocator": LogDecoder(_AllocatorRecord),
    "searches": LogDecoder(_SearchRecord),
    "advisor": LogDecoder(_AdvisorRecord),
    "access": LogDecoder(_AccessRecord),
}


def _facts(service: str, subject: str, payload: bytes) -> Facts | Unreadable:
    if service not in _RECORDS:
        return Unreadable(subject=subject, text=f"no service {service!r} writes facts")
    try:
        record = _RECORDS[service].decode(payload)
    except UNDECODABLE as error:
        return Unreadable(subject=subject, text=one_line(error))
    return Facts(service=service, at=record.at, facts=record.facts)


def is_trace(text: str) -> bool:
    """Return whether `text` is a W3C traceparent of version 00."""
    parts = text.split("-")
    if [len(part) for part in parts] != [2, 32, 16, 2] or parts[0] != "00":
        return False
    digits = "".join(parts[1:])
    valid = all(character in "0123456789abcdef" for character in digits)
    return valid and parts[1].strip("0") != "" and parts[2].strip("0") != ""


def is_fresh(submission: Submission) -> bool:
    """Return whether a submission came without a trace, so that its root span is only Skep's."""
    sequence = job_sequence(submission.job) or 0
    return submission.trace == fresh_trace(submission.vc, sequence, submission.at)


def fresh_trace(vc: str, sequence: int, at: Instant) -> str:
    """Return a sampled traceparent for a submission without one, derived from its position."""
    digest = hashlib.sha256(f"{vc}/{sequence}/{at}".encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"
