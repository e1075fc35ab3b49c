"""Everything that is not about one job: nodes, GPUs, tenants, health, metrics, the page."""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

import msgspec
from aiohttp import web

from skep.wire.admin import DrainNode, SetVcs, vcs_problems
from skep.wire.cluster import VirtualCluster
from skep.wire.parse import PROBLEMS_MAX
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep_services.gateway.api import ApiError, caller_of, json_response
from skep_services.gateway.health import Health
from skep_services.gateway.index import Indexer
from skep_services.gateway.metrics import Metrics
from skep_services.gateway.page import PAGE, PAGE_POLICY
from skep_services.gateway.submit import Submitter
from skep_services.gateway.views import gpus_view, nodes_view, vcs_view
from skep_services.ports import Clock

Body = TypeVar("Body", bound=msgspec.Struct)


class VcsBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/admin/vcs` takes: all virtual clusters, as they shall be."""

    vcs: dict[str, VirtualCluster]


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/admin/drain` takes."""

    node: str
    drain: bool = True


class Cluster:
    """The handlers."""

    def __init__(
        self,
        indexer: Indexer,
        submitter: Submitter,
        health: Health,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._indexer, self._submitter, self._health = indexer, submitter, health
        self._metrics, self._clock = metrics, clock

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/", self.page),
            web.get("/metrics", self.metrics),
            web.get("/v1/health", self.health),
            web.get("/v1/nodes", self.nodes, allow_head=False),
            web.get("/v1/gpus", self.gpus, allow_head=False),
            web.get("/v1/vcs", self.vcs, allow_head=False),
            web.post("/v1/admin/vcs", self.set_vcs),
            web.post("/v1/admin/drain", self.drain),
        ]

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Answer the page for people; it asks for a token and uses the API."""
        del request
        return web.Response(
            body=PAGE,
            content_type="text/html",
            charset="utf-8",
            headers={
                "Content-Security-Policy": PAGE_POLICY,
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
            },
        )

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Answer Prometheus."""
        del request
        body = self._metrics.text()
        return web.Response(
            body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def health(self, request: web.Request) -> web.StreamResponse:
        """Answer whether every process is well."""
        del request
        return json_response(await self._health.look())

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """Answer the nodes."""
        fold, live = self._indexer.fold, self._indexer.live
        vc = caller_of(request).vc
        return json_response({"nodes": nodes_view(fold, live, self._clock.now(), vc)})

    async def gpus(self, request: web.Request) -> web.StreamResponse:
        """Answer the GPUs."""
        fold, live = self._indexer.fold, self._indexer.live
        return json_response({"gpus": gpus_view(fold, live, caller_of(request).vc)})

    async def vcs(self, request: web.Request) -> web.StreamResponse:
        """Answer the virtual clusters."""
        return json_response({"vcs": vcs_view(self._indexer.fold, caller_of(request).vc)})

    async def set_vcs(self, request: web.Request) -> web.StreamResponse:
        """Publish the virtual clusters an operator wants."""
        body = await _operators(request, VcsBody)
        problems = tuple(islice(vcs_problems(body.vcs), PROBLEMS_MAX))
        if problems:
            raise ApiError(422, Reason.BAD_VALUE, problems[0].text, problems)
        done = await self._submitter.tell(caller_of(request), "vcs", SetVcs(vcs=body.vcs))
        return json_response(done.body, done.status)

    async def drain(self, request: web.Request) -> web.StreamResponse:
        """Publish that an operator wants a node drained, or open again."""
        body = await _operators(request, DrainBody)
        node = self._indexer.fold.nodes.get(body.node)
        if node is None or node.joined is None:
            raise ApiError(404, Reason.UNKNOWN_NODE, f"there is no node {body.node}")
        wish = DrainNode(node=body.node, drain=body.drain)
        done = await self._submitter.tell(caller_of(request), "drain", wish)
        return json_response(done.body, done.status)


async def _operators(request: web.Request, kind: type[Body]) -> Body:
    """Return the body of a request only operators may make. Raises ApiError."""
    caller = caller_of(request)
    if caller.vc:
        text = f"only an operator may do this; this token is for VC {caller.vc}"
        raise ApiError(403, "forbidden", text)
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.ValidationError as error:
        raise _bad(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, Reason.NOT_JSON, f"not JSON: {error}") from error


def _bad(text: str) -> ApiError:
    problem = Problem(path="$", reason=Reason.BAD_VALUE, text=text)
    return ApiError(422, Reason.BAD_VALUE, text, (problem,))
