"""When jobs start and end, as people are shown it, and `/v1/calibration`: how often that held.

The same functions make these estimates as those that the advisor judges (`skep.estimates`), from
the same: facts, rates, and what the advisor recorded of outcomes. They are made when a person asks,
and not again for a while.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from skep.estimates.calibration import EVERY, START, Calibration, Track
from skep.estimates.judging import Queue, only_type, owned, pace_of, places_of
from skep.estimates.lengths import (
    Known,
    Pace,
    Work,
    remaining,
    slowest,
    whole,
    why_unknown,
    work_of,
)
from skep.estimates.spans import more, span, then
from skep.estimates.starts import UNKNOWN, WAITING_MAX, Owned, Played, now
from skep.ledger import job_state
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.cluster import FIFO, Cluster
from skep.wire.drafts import Outcome, Start
from skep.wire.promises import Lasts
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep_services.gateway.api import ApiError, json_response
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.holders import OPPORTUNISTIC_CLASS
from skep_services.gateway.index import Indexer
from skep_services.gateway.rows import Estimate, Job, State, Times
from skep_services.gateway.scopes import tenant
from skep_services.gateway.trials import meant
from skep_services.ports import Clock

AGAIN_S = 2.0
"""How old an estimate may be that is shown while no fact comes."""
AT_ONCE_S = 0.03
"""For so long no request is answered: then the other virtual clusters are left for later."""
PART = 50
"""Estimates take at most this part of the time, however many jobs there are."""
NEVER_MADE = (-1e9, -1)
ROOM_NS = seconds(60.0)
"""How long others take to make room, nine times in ten."""
FAR_NS = 10 * 365 * 24 * 3600 * NS_PER_SECOND
"""An end in ten years is not shown: it would be one that is not known."""
NEXT = "next"
"""The name of a job that is only planned."""
LISTED_MAX = 2_000
"""Rows of one answer of `/v1/calibration`."""


class Seen(NamedTuple):
    """A job's work, and how long it runs, or still runs, as wide as outcomes say; None: unknown."""

    work: Work
    basis: Reason
    lasts: Lasts | None


