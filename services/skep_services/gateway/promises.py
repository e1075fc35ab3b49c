"""Promises over HTTP: `/v1/promises`, and what `skep show` and `skep why` say of one.

    ADMISSION: PromiseMade | PromiseJudged ──> row ──PromiseKept | PromiseBroken──> outcome

A job's row has what admission answered to its deadline and what became of it. The counts by VC go
back to the beginning of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from skep.wire.reasons import TEXT, Reason
from skep_services.gateway.api import ApiError, json_response, number
from skep_services.gateway.fold import Fold
from skep_services.gateway.index import Indexer
from skep_services.gateway.rows import Job, Pledged
from skep_services.gateway.scopes import tenant
from skep_services.gateway.trials import meant

LIMIT = 1_000
NEWEST = "newest"
OUTCOMES = ("open", "kept", "broken")


def lines(job: Job) -> list[dict[str, str]]:
    """Return what `skep why` says of a job's deadline: the answer, and what became of it."""
    pledged = job.pledged
    if pledged is None:
        return []
    told = [{"reason": pledged.why, "text": pledged.text, "needs": ""}]
    if pledged.note:
        note = {"reason": Reason.BUDGET_EXCEEDED.value, "text": pledged.note, "needs": ""}
        told.append(note)
    if pledged.outcome == "broken":
        cause = TEXT.get(Reason(pledged.cause), pledged.cause) if pledged.cause else ""
        text = f"the promise is broken: {cause}"
        told.append({"reason": pledged.cause, "text": text, "needs": pledged.detail})
    return told


class Promises:
    """The handler."""

    def __init__(self, indexer: Indexer) -> None:
        self._indexer = indexer

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/promises", self.listing, allow_head=False)]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer the deadlines of a VC's jobs, open ones and those that ended lately.

        They are in the order of their times; `order=newest` has the last ones first.

        Raises:
            ApiError: The VC is another tenant's (403), there is no such VC (404), or no such
                outcome or order (400).
        """
        fold, wanted = self._indexer.fold, tenant(request)
        vc, outcome = request.query.get("vc", ""), request.query.get("outcome", "")
        if vc and vc not in fold.state.asked.vcs:
            text = f"there is no virtual cluster {vc}{meant(vc, fold.state.asked.vcs)}"
            raise ApiError(404, Reason.UNKNOWN_VC, text)
        if outcome and outcome not in OUTCOMES:
            text = f"no such outcome: {outcome}{meant(outcome, OUTCOMES)}"
            raise ApiError(400, Reason.BAD_VALUE, text)
        limit = number(request, "limit", LIMIT, 10 * LIMIT)
        found = [
            _row(job, pledged)
            for job, pledged in _pledged(fold)
            if (not wanted or job.row.vc == wanted) and (not outcome or pledged.outcome == outcome)
        ]
        order = request.query.get("order", "")
        if order not in ("", NEWEST):
            raise ApiError(400, Reason.BAD_VALUE, f"`order` is `{NEWEST}`, or is left out")
        found.sort(key=lambda row: (row["due"], row["job"]), reverse=order == NEWEST)
        totals = {
            name: dict(zip(("made", "kept", "broken"), counts, strict=True))
            for name, counts in sorted(fold.promises.items())
            if not wanted or name == wanted
        }
        shown = found[:limit] if limit else []
        return json_response({"promises": shown, "total": len(found), "totals": totals})


class PromiseCounts(Collector):
    """The metrics: promises made, kept and broken, by VC, and why they were broken."""

    def __init__(self, fold: Fold) -> None:
        """Count what a fold has."""
        self._fold = fold

    def describe(self) -> Iterator[Metric]:
        """Return nothing: the series are known only once there are promises."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the counts."""
        family = CounterMetricFamily(
            "skep_promises", "Deadlines that were promised", labels=("vc", "outcome")
        )
        for vc, counts in sorted(self._fold.promises.items()):
            for outcome, count in zip(("made", "kept", "broken"), counts, strict=True):
                family.add_metric([vc, outcome], count)
        yield family
        causes = CounterMetricFamily(
            "skep_promises_broken", "Promises that were broken, by cause", labels=("vc", "cause")
        )
        for vc, counted in sorted(self._fold.broken.items()):
            for cause, count in sorted(counted.items()):
                causes.add_metric([vc, cause], count)
        yield causes


def _pledged(fold: Fold) -> Iterator[tuple[Job, Pledged]]:
    for job in (*fold.active.values(), *fold.recent.values()):
        if job.pledged is not None:
            yield job, job.pledged


def _row(job: Job, pledged: Pledged) -> dict[str, Any]:
    row = job.row
    return {
        "job": row.job,
        "name": row.name,
        "vc": row.vc,
        "state": row.state,
        "answer": pledged.answer,
        "outcome": pledged.outcome,
        "due": pledged.due,
        "p50": pledged.p50,
        "p90": pledged.p90,
        "begin": pledged.begin,
        "end": pledged.end,
        "gpus": pledged.gpus,
        "why": pledged.why,
        "text": pledged.text,
        "cause": pledged.cause,
        "detail": pledged.detail,
        "helps": pledged.helps,
        "note": pledged.note,
    }
