"""Whether the cluster is well: every process asked at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

import skep
from skep.units import Instant, seconds
from skep.wire import subjects
from skep.wire.bounds import UNDECODABLE
from skep_services.gateway.index import Indexer
from skep_services.gateway.views import Removed, in_use, node_state
from skep_services.ports import Bus, Clock

SERVICES = ("admission", "allocator", "introspector", "advisor", "searches", "gateway")
TIMEOUT_S = 1.0
"""Two hundred times what an answer takes; a process that is silent longer cannot serve either."""
FRESH_FOR = seconds(1.0)
"""Every caller may ask, without a token: the processes are asked once a second at most."""

_ANSWERS = msgspec.json.Decoder(dict[str, Any])


class Health:
    """Asks, and remembers the answer for a moment."""

    def __init__(
        self, bus: Bus, indexer: Indexer, clock: Clock, removed: Removed, more: Sequence[str] = ()
    ) -> None:
        """Take the ports, and the services that run `more` than in every cluster."""
        self._bus, self._indexer, self._clock, self._removed = bus, indexer, clock, removed
        self._services = (*SERVICES, *more)
        self._asked_at: Instant | None = None
        self._answer: dict[str, Any] = {}
        self._asking = asyncio.Lock()

    async def look(self) -> dict[str, Any]:
        """Return `{"ok", "services": {identity: {"ok", ...}}, "version"}`.

        A node that is lost or drained is listed and does not count: the cluster works without it.
        """
        async with self._asking:
            now = self._clock.now()
            if self._asked_at is None or now - self._asked_at >= FRESH_FOR:
                self._answer = await self._look()
                self._asked_at = self._clock.now()
            return self._answer

    async def silent(self) -> list[str]:
        """Return the services, without those of nodes, that do not answer."""
        answers = await asyncio.gather(*(self._ask(name) for name in self._services))
        return [
            name for name, answer in zip(self._services, answers, strict=True) if not answer["ok"]
        ]

    async def _look(self) -> dict[str, Any]:
        now = self._clock.now()
        nodes = {
            f"node-{node.joined.node}": node_state(node, self._indexer.live, now)
            for node in in_use(self._indexer.fold, self._removed)
        }
        identities = [*self._services, *nodes]
        answers = await asyncio.gather(*(self._ask(identity) for identity in identities))
        services = dict(zip(identities, answers, strict=True))
        away = {identity for identity, state in nodes.items() if state in {"lost", "drained"}}
        for identity in away:
            services[identity] = {**services[identity], "away": True}
        ok = all(answer["ok"] for name, answer in services.items() if name not in away)
        return {"ok": ok, "services": services, "version": skep.__version__}

    async def _ask(self, identity: str) -> dict[str, Any]:
        answer = await self._bus.request(subjects.health(identity), b"", {}, TIMEOUT_S)
        if answer is None:
            return {"ok": False, "text": f"no answer within {TIMEOUT_S:.0f} s"}
        try:
            return {"ok": True, **_ANSWERS.decode(answer.payload)}
        except UNDECODABLE as error:
            return {"ok": False, "text": f"its answer is not readable: {error}"}