class Estimates:
    """Estimates starts and ends of all unfinished jobs, and of jobs that are only planned."""

    def __init__(self, indexer: Indexer, calibration: Calibration, clock: Clock) -> None:
        """Estimate from these."""
        self._indexer, self._calibration, self._clock = indexer, calibration, clock
        self._ready_at: dict[Only, float] = {}
        """By VC that was asked for: until when the last answer took its part of the time."""
        self._made: dict[str, tuple[float, int]] = {}
        """By VC: when its estimates were made, and how much was known by then."""
        self._parts: dict[str, tuple[Cluster, Owned]] = {}
        """What VCs own, and in which cluster."""

    def refresh(self, vc: Only = "") -> None:
        """Put estimates into the rows of unfinished jobs that have none, or old ones.

        Work is bounded: of a large cluster some virtual clusters are left for the next time.

        Args:
            vc: The virtual clusters that are asked for; empty: all, the oldest estimates first.
        """
        began, news = time.monotonic(), self._indexer.deliveries
        if began < self._ready_at.get(vc, 0.0):
            return
        groups: dict[str, list[Job]] = {}
        for job in self._indexer.fold.active.values():
            if covers(vc, job.row.vc):
                groups.setdefault(job.row.vc, []).append(job)
        for name in sorted(groups, key=lambda name: self._made.get(name, NEVER_MADE)):
            made_at, known = self._made.get(name, NEVER_MADE)
            if news == known and began < made_at + AGAIN_S:
                continue
            self._refresh(name, groups[name])
            self._made[name] = time.monotonic(), news
            if time.monotonic() > began + AT_ONCE_S:
                break
        done = time.monotonic()
        if groups:
            self._ready_at[vc] = done + PART * (done - began)
        if len(self._made) > 2 * len(groups) + 100 and vc == "":
            self._made = {name: made for name, made in self._made.items() if name in groups}
            self._ready_at = {vc: self._ready_at.get(vc, 0.0)}

    def planned(self, spec: JobSpec, outcome: Outcome) -> Estimate:
        """Return when a job would start and end.

        Args:
            spec: As it would be admitted.
            outcome: What the allocator says would become of it.
        """
        at, work = self._clock.now(), work_of(spec)
        seen = self._seen(work, self._whole(work, max(outcome.nodes, 1), work.gpu_type))
        start = None
        match outcome.start:
            case Start.NOW:
                start = now()
            case Start.AFTER:
                start = more(now(), 0, 0, ROOM_NS)
            case Start.LATER if outcome.at is not None:
                jobs = [job for job in self._indexer.fold.active.values() if job.row.vc == spec.vc]
                queue, _ = self._gather(spec.vc, jobs, at)
                queue.waits(NEXT, spec, self._indexer.fold.newest + 1, lambda: seen.lasts)
                played = queue.played().get(NEXT)
                if played is not None and played.start is not None:
                    start = _moved(self._calibrated(work, START, played.start), outcome.at - at)
            case _:
                pass
        return _estimate(_times(start, at), start, seen, at)

    def _refresh(self, vc: str, jobs: list[Job]) -> None:
        at = self._clock.now()
        queue, seen = self._gather(vc, jobs, at)
        waits = any(job.row.state is State.QUEUED for job in jobs)
        played = queue.played() if waits else {}
        for job in jobs:
            job.row.estimate = self._of(job, seen.get(job.row.job), played, at)

    def _of(
        self, job: Job, seen: Seen | None, played: dict[str, Played], at: Instant
    ) -> Estimate | None:
        """Return the estimate of a job; None: it is not admitted yet, or is being stopped."""
        row = job.row
        began = row.started_at or row.bound_at or at
        start = Times(began, began, began)
        match row.state:
            case State.SUSPENDED:
                return Estimate(start=start, basis=Reason.SUSPENDED)
            case State.BOUND | State.RUNNING if seen is not None:
                return _estimate(start, None, seen, at, from_now=True)
            case State.QUEUED if seen is not None:
                found = played.get(row.job, UNKNOWN).start
                wide = None if found is None else self._calibrated(seen.work, START, found)
                return _estimate(_times(wide, at), wide, seen, at)
            case _:
                return None

    def _gather(self, vc: str, jobs: Iterable[Job], at: Instant) -> tuple[Queue, dict[str, Seen]]:
        """Return the jobs of a VC as they are played on, and how long each of them lasts.

        Of those that wait the first ones are looked at, when they are played on.
        """
        state = self._indexer.fold.state
        entry = state.cells.cluster.vcs.get(vc)
        planned = entry is not None and entry.policy != FIFO
        queue = Queue(self._owned(vc), self._indexer.live.turns(at), policy=planned)
        found: dict[str, Seen] = {}
        others = 0
        for row in jobs:
            name = row.row.job
            job = state.jobs.get(name)
            if job is None or job.state is job_state.State.DEFERRED:
                continue
            if job.state in {job_state.State.QUEUED, job_state.State.RESERVED}:
                look = partial(self._waiting, found, name, job.spec)
                if not job.spec.opportunistic:
                    queue.waits(name, job.spec, job.sequence, look)
                elif others < WAITING_MAX:
                    others += 1
                    look()
            else:
                work = work_of(job.spec)
                seen = found[name] = self._seen(work, self._left(job, work, at))
                if row.row.class_in_force != OPPORTUNISTIC_CLASS:
                    places = places_of(job.members.values())
                    queue.runs(job.sequence, self._type_of(job), places, seen.lasts)
        return queue, found

    def _waiting(self, found: dict[str, Seen], name: str, spec: JobSpec) -> Lasts | None:
        """Note how long a job that waits will run, and return it."""
        work = work_of(spec)
        seen = found[name] = self._seen(work, self._whole(work, 1, work.gpu_type))
        return seen.lasts

    def _left(self, job: job_state.JobState, work: Work, at: Instant) -> Known | None:
        def in_all() -> Known | None:
            types = dict.fromkeys(member.gpu_type for member in job.members.values())
            mixed = types if types and "" not in types else [self._type_of(job)]
            return slowest(self._whole(work, max(len(job.members), 1), each) for each in mixed)

        ran = max(at - (job.bound_at or at), 0)
        return remaining(work, self._pace(job), ran, in_all)

    def _pace(self, job: job_state.JobState) -> Pace | None:
        live = self._indexer.live
        rate, steady = live.rates.get(job.job), live.steady.get(job.job)
        if rate is None or rate.attempt != job.attempt:
            return None
        before = pace_of(steady, None) if steady and steady.attempt == job.attempt else None
        return pace_of(rate, before)

    # --- what is known ---------------------------------------------------------------------------

    def _whole(self, work: Work, nodes: int, gpu_type: str) -> Known | None:
        known = self._calibration.runs(work.vc, work.family)
        seen = self._calibration.lengths(work.vc)
        if not gpu_type:
            gpu_type = only_type(work, self._owned(work.vc))
        return whole(work, nodes, (work.gpus, gpu_type), (known, seen), self._indexer.live.fits)

    def _seen(self, work: Work, known: Known | None) -> Seen:
        if known is None:
            return Seen(work, why_unknown(work), None)
        return Seen(work, known.basis, self._calibrated(work, known.what, known.lasts))

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


def _estimate(
    times: Times | None, start: Lasts | None, seen: Seen, at: Instant, *, from_now: bool = False
) -> Estimate:
    """Return an estimate: it ends as long after its start, or after now, as it lasts."""
    end = seen.lasts if from_now else None
    if not from_now and start is not None and seen.lasts is not None:
        end = then(start, seen.lasts)
    return Estimate(start=times, end=_times(end, at), basis=seen.basis)


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
        mine = tenant(request)
        vc, family = request.query.get("vc", ""), request.query.get("family", "")
        vcs = self._indexer.fold.state.asked.vcs
        if vc and vc not in vcs:
            text = f"there is no virtual cluster {vc}{meant(vc, vcs)}"
            raise ApiError(404, Reason.UNKNOWN_VC, text)
        found = list(self._calibration.groups(mine))
        families = dict.fromkeys(name for _, name, group in found if name and group.tracks)
        if family and family not in families:
            text = f"no estimate of family {family!r} was judged{meant(family, families)}"
            raise ApiError(404, Reason.UNKNOWN_MODEL, text)
        rows = [
            (name, each, what, track)
            for name, each, group in found
            for what, track in sorted(group.tracks.items())
            if not family or each == family
        ]
        left_out = max(0, len(rows) - LISTED_MAX)
        listed = [_row(*each) for each in rows[:LISTED_MAX]]
        return json_response({"estimates": listed, "left_out": left_out})


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
