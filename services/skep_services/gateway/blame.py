"""`/v1/blame` and `/v1/jobs/{job}/blame`: where time went, over HTTP.

A tenant sees its own jobs. Jobs of others that they waited behind are one party without a name,
as in what `skep vc show` says of cells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace

from skep.ledger.blame.causes import TEXT
from skep.ledger.blame.fold import told_of
from skep.ledger.blame.told import Party, Share, Told, Total, VcTold, tell_vc
from skep.wire.bounds import LogDecoder
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, caller_of, json_response, no_array
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.index import Indexer
from skep_services.gateway.jobs import Jobs
from skep_services.gateway.model import BLAMED_KEPT
from skep_services.gateway.rows import Job, State
from skep_services.gateway.scopes import tenants
from skep_services.gateway.trials import meant
from skep_services.ports import Clock

SLICE = 50
"""Jobs told of before others may run: some 5 ms in which no request is answered."""
OTHER_TENANTS = "other-tenants"
"""The kind of the party that stands for all jobs of other tenants."""

_TOLD: LogDecoder[Told] = LogDecoder(Told)


class Blames:
    """The handlers."""

    def __init__(self, indexer: Indexer, jobs: Jobs, clock: Clock) -> None:
        self._indexer, self._jobs, self._clock = indexer, jobs, clock

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/jobs/{job}/blame", self.job, allow_head=False),
            web.get("/v1/blame", self.vcs, allow_head=False),
        ]

    async def job(self, request: web.Request) -> web.StreamResponse:
        """Answer where the time of a job went.

        Raises:
            ApiError: There is no such job (404).
            no_array: An ApiError (422): it is an array.
            _unknown: An ApiError (409): nothing is known of its time.
        """
        job = await self._jobs.job(request)
        no_array(job)
        told = told_of(self._indexer.fold.blame, job.row.job, self._clock.now())
        if told is None:
            stored = await self._indexer.blamed(job)
            told = _TOLD.decode(stored) if stored is not None else None
        if told is None:
            raise _unknown(job)
        return json_response(_with_texts(seen_by(told, caller_of(request).sees)))

    async def vcs(self, request: web.Request) -> web.StreamResponse:
        """Answer where the time of all jobs of a VC (`vc`) went, or of each VC that may be seen.

        Raises:
            ApiError: There is no such VC (404).
            tenant: An ApiError: `vc` is no name (400), or another tenant's (403).
        """
        vc, fold, now = tenants(request), self._indexer.fold, self._clock.now()
        blame = fold.blame
        known = dict.fromkeys(fold.state.asked.vcs) | dict.fromkeys(blame.totals)
        known |= dict.fromkeys(life.vc for life in blame.lives.values())
        if isinstance(vc, str) and vc and vc not in known:
            text = f"there is no virtual cluster {vc}{meant(vc, known)}"
            raise ApiError(404, Reason.UNKNOWN_VC, text)
        totals = {
            name: _copy(blame.totals.get(name, Total()))
            for name in sorted(known)
            if covers(vc, name)
        }
        lives = [life for life in blame.lives.values() if life.vc in totals]
        for number, life in enumerate(lives):
            told = told_of(blame, life.job, now)
            if told is not None:  # Else it has ended meanwhile.
                totals[life.vc].add(told)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        asking = caller_of(request).sees
        return json_response(
            {
                "at": now,
                "vcs": [
                    vc_seen_by(tell_vc(name, total), asking)
                    for name, total in totals.items()
                    if total.jobs
                ],
            }
        )


def seen_by(told: Told, vc: Only) -> Told:
    """Return what a tenant (empty: an operator) may know of where a job's time went."""
    if vc == "":
        return told
    spans = tuple(replace(span, parties=_hidden(span.parties, vc)) for span in told.spans)
    return replace(told, shares=_shares(told.shares, vc), spans=spans)


def _with_texts(told: Told) -> dict[str, Any]:
    """Return what is answered: each share also says in words what its cause means."""
    answer: dict[str, Any] = msgspec.to_builtins(told)
    for share in answer["shares"]:
        share["text"] = TEXT[share["cause"]]
    return answer


def vc_seen_by(told: VcTold, vc: Only) -> VcTold:
    """Return what a tenant (empty: an operator) may know of where the time of a VC's jobs went."""
    return told if vc == "" else replace(told, shares=_shares(told.shares, vc))


def _shares(shares: Iterable[Share], vc: Only) -> tuple[Share, ...]:
    return tuple(replace(share, parties=_hidden(share.parties, vc)) for share in shares)


def _hidden(parties: tuple[Party, ...], vc: Only) -> tuple[Party, ...]:
    """Return parties, of which other tenants' jobs are one, behind those that are named."""
    foreign = [party for party in parties if party.kind == "job" and not covers(vc, party.vc)]
    if not foreign:
        return parties
    named = tuple(party for party in parties if party not in foreign)
    return (*named, Party(OTHER_TENANTS, sum(party.ns for party in foreign)))


def _copy(total: Total) -> Total:
    return msgspec.json.decode(msgspec.json.encode(total), type=Total)


def _unknown(job: Job) -> ApiError:
    """Return the answer for a job whose time is not known."""
    row = job.row
    match row.state:
        case State.SUBMITTED | State.QUEUED:
            text = f"{row.job} has not come to the allocator yet: ask again in a moment"
        case State.REFUSED:
            text = f"{row.job} was refused: it never waited or ran; `skep why {row.job}` says why"
        case _:
            text = (
                f"{row.job} ended too long ago: of the latest {BLAMED_KEPT} jobs it is known where "
                f"their time went; `skep blame {row.job} --from FILE` reads an export of the log"
            )
    return ApiError(409, "no-blame", text)
