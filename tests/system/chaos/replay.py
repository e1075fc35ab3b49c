"""Says again, later and in another order, what was said on the bus: with the speakers' own rights.

A bus delivers some messages twice and late. Commands, heartbeats, reports and node events are
captured from the beginning, so that what comes again may be as old as the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

from nats.aio.msg import Msg

from tests.system.chaos.links import Links, fresh_key

KEPT_MAX = 4000
BURST = 20
SPEAKERS = {"cmd": "allocator"} | dict.fromkeys(("heartbeat", "report", "node"), "node-")
"""Who says the messages of each kind; a node's are its own. Where a service has a standby it is the
first of the two: they have the same rights."""


class Replayer:
    """Captures from `start` on; `run` replays for a while."""

    def __init__(self, links: Links) -> None:
        """Capture nothing yet."""
        self.links = links
        self.said = 0
        self._kept: deque[tuple[str, bytes, dict[str, str]]] = deque(maxlen=KEPT_MAX)
        links.listen("operator", "skep.v1.>", self._hear)

    async def start(self) -> None:
        """Begin to capture."""
        await self.links.client("operator")

    async def _hear(self, message: Msg) -> None:
        if message.subject.split(".")[2] in SPEAKERS:
            self._kept.append((message.subject, message.data, dict(message.headers or {})))

    async def run(self, rng: random.Random, seconds: float) -> int:
        """Replay messages for some seconds; return how many."""
        until, said = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            recent = list(self._kept)[-BURST * 4 :] if rng.random() < 0.7 else list(self._kept)
            for subject, payload, headers in rng.sample(recent, min(BURST, len(recent))):
                _, _, kind, node, *_ = subject.split(".")
                user = SPEAKERS[kind] + (node if SPEAKERS[kind] == "node-" else "")
                user = user if user in self.links.users() else f"{user}-1"
                # With a key of its own the stream keeps it twice.
                again = headers | ({"Nats-Msg-Id": fresh_key()} if kind == "node" else {})
                said += await self.links.say(user, subject, payload, again)
            await asyncio.sleep(rng.uniform(0.02, 0.3))
        self.said += said
        return said
