"""One trace per job: which decision of which service becomes which span.

A submission brings a traceparent (or gets one derived from its position); every fact, command and
event of the job carries it, so each service adds its spans to the same trace without asking. The
span that the traceparent names is the client's own; where Skep made the traceparent, the service
that made it (the gateway, or admission) also tells that one span, the root of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from skep.machines.base import Call, Effect, Record, Send
from skep.units import NS_PER_SECOND, Instant
from skep.wire.codec import Facts, Submission, Unreadable, is_fresh
from skep.wire.facts import CellsAlarm, JobEnded, JobQueued

QUIET = frozenset({"JobWaits", "EpochBegan", "RankUp", "RankDown", "FloorRaised"})
"""Facts that come too often, or say too little, to be spans."""
QUIET_OUTPUTS: tuple[list[str], ...] = ([], ["Heartbeat"], ["Heartbeat", "NodeReport"], ["Rates"])
"""Decisions that lead to nothing, or to a pulse: not worth a line each."""
ATTRIBUTES = ("job", "attempt", "node", "why", "end", "outcome", "order")
"""What a span says of the thing it is about, as far as the thing has it."""


class Tracer(Protocol):
    """Takes finished spans."""

    def span(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note one span of a trace, below the span that `trace` names.

        Args:
            trace: A traceparent.
            start_ns: When it began (wall-clock ns).
            end_ns: When it ended (wall-clock ns).
            attributes: What it is about.
        """
        ...

    def root(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note the span that `trace` itself names.

        Args:
            trace: A traceparent that was made here.
            start_ns: When it began (wall-clock ns).
            end_ns: When it ended (wall-clock ns).
            attributes: What it is about.
        """
        ...

    async def flush(self) -> None:
        """Send what has gathered, if anything."""
        ...


class Decided(msgspec.Struct, frozen=True, gc=False):
    """The log line of one decision; its fields are in the order every other line has them."""

    service: str
    took: str
    out: list[str]
    job: str
    trace: str
    timestamp: str
    event: str = "decided"
    level: str = "info"


WriteLines = Callable[[Sequence[Decided]], None]
"""Writes log lines, all of them at once."""


def spans(
    service: str, event: Any, effects: Sequence[Effect]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (name, traceparent, attributes) for what one decision did for single jobs."""
    for effect in effects:
        thing = _subject(effect)
        name = type(thing).__name__
        if name not in QUIET and (trace := trace_of(thing)):
            yield f"{service} {name}", trace, _attributes(thing)
    if service == "advisor" and isinstance(event, Facts):
        for fact in event.facts:
            if isinstance(fact, JobQueued | JobEnded) and fact.trace:
                verb = "Ranked" if isinstance(fact, JobQueued) else "Learned"
                yield f"{service} {verb}", fact.trace, _attributes(fact)


def _subject(effect: Effect) -> Any:
    match effect:
        case Record():
            return effect.fact
        case Send():
            return effect.message
        case Call():
            return effect.command


class _Shape(NamedTuple):
    """Which of the fields that matter here a class has, asked once per class.

    `inner` names the field with what a call is about, empty if the thing is no call.
    """

    trace: bool
    job: bool
    inner: str
    attributes: tuple[str, ...]


class _Shapes(dict[type, _Shape]):
    """The shapes of the classes seen so far: as many as there are kinds of messages."""

    def __missing__(self, kind: type) -> _Shape:
        fields = frozenset(getattr(kind, "__struct_fields__", ()))
        inner = next((name for name in ("command", "message") if name in fields), "")
        attributes = tuple(name for name in ATTRIBUTES if name in fields)
        shape = self[kind] = _Shape("trace" in fields, "job" in fields, inner, attributes)
        return shape


_SHAPES = _Shapes()


def _inner(thing: Any) -> Any:
    """Return what a call is about, or the thing itself."""
    name = _SHAPES[type(thing)].inner
    return getattr(thing, name) if name else thing


def trace_of(thing: Any) -> str:
    """Return the traceparent a fact, message or command carries, or an empty text."""
    if _SHAPES[type(thing)].trace and thing.trace:
        return str(thing.trace)
    inner = _inner(thing)
    return str(inner.trace) if _SHAPES[type(inner)].trace else ""


def _attributes(thing: Any) -> dict[str, Any]:
    inner = _inner(thing)
    return {name: getattr(inner, name) for name in _SHAPES[type(inner)].attributes}


class Decisions:
    """The shell's observer: one log line and the spans of each decision.

    Lines and spans gather until `flush`, so that a step of many decisions is written at once.
    """

    def __init__(self, service: str, log: Any, write: WriteLines, tracer: Tracer) -> None:
        """Give decisions to `write`, spans to `tracer`, and the rest to `log` (structlog's)."""
        self._service, self._log, self._write, self._tracer = service, log, write, tracer
        self._lines: list[Decided] = []
        self._told, self._told_text = Instant(0), ""

    def decided(
        self, event: Any, effects: Sequence[Effect], began: Instant, ended: Instant
    ) -> None:
        """Note what came in and what went out, with job and trace where there is one of each.

        Whatever a message says, it costs its own line at most: what was decided is durable.
        """
        try:
            self._note(event, effects, began, ended)
        except Exception as error:
            self._log.error("not logged", took=type(event).__name__, error=repr(error))

    def _note(self, event: Any, effects: Sequence[Effect], began: Instant, ended: Instant) -> None:
        if isinstance(event, Unreadable):
            self._log.warning("unreadable", subject=event.subject, text=event.text)
            return
        if not effects and self._service != "advisor":
            return  # Most of a busy service's input is not for it: this path must cost nothing.
        out = [type(_subject(effect)).__name__ for effect in effects]
        if out not in QUIET_OUTPUTS:
            job, trace = _whose(event, effects)
            trace_id = trace.split("-")[1] if trace else ""
            took, at = type(event).__name__, self._text_of(ended)
            self._lines.append(Decided(self._service, took, out, job, trace_id, at))
            if "CellsAlarm" in out:
                self._alarms(effects)
        if isinstance(event, Submission) and is_fresh(event):
            about = {"job": event.job, "vc": event.vc}
            self._tracer.root("submit", event.trace, min(event.at, began), ended, about)
        for name, trace, attributes in spans(self._service, event, effects):
            self._tracer.span(name, trace, began, ended, attributes)

    def _alarms(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            fact = _subject(effect)
            if isinstance(fact, CellsAlarm):
                tell = self._log.info if fact.over else self._log.error
                tell(
                    "cells alarm over" if fact.over else "cells alarm",
                    rule=fact.rule,
                    chain=fact.chain,
                    where=fact.where,
                    vcs=fact.vcs,
                    text=fact.text,
                    story=fact.story,
                )

    def report(self, what: str, **about: Any) -> None:
        """Tell an operator of something that should not have happened."""
        self._log.error(what, **about)

    async def flush(self) -> None:
        """Write the lines and send the spans that have gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._write(lines)
        await self._tracer.flush()

    def _text_of(self, at: Instant) -> str:
        """Return an instant as every log line has it; all decisions of a step share theirs."""
        if at != self._told:
            moment = datetime.fromtimestamp(at / NS_PER_SECOND, UTC)
            self._told, self._told_text = at, f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"
        return self._told_text


def _whose(event: Any, effects: Sequence[Effect]) -> tuple[str, str]:
    """Return job and traceparent of a decision: the event's, else the first effect's."""
    for thing in _things(event, effects):
        inner = _inner(thing)
        if _SHAPES[type(inner)].job and inner.job:
            return str(inner.job), trace_of(thing)
    return "", ""


def _things(event: Any, effects: Sequence[Effect]) -> Iterator[Any]:
    yield event
    if isinstance(event, Facts):
        yield from event.facts
    for effect in effects:
        yield _subject(effect)
