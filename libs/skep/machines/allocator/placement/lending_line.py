"""The waiting jobs of a virtual cluster that may have idle GPUs, by what they ask for."""

from __future__ import annotations

import heapq

from skep.ledger.job_state import JobState, State
from skep.ledger.queue import Entry, JobQueue
from skep.ledger.state import ClusterState
from skep.machines.allocator.placement import quota
from skep.wire.spec import Resources


class Line:
    """The jobs of a queue that may have idle GPUs, by what they ask for: earliest first."""

    def __init__(self, queue: JobQueue) -> None:
        """Begin with every job that waits."""
        self._queue = queue
        self._heaps: dict[Resources, list[Entry]] = {}
        self._new = True

    def bring_up(self, state: ClusterState) -> None:
        """Take in the jobs that came since the last time."""
        came = self._queue.came()
        came, self._new = (list(self._queue.entries) if self._new else came), False
        for entry in came:
            job = state.jobs.get(entry.job)
            if job is not None and job.state is State.QUEUED and quota.lends(job):
                heapq.heappush(self._heaps.setdefault(job.spec.resources, []), entry)

    def firsts(
        self, state: ClusterState, idle: int, on_one_node: int
    ) -> list[tuple[Entry, JobState]]:
        """Return the earliest job of each shape that so many idle GPUs may hold, as a heap.

        Args:
            state: Its jobs are read.
            idle: The idle GPUs of the chain with the most.
            on_one_node: The idle GPUs of the node with the most.

        Returns:
            A heap of jobs by their place in the queue; empty: no shape is that small.
        """
        found = []
        for shape in list(self._heaps):
            if shape.gpus * shape.workers <= idle and shape.gpus <= on_one_node:
                job = self._first(state, shape)
                if job is not None:
                    found.append((job.entry, job))
        heapq.heapify(found)
        return found

    def _first(self, state: ClusterState, shape: Resources) -> JobState | None:
        """Return the first job of a shape that still waits, or None."""
        heap = self._heaps[shape]
        while heap:
            job = state.jobs.get(heap[0].job)
            if job is not None and self._queue.holds(heap[0]) and quota.lends(job):
                return job
            heapq.heappop(heap)
        del self._heaps[shape]
        return None
