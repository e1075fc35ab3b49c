"""One trace per job: which decision of which service becomes which span.

A submission brings a traceparent (or gets one derived from its position); every fact, command and
event of the job carries it, so each service adds its spans to the same trace without asking. The
span that the traceparent names is the client's own; where Skep made the traceparent, whoever made
it up (the gateway, or admission) also tells that one span, the root of all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from skep.machines.base import Call, Effect, Record, Send
from skep.units import Instant
from skep.wire.codec import Facts, Submission, Unreadable, is_fresh
from skep.wire.facts import JobEnded, JobQueued

QUIET = frozenset({"JobWaits", "EpochBegan", "RankUp", "RankDown", "FloorRaised"})
"""Facts that come too often, or say too little, to be spans."""
QUIET_OUTPUTS: tuple[list[str], ...] = ([], ["Heartbeat"], ["Heartbeat", "NodeReport"], ["Rates"])
"""Decisions that lead to nothing, or to a pulse: not worth a line each."""


class Tracer(Protocol):
    """Takes finished spans."""

    def span(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note one span of the trace that `trace` (a traceparent) names, below its span."""
        ...

    def root(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note the span that `trace` (a traceparent made here) itself names."""
        ...

    async def flush(self) -> None:
        """Send what has gathered, if anything."""
        ...


def spans(
    service: str, event: Any, effects: Sequence[Effect]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (name, traceparent, attributes) for what one decision did for single jobs."""
    for effect in effects:
        thing = _subject(effect)
        name = type(thing).__name__
        trace = trace_of(thing)
        if trace and name not in QUIET:
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


def trace_of(thing: Any) -> str:
    """Return the traceparent a fact, message or command carries, or an empty text."""
    for holder in (thing, getattr(thing, "command", None), getattr(thing, "message", None)):
        trace = getattr(holder, "trace", "")
        if trace:
            return str(trace)
    return ""


def _attributes(thing: Any) -> dict[str, Any]:
    inner = getattr(thing, "command", None) or getattr(thing, "message", None) or thing
    wanted = ("job", "attempt", "node", "why", "end", "outcome", "order")
    return {name: getattr(inner, name) for name in wanted if hasattr(inner, name)}


class Decisions:
    """The shell's observer: one log line and the spans of each decision."""

    def __init__(self, service: str, log: Any, tracer: Tracer) -> None:
        """Write to `log` (structlog's interface) and `tracer`."""
        self._service, self._log, self._tracer = service, log, tracer

    def decided(
        self, event: Any, effects: Sequence[Effect], began: Instant, ended: Instant
    ) -> None:
        """Log what came in and what went out, with job and trace where there is one of each."""
        if isinstance(event, Unreadable):
            self._log.warning("unreadable", subject=event.subject, text=event.text)
            return
        if not effects and self._service != "advisor":
            return  # Most of a busy service's input is not for it: this path must cost nothing.
        out = [type(_subject(effect)).__name__ for effect in effects]
        if out not in QUIET_OUTPUTS:
            job, trace = _whose(event, effects)
            self._log.info("decided", took=type(event).__name__, out=out, job=job,
                           trace=trace.split("-")[1] if trace else "")  # fmt: skip
        if isinstance(event, Submission) and is_fresh(event):
            about = {"job": event.job, "vc": event.vc}
            self._tracer.root("submit", event.trace, min(event.at, began), ended, about)
        for name, trace, attributes in spans(self._service, event, effects):
            self._tracer.span(name, trace, began, ended, attributes)

    async def flush(self) -> None:
        """Send the spans that have gathered."""
        await self._tracer.flush()


def _whose(event: Any, effects: Sequence[Effect]) -> tuple[str, str]:
    """Return job and traceparent of a decision: the event's, else the first effect's."""
    things = [event, *(getattr(event, "facts", ())), *(_subject(effect) for effect in effects)]
    for thing in things:
        inner = getattr(thing, "command", None) or getattr(thing, "message", None) or thing
        job = getattr(inner, "job", "")
        if job:
            return str(job), trace_of(thing)
    return "", ""
