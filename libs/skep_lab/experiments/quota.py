"""The baseline of HiveD's evaluation: tenants own numbers of GPUs, without affinity.

HiveD, sections 5.1 and 5.2 (YARN-CS): jobs are packed as closely as possible; a job within its
tenant's quota has a high priority, any other a low one; a high one preempts low ones where the
fewest GPUs have to be cleared for the affinity it wants. Each tenant's jobs are served in order of
arrival, as in `fifo`. Jobs of low priority are promoted once the quota has free GPUs for them.
Preemption costs no time and no work here, which favours this scheme. It decides as the policy
`yarn-cs` does, in time that does not depend on the number of running jobs: a trace of months takes
seconds.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from skep.units import Duration
from skep_lab.traces.job import TraceJob

NODE_GPUS = 8
"""HiveD's nodes."""


class Sample(NamedTuple):
    """The cluster at one instant."""

    at: int
    no_affinity: float
    """The part of the nodes on which a high-priority job holds a GPU (section 5.2)."""
    taken: int
    """GPUs with a job."""
    high: int
    """GPUs with a job of high priority."""


class Rules(NamedTuple):
    """Choices that the paper leaves open, or that differ in a private cluster."""

    beyond: bool = True
    """Whether jobs beyond the quota run at low priority; else they wait."""
    promote: bool = True
    """Whether low-priority jobs get a high one when the quota has free GPUs; else they stay."""
    least_used: bool = False
    """Whether the tenant that uses least of its quota is first, as in YARN's queues; else the first
    job."""
    node_gpus: int = NODE_GPUS
    slice_s: float = 600.0
    """Of turns, for all jobs. Gandiva's are a minute; HiveD's jobs last hours and days."""


RULES = Rules()


