"""Puts a machine, its shell and the adapters together: the body of most services' mains."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from skep.machines.base import Machine
from skep.wire import subjects
from skep.wire.inputs import InputNotes
from skep_services.adapters.clock import SystemClock
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.otel import OtelTracer
from skep_services.adapters.peers import Peers, Standing
from skep_services.collection import short_pauses
from skep_services.links import ForeignSeen
from skep_services.ports import Bus, Calls, Deliver, FactLog, Keeper, RefusedError
from skep_services.service import Fatal, Settings, answer_health, say_ready, write_lines
from skep_services.shell import Follow, Shell
from skep_services.tracing import Decisions
from skep_services.undecided import Undecided

EventT = TypeVar("EventT")
FactT = TypeVar("FactT")

Answers = Callable[[Bus], Deliver]
"""Makes what answers questions on the bus."""
Beside = Callable[[NatsBus, Shell[Any, Any], Any], Awaitable[None]]
"""What a process does beside its shell, with its logger, until it is cancelled."""


class Log(msgspec.Struct, frozen=True):
    """Which stream a service's facts live in, and the union they belong to."""

    stream: str
    subject: str
    facts: Any
    kept: Any = None


async def connect(chosen: Settings, fatal: Fatal) -> NatsBus:
    """Return the bus under the service's identity.

    Args:
        chosen: The service's settings.
        fatal: Takes the reason why this process cannot go on.

    Raises:
        RefusedError: The server refuses the login.
        ConnectionError: No server answered in time.
    """
    servers = tuple(chosen.nats_url.split(","))
    options = LinkOptions(
        servers=servers,
        identity=chosen.identity,
        password=chosen.password,
        credentials=chosen.credentials,
        tls=chosen.tls,
    )
    return await NatsBus.connect(options, fatal)


