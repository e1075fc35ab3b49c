"""The cluster file over HTTP: what is set now as text, and what is wrong with another text.

A text is read here as `skep vc check` reads a file. What it asks for is then sent as JSON to
`/v1/cells/plan` and `/v1/admin/vcs`, as the command does.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from skep.cells.clustertext import to_yaml
from skep.cells.levels import gpus_owned
from skep.wire import codec
from skep.wire.cluster import Cluster
from skep_services import cluster_files
from skep_services.gateway.api import json_response
from skep_services.gateway.cells import resolved
from skep_services.gateway.cluster import operators_only, read_as_operator
from skep_services.gateway.index import Indexer

TEXT_MAX = 256 * 1024
"""Characters of a text: as much as 10,000 nodes of all kinds of names take; a second to read."""
DIGITS = 16


class ClusterFileBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/cluster-file/check` takes."""

    text: Annotated[str, Meta(max_length=TEXT_MAX)]


class ClusterFiles:
    """The handlers."""

    def __init__(self, indexer: Indexer) -> None:
        self._indexer = indexer

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/cluster-file", self.show, allow_head=False),
            web.post("/v1/cluster-file/check", self.check),
        ]

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Answer the file that says what is set now.

        Raises:
            operators_only: An ApiError: the caller is no operator (403).
        """
        operators_only(request)
        asked = self._indexer.fold.state.asked
        text = await asyncio.to_thread(to_yaml, asked)
        return json_response({"text": text, "digest": digest(asked)})

    async def check(self, request: web.Request) -> web.StreamResponse:
        """Answer what is wrong with a file, or what it asks for.

        Raises:
            read_as_operator: An ApiError: the caller is no operator (403), or the body is wrong
                (400, 422).
        """
        body = await read_as_operator(request, ClusterFileBody)
        checked = await asyncio.to_thread(cluster_files.check, body.text)
        state, cluster = self._indexer.fold.state, checked.cluster
        joined = sum(len(node.joined.gpus) for node in state.nodes.values())
        told: dict[str, Any] = {
            "problems": checked.problems,
            "warnings": checked.warnings,
            "asked": None if cluster is None else msgspec.to_builtins(cluster),
            "owned": 0 if cluster is None else self._owned(cluster),
            "joined": joined,
            "digest": digest(state.asked),
            "asked_digest": "" if cluster is None else digest(cluster),
        }
        return json_response(told)

    def _owned(self, asked: Cluster) -> int:
        """Return the GPUs that virtual clusters would own: as asked for, whatever has joined."""
        after = resolved(self._indexer.fold, asked)
        return sum(max(vc.gpus, gpus_owned(after, name)) for name, vc in asked.vcs.items())


def digest(cluster: Cluster) -> str:
    """Return what tells one cluster from another: the begin of the SHA-256 of its message."""
    return hashlib.sha256(codec.encode(cluster)).hexdigest()[:DIGITS]