class QuotaRun:
    """One run. Times are nanoseconds from the beginning of the trace."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        quota: Mapping[str, int],
        nodes: int,
        sample_every: Duration,
        rules: Rules = RULES,
    ) -> None:
        """Prepare to run jobs.

        Args:
            jobs: In order of arrival.
            quota: GPUs by tenant.
            nodes: How many nodes.
            sample_every: Nanoseconds between samples; 0: there are none.
            rules: Choices that the paper leaves open.
        """
        self._rules = rules
        self.jobs, self.quota = jobs, dict(quota)
        self.waited = [0] * len(jobs)
        self.ended: list[int | None] = [None] * len(jobs)
        self.preempted_gpus = 0
        self.samples: list[Sample] = []
        self._every, self._due = sample_every, 0
        self._used = dict.fromkeys(quota, 0)
        self._firm, self._soft = [0] * nodes, [0] * nodes
        self._nodes: dict[tuple[int, int], list[int]] = {(0, 0): list(range(nodes))}
        """Nodes by GPUs of high- and of low-priority jobs, in order."""
        self._guests: list[dict[int, None]] = [{} for _ in range(nodes)]
        self._queues: dict[str, list[int]] = {tenant: [] for tenant in quota}
        self._low: dict[str, list[int]] = {tenant: [] for tenant in quota}
        """Jobs that run at low priority, by tenant, in order of arrival."""
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._left = [job.run_time for job in jobs]
        self._since = [0] * len(jobs)
        self._life = [0] * len(jobs)
        self._ends: list[tuple[int, int, int]] = []
        self._now = 0
        self._dirty: dict[str, None] = {}

    def run(self) -> None:
        """Continue until no job that fits is left."""
        arrivals = iter(enumerate(self.jobs))
        following = next(arrivals, None)
        while following is not None or self._ends:
            if self._ends and (following is None or self._ends[0][0] <= following[1].at):
                at, number, life = heapq.heappop(self._ends)
                if life != self._life[number]:
                    continue  # It was preempted before.
                self._pass(at)
                self.ended[number] = at
                self._leave(number)
                self._dirty = dict.fromkeys(self.quota)
            else:
                assert following is not None
                number, job = following
                following = next(arrivals, None)
                self._pass(job.at)
                self._since[number] = job.at
                self._queues[job.vc].append(number)
                self._dirty[job.vc] = None
            self._schedule()

    def _pass(self, at: int) -> None:
        while self._every and self._due <= at:
            idle = sum(len(nodes) for (firm, _), nodes in self._nodes.items() if not firm)
            high = sum(self._firm)
            taken = high + sum(self._soft)
            self.samples.append(Sample(self._due, 1 - idle / len(self._firm), taken, high))
            self._due += self._every
        self._now = at

    def _schedule(self) -> None:
        """Serve the first of every queue by arrival, high priority before low, until all wait."""
        while self._dirty:
            changed, self._dirty = self._dirty, {}
            for high in (True, False)[: 1 + self._rules.beyond]:
                heads = [
                    self._head(tenant)
                    for tenant, queue in self._queues.items()
                    if queue and tenant in changed
                ]
                heapq.heapify(heads)
                while heads:
                    *_, tenant = heapq.heappop(heads)
                    queue = self._queues[tenant]
                    if self._serve(queue[0], high=high) and queue:
                        heapq.heappush(heads, self._head(tenant))
            if self._rules.promote:
                self._promote(changed)

    def _head(self, tenant: str) -> tuple[float, int, str]:
        """Return the sort key of the first job of a tenant's queue, lowest first."""
        used = self._used[tenant] / max(1, self.quota[tenant]) if self._rules.least_used else 0.0
        return used, self._queues[tenant][0], tenant

    def _serve(self, number: int, *, high: bool) -> bool:
        job = self.jobs[number]
        within = self._used[job.vc] + job.gpus <= self.quota[job.vc]
        if high and not within:
            return False
        place = self._fit(job, high=high)
        if place is None:
            return False
        self._queues[job.vc].remove(number)
        self.waited[number] += self._now - self._since[number]
        self._begin(number, place, high=high)
        return True

    def _fit(self, job: TraceJob, *, high: bool) -> list[int] | None:
        """Return a node for each worker: the fullest without preemption, else the cheapest.

        A gang that prefers one node gets one where that preempts no job.
        """
        workers = max(job.workers, 1)
        each = job.gpus // workers
        if job.within == "node" and workers > 1:
            whole = self._free(job.gpus, 1)
            if whole:
                return whole * workers
        found = self._free(each, workers)
        if len(found) == workers or not high:
            return found if len(found) == workers else None
        more = [
            (max(firm + soft + each - self._rules.node_gpus, 1), -firm, firm, soft, extra)
            for firm, soft in self._nodes
            if (
                extra := (self._rules.node_gpus - firm) // each
                - (self._rules.node_gpus - firm - soft) // each
            )
        ]
        for _, _, firm, soft, extra in sorted(more):
            found += self._of(firm, soft, each, workers - len(found), extra * each)
            if len(found) == workers:
                return found
        return None

    def _free(self, each: int, workers: int) -> list[int]:
        """Return nodes for as many workers as fit now, the fullest nodes first."""
        found: list[int] = []
        kinds = [
            (firm + soft, firm, soft)
            for firm, soft in self._nodes
            if firm + soft + each <= self._rules.node_gpus
        ]
        for taken, firm, soft in sorted(kinds, reverse=True):
            found += self._of(firm, soft, each, workers - len(found), self._rules.node_gpus - taken)
            if len(found) == workers:
                break
        return found

    def _of(self, firm: int, soft: int, each: int, wanted: int, room: int) -> list[int]:
        """Return nodes of one kind, each as often as it holds workers, at most `wanted`."""
        found: list[int] = []
        for node in self._nodes[firm, soft]:
            if len(found) >= wanted:
                break
            found += [node] * min(room // each, wanted - len(found))
        return found

    def _begin(self, number: int, place: list[int], *, high: bool) -> None:
        job = self.jobs[number]
        each = job.gpus // max(job.workers, 1)
        counts: dict[int, int] = {}
        for node in place:
            counts[node] = counts.get(node, 0) + each
        if high:
            self._used[job.vc] += job.gpus
            for node, gpus in counts.items():
                self._clear(node, gpus)
        else:
            insort(self._low[job.vc], number)
        self._places[number] = list(counts.items())
        for node, gpus in counts.items():
            self._move(node, gpus if high else 0, 0 if high else gpus)
            if not high:
                self._guests[node][number] = None
        self._since[number] = self._now
        heapq.heappush(self._ends, (self._now + self._left[number], number, self._life[number]))

    def _clear(self, node: int, gpus: int) -> None:
        """Preempt the latest low-priority jobs of a node until the GPUs are free."""
        while self._firm[node] + self._soft[node] + gpus > self._rules.node_gpus:
            victim = next(reversed(self._guests[node]))
            job = self.jobs[victim]
            self._left[victim] = Duration(self._left[victim] - (self._now - self._since[victim]))
            self._leave(victim)
            self.preempted_gpus += job.gpus
            self._since[victim] = self._now
            insort(self._queues[job.vc], victim)
            self._dirty = dict.fromkeys(self.quota)  # It may have left more than was needed.

    def _leave(self, number: int) -> None:
        job = self.jobs[number]
        self._life[number] += 1
        low = self._low[job.vc]
        at = bisect_left(low, number)
        soft = at < len(low) and low[at] == number
        if soft:
            del low[at]
        else:
            self._used[job.vc] -= job.gpus
        for node, gpus in self._places.pop(number):
            self._move(node, 0 if soft else -gpus, -gpus if soft else 0)
            if soft:
                del self._guests[node][number]

    def _move(self, node: int, firm: int, soft: int) -> None:
        """Change what a node holds, and where it is listed."""
        key = self._firm[node], self._soft[node]
        nodes = self._nodes[key]
        del nodes[bisect_left(nodes, node)]
        if not nodes:
            del self._nodes[key]
        self._firm[node] += firm
        self._soft[node] += soft
        insort(self._nodes.setdefault((self._firm[node], self._soft[node]), []), node)

    def _promote(self, changed: Mapping[str, None]) -> None:
        """Promote running low-priority jobs, the earliest first, while the quota has free GPUs."""
        for tenant, low in self._low.items():
            if tenant not in changed:
                continue
            queue = self._queues[tenant]
            for number in list(low):
                job = self.jobs[number]
                if queue and queue[0] < number:
                    break
                if self._used[tenant] + job.gpus > self.quota[tenant]:
                    break
                low.remove(number)
                self._used[tenant] += job.gpus
                for node, gpus in self._places[number]:
                    del self._guests[node][number]
                    self._move(node, gpus, -gpus)
