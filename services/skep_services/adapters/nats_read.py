"""All of a stream as it is now, for those who look back."""

from __future__ import annotations

import asyncio

from skep_services.adapters.nats_api import StreamInfo, ask, missing
from skep_services.adapters.nats_bus import NatsBus
from skep_services.ports import Delivery

WITHIN_S = 120.0
"""A stream of gigabytes comes within a minute."""


async def read_stream(bus: NatsBus, stream: str) -> list[Delivery]:
    """Return every message of a stream; raises MissingStreamError, TimeoutError."""
    found: list[Delivery] = []
    info = await ask(bus.link, f"STREAM.INFO.{stream}", None, StreamInfo)
    if info.error is not None:
        raise missing(stream)
    last, done = info.state.last_seq, asyncio.Event()
    if not last:
        return found

    async def take(delivery: Delivery) -> None:
        if delivery.sequence <= last:
            found.append(delivery)
        if delivery.sequence >= last:
            done.set()

    subscription = await bus.follow(stream, 0, take)
    try:
        async with asyncio.timeout(WITHIN_S):
            await done.wait()
    finally:
        await subscription.close()
    return found
