"""A VC as rows of numbers, kept from one sight to the next: a changed job costs one row."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from skep.learn import columns as c
from skep.learn.candidates import (
    CHOICES,
    EACH,
    KIND,
    KINDS,
    MORE,
    OPTION,
    WORKERS,
    A,
    Options,
    demands,
    options,
)
from skep.learn.columns import Floats, Integers
from skep.learn.curves import curves_of
from skep.learn.features import F, Matrix, Times, empty, write_steady, write_sums
from skep.policy.sight import sight_of
from skep.policy.view import VcView
from skep.wire.learned import SEEN_MAX, JobSight, RoomSight, Sight

ROWS_MIN = 64
ARRIVALS_MAX = 4096
"""Arrivals that are remembered: more than one every two seconds for two hours."""
DEMANDS_MAX = 1024
"""More demands for room are forgotten, with those of jobs that are gone."""
DEMAND_MAX = 2**20
"""A gang has fewer workers."""
_NUMBER_OF_PHASE = {phase: number for number, phase in enumerate(c.PHASES)}


class Scene:
    """The jobs and the cluster of one VC, by the sights that were followed.

    What depends on the rows of jobs alone is kept with them, and is made again for changed rows
    only.
    """

    def __init__(self) -> None:
        """Begin without a sight."""
        self.number = -1
        """Of the sight that it shows; -1: of none."""
        self.at = 0.0
        self.names: list[str] = []
        """Jobs, by row. The order is of no matter to a model."""
        self._rows: dict[str, int] = {}
        self._lists: dict[str, list[float]] = {}
        """The row of each job again: lists are quicker to compare."""
        self._changed: dict[int, None] = {}
        """Rows whose derived numbers are not made yet."""
        self._cluster = np.zeros(c.CLUSTER)
        self._arrivals = _Arrivals()
        self._latest = -1
        """The highest sequence that was seen: later ones are arrivals."""
        self._table = np.zeros((0, c.RAW))
        self._grow(ROWS_MIN)

    def _grow(self, rows: int) -> None:
        """Make room for so many rows, of which none is made."""
        old = self._table
        self._table = np.zeros((c.RAW, rows)).T
        self._table[: len(old)] = old
        self._jobs = empty((rows,), F)
        self._numbers = np.zeros((rows, CHOICES, OPTION))
        self._options = np.zeros((rows, CHOICES, A), dtype=np.float32)
        self._codes = np.zeros((rows, CHOICES), dtype=np.int64)
        self._forget_demands()

    def _forget_demands(self) -> None:
        self._demands: dict[int, int] = {}
        self.demands = demands(np.zeros(0), np.zeros(0), np.zeros(()))
        """What candidates want, without repetition."""
        self._changed = dict.fromkeys(range(len(self.names)))

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

    @property
    def jobs(self) -> Matrix:
        """Return the features of jobs; those that change with time are to be written."""
        return self._jobs[: len(self.names)]

    @property
    def options(self) -> Options:
        """Return the candidates of all jobs, as `candidates.options` has them."""
        count = len(self.names)
        return Options(self._numbers[:count], self._options[:count])

    @property
    def codes(self) -> Integers:
        """Return for candidates `[n, CHOICES]` which of `demands` they have, times 4, plus kind.

        Where there is no candidate it is -1.
        """
        return self._codes[: len(self.names)]

    def follow(self, sight: Sight) -> bool:
        """Show what a sight says.

        Returns:
            Whether it could be followed; False: it is not the next one, or comes to too many jobs,
            and a whole one is needed.
        """
        if not sight.whole and (self.number < 0 or sight.number != self.number + 1):
            return False
        at = sight.at / 1e9
        if self.number < 0:
            self._arrivals.began = at
        self.number, self.at = sight.number, at
        if sight.whole:
            self.names, self._rows, self._lists = [], {}, {}
            self._forget_demands()
        for name in sight.gone:
            self._remove(name)
        for job in sight.jobs:
            self._put(job)
        if self._set_cluster(sight):
            self._forget_demands()
        self._derive()
        if len(self.names) > SEEN_MAX:  # No allocator says so many: its jobs would grow for ever.
            self.number = -1
        return self.number >= 0

    def check(self) -> None:
        """Assert that rows are as the jobs say, and the bounds.

        Raises:
            AssertionError: That does not hold.
        """
        assert self._rows == {name: row for row, name in enumerate(self.names)}
        assert self._lists.keys() == self._rows.keys()
        assert len(self.names) <= len(self._table)
        assert self.number < 0 or len(self.names) <= SEEN_MAX
        assert self._changed.keys() <= set(range(len(self.names)))
        self._arrivals.check()

    @property
    def room(self) -> Floats:
        """Return the row of the cluster without anything that depends on time or on jobs."""
        return self._cluster

    def cluster(self, now: float, when: Times) -> Floats:
        """Return the row of the cluster at a time, with its sums over the jobs.

        Args:
            now: The time.
            when: The times of the jobs then.
        """
        row = self._cluster.copy()
        self._arrivals.write(row, now)
        return write_sums(self.raw, when, row)

    def _put(self, job: JobSight) -> None:
        row = self._rows.get(job.job)
        if row is None:
            row = len(self.names)
            if row == len(self._table):
                self._grow(2 * row)
            self._rows[job.job] = row
            self.names.append(job.job)
        numbers = row_of(job)
        old = self._lists.get(job.job)
        if old is None or not _only_times(old, numbers):
            self._changed[row] = None
        self._lists[job.job] = numbers
        self._table[row] = numbers
        if job.sequence > self._latest:
            self._latest = job.sequence
            expected = 0 if job.expected is None else job.expected
            self._arrivals.add(job.submitted_at / 1e9, expected / 1e9 * job.each * job.workers)

    def _remove(self, name: str) -> None:
        row = self._rows.pop(name, None)
        if row is None:
            return
        del self._lists[name]
        last = self.names.pop()
        self._changed.pop(len(self.names), None)
        if last != name:
            self._table[row] = self._table[len(self.names)]
            self.names[row], self._rows[last] = last, row
            self._changed[row] = None

    def _set_cluster(self, sight: Sight) -> bool:
        """Take the cluster of a sight; return whether features of all jobs change with it."""
        row = np.zeros(c.CLUSTER)
        row[c.GPUS], row[c.FREE], row[c.NODE_GPUS] = sight.gpus, sight.free, sight.node_gpus
        add_room(row, sight.room)
        before, self._cluster = self._cluster, row
        return any(before[each] != row[each] for each in (c.GPUS, c.NODE_GPUS))

    def _derive(self) -> None:
        """Make what depends on the rows that have changed."""
        if len(self._demands) > DEMANDS_MAX:
            self._forget_demands()
        if not self._changed:
            return
        rows = np.fromiter(self._changed, np.int64, len(self._changed))
        self._changed = {}
        raw = self._table.take(rows, axis=0)
        curves, made = curves_of(raw), empty((len(rows),), F)
        write_steady(raw, self._cluster, curves, made)
        self._jobs[rows] = made
        numbers, features = options(raw, self._cluster, curves)
        self._numbers[rows], self._options[rows] = numbers, features
        wanted = (numbers[..., EACH] * DEMAND_MAX + numbers[..., MORE]).astype(np.int64)
        distinct, which = np.unique(wanted, return_inverse=True)
        found = self._demands
        number = np.array([found.setdefault(each, len(found)) for each in distinct.tolist()])
        codes = number[which.reshape(wanted.shape)] * KINDS + numbers[..., KIND].astype(np.int64)
        self._codes[rows] = np.where(numbers[..., WORKERS] > 0, codes, -1)
        if len(found) != len(self.demands.workers):
            each, workers = np.divmod(np.fromiter(found, np.float64, len(found)), DEMAND_MAX)
            self.demands = demands(workers, each, self._cluster[c.NODE_GPUS])


class _Arrivals:
    """When jobs came, and how many GPU-seconds they need: those of the last two hours."""

    def __init__(self) -> None:
        self.began = 0.0
        """Since when they are followed."""
        self._hour: deque[tuple[float, float]] = deque()
        self._before: deque[tuple[float, float]] = deque()
        self._work = 0.0

    def add(self, came: float, work: float) -> None:
        """Note a job."""
        self._hour.append((came, work))
        self._work += work
        while len(self._hour) > ARRIVALS_MAX:
            self._age()
        while len(self._before) > ARRIVALS_MAX:
            self._before.popleft()

    def check(self) -> None:
        """Assert the bounds."""
        assert max(len(self._hour), len(self._before)) <= ARRIVALS_MAX

    def _age(self) -> None:
        oldest = self._hour.popleft()
        self._before.append(oldest)
        self._work = self._work - oldest[1] if self._hour else 0.0

    def write(self, row: Floats, now: float) -> None:
        """Write what came into the row of a cluster."""
        while self._hour and self._hour[0][0] < now - c.HOUR:
            self._age()
        while self._before and self._before[0][0] < now - 2 * c.HOUR:
            self._before.popleft()
        row[c.HISTORY] = now - self.began
        row[c.ARRIVED], row[c.ARRIVED_BEFORE] = len(self._hour), len(self._before)
        row[c.ARRIVED_WORK] = self._work


def add_room(row: Floats, room: Sequence[RoomSight]) -> None:
    """Count the nodes of a cluster by their free GPUs."""
    for each in room:
        row[c.NODE_COUNT] += each.count
        row[c.WHOLE] += each.count if each.free == each.gpus else 0
        row[c.ROOM + min(each.free, c.NODE_MAX)] += each.count


def _only_times(old: list[float], new: list[float]) -> bool:
    """Return whether two rows of a job differ in times alone, and both or none have a length."""
    known = (old[c.LEFT] >= 0) == (new[c.LEFT] >= 0)
    return known and old[: c.SUBMITTED] == new[: c.SUBMITTED] and old[c.DOUBT :] == new[c.DOUBT :]


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
    if job.left is not None:
        row[c.LEFT] = job.left / 1e9
    elif job.expected is not None:
        row[c.LEFT] = max(job.expected - job.served, 0) / 1e9
    else:
        row[c.LEFT] = c.UNKNOWN
    row[c.DOUBT], row[c.NODES] = job.doubt / 1000, job.nodes
    row[c.RESIZABLE], row[c.BORROWS] = float(job.resizable), float(job.borrows)
    row[c.PAUSE] = job.pause / 1e9
    if job.slowdown:
        _set_slowdown(row, job)
    elastic = job.phase != "away"
    least, most = (job.least, job.most) if elastic else (job.workers, job.workers)
    rates = dict(job.rates)
    for place, size in enumerate(c.sizes_of(least, most, job.workers)):
        row[c.SIZE + place], row[c.RATE + place] = size, rates.get(size, 0) / 1000
    return row


def _set_slowdown(row: list[float], job: JobSight) -> None:
    curve = dict(job.slowdown)
    fewest, (far, slow_far) = job.slowdown[0][0], job.slowdown[-1]
    row[c.SLOW_NEAR] = curve.get(fewest + 1, slow_far) / 1000
    row[c.SLOW_FAR], row[c.FAR_NODES] = slow_far / 1000, far
    row[c.SLOW_NOW] = curve.get(job.nodes, slow_far if job.nodes > far else 1000) / 1000
