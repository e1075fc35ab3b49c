"""When jobs start and end, as people are shown it, and `/v1/calibration`: how often that held.

The same functions make these estimates as those that the advisor judges (`skep.estimates`), from
the same: facts, rates, and what the advisor recorded of outcomes. They are made when a person asks,
and not again for a while.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from skep.estimates.calibration import EVERY, START, Calibration, Track
from skep.estimates.judging import Places, Queue, only_type, owned, pace_of, places_of
from skep.estimates.lengths import Known, Pace, Work, remaining, whole, why_unknown, work_of
from skep.estimates.spans import more, span, then
from skep.estimates.starts import Owned, Played, now
from skep.ledger import job_state
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.cluster import FIFO, Cluster
from skep.wire.drafts import Outcome, Start
from skep.wire.promises import Lasts
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep_services.gateway.api import ApiError, caller_of, json_response
from skep_services.gateway.holders import OPPORTUNISTIC_CLASS
from skep_services.gateway.index import Indexer
from skep_services.gateway.rows import Estimate, Job, State, Times
from skep_services.gateway.trials import meant
from skep_services.ports import Clock

AGAIN_S = 2.0
"""How old an estimate may be that is shown while no fact comes."""
PART = 50
"""Estimates of all jobs take at most this part of the time, however many there are."""
ROOM_NS = seconds(60.0)
"""How long others take to make room, nine times in ten."""
FAR_NS = 10 * 365 * 24 * 3600 * NS_PER_SECOND
"""An end in ten years is not shown: it would be one that is not known."""
NEXT = "next"
"""The name of a job that is only planned."""
LISTED_MAX = 2_000
"""Rows of one answer of `/v1/calibration`."""


class Estimates:
    """Estimates starts and ends of all unfinished jobs, and of jobs that are only planned."""

    def __init__(self, indexer: Indexer, calibration: Calibration, clock: Clock) -> None:
        """Estimate from these."""
        self._indexer, self._calibration, self._clock = indexer, calibration, clock
        self._again_at = self._ready_at = 0.0
        self._news = -1
        self._parts: dict[str, tuple[Cluster, Owned]] = {}
        """What VCs own, and in which cluster."""

    def refresh(self) -> None:
        """Put estimates into the rows of unfinished jobs, unless they are fresh."""
        began, news = time.monotonic(), self._indexer.deliveries
        if began < (self._again_at if news == self._news else self._ready_at):
            return
        at = self._clock.now()
        waiting: dict[str, list[Job]] = {}
        for job in self._indexer.fold.active.values():
            job.row.estimate = self._running(job, at)
            if job.row.state is State.QUEUED:
                waiting.setdefault(job.row.vc, []).append(job)
        for vc, jobs in waiting.items():
            played = self._queue(vc, at).played()
            for job in jobs:
                job.row.estimate = self._waits(job, played.get(job.row.job), at)
        done = time.monotonic()
        self._news, self._ready_at = news, done + PART * (done - began)
        self._again_at = max(self._ready_at, done + AGAIN_S)

    def planned(self, spec: JobSpec, outcome: Outcome) -> Estimate:
        """Return when a job would start and end.

        Args:
            spec: As it would be admitted.
            outcome: What the allocator says would become of it.
        """
        at, work = self._clock.now(), work_of(spec)
        known = self._whole(work, max(outcome.nodes, 1), work.gpu_type)
        lasts = None if known is None else self._wide(work, known)
        start = None
        match outcome.start:
            case Start.NOW:
                start = now()
            case Start.AFTER:
                start = more(now(), 0, 0, ROOM_NS)
            case Start.LATER if outcome.at is not None:
                queue = self._queue(spec.vc, at)
                queue.waits(NEXT, spec, self._indexer.fold.newest + 1, lasts)
                played = queue.played().get(NEXT)
                if played is not None and played.start is not None:
                    wide = self._calibrated(work, START, played.start)
                    start = _moved(wide, outcome.at - at)
            case _:
                pass
        end = then(start, lasts) if start is not None and lasts is not None else None
        basis = known.basis if known is not None else why_unknown(work)
        return Estimate(start=_times(start, at), end=_times(end, at), basis=basis)

    # --- running ---------------------------------------------------------------------------------

    def _running(self, job: Job, at: Instant) -> Estimate | None:
        """Return the estimate of a job that has GPUs; None: it has none, or is being stopped."""
        row, known = job.row, self._indexer.fold.state.jobs.get(job.row.job)
        if known is None or row.state not in {State.BOUND, State.RUNNING, State.SUSPENDED}:
            return None
        began = row.started_at or row.bound_at or at
        start = Times(began, began, began)
        if row.state is State.SUSPENDED:
            return Estimate(start=start, basis=Reason.SUSPENDED)
        work = work_of(known.spec)
        left = self._left(known, work, at)
        if left is None:
            return Estimate(start=start, basis=why_unknown(work))
        return Estimate(start=start, end=_times(self._wide(work, left), at), basis=left.basis)

    def _left(self, job: job_state.JobState, work: Work, at: Instant) -> Known | None:
        def in_all() -> Known | None:
            return self._whole(work, max(len(job.members), 1), self._type_of(job))

        ran = max(at - (job.bound_at or at), 0)
        return remaining(work, self._pace(job), ran, in_all)

    def _pace(self, job: job_state.JobState) -> Pace | None:
        live = self._indexer.live
        rate, steady = live.rates.get(job.job), live.steady.get(job.job)
        if rate is None or rate.attempt != job.attempt:
            return None
        before = pace_of(steady, None) if steady and steady.attempt == job.attempt else None
        return pace_of(rate, before)

    # --- waiting ---------------------------------------------------------------------------------

    def _queue(self, vc: str, at: Instant) -> Queue:
        fold = self._indexer.fold
        entry = fold.state.cells.cluster.vcs.get(vc)
        planned = entry is not None and entry.policy != FIFO
        queue = Queue(self._owned(vc), self._indexer.live.turns(at), policy=planned)
        for job in fold.state.jobs.values():
            if job.spec.vc != vc:
                continue
            work = work_of(job.spec)
            if job.state in {job_state.State.QUEUED, job_state.State.RESERVED}:
                if not job.spec.opportunistic:
                    known = self._whole(work, 1, work.gpu_type)
                    lasts = None if known is None else self._wide(work, known)
                    queue.waits(job.job, job.spec, job.sequence, lasts)
            elif not self._borrows(job.job):
                left = self._left(job, work, at)
                lasts = None if left is None else self._wide(work, left)
                queue.runs(job.sequence, self._type_of(job), _places(job), lasts)
        return queue

    def _waits(self, job: Job, played: Played | None, at: Instant) -> Estimate:
        known_job = self._indexer.fold.state.jobs.get(job.row.job)
        if known_job is None:
            return Estimate(basis=Reason.LENGTH_UNKNOWN)
        work = work_of(known_job.spec)
        known = self._whole(work, 1, work.gpu_type)
        basis = known.basis if known is not None else why_unknown(work)
        if played is None or played.start is None:
            return Estimate(basis=basis)
        start = self._calibrated(work, START, played.start)
        end = None
        if known is not None:
            lasts = self._wide(work, known)
            end = then(start, lasts)
        return Estimate(start=_times(start, at), end=_times(end, at), basis=basis)

    # --- what is known ---------------------------------------------------------------------------

    def _whole(self, work: Work, nodes: int, gpu_type: str) -> Known | None:
        known = self._calibration.runs(work.vc, work.family)
        seen = self._calibration.lengths(work.vc)
        if not gpu_type:
            gpu_type = only_type(work, self._owned(work.vc))
        return whole(work, nodes, (work.gpus, gpu_type), (known, seen), self._indexer.live.fits)

    def _wide(self, work: Work, known: Known) -> Lasts:
        return self._calibrated(work, known.what, known.lasts)

    def _calibrated(self, work: Work, what: str, lasts: Lasts) -> Lasts:
        return self._calibration.widened(work.vc, work.family, what, lasts)

    def _owned(self, vc: str) -> Owned:
        cluster = self._indexer.fold.state.cells.cluster
        known = self._parts.get(vc)
        if known is None or known[0] is not cluster:
            known = self._parts[vc] = cluster, owned(cluster, vc)
        return known[1]

    def _type_of(self, job: job_state.JobState) -> str:
        chain = self._indexer.fold.state.cells.chains.get(job.chain)
        return chain.topology.gpu if chain is not None else job.spec.resources.only_type

    def _borrows(self, name: str) -> bool:
        job = self._indexer.fold.active.get(name)
        return job is not None and job.row.class_in_force == OPPORTUNISTIC_CLASS


def _places(job: job_state.JobState) -> Places:
    return places_of(job.members.values())


def _times(lasts: Lasts | None, at: Instant) -> Times | None:
    """Return when something is that is so far from now; None: not known, or never."""
    if lasts is None or lasts.p50 >= FAR_NS:
        return None
    return Times(at + lasts.p10, at + lasts.p50, at + lasts.p90)


def _moved(lasts: Lasts, middle: int) -> Lasts:
    """Return a span with another P50, and ends that are as far from it in proportion."""
    part = middle / max(lasts.p50, 1)
    return span(lasts.p10 * part, middle, lasts.p90 * part)


class Calibrations:
    """The handler of `/v1/calibration`."""

    def __init__(self, indexer: Indexer, calibration: Calibration) -> None:
        """Answer from these."""
        self._indexer, self._calibration = indexer, calibration

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/calibration", self.listing, allow_head=False)]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer how often estimates held, by VC, family and what they rested on.

        Raises:
            ApiError: The VC is another tenant's (403), there is no such VC, or nothing was judged
                of the family (404).
        """
        caller = caller_of(request)
        vc, family = request.query.get("vc", ""), request.query.get("family", "")
        vcs = self._indexer.fold.state.asked.vcs
        if vc and not caller.may(vc):
            text = f"this token is for VC {caller.vc}, not {vc}"
            raise ApiError(403, Reason.WRONG_VC, text)
        if vc and vc not in vcs:
            text = f"there is no virtual cluster {vc}{meant(vc, vcs)}"
            raise ApiError(404, Reason.UNKNOWN_VC, text)
        found = list(self._calibration.groups(vc or caller.vc))
        families = dict.fromkeys(name for _, name, group in found if name and group.tracks)
        if family and family not in families:
            text = f"no estimate of family {family!r} was judged{meant(family, families)}"
            raise ApiError(404, Reason.UNKNOWN_MODEL, text)
        rows = [
            _row(name, each, what, track)
            for name, each, group in found
            for what, track in sorted(group.tracks.items())
            if not family or each == family
        ]
        left_out = max(0, len(rows) - LISTED_MAX)
        return json_response({"estimates": rows[:LISTED_MAX], "left_out": left_out})


def _row(vc: str, family: str, what: str, track: Track) -> dict[str, Any]:
    return {
        "vc": vc,
        "family": family or None,
        "what": what,
        "outcomes": track.outcomes,
        "held": track.held,
        "covered": round(track.held / track.outcomes, 4) if track.outcomes else None,
        "error": track.error_milli / 1000,
        "widened": round(track.factor, 3),
        "ranks": track.ranks,
    }


class OutcomeCounts(Collector):
    """The metric: how many estimates held, by VC and what they rested on."""

    def __init__(self, calibration: Calibration) -> None:
        """Count what it has."""
        self._calibration = calibration

    def describe(self) -> Iterator[Metric]:
        """Return nothing: the series are known only once there are outcomes."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the counts."""
        found = CounterMetricFamily(
            "skep_estimates",
            "Estimates of starts and ends by whether they held: 0.8 of them should",
            labels=("vc", "what", "outcome"),
        )
        for vc, family, group in self._calibration.groups():
            if family == EVERY:
                for what, track in sorted(group.tracks.items()):
                    found.add_metric([vc, what, "held"], track.held)
                    found.add_metric([vc, what, "missed"], track.outcomes - track.held)
        yield found
