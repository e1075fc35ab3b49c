"""`/v1/policies`: what may order the jobs of a virtual cluster."""

from __future__ import annotations

from aiohttp import web

from skep.policy.registry import described
from skep_services.gateway.api import json_response


async def listing(_: web.Request) -> web.StreamResponse:
    """Answer every policy: what it does, the paper it is from, its options."""
    return json_response({"policies": described()})


def routes() -> list[web.RouteDef]:
    """Return where the handler belongs."""
    return [web.get("/v1/policies", listing, allow_head=False)]
