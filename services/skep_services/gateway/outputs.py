"""`/v1/jobs/{job}/outputs`: files that a job left on its nodes, listed and copied.

A person that may read a job's logs may read its outputs. They lie on the nodes, and a node gives
them piece by piece, only while a reader waits.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from skep.access.rights import Action
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.reasons import Reason
from skep.wire.snapshot import AskOutputs, unsafe
from skep_services.gateway.api import ApiError, caller_of, check, json_response, number
from skep_services.gateway.jobs import Jobs
from skep_services.gateway.rows import Job
from skep_services.ports import Bus, Delivery

ASK_TIMEOUT_S = 5.0
DIGEST_WITHIN_S = 600.0
"""What a node may take to read a file of 100 GB; a client waits that long."""
STALL_S = 60.0
NODES_ASKED_MAX = 64
"""Nodes of one attempt that are asked for their files."""
SIZE, TOKEN, REFUSED, REASON = "Skep-Size", "Skep-Token", "Skep-Refused", "Skep-Reason"
DIGEST, NODE = "Skep-Digest", "Skep-Node"

STATUS: dict[str, int] = {Reason.BAD_VALUE: 400, Reason.OUTPUT_CHANGED: 409}
"""Of refusals of a node; all others are 404."""


class _Place(NamedTuple):
    """A file of an attempt on a node."""

    node: str
    job: str
    attempt: int
    path: str


class Outputs:
    """The handlers of a job's outputs."""

    def __init__(self, bus: Bus, jobs: Jobs) -> None:
        self._bus, self._jobs = bus, jobs

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/jobs/{job}/outputs", self.listing, allow_head=False),
            web.get("/v1/jobs/{job}/outputs/file", self.file, allow_head=False),
            web.get("/v1/jobs/{job}/outputs/digest", self.digest, allow_head=False),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer which files the outputs of an attempt have, node by node.

        Raises:
            ApiError: There is no such job or attempt (404), or it is another's (403).
        """
        job, attempt, nodes = await self._attempt(request)
        asked = [self._node_listed(job, attempt, node) for node in nodes[:NODES_ASKED_MAX]]
        found = await asyncio.gather(*asked)
        return json_response({"job": job.row.job, "attempt": attempt, "nodes": found})

    async def _node_listed(self, job: Job, attempt: int, node: str) -> dict[str, Any]:
        ask = AskOutputs(job=job.row.job, attempt=attempt)
        answer = await self._bus.request(
            subjects.outputs(node), codec.encode(ask), {}, ASK_TIMEOUT_S
        )
        if answer is None:
            return {"node": node, "away": True, "files": [], "more": False}
        try:
            listed = msgspec.json.decode(answer.payload or b"{}", type=dict[str, Any])
        except UNDECODABLE:
            listed = {}
        return {
            "node": node,
            "away": False,
            "files": listed.get("files", []),
            "more": bool(listed.get("more", False)),
        }

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Answer a file, from `offset` on.

        `Skep-Token` says which content it is: with `token` another one is refused, so that a copy
        can be gone on with.

        Raises:
            ApiError: There is no such job, attempt or file (404), it is another's (403), the path
                leads elsewhere (400), it changed (409), or the node does not answer (503).
            ConnectionResetError: The node went away amid the file.
        """
        place = await self._place(request)
        offset, token = number(request, "offset", 0), request.query.get("token", "")[:64]
        answer = await self._asked(place, offset, token)
        size, token = int(answer.headers.get(SIZE, "0")), answer.headers.get(TOKEN, "")
        response = web.StreamResponse()
        response.content_type = "application/octet-stream"
        response.headers.update({SIZE: str(size), TOKEN: token, NODE: place.node})
        response.content_length = max(0, size - offset)
        await response.prepare(request)
        while answer.payload:
            await _write(request, response, answer.payload)
            offset += len(answer.payload)
            if offset >= size:
                break
            try:
                answer = await self._asked(place, offset, token)
            except ApiError as error:
                # The head is sent: only a cut connection says that this is not all.
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError(str(error)) from None
        return response

    async def digest(self, request: web.Request) -> web.StreamResponse:
        """Answer the SHA-256 of a file, as its node reads it.

        Raises:
            ApiError: As for the file; or the node takes too long (503).
        """
        place, token = await self._place(request), request.query.get("token", "")[:64]
        until = time.monotonic() + DIGEST_WITHIN_S
        while time.monotonic() < until:
            answer = await self._asked(place, 0, token, digest=True)
            if found := answer.headers.get(DIGEST, ""):
                return json_response({"path": place.path, "sha256": found})
            if request.transport is None or request.transport.is_closing():
                break
            await asyncio.sleep(0.2)
        raise ApiError(503, "node-away", f"{place.node} did not read the file in time")

    async def _asked(
        self, place: _Place, offset: int, token: str, *, digest: bool = False
    ) -> Delivery:
        """Return a node's answer.

        Raises:
            ApiError: It refuses (400, 404, 409), or does not answer (503).
        """
        ask = AskOutputs(
            job=place.job,
            attempt=place.attempt,
            path=place.path,
            offset=offset,
            token=token,
            digest=digest,
        )
        payload = codec.encode(ask)
        for _ in range(2):
            answer = await self._bus.request(
                subjects.outputs(place.node), payload, {}, ASK_TIMEOUT_S
            )
            if answer is not None:
                break
        else:
            text = f"{place.node} does not answer, and the file is there"
            raise ApiError(503, "node-away", text)
        if refused := answer.headers.get(REFUSED, ""):
            reason = answer.headers.get(REASON, "")
            status = STATUS.get(reason, 404)
            raise ApiError(status, reason or Reason.NO_OUTPUT, refused)
        return answer

    async def _place(self, request: web.Request) -> _Place:
        """Return the file that a request names.

        Raises:
            ApiError: There is no such job, attempt or node (404), it is another's (403), or the
                path leads elsewhere (400).
        """
        job, attempt, nodes = await self._attempt(request)
        path = request.query.get("path", "")
        if why := unsafe(path):
            raise ApiError(400, Reason.BAD_VALUE, f"`path` is no path in the job's folder: {why}")
        node = request.query.get("node", "") or nodes[0]
        if node not in nodes:
            text = f"attempt {attempt} of {job.row.job} is not on {node[:64]}: {', '.join(nodes)}"
            raise ApiError(404, Reason.NO_OUTPUT, text)
        return _Place(node, job.row.job, attempt, path)

    async def _attempt(self, request: web.Request) -> tuple[Job, int, list[str]]:
        """Return the job and attempt that a request names, and its nodes, that of rank 0 first.

        Raises:
            ApiError: There is none (404), or it is another's (403).
        """
        job = await self._jobs.job(request)
        check(Action.READ_LOGS, caller_of(request), job.row.vc, job.row.owner)
        latest = request.query.get("attempt", "latest") == "latest"
        attempt = job.row.attempt if latest else number(request, "attempt", 0)
        for one in job.attempts:
            if one.attempt == attempt and one.members:
                members = sorted(one.members, key=lambda part: min(part.numbers, default=0))
                return job, attempt, [part.node for part in members]
        text = f"{job.row.job} has no attempt {attempt}" if attempt else "it has not started"
        raise ApiError(404, "no-attempt", f"{text}: {job.row.job} is {job.row.state}")


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Write, and cut the connection of a client that takes nothing.

    Raises:
        ConnectionResetError: The client is gone, or took nothing for STALL_S.
    """
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        text = f"nothing was taken for {STALL_S:.0f} s"
        raise ConnectionResetError(text) from None
