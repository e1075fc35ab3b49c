"""A VC as rows of numbers, kept from one sight to the next: a changed job costs one row."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.candidates import (
    CHOICES,
    EACH,
    GROW,
    KIND,
    KINDS,
    MORE,
    OPTION,
    SPREAD,
    WORKERS,
    A,
    Demands,
    Options,
    able,
    demands,
    fit,
    may_change,
    options,
)
from skep.learn.columns import Flags, Floats, Integers
from skep.learn.curves import curves_of
from skep.learn.features import SIZED, TIMED, F, Matrix, Times, empty, write_steady, write_sums
from skep.learn.shares import LADDER, Ladders, ladders
from skep.policy.sight import sight_of
from skep.policy.view import VcView
from skep.wire.learned import SEEN_MAX, JobSight, RoomSight, Sight

ROWS_MIN = 64
ARRIVALS_MAX = 4096
"""Arrivals that are remembered: more than one every two seconds for two hours."""
ALIKE_MAX = 2 * SEEN_MAX
"""More kinds of jobs are forgotten, with those of jobs that are gone."""
DEMANDS_MAX = 1024
"""The same of demands for room."""
DEMAND_MAX = 2**20
"""A gang has fewer workers."""
FITS_MAX = 256
"""The same of states of the room."""
_Key = tuple[float, ...]
_NUMBER_OF_PHASE = {phase: number for number, phase in enumerate(c.PHASES)}


class Fits(NamedTuple):
    """What fits in some room."""

    nodes: Floats
    """On how many nodes each of the demands would go; infinite: it does not fit."""
    now: Flags
    """By the code of a candidate whether it fits; the last is of no candidate."""
    later: Flags
    """The same when others have taken room: a gang may be spread then that fits on as few nodes as
    it needs now."""


class Scene:
    """The jobs and the cluster of one VC, by the sights that were followed.

    What depends on the row of a job without its times is made once for all jobs that are alike.
    """

    def __init__(self) -> None:
        """Begin without a sight."""
        self.number = -1
        """Of the sight that it shows; -1: of none."""
        self.at = 0.0
        self.names: list[str] = []
        """Jobs, by row, in the order of arrival: of equal moves that of the first row is made."""
        self._rows: dict[str, int] = {}
        self._keys: list[_Key] = []
        """What each job is like."""
        self._order: list[tuple[int, str]] = []
        """What rows are in the order of: sequences, and names for those that are equal."""
        self._gone: set[int] = set()
        """Rows whose jobs a sight has just removed."""
        self._changed: dict[int, None] = {}
        """Rows that are like other jobs than before."""
        self._cluster = [0.0] * c.CLUSTER
        self._arrivals = _Arrivals()
        self._latest = -1
        """The highest sequence that was seen: later ones are arrivals."""
        self._table = np.zeros((0, c.RAW))
        self._grow(ROWS_MIN)
        self._forget()

    def _grow(self, rows: int) -> None:
        """Make room for so many rows."""
        old = self._table
        self._table = np.zeros((c.RAW, rows)).T
        self._table[: len(old)] = old
        self._jobs = empty((rows,), F)
        self._codes = np.zeros((rows, CHOICES), dtype=np.int64)
        self._alike = np.zeros(rows, dtype=np.int64)
        self._changed = dict.fromkeys(range(len(self.names)))

    def _forget(self) -> None:
        """Forget which kinds of jobs there are, and what they want."""
        self._kinds = _Kinds()
        self._fits: dict[tuple[float, ...], Fits] = {}
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
        return self.options_at(np.arange(len(self.names) * CHOICES).reshape(-1, CHOICES))

    def options_at(self, chosen: Integers) -> Options:
        """Return some candidates, with another axis for their numbers, the slowest in memory.

        Args:
            chosen: Numbers of candidates: CHOICES of each job.
        """
        row, place = np.divmod(chosen, CHOICES)
        at = self._alike[row] * CHOICES + place
        axes = *range(1, at.ndim + 1), 0
        numbers, features = self._kinds.numbers, self._kinds.options
        return Options(
            numbers.take(at, axis=1).transpose(axes), features.take(at, axis=1).transpose(axes)
        )

    @property
    def demands(self) -> Demands:
        """Return what candidates want, without repetition."""
        return self._kinds.demands

    @property
    def codes(self) -> Integers:
        """Return for candidates `[n, CHOICES]` which of `demands` they have, times 4, plus kind.

        Where there is no candidate it is -1.
        """
        return self._codes[: len(self.names)]

    @property
    def ladders(self) -> Ladders:
        """Return the ladders of all jobs."""
        return Ladders.of(self._kinds.ladders, self._alike[: len(self.names)])

    def sized(self, row: int, workers: float) -> Matrix:
        """Return the features SIZED that a job would have in another of its sizes."""
        place = self._table[row, c.SIZE : c.RATE].tolist().index(workers)
        made: Matrix = self._kinds.sized[:, place, self._alike[row]]
        return made

    def fits(self, cluster: Sequence[float]) -> Fits:
        """Return what fits in the room of a cluster, by its row."""
        room = cluster[c.FREE], *cluster[c.ROOM :]
        made = self._fits.get(room)
        if made is None:
            if len(self._fits) >= FITS_MAX:
                self._fits.clear()
            made = self._fits[room] = self._kinds.fits(np.array(cluster))
        return made

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
            self.names, self._rows, self._keys, self._changed = [], {}, [], {}
            self._order = []
        for name in sight.gone:
            self._remove(name)
        for job in sight.jobs:
            self._put(job)
        self._arrange()
        if self._set_cluster(sight):
            self._forget()
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
        assert len(self._keys) == len(self.names) <= len(self._table)
        assert self._order == sorted(self._order)
        assert [name for _, name in self._order] == self.names
        assert not self._gone
        assert self.number < 0 or len(self.names) <= SEEN_MAX
        assert self._changed.keys() <= set(range(len(self.names)))
        assert len(self._fits) <= FITS_MAX
        assert len(self._kinds.known) <= ALIKE_MAX + 2 * SEEN_MAX
        self._arrivals.check()

    @property
    def room(self) -> list[float]:
        """Return the row of the cluster without anything that depends on time or on jobs."""
        return self._cluster

    def cluster(self, now: float, when: Times) -> Floats:
        """Return the row of the cluster at a time, with its sums over the jobs.

        Args:
            now: The time.
            when: The times of the jobs then.
        """
        row = np.array(self._cluster)
        self._arrivals.write(row, now)
        return write_sums(self.raw, when, row)

    def _put(self, job: JobSight) -> None:
        row = self._rows.get(job.job)
        numbers = row_of(job)
        key = _key_of(numbers)
        if row is None:
            row = len(self.names)
            if row == len(self._table):
                self._grow(2 * row)
            self._rows[job.job] = row
            self.names.append(job.job)
            self._keys.append(key)
            self._order.append((job.sequence, job.job))
            self._changed[row] = None
        elif key != self._keys[row]:
            self._keys[row] = key
            self._changed[row] = None
        self._table[row] = numbers
        self._order[row] = job.sequence, job.job
        if job.sequence > self._latest:
            self._latest = job.sequence
            expected = 0 if job.expected is None else job.expected
            self._arrivals.add(job.submitted_at / 1e9, expected / 1e9 * job.each * job.workers)

    def _remove(self, name: str) -> None:
        row = self._rows.pop(name, None)
        if row is not None:
            self._gone.add(row)

    def _arrange(self) -> None:
        """Close the gaps of jobs that are gone, and have the others in the order of arrival.

        Decisions then depend on the jobs, and not on how the scene came to them.
        """
        order, gone = self._order, self._gone
        rows = sorted((row for row in range(len(order)) if row not in gone), key=order.__getitem__)
        first = next((at for at, row in enumerate(rows) if at != row), len(rows))
        self._gone = set()
        if len(rows) == len(order) and first == len(rows):
            return
        moved = rows[first:]
        self._order[first:] = [order[row] for row in moved]
        self._keys[first:] = [self._keys[row] for row in moved]
        self.names[first:] = [self.names[row] for row in moved]
        self._rows.update(zip(self.names[first:], range(first, len(rows)), strict=True))
        changed = self._changed
        self._changed = {at: None for at, row in enumerate(rows) if row in changed}
        for table in (self._table, self._jobs, self._codes, self._alike):
            table[first : len(rows)] = table[moved]

    def _set_cluster(self, sight: Sight) -> bool:
        """Take the cluster of a sight; return whether features of all jobs change with it."""
        row = [0.0] * c.CLUSTER
        row[c.GPUS], row[c.FREE], row[c.NODE_GPUS] = sight.gpus, sight.free, sight.node_gpus
        add_room(row, sight.room)
        before, self._cluster = self._cluster, row
        return any(before[each] != row[each] for each in (c.GPUS, c.NODE_GPUS))

    def _derive(self) -> None:
        """Find which kinds the jobs are of that have changed, and make those that are new."""
        if len(self._kinds.known) > ALIKE_MAX or len(self._kinds.found) > DEMANDS_MAX:
            self._forget()
        if not self._changed:
            return
        kinds, fresh = self._kinds, list[int]()
        for row in self._changed:
            key = self._keys[row]
            if key not in kinds.known:
                kinds.known[key] = len(kinds.known)
                fresh.append(row)
        if fresh and kinds.make(self._table.T.take(fresh, axis=1).T, np.array(self._cluster)):
            self._fits.clear()
        rows = np.fromiter(self._changed, np.int64, len(self._changed))
        alike = np.array([kinds.known[self._keys[row]] for row in self._changed])
        self._changed = {}
        self._alike[rows] = alike
        self._jobs[rows, TIMED:] = kinds.jobs.take(alike, axis=1).T
        self._codes[rows] = kinds.codes.take(alike, axis=1).T


class _Kinds:
    """What depends on the rows of jobs without their times, by kind."""

    def __init__(self) -> None:
        self.known: dict[_Key, int] = {}
        self.found: dict[float, int] = {}
        """The number of each of the demands."""
        self.demands = demands(np.zeros(0), np.zeros(0), np.zeros(()))
        """What candidates want, without repetition."""
        self.jobs = np.zeros((F - TIMED, ROWS_MIN), dtype=np.float32)
        """Features of a job, by kind."""
        self.sized = np.zeros((len(SIZED), c.SIZES, ROWS_MIN), dtype=np.float32)
        """Features that it would have in each of its sizes."""
        self.ladders = np.zeros((LADDER, ROWS_MIN))
        self.codes = np.zeros((CHOICES, ROWS_MIN), dtype=np.int64)
        self.numbers = np.zeros((OPTION, ROWS_MIN * CHOICES))
        """Of its candidates."""
        self.options = np.zeros((A, ROWS_MIN * CHOICES), dtype=np.float32)

    def make(self, raw: Floats, cluster: Floats) -> bool:
        """Add kinds; return whether there are more demands now.

        Args:
            raw: The row of a job of each.
            cluster: The row of the cluster.
        """
        first, end = len(self.known) - len(raw), len(self.known)
        while end > self.codes.shape[1]:
            for name in ("jobs", "sized", "ladders", "codes", "numbers", "options"):
                table = getattr(self, name)
                setattr(self, name, np.concatenate([table, np.zeros_like(table)], axis=-1))
        offers = may_change(raw)
        every, several = raw, (offers & (raw[:, c.SIZE + 1] > 0)).nonzero()[0]
        if len(several):
            every = np.concatenate([raw, raw[several].repeat(c.SIZES, axis=0)])
            every[len(raw) :, c.WORKERS] = raw[several, c.SIZE : c.RATE].ravel()
        curves, made = curves_of(every), empty((len(every),), F)
        write_steady(every, cluster, curves, made)
        self.jobs[:, first:end] = made[: len(raw), TIMED:].T
        if len(several):
            sized = made[len(raw) :, SIZED].T.reshape(len(SIZED), -1, c.SIZES)
            self.sized[:, :, first + several] = sized.transpose(0, 2, 1)
        self.ladders[:, first:end] = ladders(raw)
        self.codes[:, first:end] = -1
        which = offers.nonzero()[0]
        if not len(which):
            return False
        numbers, features = options(raw[which], cluster, curves.some(which))
        kinds = first + which
        at = (kinds[:, None] * CHOICES + np.arange(CHOICES)).ravel()
        self.numbers[:, at] = numbers.reshape(-1, OPTION).T
        self.options[:, at] = features.reshape(-1, A).T
        found = self.found
        wanted = numbers[..., EACH] * DEMAND_MAX + numbers[..., MORE]
        number = [found.setdefault(each, len(found)) for each in wanted.ravel().tolist()]
        codes = np.array(number).reshape(wanted.shape) * KINDS + numbers[..., KIND]
        self.codes[:, kinds] = np.where(numbers[..., WORKERS] > 0, codes, -1).T
        if len(found) == len(self.demands.workers):
            return False
        each, workers = np.divmod(np.fromiter(found, np.float64, len(found)), DEMAND_MAX)
        self.demands = demands(workers, each, cluster[c.NODE_GPUS])
        return True

    def fits(self, cluster: Floats) -> Fits:
        """Return what fits in the room of a cluster."""
        found = fit(cluster, self.demands)
        kinds = able(found)
        now = np.zeros(len(found.nodes) * KINDS + 1, dtype=bool)
        by_kind = now[:-1].reshape(-1, KINDS)
        for kind, fits in enumerate(kinds):
            by_kind[:, kind] = fits
        later = now.copy()
        later[SPREAD:-1:KINDS] = kinds[GROW]
        return Fits(found.nodes, now, later)


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


def add_room(row: list[float], room: Sequence[RoomSight]) -> None:
    """Count the nodes of a cluster by their free GPUs."""
    for each in room:
        row[c.NODE_COUNT] += each.count
        row[c.WHOLE] += each.count if each.free == each.gpus else 0
        row[c.ROOM + min(each.free, c.NODE_MAX)] += each.count


def _key_of(row: list[float]) -> _Key:
    """Return what jobs are alike in: all but their times, and whether they have a length."""
    return row[c.LEFT] >= 0, *row[: c.SUBMITTED], *row[c.DOUBT :]


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
