"""`/v1/jobs/{job}/rates`: how fast a job went over time, and what may have changed that."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from skep.wire import changes, facts, findings, held_up, moves, packs, resizes, trials
from skep_services.gateway.answers import RateCourse, RateMark
from skep_services.gateway.api import json_response
from skep_services.gateway.courses import Rated
from skep_services.gateway.index import Indexer
from skep_services.gateway.jobs import Jobs
from skep_services.gateway.model import EventQuery
from skep_services.gateway.rows import Event

LOOKED_AT: Final = 2_000
"""The latest events of the job among which marks are looked for."""
MARKS_MAX: Final = 100
"""The latest ones: more would hide the curve."""
MARKED: Final = frozenset(
    kind.__struct_config__.tag
    for kind in (
        facts.JobBound,
        facts.JobRequeued,
        facts.JobStopping,
        facts.JobDemoted,
        facts.JobPromoted,
        changes.JobChanged,
        changes.GpusRegained,
        moves.JobMoved,
        resizes.GangWidened,
        resizes.GangNarrowed,
        packs.GpusShared,
        trials.TrialBegun,
        trials.TrialOver,
        held_up.GangHeldUp,
        findings.PhaseChanged,
        findings.Stalled,
    )
)
"""Decisions on where and beside which jobs it runs, and changes of its rate that were seen."""

_EVENT = msgspec.json.Decoder(Event)


class Rates:
    """The handler."""

    def __init__(self, indexer: Indexer, jobs: Jobs) -> None:
        self._indexer, self._jobs = indexer, jobs

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/jobs/{job}/rates", self.rates, allow_head=False)]

    async def rates(self, request: web.Request) -> web.StreamResponse:
        """Answer the rates of a job that this process heard, with marks from its events."""
        job = await self._jobs.job(request)
        await self._indexer.settle()
        found = await self._indexer.events(EventQuery(LOOKED_AT, None, job.row.job))
        marks = [
            RateMark(at=event.at, kind=event.kind, text=event.text, reason=event.reason)
            for event in (_EVENT.decode(doc) for _, doc in found)
            if event.kind in MARKED
        ]
        columns = zip(*self._indexer.live.courses.of(job.row.job), strict=True)
        named = dict(zip(Rated._fields, map(list, columns), strict=False))
        empty: dict[str, list[int]] = {name: [] for name in Rated._fields}
        return json_response(
            RateCourse(job=job.row.job, marks=marks[-MARKS_MAX:], **{**empty, **named})
        )