def owner() -> str:
    """Return a name for this process that no other process ever has."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"


async def serve(
    chosen: Settings,
    log: Any,
    machine: Machine[EventT, FactT],
    *,
    follow: Sequence[Follow] = (),
    listen: Sequence[str] = (),
    keeps: Log | None = None,
    notes: bool = True,
    calls: Calls | None = None,
    answers: Answers | None = None,
    beside: Beside | None = None,
) -> None:
    """Connect, recover and serve until cancelled; raise what stops the service.

    Args:
        chosen: The service's settings.
        log: Its logger (structlog's).
        machine: What decides.
        follow: The streams that the machine reads.
        listen: The subjects of core messages that it hears.
        keeps: Where its facts are kept; None: it records none.
        notes: Whether what is decided on is noted there too.
        calls: Carries out the machine's calls; None: it makes none.
        answers: Makes the part that is asked what the machine would decide, once it is active.
        beside: What else the process does meanwhile; nothing of it may end the service.
    """
    fatal = Fatal()
    bus = await connect(chosen, fatal)
    facts, foreign = None, ForeignSeen(log.error)
    if keeps is not None:
        facts = NatsFactLog(
            bus,
            stream=keeps.stream,
            subject=keeps.subject,
            service=chosen.service,
            facts=keeps.facts,
            end=chosen.state / "log-end",
            kept=keeps.kept,
            foreign=foreign,
        )
    await drive(
        chosen,
        log,
        machine,
        bus,
        fatal,
        facts=facts,
        foreign=foreign,
        keeper=facts if keeps is not None and keeps.kept is not None else None,
        calls=calls,
        follow=follow,
        listen=listen,
        notes=InputNotes() if facts is not None and notes else None,
        answers=answers,
        beside=beside,
    )


async def drive(
    chosen: Settings,
    log: Any,
    machine: Machine[EventT, FactT],
    bus: NatsBus,
    fatal: Fatal,
    *,
    facts: FactLog | None,
    foreign: ForeignSeen | None = None,
    keeper: Keeper | None = None,
    calls: Calls | None = None,
    follow: Sequence[Follow] = (),
    listen: Sequence[str] = (),
    notes: InputNotes | None = None,
    prepare: Callable[[Shell[EventT, FactT]], Awaitable[None]] | None = None,
    answers: Answers | None = None,
    beside: Beside | None = None,
) -> None:
    """Run a machine's shell on these adapters until cancelled; then close them.

    Args:
        chosen: The service's settings.
        log: Its logger (structlog's).
        machine: What decides.
        bus: The connection, which is closed at the end.
        fatal: What it takes ends the service.
        facts: The fact log; None: the machine records nothing.
        foreign: Counts the foreign messages in fact streams; None: one is made.
        keeper: Keeps snapshots beside the fact log; None: none are kept.
        calls: Carries out the machine's calls; None: it makes none.
        follow: The streams that the machine reads.
        listen: The subjects of core messages that it hears.
        notes: What the machine decides on is noted there; None: it is not noted.
        prepare: Opens what puts further events into the shell.
        answers: Makes the part that is asked what the machine would decide, once it is active.
        beside: What else the process does meanwhile; nothing of it may end the service.
    """
    tracer = OtelTracer(chosen.service, chosen.identity, bus)
    peers = Peers(bus.link, chosen.identity, chosen.peers) if chosen.peers else None
    shell = Shell(
        machine,
        bus=bus,
        clock=SystemClock(),
        observer=Decisions(chosen.service, log, write_lines, tracer),
        owner=owner(),
        failures=Undecided(chosen.state / "undecided"),
        foreign=foreign or ForeignSeen(log.error),
        facts=facts,
        keeper=keeper,
        calls=calls,
        turn=peers,
        follow=follow,
        listen=listen,
        notes=notes,
    )
    await answer_health(bus, chosen, shell, subjects.health(chosen.identity))
    if prepare is not None:
        await prepare(shell)
    ready = asyncio.ensure_future(say_ready(shell, log))
    collecting = asyncio.ensure_future(_collect_little(shell))
    leading = asyncio.ensure_future(_lead(chosen, log, shell, bus, peers, fatal))
    answering = asyncio.ensure_future(_answer(chosen, log, shell, bus, answers, fatal))
    working = asyncio.ensure_future(beside(bus, shell, log)) if beside is not None else None
    try:
        await fatal.guard(shell.run())
    finally:
        ready.cancel()
        collecting.cancel()
        leading.cancel()
        answering.cancel()
        if working is not None:
            working.cancel()
        await bus.close()
        tracer.close()


async def _collect_little(shell: Shell[Any, Any]) -> None:
    """Keep the garbage collector's pauses short, once the state has been read, until cancelled."""
    await shell.ready.wait()
    with short_pauses():
        await asyncio.Event().wait()


async def _answer(
    chosen: Settings,
    log: Any,
    shell: Shell[Any, Any],
    bus: Bus,
    answers: Answers | None,
    fatal: Fatal,
) -> None:
    """Once it decides: answer what the machine would decide.

    For want of permission alone nothing stops: deciding is worth more than telling what if.
    """
    if answers is None:
        return
    await shell.active.wait()
    try:
        await bus.listen(subjects.draft(chosen.service), answers(bus))
    except RefusedError as error:
        log.error("what-if and plans are not answered", error=str(error))
    except Exception as error:
        fatal(error)


async def _lead(
    chosen: Settings,
    log: Any,
    shell: Shell[Any, Any],
    bus: NatsBus,
    peers: Peers | None,
    fatal: Fatal,
) -> None:
    """From the takeover on: speak for the service, and look out for a later takeover."""
    if peers is None:
        return
    log.info("standing by", peers=list(chosen.peers))
    await shell.active.wait()
    log.info("active", epoch=shell.epoch, facts=shell.facts_applied)
    if chosen.identity != chosen.service:
        await answer_health(bus, chosen, shell, subjects.health(chosen.service))
    try:
        fatal(await peers.superseded(Standing(shell.epoch, shell.active_since)))
    except (RefusedError, ConnectionError) as error:
        fatal(error)
