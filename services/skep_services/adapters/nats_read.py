"""All of a stream as it is now, for those that look back; and taking single messages out of it."""

from __future__ import annotations

import asyncio

from skep_services.adapters.nats_api import Answer, ask, refused, stream_info
from skep_services.adapters.nats_bus import NatsBus
from skep_services.ports import Delivery

WITHIN_S = 120.0
"""A stream of gigabytes comes within a minute."""


async def read_stream(bus: NatsBus, stream: str) -> list[Delivery]:
    """Return every message of a stream.

    Raises:
        missing: A MissingStreamError: the server has no such stream.
        refused: A RefusedError: the server does not tell.
        TimeoutError: The messages did not come within WITHIN_S.
    """
    found: list[Delivery] = []
    info = await stream_info(bus.link, stream, deleted=True)
    last, done = info.state.last_there, asyncio.Event()
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


async def take_out(bus: NatsBus, stream: str, sequence: int) -> None:
    """Delete a message, and overwrite it on disk.

    Raises:
        refused: A RefusedError: this identity may not, or the stream denies it for ever.
    """
    asked = {"seq": sequence, "no_erase": False}
    answer = await ask(bus.link, f"STREAM.MSG.DELETE.{stream}", asked, Answer)
    if answer.error is not None:
        raise refused(answer.error, f"deleting {stream} {sequence}")
