"""Gandiva with quotas, as in HiveD's testbed: the baseline of Figure 5 with turns and moves.

HiveD, section 5.1: a job within its tenant's quota has a high priority, any other a low one. Each
tenant's GPUs are used in turns: at every slice waiting jobs come first, new jobs before all others,
and as many as the quota holds, in that order, are high until the next slice. High ones go before
low ones of all tenants, and take turns with high ones of others where no node has enough GPUs
together for them. A server that is three quarters free is cleared for a waiting job, as the policy
`gandiva` does with `introspect`; a suspended job may continue elsewhere. Jobs are not packed: the
compared jobs have equal speed everywhere. It decides everything again at every event: for a
testbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skep.units import Duration, seconds
from skep_lab.experiments.quota import RULES, Rules
from skep_lab.experiments.quotalas import LasRun, Place, take
from skep_lab.traces.job import TraceJob

SLICE_S = RULES.slice_s
AGAIN_S, MOVED_S = 1.0, 3.5
"""The cost of being suspended and resumed, and of resuming elsewhere or being moved:
`gandiva.COSTS`."""
DEFRAG_FREE = 0.75
STARVES_SLICES = 2


class GandivaRun(LasRun):
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
        super().__init__(jobs, quota, nodes, sample_every, rules)
        self.moves = 0
        self._slice = seconds(rules.slice_s)
        self._homes: dict[int, Place] = {}
        """Where jobs are, or last were."""

    def _next(self) -> int | None:
        """Return when the next job ends, or the slice if a job is suspended."""
        ends = [self._now + self._left[number] for number in self._places]
        if len(self._places) < len(self._here) and ends:
            ends.append((self._now // self._slice + 1) * self._slice)
        return min(ends, default=None)

    def _round(self, number: int) -> tuple[bool, bool, int, int]:
        """Return a job's sort key: at the end of a slice running jobs are last."""
        runs, over = number in self._places, self._now % self._slice == 0
        since = self._since[number]
        return runs is over, self._began[number] is not None, -since if runs else since, number

    def _plan(self) -> None:
        order = sorted(self._here, key=self._round)
        left, high, low = dict(self.quota), [], []
        for number in order:
            job = self.jobs[number]
            if job.gpus <= left[job.vc]:
                left[job.vc] -= job.gpus
                high.append(number)
            else:
                low.append(number)
                if number not in self._places and self._starves(number):
                    left[job.vc] = 0  # Else a gang would stand behind small ones for ever.
        free = [self._rules.node_gpus] * self._nodes
        places: dict[int, Place] = {}
        self._serve(high, [*high, *low], free, places)
        self._high = {number for number in high if number in places}
        if self._rules.beyond:
            rest = [number for number in order if number not in places]
            self._serve(rest, rest, free, places)
        self._pay(places)
        self._change(places)

    def _starves(self, number: int) -> bool:
        stood = self._now - self._since[number] >= STARVES_SLICES * self._slice
        return stood and self.jobs[number].gpus <= self.quota[self.jobs[number].vc]

    def _serve(
        self, some: Sequence[int], lasting: Sequence[int], free: list[int], places: dict[int, Place]
    ) -> None:
        """Give jobs their places in this order; no job of `lasting` is stopped needlessly."""
        spare = list(free)
        for number in lasting:
            take(spare, self._places.get(number, {}))
        for number in some:
            home = self._homes.get(number, {})
            if home and all(free[node] >= gpus for node, gpus in home.items()):
                places[number] = home
                take(free, home)
                if number not in self._places:
                    take(spare, home)
            else:
                take(spare, {node: -gpus for node, gpus in self._places.get(number, {}).items()})
                self._try(number, free, spare, places)
                if number not in places and self._clear(number, free, spare, places):
                    self._try(number, free, spare, places)

    def _clear(
        self, number: int, free: list[int], spare: list[int], places: dict[int, Place]
    ) -> bool:
        """Move the jobs of a server that is mostly free to others; return whether one was moved."""
        job = self.jobs[number]
        each = job.gpus // max(job.workers, 1)
        whole = self._rules.node_gpus
        able = [node for node in range(self._nodes) if DEFRAG_FREE * whole <= free[node] < each]
        for node in sorted(able, key=lambda node: (-free[node], node)):
            there = dict(enumerate(free))
            moves: dict[int, int] = {}
            for other in [other for other, place in places.items() if list(place) == [node]]:
                gpus = places[other][node]
                room = [to for to in there if to != node and gpus <= there[to] < whole]
                to = min(room, key=lambda to: (there[to], to), default=None)
                if to is not None:
                    moves[other] = to
                    there[to] -= gpus
                    there[node] += gpus
            if there[node] < each:
                continue
            for other, to in moves.items():
                gpus = places[other][node]
                for rooms in (free, spare):
                    take(rooms, {node: -gpus, to: gpus})
                places[other] = {to: gpus}
            return True
        return False

    def _pay(self, places: Mapping[int, Place]) -> None:
        """Charge jobs that resumed, or were moved, the cost of that."""
        for number, place in places.items():
            before = self._homes.get(number)
            moved = before is not None and before != place
            self.moves += moved
            if moved or (before is not None and number not in self._places):
                cost = seconds(MOVED_S if moved else AGAIN_S)
                self._left[number] = Duration(self._left[number] + cost)
            self._homes[number] = place
