"""`/v1/volumes`: the volumes that an operator has named, as far as the caller may use them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from skep.wire.volumes import Volume, variable
from skep_services.gateway.api import json_response
from skep_services.gateway.callers import covers
from skep_services.gateway.index import Indexer
from skep_services.gateway.scopes import tenants


class Volumes:
    """The handler."""

    def __init__(self, indexer: Indexer) -> None:
        self._indexer = indexer

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/volumes", self.volumes, allow_head=False)]

    async def volumes(self, request: web.Request) -> web.StreamResponse:
        """Answer the volumes that the caller's virtual clusters may use, or those of `vc` alone.

        Raises:
            tenants: An ApiError: `vc` is no name (400), or another tenant's (403).
        """
        only = tenants(request)
        asked = self._indexer.fold.state.asked
        vcs = [vc for vc in asked.vcs if covers(only, vc)]
        found = [(name, one, _modes(one, vcs)) for name, one in asked.volumes.items()]
        # An operator sees those too that no virtual cluster may use.
        rows = [_row(name, one, modes) for name, one, modes in found if modes or only == ""]
        return json_response({"volumes": rows})


def _modes(one: Volume, vcs: list[str]) -> dict[str, str]:
    """Return in which mode each of these virtual clusters may use a volume."""
    return {vc: mode for vc in vcs if (mode := one.mode_for(vc))}


def _row(name: str, one: Volume, vcs: dict[str, str]) -> dict[str, Any]:
    return {
        "volume": name,
        "path": one.path,
        "variable": variable(name),
        "vcs": vcs,
        "is": one.nfs or one.s3 or "",
        "by": "nfs" if one.nfs else one.mount,
        "mounted": one.mounted,
    }
