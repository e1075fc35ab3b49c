"""Everything that is not about one job: nodes, GPUs, tenants, health, metrics, the page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from skep.cells.snapshot import take_snapshot
from skep.cells.state import Cells
from skep.policy.check import cluster_problems
from skep.policy.windows import problem
from skep.wire import codec
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.bounds import UNDECODABLE
from skep.wire.cluster import QUARANTINE, Chain, Pin, QuarantineRule, VirtualCluster
from skep.wire.following import StageSet
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep.wire.volumes import Volume
from skep.wire.windows import CancelWindow, ReserveNodes, Window
from skep_services.gateway.api import ApiError, caller_of, json_response, raw_response, takes_gzip
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.cells import (
    alarms_view,
    cells_view,
    fates,
    plan_view,
    resolved,
    usage_view,
    vcs_view,
)
from skep_services.gateway.following import following_view
from skep_services.gateway.frozen import frozen
from skep_services.gateway.health import Health
from skep_services.gateway.index import Indexer
from skep_services.gateway.metrics import Metrics
from skep_services.gateway.picture import picture
from skep_services.gateway.shares import fair_view, windows_view
from skep_services.gateway.submit import Submitter
from skep_services.gateway.trees import Trees
from skep_services.gateway.views import Removed, gpus_view, nodes_view
from skep_services.ports import Clock

Body = TypeVar("Body", bound=msgspec.Struct)


class VcsBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/admin/vcs` and `/v1/cells/plan` take: the whole, as it shall be.

    Without `chains` the nodes that join make them up.
    """

    vcs: dict[str, VirtualCluster]
    chains: dict[str, Chain] = {}
    pins: dict[str, Pin] = {}
    quarantine: QuarantineRule = QUARANTINE
    volumes: dict[str, Volume] = {}


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/admin/drain` takes."""

    node: str
    drain: bool = True


class QuarantineBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/admin/quarantine` takes."""

    node: str
    device: int
    quarantine: bool = True


class ReserveBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/admin/reserve` takes."""

    window: Window


