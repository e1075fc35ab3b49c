"""Whose message goes next: every tenant's in turn, no more at a time than the bus takes at once.

A bus server reads what comes as fast as it comes, and one stream stores it one by one. A sender
that is faster than the stream fills the queue in between, and all others wait behind it. So
the queue is kept short: a round lets through some messages, one of each tenant in turn, and no
round begins before the one before the last was stored. How many is found out: fewer if the last
round took longer than ROUND_S, more if not. A tenant that had nothing to send is first in the next
round; one that sends without end waits in its own connection, which is not read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from skep.units import KIB, MIB

ROUND_S = 0.01
"""What a round should take: a synced stream stores some 40 messages in this time."""
ROUND_MESSAGES_MAX = 128
ROUND_MESSAGES_FIRST = 8
"""Of the first round and of the smallest one. An answer is also late on a busy machine or while
servers elect a leader: one message at a time would then let what clients repeat pile up."""
ROUND_BYTES = 256 * KIB
"""Of one round, in messages of any size: two of the largest submissions."""
ROUNDS_MAX = 2
"""Under way at the same time, so that the stream has work while the next round is put together."""
BYTES_PER_S = 2 * MIB
"""Of one tenant, lasting: a thousand submissions of 2 KiB a second."""
BYTES_BURST = 64 * MIB
"""What a tenant may send at once after a quiet time: 16,000 submissions of 4 KiB."""

assert ROUND_BYTES <= BYTES_BURST


class Source(Protocol):
    """A connection of a tenant with messages that wait."""

    tenant: str

    def size(self) -> int:
        """Return the bytes of the message that is next, 0 if none waits."""
        ...

    def send(self) -> None:
        """Let the next message through."""
        ...


class _Tenant:
    """The connections of one tenant that have messages, and what it may still send at once."""

    def __init__(self, now: float) -> None:
        self.sources: deque[Source] = deque()
        self.bytes_left = float(BYTES_BURST)
        self.at = now

    def refill(self, now: float) -> None:
        self.bytes_left = min(float(BYTES_BURST), self.bytes_left + (now - self.at) * BYTES_PER_S)
        self.at = now


class Turns:
    """Decides which message is next. `wait` is called when a source has messages and had none.

    `now` returns seconds that never go back; `stored` returns once the bus has stored everything
    that was let through before.
    """

    def __init__(self, now: Callable[[], float], stored: Callable[[], Awaitable[None]]) -> None:
        self._now, self._stored = now, stored
        self._tenants: dict[str, _Tenant] = {}
        self._waiting: deque[str] = deque()
        """Tenants with messages, each once, in the order in which they have their turns."""
        self._new: deque[str] = deque()
        """Those of them that had none before: they are first, once."""
        self.messages = ROUND_MESSAGES_FIRST
        """How many the next round lets through at most."""
        self._some = asyncio.Event()

    def wait(self, source: Source) -> None:
        """Take a source in that has messages; it stays until it has none."""
        tenant = self._tenants.setdefault(source.tenant, _Tenant(self._now()))
        if not tenant.sources:
            self._new.append(source.tenant)
        tenant.sources.append(source)
        self._some.set()

    async def run(self) -> None:
        """Let messages through, for ever."""
        under_way: deque[asyncio.Future[None]] = deque()
        while True:
            if not self._waiting and not self._new:
                self._some.clear()
                await self._some.wait()
            sent = self.round()
            if not sent:
                # All that wait have sent more than they may: the first of them soon may again.
                await asyncio.sleep(ROUND_BYTES / BYTES_PER_S / 8)
                continue
            under_way.append(asyncio.ensure_future(self._until_stored(sent)))
            if len(under_way) >= ROUNDS_MAX:
                await under_way.popleft()

    async def _until_stored(self, sent: int) -> None:
        began = self._now()
        await self._stored()
        if self._now() - began > ROUND_S:
            self.messages = max(ROUND_MESSAGES_FIRST, self.messages // 2)
        elif sent >= self.messages:
            # A round that was not full does not tell what a full one would take.
            self.messages = min(self.messages + 1, ROUND_MESSAGES_MAX)

    def round(self) -> int:
        """Let one round through; return how many messages."""
        now, sent, size = self._now(), 0, 0
        passed_over = 0
        while self._new or passed_over < len(self._waiting):
            if (sent >= self.messages and not self._new) or size >= ROUND_BYTES:
                break
            name = self._new.popleft() if self._new else self._waiting.popleft()
            tenant = self._tenants[name]
            tenant.refill(now)
            if tenant.bytes_left < 0:
                self._waiting.append(name)
                passed_over += 1
                continue
            passed_over = 0
            count = self._send_one(tenant)
            sent, size = sent + (count > 0), size + count
            tenant.bytes_left -= count
            if tenant.sources:
                self._waiting.append(name)
        return sent

    def _send_one(self, tenant: _Tenant) -> int:
        """Send one message of the tenant's next connection; return its bytes, 0 for none."""
        source = tenant.sources.popleft()
        size = source.size()
        if size:
            source.send()
        if source.size():
            tenant.sources.append(source)
        return size
