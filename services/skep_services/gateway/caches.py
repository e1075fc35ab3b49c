"""`/v1/caches`: the environments that nodes keep, listed and removed.

A person sees those of jobs that it may see, and may remove those of jobs that it may change. What
attempts run in stays.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from aiohttp import web

from skep.access.rights import Action
from skep.ids import is_token
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.caches import KEY, AskCaches, KeptEnvironment, KeptHere
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, caller_of, check, json_response
from skep_services.gateway.callers import Caller
from skep_services.gateway.fold import Fold
from skep_services.ports import Bus

ASK_TIMEOUT_S = 3.0
REMOVE_TIMEOUT_S = 60.0
"""What a node may take to remove an environment of 100,000 files."""
AT_ONCE = 64
"""Nodes that are asked at once."""

_ANSWERS = msgspec.json.Decoder(KeptHere)


class Caches:
    """The handlers."""

    def __init__(self, bus: Bus, fold: Fold) -> None:
        self._bus, self._fold = bus, fold
        self._asked = asyncio.Semaphore(AT_ONCE)

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/caches", self.listing, allow_head=False),
            web.delete("/v1/caches/{node}/{key}", self.remove),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer which environments the nodes keep, as far as the caller may see their jobs."""
        caller = caller_of(request)
        nodes = [name for name, node in sorted(self._fold.state.nodes.items()) if not node.lost]
        found = await asyncio.gather(*(self._ask(node, AskCaches()) for node in nodes))
        shown = [_shown(node, kept, caller) for node, kept in zip(nodes, found, strict=True)]
        return json_response({"nodes": shown})

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """Have a node remove an environment.

        Raises:
            ApiError: There is none (404), it is another's (403), it is in use (409), or the node
                does not answer (503).
        """
        node, key = request.match_info["node"], request.match_info["key"]
        caller = caller_of(request)
        if not is_token(node) or re.match(KEY, key) is None:
            raise ApiError(400, Reason.BAD_VALUE, "an environment is named as NODE/KEY")
        kept = await self._ask(node, AskCaches())
        one = next((each for each in kept.environments if each.key == key), None) if kept else None
        if one is None or not _may_see(caller, one):
            text = f"{node} keeps no environment {key}" if kept else f"{node} does not answer"
            raise ApiError(404 if kept else 503, Reason.NO_ENVIRONMENT, text)
        check(Action.CHANGE, caller, one.vc, one.owner)
        done = await self._ask(node, AskCaches(remove=key), REMOVE_TIMEOUT_S)
        if done is None or done.refused:
            text = f"{node} does not answer" if done is None else f"it stays: {done.refused}"
            raise ApiError(503 if done is None else 409, Reason.ENVIRONMENT_IN_USE, text)
        return json_response({"node": node, "key": key, "bytes": one.bytes})

    async def _ask(
        self, node: str, ask: AskCaches, timeout_s: float = ASK_TIMEOUT_S
    ) -> KeptHere | None:
        async with self._asked:
            answer = await self._bus.request(
                subjects.caches(node), codec.encode(ask), {}, timeout_s
            )
        try:
            return _ANSWERS.decode(answer.payload) if answer is not None else None
        except UNDECODABLE:
            return None


def _may_see(caller: Caller, one: KeptEnvironment) -> bool:
    return caller.ruling(Action.SEE_JOBS, one.vc, one.owner).allowed


def _shown(node: str, kept: KeptHere | None, caller: Caller) -> dict[str, Any]:
    if kept is None:
        return {"node": node, "away": True, "bytes_max": 0, "environments": []}
    seen = [msgspec.to_builtins(one) for one in kept.environments if _may_see(caller, one)]
    return {"node": node, "away": False, "bytes_max": kept.bytes_max, "environments": seen}
