"""Tiresias with quotas, as in HiveD's testbed: the baseline of Figure 5 that preempts.

HiveD, section 5.1: "To enforce quota in Tiresias, jobs exceeding the quota will get scheduled in a
low-priority queue, which is also sorted by Tiresias." Each tenant's jobs are sorted by attained
service (Tiresias-L: `policy.schedulers.tiresias`), and as many as its quota holds, in that order,
have a high priority; the others are in one queue of all tenants, in the same order. High ones keep
their GPUs as long as they are high, and take those of low ones where the fewest are preempted. A
job moves only by being stopped, and stopping costs nothing. It decides everything again at every
event: for a testbed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from skep.units import NS_PER_SECOND, Duration
from skep_lab.experiments.quota import RULES, Rules, Sample
from skep_lab.traces.job import TraceJob

THRESHOLDS_S = (3250.0,)
"""GPU-seconds at which a job goes to the next queue (Tiresias' own in its simulator)."""

Place = dict[int, int]
"""GPUs by node."""


class LasRun:
    """One run with the results of `quota.QuotaRun`. Times are nanoseconds from the beginning."""

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
        self.jobs, self.quota = jobs, dict(quota)
        self.waited = [0] * len(jobs)
        self.ended: list[int | None] = [None] * len(jobs)
        self.preempted_gpus = 0
        self.samples: list[Sample] = []
        self._nodes, self._rules = nodes, rules
        self._every, self._due = sample_every, 0
        self._limits = [round(each * NS_PER_SECOND) for each in THRESHOLDS_S]
        self._left = [job.run_time for job in jobs]
        self._served = [0] * len(jobs)
        """GPU-nanoseconds."""
        self._began: list[int | None] = [None] * len(jobs)
        self._since: list[int] = [job.at for job in jobs]
        self._places: dict[int, Place] = {}
        self._high: set[int] = set()
        self._here: list[int] = []
        """Jobs that have come and not ended, in order of arrival."""
        self._now = 0

    def run(self) -> None:
        """Continue until no job that fits is left."""
        arriving = 0
        while True:
            at = self._next()
            if arriving < len(self.jobs) and (at is None or self.jobs[arriving].at < at):
                at = self.jobs[arriving].at
            if at is None:
                return
            self._pass(at)
            while arriving < len(self.jobs) and self.jobs[arriving].at <= at:
                self._here.append(arriving)
                arriving += 1
            self._plan()

    def _next(self) -> int | None:
        """Return when the next job ends, or goes to another queue."""
        found: int | None = None
        for number in self._places:
            gpus = self.jobs[number].gpus
            served = self._served[number]
            ends = self._now + self._left[number]
            place = bisect_right(self._limits, served)
            if place < len(self._limits):
                ends = min(ends, self._now - (served - self._limits[place]) // gpus)
            found = ends if found is None else min(found, ends)
        return found

    def _pass(self, at: int) -> None:
        while self._every and self._due <= at:
            firm = {node for number in sorted(self._high) for node in self._places[number]}
            taken = sum(self.jobs[number].gpus for number in self._places)
            high = sum(self.jobs[number].gpus for number in sorted(self._high))
            self.samples.append(Sample(self._due, len(firm) / self._nodes, taken, high))
            self._due += self._every
        for number in list(self._places):
            ran = at - self._now
            self._left[number] = Duration(self._left[number] - ran)
            self._served[number] += ran * self.jobs[number].gpus
            if self._left[number] <= 0:
                del self._places[number]
                self._high.discard(number)
                self._here.remove(number)
                self.ended[number] = at
        self._now = at

    def _key(self, number: int) -> tuple[int, bool, bool, int, int]:
        """Return a job's sort key: its queue; then running jobs, jobs that ran, all others."""
        waits, began = number not in self._places, self._began[number]
        when = self._since[number] if not waits else began or 0
        return bisect_right(self._limits, self._served[number]), waits, began is None, when, number

    def _plan(self) -> None:
        order = sorted(self._here, key=self._key)
        left = dict(self.quota)
        high: list[int] = []
        low: list[int] = []
        for number in order:
            job = self.jobs[number]
            (high if job.gpus <= left[job.vc] else low).append(number)
            if job.gpus <= left[job.vc]:
                left[job.vc] -= job.gpus
        before, free = self._places, [self._rules.node_gpus] * self._nodes
        places = {number: before[number] for number in high if number in before}
        for place in places.values():
            take(free, place)
        spare = list(free)
        for number in low:
            take(spare, before.get(number, {}))
        for number in high:
            if number not in places:
                self._try(number, free, spare, places)
        self._high = {number for number in high if number in places}
        for number in low + [each for each in high if each not in places]:
            if not self._rules.beyond:
                break
            if number in before and all(
                free[node] >= gpus for node, gpus in before[number].items()
            ):
                places[number] = before[number]
                take(free, places[number])
            elif number not in before:
                self._try(number, free, free, places)
        self._change(places)

    def _try(
        self, number: int, free: list[int], spare: list[int], places: dict[int, Place]
    ) -> None:
        """Give a job a place if there is one: first where no job is stopped, then the fullest."""
        job = self.jobs[number]
        workers = max(job.workers, 1)
        each = job.gpus // workers
        stops = [max(0, each - max(0, left)) for left in spare]
        nodes = sorted(range(self._nodes), key=lambda node: (stops[node], free[node], node))
        found: Place = {}
        for node in nodes:
            while workers and free[node] - found.get(node, 0) >= each:
                found[node] = found.get(node, 0) + each
                workers -= 1
        if workers:
            return
        places[number] = found
        take(free, found)
        if spare is not free:
            take(spare, found)

    def _change(self, places: dict[int, Place]) -> None:
        for number in self._places:
            if number not in places:
                self.preempted_gpus += self.jobs[number].gpus
                self._since[number] = self._now
        for number in places:
            if number not in self._places:
                self.waited[number] += self._now - self._since[number]
                self._since[number] = self._now
                if self._began[number] is None:
                    self._began[number] = self._now
        self._places = places


def take(free: list[int], place: Place) -> None:
    """Remove a place's GPUs from the free ones.

    Args:
        free: By node; changed.
        place: The GPUs.
    """
    for node, gpus in place.items():
        free[node] -= gpus
