"""All of a stream as it is now, for those that look back; and taking single messages out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
    await read_each(bus, stream, 0, found.append)
    return found


async def read_each(
    bus: NatsBus, stream: str, after: int, take: Callable[[Delivery], None]
) -> None:
    """Show every message of a stream that is there now, behind a sequence.

    Args:
        bus: The connection.
        stream: The stream.
        after: The sequence behind which it begins.
        take: Is shown each message; what it raises is raised.

    Raises:
        missing: A MissingStreamError: the server has no such stream.
        refused: A RefusedError: the server does not tell.
        TimeoutError: The messages did not come within WITHIN_S.
    """
    info = await stream_info(bus.link, stream, deleted=True)
    last = info.state.last_there
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if last <= after:
        return

    async def show(delivery: Delivery) -> None:
        if done.done():
            return
        try:
            if delivery.sequence <= last:
                take(delivery)
        except Exception as error:  # Whatever it is: it is the caller's.
            done.set_exception(error)
            return
        if delivery.sequence >= last:
            done.set_result(None)

    subscription = await bus.follow(stream, after, show)
    try:
        async with asyncio.timeout(WITHIN_S):
            await done
    finally:
        await subscription.close()


async def take_out(bus: NatsBus, stream: str, sequence: int) -> None:
    """Delete a message, and overwrite it on disk.

    Raises:
        refused: A RefusedError: this identity may not, or the stream denies it for ever.
    """
    asked = {"seq": sequence, "no_erase": False}
    answer = await ask(bus.link, f"STREAM.MSG.DELETE.{stream}", asked, Answer)
    if answer.error is not None:
        raise refused(answer.error, f"deleting {stream} {sequence}")
