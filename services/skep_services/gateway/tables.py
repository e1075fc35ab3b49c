"""The tables of `/v1/state` kept up to date: what facts touched is built anew, tick by tick.

    news of the fold ──> rows of jobs ──> their nodes and GPUs, sums of VCs ──> commit: a version
                  clock ──> alerts, searches, silent nodes, soft values, a slow walk over everything

Nothing is read from outside: the feed calls `tick`, and says what time it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import NamedTuple

from skep.ids import job_id
from skep.ledger.history import Tally
from skep.units import Instant, seconds
from skep_services.gateway import alerts
from skep_services.gateway.alerts import ALERTS_MAX, Alert
from skep_services.gateway.arrays import is_task
from skep_services.gateway.columns import SEARCHES, TABLES
from skep_services.gateway.fold import Fold
from skep_services.gateway.limits import Nearly
from skep_services.gateway.live import Live
from skep_services.gateway.rows import ENDED, Job, State
from skep_services.gateway.searches import SearchesView, summary
from skep_services.gateway.table_rows import (
    Face,
    Share,
    Soft,
    Sums,
    Total,
    differs,
    face_of,
    gpu_rows,
    job_row,
    node_row,
    nodes_of,
    search_row,
    share_of,
    soft_of,
    users_of,
    vc_row,
    whole,
)
from skep_services.gateway.versions import Versions

ENDED_MAX = 1_000
"""Ended jobs in the table; older ones are found by `/v1/jobs`."""
SLICE = 100
"""Rows that are built before others may run: some 3 ms."""
SOFT_EVERY = seconds(2.0)
SOFT_ROWS_MAX = 200
"""Rows that change for soft values alone at one time: some 80 KB for each page."""
SLOW_EVERY = seconds(1.0)
"""How often alerts, searches and silent nodes are looked at: none of them is a fact."""
LATELY_EVERY = seconds(10.0)
"""How often the waits of the last hour and the use of the last day are summed up."""
WALK_PARTS = 100
"""A walk over everything takes as many ticks: 20 s at the fastest."""
HOUR, DAY = seconds(3600.0), seconds(24 * 3600.0)


class Known(NamedTuple):
    """What the table has of a job, apart from its row."""

    soft: Soft
    share: Share | None
    nodes: tuple[str, ...]
    face: Face


class Tables:
    """The tables, and what they are made of."""

    def __init__(
        self, fold: Fold, live: Live, searches: SearchesView, near: Callable[[], Iterable[Nearly]]
    ) -> None:
        """Begin with empty tables. `near` returns the limits that are near."""
        self.versions = Versions(TABLES)
        self.more_alerts: list[Alert] = []
        """Alerts that others found: of services, of disks."""
        self._fold, self._live, self._searches, self._near = fold, live, searches, near
        self._jobs: dict[str, Known] = {}
        self._ended: dict[str, None] = {}
        """Ended jobs in the table, the first to leave it first."""
        self._sums: dict[str, Sums] = {}
        self._changed_vcs: dict[str, None] = {}
        self._first_seen: dict[str, int] = {}
        """Of each alert."""
        self._gpus_of: dict[str, set[str]] = {}
        """Keys of GPUs by node."""
        self._silent: set[str] = set()
        self._searches_at = -1
        self._slow_at = self._soft_at = self._lately_at = 0
        self._soft_from = 0
        self._walk_at = 0
        self._hour: dict[str, Tally] = {}
        self._day: dict[str, Tally] = {}

    async def fill(self, ended: Iterable[int], now: Instant) -> None:
        """Build everything for the first time.

        Args:
            ended: The numbers of the newest ended jobs in the store.
            now: The time.
        """
        there = []
        for number, sequence in enumerate(ended):
            job = self._fold.find(job_id(sequence))
            if job is not None and job.row.state in ENDED:
                there.append(job)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        there.sort(key=lambda job: (job.row.ended_at or 0, job.sequence))
        self._fold.news.take()
        await self._do([job.row.job for job in there], list(self._fold.state.nodes), now)
        await self._everything(now)

    async def tick(self, now: Instant, *, whole: bool = True) -> bool:
        """Take over what happened; return whether there is a new version.

        Args:
            now: The time.
            whole: Look at what no fact tells, too.
        """
        touched = self._fold.news.take()
        if touched.everything:
            await self._everything(now)
        await self._do(touched.jobs, touched.nodes, now)
        if whole:
            await self._walk(now)
        if whole and now - self._slow_at >= SLOW_EVERY:
            self._slow_at = now
            await self._slow(now)
        if whole and now - self._soft_at >= SOFT_EVERY:
            self._soft_at = now
            self._soften(now)
        self._sum_up(now)
        return self.versions.commit()

    # --- by what was touched ---------------------------------------------------------------------

    async def _everything(self, now: Instant) -> None:
        jobs = [*self._fold.active, *self._fold.arrays, *self._jobs]
        nodes = [*self._fold.state.nodes, *self.versions.keys("nodes")]
        await self._do(list(dict.fromkeys(jobs)), list(dict.fromkeys(nodes)), now)

    async def _do(
        self, jobs: list[str], nodes: list[str], now: Instant, *, soft: bool = True
    ) -> None:
        """Build rows anew: of jobs, of their nodes, and of other nodes.

        Args:
            jobs: The jobs.
            nodes: The other nodes.
            now: The time.
            soft: Soft values are shown as they are now.
        """
        places = dict.fromkeys(nodes)
        for number, name in enumerate(jobs):
            places |= dict.fromkeys(self._job(name, soft=soft))
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        for number, name in enumerate(list(places)):
            self._node(name, now)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)

    def _job(self, name: str, *, soft: bool = True) -> tuple[str, ...]:
        """Build the row of a job; return the nodes that may look otherwise by it."""
        fold, known = self._fold, self._jobs.get(name)
        before = known.nodes if known is not None else ()
        job = fold.find(name)
        if job is None or job.row.job != name or not self._belongs(job):
            self._leave(name)
            return before
        share, face = share_of(job, fold), face_of(job)
        shown = soft_of(job, self._live) if soft or known is None else known.soft
        nodes = tuple(nodes_of(job))
        placed = fold.state.placed.get(name)
        if placed is not None:
            nodes = tuple(dict.fromkeys((*nodes, *placed.members)))
        self._count(known.share if known is not None else None, share)
        self.versions.put("jobs", name, job_row(job, shown, fold))
        self._jobs[name] = Known(shown, share, nodes, face)
        if job.row.state in ENDED:
            self._note_ended(name)
        else:
            self._ended.pop(name, None)
        if known is not None and (known.nodes, known.face) == (nodes, face):
            return ()
        return tuple(dict.fromkeys((*before, *nodes)))

    @staticmethod
    def _belongs(job: Job) -> bool:
        """Return whether a job is in the table."""
        state = job.row.state
        if state in (State.UNSEEN, State.REPEATED):
            return False
        return state not in ENDED or not is_task(job)

    def _leave(self, name: str) -> None:
        known = self._jobs.pop(name, None)
        self._ended.pop(name, None)
        if known is not None:
            self._count(known.share, None)
            self.versions.drop("jobs", name)

    def _note_ended(self, name: str) -> None:
        if name not in self._ended:
            self._ended[name] = None
            for old in list(self._ended)[: max(0, len(self._ended) - ENDED_MAX)]:
                self._leave(old)

    def _count(self, before: Share | None, after: Share | None) -> None:
        if before == after:
            return
        for share, sign in ((before, -1), (after, 1)):
            if share is not None:
                self._sums.setdefault(share.vc, Sums()).move(share, sign)
                self._changed_vcs[share.vc] = None

    def _node(self, name: str, now: Instant) -> None:
        node = self._fold.state.nodes.get(name)
        if node is None:
            self.versions.drop("nodes", name)
            keys = sorted(self._gpus_of.pop(name, ()))
        else:
            there = users_of(node, self._fold)
            row = node_row(node, self._fold, self._live, now, there)
            self.versions.put("nodes", name, row)
            rows = gpu_rows(node, self._fold, there)
            for key, gpu in rows:
                self.versions.put("gpus", key, gpu)
            keys = self._surplus(name, {key for key, _ in rows})
        for key in keys:
            self.versions.drop("gpus", key)

    def _surplus(self, node: str, there: set[str]) -> list[str]:
        """Return the keys of GPUs that a node had and has no more."""
        known = self._gpus_of.get(node, set())
        self._gpus_of[node] = there
        return sorted(known - there)

    # --- by the clock ----------------------------------------------------------------------------

    async def _walk(self, now: Instant) -> None:
        """Look at a part of everything, so that whatever was not noted shows in the end."""
        part, self._walk_at = self._walk_at % WALK_PARTS, self._walk_at + 1
        jobs = [*self._fold.active, *self._fold.arrays]
        nodes = list(self._fold.state.nodes)
        await self._do(jobs[part::WALK_PARTS], nodes[part::WALK_PARTS], now, soft=False)

    async def _slow(self, now: Instant) -> None:
        """Look at what no fact tells: silence, alerts, searches."""
        fold, live = self._fold, self._live
        silent = {name for name in fold.state.nodes if live.silent(name, now)}
        await self._do([], sorted(silent ^ self._silent), now)
        self._silent = silent
        self._alert(now)
        if self._searches.position != self._searches_at:
            self._searches_at = self._searches.position
            self._search(now)
        self._changed_vcs |= dict.fromkeys([*fold.state.cells.cluster.vcs, *self._vcs_shown()])

    def _vcs_shown(self) -> list[str]:
        return self.versions.keys("vcs")

    def _alert(self, now: Instant) -> None:
        kinds = (
            self.more_alerts,
            alerts.of_cells(self._fold),
            alerts.of_nodes(self._fold, self._live, now),
            alerts.of_jobs(self._fold, now),
            alerts.of_limits(self._near()),
        )
        found = {each.key: each for kind in kinds for each in islice(kind, ALERTS_MAX)}
        self._first_seen = {key: self._first_seen.get(key, now) for key in found}
        for key in self.versions.keys("alerts"):
            if key not in found:
                self.versions.drop("alerts", key)
        for key, each in found.items():
            since = each.since if each.since is not None else self._first_seen[key]
            self.versions.put("alerts", key, each.row(whole(since) or 0))

    def _search(self, now: Instant) -> None:
        listed = self._searches.listed("", "all")
        there = {search.search for search, _ in listed}
        for key in self.versions.keys("searches"):
            if key not in there:
                self.versions.drop("searches", key)
        for search, end in listed:
            row = search_row(summary(search, end, now), SEARCHES)
            self.versions.put("searches", search.search, row)

    def _soften(self, now: Instant) -> None:
        """Show soft values that differ; of many, the others come the next time."""
        names = list(self._fold.active)
        begin = self._soft_from % max(1, len(names))
        changed = 0
        for number, name in enumerate(chain(names[begin:], names[:begin])):
            job, known = self._fold.active[name], self._jobs.get(name)
            if known is None or not differs(known.soft, soft_of(job, self._live), now):
                continue
            self._job(name)
            changed += 1
            if changed >= SOFT_ROWS_MAX:
                self._soft_from = begin + number + 1
                return

    def _sum_up(self, now: Instant) -> None:
        """Put the rows of virtual clusters, and the total."""
        fold = self._fold
        fold.history.begin(fold.state)
        vcs = fold.state.cells.cluster.vcs
        for name in self._changed_vcs:
            if name in vcs:
                self.versions.put("vcs", name, vc_row(name, self._sums.get(name, Sums()), fold))
            else:
                self.versions.drop("vcs", name)
        self._changed_vcs = {}
        if now - self._lately_at >= LATELY_EVERY:
            self._lately_at = now
            self._hour = fold.history.sums(now - HOUR, now)
            self._day = fold.history.sums(now - DAY, now)
        jobs = {name: dict(sums.jobs) for name, sums in self._sums.items() if sums.jobs}
        gpus = dict(fold.history.gpus)
        self.versions.put("totals", "all", Total(jobs, gpus, self._hour, self._day))
