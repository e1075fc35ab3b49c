"""Keeps SUBMIT from filling up: takes out submissions whose decisions are stored.

    submissions ──> SUBMIT ──> admission, searches ──> their fact logs, with the position in SUBMIT

A submission is needed until the services that read it have stored what follows from it. After that
its spec is in admission's facts. Admission looks at the stream's size now and then. Above
COMPACT_ABOVE it takes out the older half of what both services have behind them. Sequences are
never used again, so job ids stay what they are. `skep replay` cannot decide again what was taken
out, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from skep.units import GIB
from skep.wire import subjects
from skep_services.adapters.nats_api import (
    MESSAGE_NOT_FOUND,
    Answer,
    StoredMessage,
    StreamInfo,
    ask,
)
from skep_services.adapters.nats_bus import NatsBus
from skep_services.ports import RefusedError
from skep_services.shell import Shell

COMPACT_ABOVE = GIB
"""Bytes of SUBMIT: a quarter of what it holds. The rest is for what comes until the next look, and
for submissions that wait while admission is away."""
LOOK_EVERY_S = 10.0
"""A tenant may store 2 MiB a second: a hundred tenants fill 2 GiB between two looks."""
ANSWER_WITHIN_S = 2.0


class _Stored(msgspec.Struct, frozen=True):
    """Of a service's health: how far what it read is stored, by stream."""

    stored: Mapping[str, int] = {}


async def keep_small(bus: NatsBus, shell: Shell[Any, Any], log: Any) -> None:
    """Take decided submissions out of SUBMIT whenever it has grown large, until cancelled."""
    await shell.active.wait()
    while True:
        try:
            taken = await compact(bus, shell.stored.get(subjects.SUBMIT, 0))
        except (RefusedError, ConnectionError, TimeoutError) as error:
            log.warning("SUBMIT was not compacted", error=str(error))
            taken = 0
        if taken:
            log.info("SUBMIT was compacted", up_to=taken)
        else:
            await asyncio.sleep(LOOK_EVERY_S)


async def compact(bus: NatsBus, decided: int, above: int = COMPACT_ABOVE) -> int:
    """Take out the older half of the decided submissions if SUBMIT is large.

    Args:
        bus: As admission.
        decided: The sequence up to which admission's decisions are stored.
        above: The bytes of SUBMIT up to which nothing is taken out.

    Returns:
        The sequence up to which messages were taken out; 0 if none were.
    """
    info = await ask(bus.link, f"STREAM.INFO.{subjects.SUBMIT}", None, StreamInfo)
    if info.error is not None or info.state.bytes <= above:
        return 0
    decided = min(decided, await _searched(bus))
    up_to = info.state.first_seq + (decided - info.state.first_seq) // 2
    if up_to <= info.state.first_seq:
        return 0
    # The server keeps the message at `seq`.
    answer = await ask(bus.link, f"STREAM.PURGE.{subjects.SUBMIT}", {"seq": up_to + 1}, Answer)
    return up_to if answer.error is None else 0


async def _searched(bus: NatsBus) -> int:
    """Return the sequence up to which no request about a search is waiting to be decided.

    The service of searches reads these messages only. If it has stored what follows from the last
    of them, it needs no message of SUBMIT.
    """
    body = {"last_by_subj": subjects.SEARCH_REQUESTS}
    last = await ask(bus.link, f"STREAM.MSG.GET.{subjects.SUBMIT}", body, StoredMessage)
    if last.message is None:
        none = last.error is not None and last.error.err_code == MESSAGE_NOT_FOUND
        return 2**63 - 1 if none else 0
    needed = last.message.seq
    answer = await bus.request(subjects.health("searches"), b"", {}, ANSWER_WITHIN_S)
    try:
        found = msgspec.json.decode(answer.payload if answer is not None else b"{}", type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
    stored = found.stored.get(subjects.SUBMIT, 0)
    return stored if stored < needed else 2**63 - 1