class UnreserveBody(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/admin/unreserve` takes."""

    name: str


class Cluster:
    """The handlers."""

    def __init__(
        self,
        indexer: Indexer,
        submitter: Submitter,
        health: Health,
        metrics: Metrics,
        clock: Clock,
        stages: Mapping[tuple[str, str], StageSet],
        *,
        removed: Removed,
    ) -> None:
        self._indexer, self._submitter, self._health = indexer, submitter, health
        self._metrics, self._clock, self._stages = metrics, clock, stages
        self._removed = removed
        self._trees = Trees()

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/metrics", self.metrics),
            web.get("/v1/health", self.health),
            web.get("/v1/nodes", self.nodes, allow_head=False),
            web.get("/v1/gpus", self.gpus, allow_head=False),
            web.get("/v1/vcs", self.vcs, allow_head=False),
            web.get("/v1/vcs/{vc}/usage", self.usage, allow_head=False),
            web.get("/v1/usage", self.usages, allow_head=False),
            web.get("/v1/cells", self.cells, allow_head=False),
            web.get("/v1/cells.svg", self.picture, allow_head=False),
            web.post("/v1/cells/plan", self.plan),
            web.post("/v1/admin/vcs", self.set_vcs),
            web.post("/v1/admin/drain", self.drain),
            web.post("/v1/admin/quarantine", self.quarantine),
            web.get("/v1/fair", self.fair, allow_head=False),
            web.get("/v1/windows", self.windows, allow_head=False),
            web.post("/v1/admin/reserve", self.reserve),
            web.post("/v1/admin/unreserve", self.unreserve),
        ]

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
        vc = caller_of(request).sees
        now = self._clock.now()
        return json_response({"nodes": nodes_view(fold, live, now, vc, self._removed)})

    async def gpus(self, request: web.Request) -> web.StreamResponse:
        """Answer the GPUs."""
        fold, live = self._indexer.fold, self._indexer.live
        vc = caller_of(request).sees
        return json_response({"gpus": gpus_view(fold, live, self._clock.now(), vc, self._removed)})

    async def vcs(self, request: web.Request) -> web.StreamResponse:
        """Answer the virtual clusters."""
        fold, vc = self._indexer.fold, caller_of(request).sees
        return json_response({"vcs": self._vcs(vc), "alarms": alarms_view(fold, vc)})

    def _vcs(self, vc: Only) -> list[dict[str, Any]]:
        """Return the virtual clusters, and whether those with a model follow it."""
        fold = self._indexer.fold
        said = {one["vc"]: one for one in following_view(fold.state, self._stages, vc)}
        return [
            row | ({"following": said[row["vc"]]} if row["vc"] in said else {})
            for row in vcs_view(fold, vc)
        ]

    async def usage(self, request: web.Request) -> web.StreamResponse:
        """Answer one virtual cluster's cells: where they are and the jobs inside.

        Raises:
            ApiError: There is no such virtual cluster, or the caller may not see it (404).
        """
        name, vc = request.match_info["vc"], caller_of(request).sees
        rows = [one for one in self._vcs(vc) if one["vc"] == name]
        if not rows:
            raise ApiError(404, Reason.UNKNOWN_VC, f"there is no virtual cluster {name}")
        cells = self._frozen()
        return raw_response(await _apart(lambda: usage_view(cells, rows, vc)[0]))

    async def usages(self, request: web.Request) -> web.StreamResponse:
        """Answer every virtual cluster's cells."""
        fold, vc = self._indexer.fold, caller_of(request).sees
        rows, alarms, cells = self._vcs(vc), alarms_view(fold, vc), self._frozen()
        return raw_response(
            await _apart(lambda: {"vcs": usage_view(cells, rows, vc), "alarms": alarms})
        )

    async def cells(self, request: web.Request) -> web.StreamResponse:
        """Answer the tree of cells."""
        chain, sees = self._chain(request), caller_of(request).sees

        def made() -> Callable[[], Any]:
            alarms, tree = alarms_view(self._indexer.fold, sees), self._tree(chain, sees)
            return lambda: {"chains": tree(), "alarms": alarms}

        answer = await self._trees.answer((sees, chain), made)
        packed = takes_gzip(request)
        response = raw_response(answer.packed if packed else answer.raw)
        if packed:
            response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
        return response

    async def picture(self, request: web.Request) -> web.StreamResponse:
        """Answer the tree of cells as a picture."""
        tree = self._tree(self._chain(request), caller_of(request).sees)
        vcs = sorted(self._indexer.fold.state.cells.cluster.vcs)
        svg = await asyncio.to_thread(lambda: picture(tree(), vcs))
        return web.Response(text=svg, content_type="image/svg+xml")

    def _frozen(self) -> Cells:
        return frozen(self._indexer.fold.state.cells)

    def _chain(self, request: web.Request) -> str:
        """Return the chain that is asked for; empty: all of them.

        Raises:
            ApiError: There is no such chain (404).
        """
        chain = request.query.get("chain", "")
        if chain and chain not in self._indexer.fold.state.cells.cluster.chains:
            raise ApiError(404, Reason.UNKNOWN_CHAIN, f"there is no chain {chain}")
        return chain

    def _tree(self, chain: str, sees: Only) -> Callable[[], list[dict[str, Any]]]:
        """Return what makes the tree of cells, as they are now: in a thread."""
        cells = self._frozen()
        return lambda: cells_view(cells, sees, chain)

    async def plan(self, request: web.Request) -> web.StreamResponse:
        """Answer what the cells an operator has in mind would mean for the jobs that run."""
        asked = _sound(await read_as_operator(request, VcsBody)).cluster
        fold = self._indexer.fold
        after, kept = resolved(fold, asked), take_snapshot(fold.state.cells)
        changes = await asyncio.to_thread(fates, kept, after)
        return json_response(plan_view(fold, asked, after, changes))

    async def set_vcs(self, request: web.Request) -> web.StreamResponse:
        """Publish the virtual clusters an operator wants."""
        wish = _sound(await read_as_operator(request, VcsBody))
        done = await self._submitter.tell(caller_of(request), "vcs", wish)
        return json_response(done.body, done.status)

    async def drain(self, request: web.Request) -> web.StreamResponse:
        """Publish that an operator wants a node drained, or open again.

        Raises:
            ApiError: There is no such node (404), the caller is no operator (403), the body is
                wrong (400, 422), or the bus does not take it (503).
        """
        body = await read_as_operator(request, DrainBody)
        node = self._indexer.fold.state.nodes.get(body.node)
        if node is None:
            raise ApiError(404, Reason.UNKNOWN_NODE, f"there is no node {body.node}")
        wish = DrainNode(node=body.node, drain=body.drain)
        done = await self._submitter.tell(caller_of(request), "drain", wish)
        return json_response(done.body, done.status)

    async def quarantine(self, request: web.Request) -> web.StreamResponse:
        """Publish that an operator wants a GPU to count as bad, or as good again.

        Raises:
            ApiError: There is no such node or GPU (404), the caller is no operator (403), the body
                is wrong (400, 422), or the bus does not take it (503).
        """
        body = await read_as_operator(request, QuarantineBody)
        node = self._indexer.fold.state.nodes.get(body.node)
        if node is None:
            raise ApiError(404, Reason.UNKNOWN_NODE, f"there is no node {body.node}")
        devices = [gpu.index for gpu in node.joined.gpus]
        if body.device not in (*devices, *node.quarantined):
            text = f"{body.node} has no GPU {body.device}, it has {', '.join(map(str, devices))}"
            raise ApiError(404, Reason.BAD_VALUE, text)
        wish = QuarantineGpu(node=body.node, device=body.device, quarantine=body.quarantine)
        done = await self._submitter.tell(caller_of(request), "quarantine", wish)
        return json_response(done.body, done.status)

    async def fair(self, request: web.Request) -> web.StreamResponse:
        """Answer what the people of virtual clusters used, and what they may have.

        Raises:
            ApiError: There is no such virtual cluster, or the caller may not see it (404).
        """
        state, name = self._indexer.fold.state, request.query.get("vc", "")
        sees = caller_of(request).sees
        shown = fair_view(state, self._clock.now(), sees, name)
        seen = name in state.cells.cluster.vcs and covers(sees, name)
        if name and not seen:
            raise ApiError(404, Reason.UNKNOWN_VC, f"there is no virtual cluster {name}")
        return json_response({"vcs": shown})

    async def windows(self, request: web.Request) -> web.StreamResponse:
        """Answer the windows of the caller's VCs and of the cluster; jobs only to operators."""
        caller = caller_of(request)
        rows = windows_view(self._indexer.fold.state, caller.sees)
        if not caller.operator:
            rows = [row | {"jobs": []} for row in rows]
        return json_response({"windows": rows})

    async def reserve(self, request: web.Request) -> web.StreamResponse:
        """Publish that an operator wants nodes kept free for a time.

        Raises:
            ApiError: The window cannot be (409), the caller is no operator (403), the body is wrong
                (400, 422), or the bus does not take it (503).
        """
        window = (await read_as_operator(request, ReserveBody)).window
        state = self._indexer.fold.state
        if state.windows.get(window.name) != window:
            vcs = state.cells.cluster.vcs
            wrong = problem(window, self._clock.now(), state.windows, state.nodes, vcs)
            if wrong is not None:
                raise ApiError(409, wrong.why, wrong.text)
        wish = ReserveNodes(window=window)
        done = await self._submitter.tell(caller_of(request), "reserve", wish)
        return json_response(done.body, done.status)

    async def unreserve(self, request: web.Request) -> web.StreamResponse:
        """Publish that an operator gives up a window, or ends it.

        Raises:
            ApiError: There is no such window (404), the caller is no operator (403), the body is
                wrong (400, 422), or the bus does not take it (503).
        """
        body = await read_as_operator(request, UnreserveBody)
        if body.name not in self._indexer.fold.state.windows:
            text = f"no window is called {body.name}: see `skep reserve ls`"
            raise ApiError(404, Reason.UNKNOWN_WINDOW, text)
        wish = CancelWindow(name=body.name)
        done = await self._submitter.tell(caller_of(request), "unreserve", wish)
        return json_response(done.body, done.status)


async def _apart(make: Callable[[], Any]) -> bytes:
    """Return a long answer, made in a thread, of what does not change."""
    return await asyncio.to_thread(lambda: codec.encode(make()))


def _sound(body: VcsBody) -> SetVcs:
    """Return what an operator wants if it can be.

    Raises:
        ApiError: It cannot be; the error has every problem (422).
    """
    wish = SetVcs(
        vcs=body.vcs,
        chains=body.chains,
        pins=body.pins,
        quarantine=body.quarantine,
        volumes=body.volumes,
    )
    problems = tuple(cluster_problems(wish.cluster))
    if problems:
        raise ApiError(422, problems[0].reason, problems[0].text, problems)
    return wish


def operators_only(request: web.Request) -> None:
    """Let operators pass.

    Raises:
        ApiError: The caller is no operator (403).
    """
    caller = caller_of(request)
    if not caller.operator:
        role = f"you are {caller.highest}" if caller.person else f"this token is for VC {caller.vc}"
        raise ApiError(403, "forbidden", f"only an operator may do this; {role}")


async def read_as_operator(request: web.Request, kind: type[Body]) -> Body:
    """Return the body of a request that only operators may make.

    Raises:
        ApiError: The caller is no operator (403), or the body is no JSON (400).
        _bad: An ApiError (422): the body is JSON, but not of this kind.
    """
    operators_only(request)
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.ValidationError as error:
        raise _bad(str(error)) from error
    except UNDECODABLE as error:
        raise ApiError(400, Reason.NOT_JSON, f"not JSON: {error}") from error


def _bad(text: str) -> ApiError:
    problem = Problem(path="$", reason=Reason.BAD_VALUE, text=text)
    return ApiError(422, Reason.BAD_VALUE, text, (problem,))
