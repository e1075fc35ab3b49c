"""`/v1/jobs/{job}/links`: where a job shows its training, by its spec and by its log.

Of the log of rank 0 the beginning and the end are read: there W&B and TensorBoard say it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from skep.access.rights import Action
from skep.wire.bounds import UNDECODABLE
from skep.wire.links import links
from skep.wire.spec import JobSpec
from skep_services.gateway.api import ApiError, caller_of, check, json_response
from skep_services.gateway.index import Indexer
from skep_services.gateway.jobs import Jobs
from skep_services.gateway.logs import Logs
from skep_services.gateway.rows import Job

LINES = 200
"""Of the end of the log: W&B says at the end of a run where it is."""


class Links:
    """The handler."""

    def __init__(self, indexer: Indexer, jobs: Jobs, logs: Logs) -> None:
        self._indexer, self._jobs, self._logs = indexer, jobs, logs

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/jobs/{job}/links", self.links, allow_head=False)]

    async def links(self, request: web.Request) -> web.StreamResponse:
        """Answer the links, and whether the log could be read.

        Raises:
            ApiError: There is no such job (404), several have this name (409), or its log is
                another's (403).
        """
        job = await self._jobs.job(request)
        caller = caller_of(request)
        check(Action.READ_LOGS, caller, job.row.vc, job.row.owner)
        pieces, whole = await self._pieces(job)
        spec = _spec(await self._indexer.spec(job))
        if spec is not None and not caller.ruling(Action.SEE_VALUES, job.row.vc, job.row.owner):
            spec = msgspec.structs.replace(spec, env={})
        found = [] if spec is None else links(spec, pieces)
        told: list[Any] = msgspec.to_builtins(found)
        return json_response({"job": job.row.job, "links": told, "log": whole})

    async def _pieces(self, job: Job) -> tuple[list[str], bool]:
        """Return the beginning and the end of the log; and whether its node gave them."""
        if not job.attempts:
            return [], True
        found: list[str] = []
        for lines in (None, LINES):
            try:
                tail = self._logs.open(job, attempt=None, rank=0, offset=0, follow=False)
                await tail.begin(lines, None)
                found.append((await tail.first()).decode("utf-8", "replace"))
            except ApiError:
                return found, False
        return found, True


def _spec(raw: bytes | None) -> JobSpec | None:
    """Return a stored spec; None: it is none, as that of a refused submission may be."""
    try:
        return None if raw is None else msgspec.json.decode(raw, type=JobSpec)
    except UNDECODABLE:
        return None
