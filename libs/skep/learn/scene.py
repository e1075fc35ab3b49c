"""A VC as rows of numbers, kept from one sight to the next: a changed job costs one row."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from skep.learn import columns as c
from skep.learn.columns import Floats
from skep.learn.features import sums
from skep.policy.sight import sight_of
from skep.policy.view import VcView
from skep.wire.learned import JobSight, RoomSight, Sight

ROWS_MIN = 64
ARRIVALS_MAX = 4096
"""Arrivals that are remembered: more than one every two seconds for two hours."""
_NUMBER_OF_PHASE = {phase: number for number, phase in enumerate(c.PHASES)}


class Scene:
    """The jobs and the cluster of one VC, by the sights that were followed."""

    def __init__(self) -> None:
        """Begin without a sight."""
        self.number = -1
        """Of the sight that it shows; -1: of none."""
        self.at = 0.0
        self.names: list[str] = []
        """Jobs, by row. The order is of no matter to a model."""
        self.changed: list[int] | None = None
        """Rows that the latest sight changed; None: all."""
        self._rows: dict[str, int] = {}
        self._table = np.zeros((ROWS_MIN, c.RAW))
        self._cluster = np.zeros(c.CLUSTER)
        self._began = 0.0
        self._arrivals: deque[tuple[float, float]] = deque(maxlen=ARRIVALS_MAX)
        """When jobs came, and how many GPU-seconds they need."""
        self._latest = -1
        """The highest sequence that was seen: later ones are arrivals."""

    @classmethod
    def of(cls, view: VcView) -> Scene:
        """Return what is seen of a VC, without a history of arrivals."""
        scene = cls()
        scene.follow(sight_of(view, 0))
        return scene

    @property
    def raw(self) -> Floats:
        """Return the rows of all jobs; valid until the next sight."""
        return self._table[: len(self.names)]

    def follow(self, sight: Sight) -> bool:
        """Show what a sight says.

        Returns:
            Whether it could be followed; False: it is not the next one, and a whole one is needed.
        """
        if not sight.whole and sight.number != self.number + 1:
            return False
        at = sight.at / 1e9
        if self.number < 0:
            self._began = at
        self.number, self.at = sight.number, at
        if sight.whole:
            self.names, self._rows, self.changed = [], {}, None
        else:
            self.changed = []
        for name in sight.gone:
            self._remove(name)
        for job in sight.jobs:
            self._put(job)
        if self.changed is not None:
            count = len(self.names)
            self.changed = sorted({row for row in self.changed if row < count})
        self._set_cluster(sight)
        return True

    def cluster(self, now: float) -> Floats:
        """Return the row of the cluster at a time, with its sums over the jobs."""
        row = self._cluster
        while self._arrivals and self._arrivals[0][0] < now - 2 * c.HOUR:
            self._arrivals.popleft()
        row[c.HISTORY] = now - self._began
        row[c.ARRIVED] = row[c.ARRIVED_BEFORE] = row[c.ARRIVED_WORK] = 0.0
        for came, work in self._arrivals:
            if came >= now - c.HOUR:
                row[c.ARRIVED] += 1
                row[c.ARRIVED_WORK] += work
            else:
                row[c.ARRIVED_BEFORE] += 1
        return sums(self.raw, row, now)

    def _put(self, job: JobSight) -> None:
        row = self._rows.get(job.job)
        if row is None:
            row = self._rows[job.job] = len(self.names)
            self.names.append(job.job)
            if row == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        if self.changed is not None:
            self.changed.append(row)
        self._table[row] = row_of(job)
        if job.sequence > self._latest:
            self._latest = job.sequence
            expected = 0 if job.expected is None else job.expected
            work = expected / 1e9 * job.each * job.workers
            self._arrivals.append((job.submitted_at / 1e9, work))

    def _remove(self, name: str) -> None:
        row = self._rows.pop(name, None)
        if row is None:
            return
        last = self.names.pop()
        if last != name:
            self._table[row] = self._table[len(self.names)]
            self.names[row], self._rows[last] = last, row
            if self.changed is not None:
                self.changed.append(row)

    def _set_cluster(self, sight: Sight) -> None:
        row = self._cluster
        row[:] = 0.0
        row[c.GPUS], row[c.FREE], row[c.NODE_GPUS] = sight.gpus, sight.free, sight.node_gpus
        add_room(row, sight.room)


def add_room(row: Floats, room: Sequence[RoomSight]) -> None:
    """Count the nodes of a cluster by their free GPUs."""
    for each in room:
        row[c.NODE_COUNT] += each.count
        row[c.WHOLE] += each.count if each.free == each.gpus else 0
        row[c.ROOM + min(each.free, c.NODE_MAX)] += each.count


def row_of(job: JobSight) -> list[float]:
    """Return the row of a job."""
    row = [0.0] * c.RAW
    row[c.PHASE] = _NUMBER_OF_PHASE[job.phase]
    row[c.EACH], row[c.WORKERS], row[c.LEAST], row[c.MOST] = (
        job.each,
        job.workers,
        job.least,
        job.most,
    )
    row[c.SUBMITTED], row[c.SINCE] = job.submitted_at / 1e9, job.since / 1e9
    row[c.SERVED] = job.served / 1e9
    row[c.EXPECTED] = c.UNKNOWN if job.expected is None else job.expected / 1e9
    row[c.LEFT] = c.UNKNOWN if job.left is None else job.left / 1e9
    row[c.DOUBT], row[c.NODES] = job.doubt / 1000, job.nodes
    row[c.RESIZABLE], row[c.BORROWS] = float(job.resizable), float(job.borrows)
    row[c.PAUSE] = job.pause / 1e9
    if job.slowdown:
        _set_slowdown(row, job)
    runs = job.phase == "running"
    elastic = job.phase != "away"
    least, most = (job.least, job.most) if elastic else (job.workers, job.workers)
    rates = dict(job.rates)
    for place, size in enumerate(c.sizes_of(least, most, job.workers, runs=runs)):
        row[c.SIZE + place], row[c.RATE + place] = size, rates.get(size, 0) / 1000
    return row


def _set_slowdown(row: list[float], job: JobSight) -> None:
    curve = dict(job.slowdown)
    fewest, (far, slow_far) = job.slowdown[0][0], job.slowdown[-1]
    row[c.SLOW_NEAR] = curve.get(fewest + 1, slow_far) / 1000
    row[c.SLOW_FAR], row[c.FAR_NODES] = slow_far / 1000, far
    row[c.SLOW_NOW] = curve.get(job.nodes, slow_far if job.nodes > far else 1000) / 1000
