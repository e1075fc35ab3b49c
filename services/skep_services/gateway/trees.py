"""The tree of cells as `/v1/cells` answers it: made once for all that ask at about the same time.

That of 1,000 nodes takes some tenths of a second, and has a megabyte. Pages ask for it whenever it
may have changed, which in a busy cluster is always.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from skep.wire import codec
from skep_services.gateway.callers import Only

LARGE_S = 0.02
"""A tree that took less is made for every request, of what is known by then."""
TIMES = 10
"""A larger one is answered for so many times as long as it took: it takes a tenth of a core."""
LEVEL = 3
KEPT_MAX = 16
"""Trees at hand, one for each class of callers and chain."""

Key = tuple[Only, str]


class Answer(NamedTuple):
    """A tree as JSON, and compressed by gzip."""

    raw: bytes
    packed: bytes
    until: float


class Trees:
    """Answers at hand, and those that are being made."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: dict[Key, Answer] = {}
        self._making: dict[Key, asyncio.Task[Answer]] = {}

    async def answer(self, key: Key, make: Callable[[], Callable[[], Any]]) -> Answer:
        """Return an answer.

        Args:
            key: What decides what is in it.
            make: Takes what it is made of, and returns what makes it, in a thread.
        """
        known = self._kept.get(key)
        if known is not None and time.monotonic() < known.until:
            return known
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.create_task(self._made(key, make()))
            making.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(making)

    async def _made(self, key: Key, make: Callable[[], Any]) -> Answer:
        answer = await asyncio.to_thread(_encoded, make)
        self._kept.pop(key, None)
        self._kept[key] = answer
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return answer


def _encoded(make: Callable[[], Any]) -> Answer:
    began = time.monotonic()
    raw = codec.encode(make())
    packed = gzip.compress(raw, LEVEL, mtime=0)
    done = time.monotonic()
    took_s = done - began
    return Answer(raw, packed, done + TIMES * took_s if took_s > LARGE_S else 0.0)
