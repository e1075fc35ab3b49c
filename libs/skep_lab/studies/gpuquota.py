"""The contrast: tenants that own so many GPUs instead of cells, as most schedulers do it.

A tenant's next job goes to the first nodes that hold it, as long as the tenant's guaranteed jobs
have no more GPUs than its quota; opportunistic jobs there are stopped. Beyond its quota, or where
no node has enough GPUs side by side, it runs opportunistically or waits. Victims are gone at once,
which flatters this scheduler.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count

from skep_lab.studies.replay import Served
from skep_lab.studies.tenants import CHAIN, NODE_GPUS, SIZE, Job, Plan


class Run:
    """An attempt of a job: which nodes its workers are on, and whether it is in the quota."""

    __slots__ = ("guaranteed", "nodes", "number")

    def __init__(self, number: int, nodes: list[int], *, guaranteed: bool) -> None:
        """Describe it."""
        self.number, self.nodes, self.guaranteed = number, nodes, guaranteed


class GpuQuota:
    """One run of a plan. `served` is by job number, from 1, in the order of arrival."""

    def __init__(self, plan: Plan) -> None:
        """Start with everything idle."""
        nodes = len(plan.cluster.chains[CHAIN].nodes)
        self.served = {number: Served(job) for number, job in enumerate(plan.jobs, 1)}
        self.quota = {
            vc: sum(SIZE[each.level] * each.count for each in owned.cells)
            for vc, owned in plan.cluster.vcs.items()
        }
        self.used = dict.fromkeys(self.quota, 0)
        self.firm, self.soft = [0] * nodes, [0] * nodes
        """By node: GPUs of guaranteed jobs, and of opportunistic ones."""
        self.guests: list[dict[int, Run]] = [{} for _ in range(nodes)]
        """By node: opportunistic runs there, by the job's number."""
        self.queues: dict[tuple[bool, str], deque[int]] = {}
        self._heap: list[tuple[int, int, int, Run | None]] = []
        self._serial, self._at = count(), 0
        self._runs: dict[int, Run] = {}
        for number, job in enumerate(plan.jobs, 1):
            heapq.heappush(self._heap, (job.at, next(self._serial), number, None))

    def run(self) -> None:
        """Go on until every guaranteed job has ended."""
        left = sum(not each.job.opportunistic for each in self.served.values())
        while left:
            self._at, _, number, run = heapq.heappop(self._heap)
            served = self.served[number]
            if run is None:
                served.queued_at = self._at
                self._queue(served.job).append(number)
            elif self._runs.get(number) is run:
                self._leave(run)
                served.ended = self._at
                left -= not served.job.opportunistic
            else:
                continue  # It was stopped before its end.
            self._schedule()

    def _queue(self, job: Job) -> deque[int]:
        return self.queues.setdefault((job.opportunistic, job.vc), deque())

    def _schedule(self) -> None:
        """Serve every queue in order as far as it goes, guaranteed jobs first."""
        for key in sorted(self.queues):
            queue = self.queues[key]
            while queue and self._serve(queue[0]):
                queue.remove(self._served)

    def _serve(self, number: int) -> bool:
        """Start a job if there is room; its number is kept, as victims may come before it."""
        self._served = number
        job = self.served[number].job
        within = self.used[job.vc] + job.total <= self.quota[job.vc]
        if not job.opportunistic and within:
            nodes = self._first_fit(job, self.firm)
            if nodes is not None:
                self._begin(Run(number, nodes, guaranteed=True))
                return True
        both = [firm + soft for firm, soft in zip(self.firm, self.soft, strict=True)]
        nodes = self._first_fit(job, both)
        if nodes is None:
            return False
        self._begin(Run(number, nodes, guaranteed=False))
        return True

    @staticmethod
    def _first_fit(job: Job, taken: list[int]) -> list[int] | None:
        """Return a node for each worker, the first that have room; within a rack if it must be."""
        span = SIZE["rack"] // NODE_GPUS if job.within == "rack" else len(taken)
        for begin in range(0, len(taken), span):
            found: list[int] = []
            for node in range(begin, begin + span):
                room = (NODE_GPUS - taken[node]) // job.gpus
                found += [node] * min(room, job.workers - len(found))
                if len(found) == job.workers:
                    return found
        return None

    def _begin(self, run: Run) -> None:
        served = self.served[run.number]
        served.waited += self._at - served.queued_at
        served.began = served.began or self._at
        self._runs[run.number] = run
        ends = self._at + served.job.lasts
        heapq.heappush(self._heap, (ends, next(self._serial), run.number, run))
        if run.guaranteed:
            self.used[served.job.vc] += served.job.total
        for node in run.nodes:
            if run.guaranteed:
                self.firm[node] += served.job.gpus
                self._make_room(node)
            else:
                self.soft[node] += served.job.gpus
                self.guests[node][run.number] = run

    def _make_room(self, node: int) -> None:
        """Stop the youngest opportunistic jobs of a node until the others fit."""
        while self.firm[node] + self.soft[node] > NODE_GPUS:
            run = self.guests[node][next(reversed(self.guests[node]))]
            self._leave(run)
            served = self.served[run.number]
            served.queued_at = self._at
            served.stops += 1
            self._queue(served.job).appendleft(run.number)

    def _leave(self, run: Run) -> None:
        job = self.served[run.number].job
        del self._runs[run.number]
        if run.guaranteed:
            self.used[job.vc] -= job.total
        for node in run.nodes:
            if run.guaranteed:
                self.firm[node] -= job.gpus
            else:
                self.soft[node] -= job.gpus
                self.guests[node].pop(run.number, None)
