"""`/v1/trials`: the ledger over HTTP."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aiohttp import web

from skep.cells.levels import gpus_owned
from skep.ids import job_sequence
from skep.ledger import probes
from skep.ledger.state import ClusterState
from skep.units import NS_PER_SECOND, Duration, Instant
from skep.wire.following import StageSet
from skep.wire.reasons import Reason, meaning
from skep.wire.trials import Kind
from skep_services.gateway.api import ApiError, caller_of, json_response, number, unknown_job
from skep_services.gateway.following import following_view
from skep_services.gateway.index import Indexer
from skep_services.gateway.ledger import TRIALS_KEPT, VERDICTS, Asked, totals
from skep_services.gateway.scopes import tenant
from skep_services.ports import Clock

LIMIT = 1_000


class Trials:
    """The handler."""

    def __init__(
        self, indexer: Indexer, clock: Clock, stages: Mapping[tuple[str, str], StageSet]
    ) -> None:
        self._indexer, self._clock, self._stages = indexer, clock, stages

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/trials", self.listing, allow_head=False)]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer the trials that match, the newest where the limit cuts, and what all came to."""
        fold = self._indexer.fold
        limit = number(request, "limit", LIMIT, TRIALS_KEPT)
        asked = self._asked(request)
        found = fold.ledger.matching(asked)
        shown = found[max(0, len(found) - limit) :] if limit else []
        return json_response(
            {
                "trials": shown,
                "total": len(found),
                "totals": totals(found),
                "forgotten": fold.ledger.forgotten,
                "following": following_view(fold.state, self._stages, asked.vc),
                "probes": budgets(fold.state, asked.vc, self._clock.now()),
                "texts": meaning(why for one in shown for why in (one.begun_why, one.why)),
            }
        )

    def _asked(self, request: web.Request) -> Asked:
        """Return what a request asks for.

        Raises:
            ApiError: A kind or a verdict is unknown (400), the VC is another tenant's (403), or
                there is no such VC or job (404); the text has what may have been meant.
        """
        fold, caller, own = self._indexer.fold, caller_of(request), tenant(request)
        wanted = {name: request.query.get(name, "") for name in Asked._fields}
        for name, words in (("kind", tuple(Kind)), ("verdict", VERDICTS)):
            if wanted[name] and wanted[name] not in words:
                text = f"no such {name}: {wanted[name]}{meant(wanted[name], words)}"
                raise ApiError(400, Reason.BAD_VALUE, text)
        vc = wanted["vc"]
        known = dict.fromkeys([*fold.state.asked.vcs, *fold.ledger.vcs()])
        if vc and vc not in known:
            text = f"there is no virtual cluster {vc}{meant(vc, known)}"
            raise ApiError(404, Reason.UNKNOWN_VC, text)
        if job := wanted["job"]:
            found = fold.find(job)
            if found is None or not caller.may(found.row.vc):
                raise self._no_job(job, own)
            wanted["job"] = found.row.job
        return Asked(**(wanted | {"vc": own}))

    def _no_job(self, name: str, vc: str) -> ApiError:
        if job_sequence(name) is not None:
            return unknown_job(name)
        named = self._named(name, vc)
        hint = next((f"did you mean {job}, named {name}?" for job in named), "ids look like j17")
        return ApiError(404, Reason.UNKNOWN_JOB, f"there is no job {name}: {hint}")

    def _named(self, name: str, vc: str) -> Iterator[str]:
        for job in reversed(self._indexer.fold.active.values()):
            if job.row.name == name and vc in {"", job.row.vc}:
                yield job.row.job


def budgets(state: ClusterState, vc: str, now: Instant) -> list[dict[str, Any]]:
    """Return what probes took of the GPU time of VCs in the last 24 hours, and what they may take.

    Args:
        state: What the allocator's facts tell.
        vc: Only of this one; empty: of all that had any.
        now: The time.

    Returns:
        Seconds of a GPU by VC; `why`: no further probe, of one GPU, would fit.
    """
    found = []
    for name, known in sorted(state.probes.of_vc.items()):
        if vc not in ("", name) or not probes.used(known, now):
            continue
        owned = gpus_owned(state.cells.cluster, name) if name in state.cells.cluster.vcs else 0
        lasts = Duration(known[-1].until - known[-1].at - probes.PUT_BACK)
        recent = probes.recent(known, now)
        fits = probes.fits(known, owned, 1, lasts, now) and recent < probes.PROBES_MAX
        row = {
            "vc": name,
            "probes": recent,
            "used_s": probes.used(known, now) // NS_PER_SECOND,
            "most_s": probes.most(owned) // NS_PER_SECOND,
            "why": None if fits else Reason.PROBE_BUDGET_USED,
        }
        found.append(row)
    return found


def meant(word: str, words: Iterable[str]) -> str:
    """Return what goes behind an unknown word: what may have been meant, or what there is."""
    there = list(words)
    close = difflib.get_close_matches(word, there, n=1)
    if close:
        return f": did you mean {close[0]}?"
    return f"; there are {', '.join(sorted(there)[:20])}" if there else "; there are none"
