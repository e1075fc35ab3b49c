"""Core messages for a listener that may be slow: bounded, the oldest make room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from skep.units import MIB
from skep_services.adapters.nats_client import Msg, RawSubscription
from skep_services.adapters.nats_link import Link
from skep_services.ports import Deliver, Delivery

LISTEN_MESSAGES_MAX = 16_384
"""What waits for a busy listener: eight seconds of one report per second from 2,000 nodes."""
LISTEN_BYTES_MAX = 32 * MIB
"""The same in bytes, for listeners of larger messages."""
END_TIMEOUT_S = 1.0
"""How long one cancellation may take before it is repeated."""


class Listen:
    """One running `Bus.listen`. `dropped` counts the messages that made room for later ones."""

    def __init__(
        self, link: Link, subject: str, deliver: Deliver, on_close: Callable[[Listen], None]
    ) -> None:
        self.subject = subject
        self.dropped = 0
        self._link = link
        self._deliver = deliver
        self._on_close = on_close
        self._waiting: deque[Msg] = deque()
        self._waiting_bytes = 0
        self._some = asyncio.Event()
        self._raw: RawSubscription | None = None
        self._pump: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe.

        Raises:
            RefusedError: This identity may not listen on the subject.
        """
        self._raw = await self._link.subscribe(self.subject, self._take)
        self._pump = asyncio.create_task(self._run(), name=f"listen {self.subject}")

    def _take(self, message: Msg) -> None:
        self._waiting.append(message)
        self._waiting_bytes += len(message.data)
        while len(self._waiting) > LISTEN_MESSAGES_MAX or self._waiting_bytes > LISTEN_BYTES_MAX:
            self._waiting_bytes -= len(self._waiting.popleft().data)
            self.dropped += 1
        self._some.set()

    async def _run(self) -> None:
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                while self._waiting:
                    message = self._waiting.popleft()
                    self._waiting_bytes -= len(message.data)
                    await self._deliver(delivery_of(message))
        except Exception as error:
            self._link.fatal(error)

    async def close(self) -> None:
        if self._raw is not None:
            await self._link.unsubscribe(self._raw)
        await end(self._pump)
        self._on_close(self)


def delivery_of(message: Msg) -> Delivery:
    """Return a core message as the ports name it."""
    return Delivery(
        subject=message.subject,
        payload=message.data,
        headers=message.headers or {},
        reply=message.reply,
    )


async def end(task: asyncio.Task[None] | None) -> None:
    """Cancel a pump and wait for its end, unless it is the one that asks."""
    if task is None or task is asyncio.current_task():
        return
    # The client library swallows a cancellation that meets it in a flush, so one may not do.
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=END_TIMEOUT_S)
