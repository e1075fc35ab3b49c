"""`/v1/report`: what jobs had, by VC, person, project, type of GPU or day, over HTTP.

A tenant's table is of its own virtual cluster.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from skep.ledger.blame.fold import count_unended
from skep.ledger.blame.usage import Usage
from skep.ledger.report import By, Table, day_of, days_of
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, json_response
from skep_services.gateway.index import Indexer
from skep_services.gateway.scopes import tenant
from skep_services.ports import Clock

SLICE = 50
"""Jobs counted before others may run: some 5 ms in which no request is answered."""
SUMS_SLICE = 500
"""The same of sums of ended jobs."""


class Reports:
    """The handler."""

    def __init__(self, indexer: Indexer, clock: Clock) -> None:
        self._indexer, self._clock = indexer, clock

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/report", self.report, allow_head=False)]

    async def report(self, request: web.Request) -> web.StreamResponse:
        """Answer a table: `by`, `from` and `to` (YYYY-MM-DD, both included), `vc`.

        Raises:
            ApiError: A parameter cannot be read (400).
            tenant: An ApiError: `vc` is no name (400), or another tenant's (403).
        """
        vc, by = tenant(request), _by(request)
        first, last = _day(request, "from"), _day(request, "to")
        blame, now = self._indexer.fold.blame, self._clock.now()
        unended: Usage = {}
        lives = [life for life in blame.lives.values() if vc in {"", life.vc}]
        for number, life in enumerate(lives):
            count_unended(blame, unended, life.job, now)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        earliest, latest = days_of((blame.usage, unended), vc) or (0, 0)
        first, last = earliest if first is None else first, latest if last is None else last
        table = Table(by, first, last, vc)
        for number, (group, days) in enumerate([*blame.usage.items(), *unended.items()]):
            table.take(group, days)
            if number % SUMS_SLICE == SUMS_SLICE - 1:
                await asyncio.sleep(0)
        return json_response({"at": now, "report": table.report()})


def _by(request: web.Request) -> By:
    try:
        return By(request.query.get("by", By.VC))
    except ValueError:
        text = f"`by` must be one of {', '.join(By)}"
        raise ApiError(400, Reason.BAD_VALUE, text) from None


def _day(request: web.Request, name: str) -> int | None:
    """Return a day of the query; None: it has none.

    Raises:
        ApiError: It is no day (400).
    """
    text = request.query.get(name, "")
    if not text:
        return None
    try:
        return day_of(text)
    except ValueError:
        answer = f"`{name}` must be a day such as 2026-01-31"
        raise ApiError(400, Reason.BAD_VALUE, answer) from None
