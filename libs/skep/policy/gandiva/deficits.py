"""Deficits and what turns depend on, kept from one view of a VC to the next.

A cluster with thousands of nodes makes a plan many times a second, and each time almost nothing has
changed on almost every node. So deficits are kept by node and updated where a view differs from the
one before. A suspended job is *quiet* until the soonest time at which it could continue at home:
until then no plan has to look at it, unless something happens on its nodes.

That time is a bound. Every job that comes or ends changes all shares a little, and with them all
deficits. A bound holds while shares are at most DRIFTS * SHARE_DRIFT away from those that it was
computed with. Once shares have moved by more than one SHARE_DRIFT, all bounds are computed again,
some of them in each plan. The worst case: a bound was computed when shares were one SHARE_DRIFT
from their base on one side, then they jump by twice that, and move on by as much as before.

Nothing here decides anything: with every job awake the plan is the same, and takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from skep.base.timers import NEVER, TimerHeap
from skep.policy.capacity import FreeCapacity, NodeCapacity
from skep.policy.gandiva.misplaced import is_scattered, movable_at_turn
from skep.policy.gandiva.shares import (
    OWED_SLICES_MAX,
    Account,
    Group,
    Kind,
    Weigh,
    divide,
    is_fixed,
    kind_of,
    may_yield,
    owed,
)
from skep.policy.incremental import Change, add, changes, keep, set_or_cancel
from skep.policy.view import HOLDING, QUEUED, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.spec import Resources

PATIENCE_TURNS = 3
"""The longest that a job stands if other jobs at its home are due too, as a multiple of the time
that a job with its share stands between two slices. The bound is needed as shares are of the whole
VC, and a home may be wanted by more jobs than the VC has on average."""
SHARE_DRIFT = 0.001
"""By how much shares may change before all bounds are computed again: by ten jobs of ten thousand.
A bound then comes a quarter of a second too early for a deficit of a minute."""
DRIFTS_MAX, JUMP_DRIFTS = 4, 2
"""In multiples of SHARE_DRIFT: how far shares may be off where a bound still holds; a change beyond
which no bound holds any more."""
BOUND_PLANS = 32
"""The number of plans over which all bounds are computed again."""
SLACK_NS = 16
"""An upper bound of all rounding errors of two deficits."""


class Likeness(NamedTuple):
    """What jobs have in common whose deficits grow alike, and that are equally good to suspend."""

    pin: str
    gpus: int
    kind: Kind


class AlikeSummary(NamedTuple):
    """A summary of the jobs that are alike and have GPUs on one node."""

    at: Instant
    """When the summary was made."""
    low: int
    """A lower bound of their deficits at that time."""
    share: float
    rest: int
    """For how long each has run at least: a share that has risen since has added that much."""
    age: int
    """For how long any of their deficits had been counted at most."""
    since: Instant
    """When the first of them began to run."""
    load: int


class NodeSummary(NamedTuple):
    """The jobs with GPUs on a node, as far as they matter to jobs that were suspended there."""

    least: int
    """The lowest priority of all of them."""
    able: int
    """The lowest priority of those that may be suspended."""
    leave: list[tuple[int, int, int, float, float]]
    """For each job that may be suspended: when it may leave for a job with a larger deficit; when
    it may leave at all; when its deficit can be at its minimum at the soonest; a lower bound of its
    deficit; and how fast that bound falls, in nanoseconds per nanosecond."""


class Deficits:
    """Deficits, free capacity and the places of jobs in one VC, updated with each view in turn."""

    def __init__(
        self, weigh: Weigh, slice_ns: int, swap_ns: int, soon_ns: int, *, moves: bool = False
    ) -> None:
        """Begin without jobs and nodes.

        Args:
            weigh: The weight of a job.
            slice_ns: The length of a slice.
            swap_ns: By how much more a waiting job's deficit has to be for it to replace a
                running one.
            soon_ns: How long a job runs at least before it leaves for another of its priority.
            moves: Whether suspended jobs are brought where they belong at their turn.
        """
        self._weigh, self._slice, self._swap, self._soon = weigh, slice_ns, swap_ns, soon_ns
        self._moves = moves
        self._deficit_max = OWED_SLICES_MAX * slice_ns
        self._forget()

    def _forget(self) -> None:
        self.now, self._node_gpus = Instant(0), 0
        self._jobs: tuple[JobView, ...] = ()
        self._node_capacity = NodeCapacity()
        self.waiting: dict[str, JobView] = {}
        """Jobs that may be placed."""
        self.homeless: dict[str, JobView] = {}
        """Those of them without a home."""
        self.able: dict[str, JobView] = {}
        """Jobs that may be suspended."""
        self.stopping: dict[str, JobView] = {}
        self.on: dict[str, dict[str, JobView]] = {}
        """By node: the jobs with GPUs there."""
        self.homes: dict[str, dict[str, JobView]] = {}
        """By node: the jobs that are suspended there, without GPUs."""
        self.movers: dict[tuple[int, Resources, int, int], dict[str, JobView]] = {}
        """By priority and shape: suspended jobs that may continue elsewhere."""
        self.sizes: dict[str, frozenset[int]] = {}
        """By node: sizes of the jobs on it, in the order of the view."""
        self.awake: dict[str, None] = {}
        """Suspended jobs that a plan has to look at."""
        self.slice_ends, self.stand_ends = TimerHeap[str](), TimerHeap[str]()
        """When each job that may be suspended has run for a slice; when each job that has run
        before has been suspended for one."""
        self._counts: dict[str, dict[int, int]] = {}
        self._taken: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._stays: dict[str, int] = {}
        self._fixed: dict[str, int] = {}
        self._turning: dict[Kind, int] = {}
        self._share: dict[Kind, float] = {}
        self._base_shares: dict[Kind, float] = {}
        """The shares at which no bounds have to be computed again."""
        self._stale_bounds: list[str] = []
        """Jobs whose bounds were computed with earlier shares than those."""
        self._bounds_per_plan = 0
        """How many of them are computed again in a plan."""
        self._accounts: dict[str, Account] = {}
        self._groups: dict[Kind | None, Group] = {}
        """By kind; None: jobs that have their GPUs all of the time."""
        self._divided: tuple[object, ...] = ()
        """What the shares were computed of."""
        self._version = 0
        """The number of the view, by which deficits are known to be of now."""
        self._quiet = TimerHeap[str]()
        self._ranks: dict[Likeness, dict[str, AlikeSummary]] = {}
        self._ranked: dict[str, tuple[Likeness, ...]] = {}
        self._unranked: dict[str, None] = {}
        """Nodes whose ranks have to be computed again."""
        self._order: dict[str, int] = {}
        self._empty: FreeCapacity | None = None
        self._summaries: dict[str, NodeSummary] = {}

    def follow(self, view: VcView, known: Sequence[Change] | None = None) -> None:
        """Update from a view, and wake the jobs for which something may have become possible.

        Args:
            view: The VC.
            known: How its jobs differ from those of the view before; None: find out. After a
                clock was set back, these have to be all of its jobs.
        """
        self._make_quiet()  # With the deficits of the view before.
        if view.now < self.now:
            self._forget()  # A clock was set back: instants that were passed come again.
        self.now = view.now
        touched: dict[str, None] = {}
        if known is None:
            known, self._jobs = [*changes(self._jobs, view.jobs)], view.jobs
        for sign, jobs in ((-1, (old for old, _ in known)), (1, (new for _, new in known))):
            for job in filter(None, jobs):
                self._count(job, sign)
                touched.update((node, None) for node, _ in job.nodes)
        self._follow_nodes(view, touched)
        self._empty = FreeCapacity.after(
            view, self.stopping.values(), self._stays, self._node_capacity
        )
        self._version, self._summaries = self._version + 1, {}
        self._update_shares(view)
        self._unranked.update(touched)
        for node in touched if view.node_gpus == self._node_gpus else list(self.homes):
            self.wake(self.homes.get(node, ()))
        self._node_gpus = view.node_gpus
        self.awake.update(dict.fromkeys(self._quiet.pop_due(view.now)))
        for times in (self.slice_ends, self.stand_ends):
            times.pop_due(view.now)
        again = self._stale_bounds[: self._bounds_per_plan]
        self._stale_bounds = self._stale_bounds[self._bounds_per_plan :]
        self._update_bounds(again)

    def wake(self, names: Iterable[str]) -> None:
        """Mark jobs for the next plan to look at."""
        for name in names:
            self._quiet.cancel(name)
            self.awake[name] = None

    def _make_quiet(self) -> None:
        """Make jobs quiet for which nothing is possible before some later time."""
        for name in list(self.awake):
            until = self._quiet_until(self.waiting[name])
            if until > self.now:
                del self.awake[name]
                self._quiet.set_timer(name, until)

    def _update_bounds(self, names: Iterable[str]) -> None:
        """Compute the bounds of quiet jobs again."""
        for name in names:
            job = self.waiting.get(name)
            if job is not None and is_home(job) and name not in self.awake:
                until = self._quiet_until(job)
                if until > self.now:
                    self._quiet.set_timer(name, until)
                else:
                    self.wake((name,))

    def waking_by(self, until: int) -> list[JobView]:
        """Return the quiet jobs whose deficits could be large enough by `until` (nanoseconds)."""
        return [self.waiting[name] for _, name in self._quiet.upcoming(until)]

    # --- what plans ask for ----------------------------------------------------------------------

    def capacity(self) -> FreeCapacity:
        """Return the free capacity, as if all jobs that are being stopped were gone."""
        assert self._empty is not None
        return self._empty.copy()

    def share(self, job: JobView) -> float:
        """Return for what part of the time a job should have its GPUs: 0 to 1."""
        account = self._accounts.get(job.job)
        return 1.0 if account is None else account.group.share

    def of(self, job: JobView) -> int:
        """Return the deficit of a job, in nanoseconds (see `shares.owed`)."""
        account = self._accounts.get(job.job)
        if account is None:
            return owed(job, 1.0, self.now, self._slice)
        if account.version != self._version:
            account.settle(self.now, self._deficit_max)
            account.version = self._version
        return account.deficit

    def standing(self, job: JobView) -> tuple[int, int]:
        """Return the deficit and the patience of a job, in nanoseconds."""
        account = self._accounts[job.job]
        if account.version != self._version:
            account.settle(self.now, self._deficit_max)
            account.version = self._version
        return account.deficit, min(job.waiting_since + account.group.stands, NEVER)

    def patience(self, job: JobView) -> int:
        """Return the instant from which a suspended job may resume whatever the deficits are."""
        account = self._accounts.get(job.job)
        stands = self._stands(1.0) if account is None else account.group.stands
        return min(job.waiting_since + stands, NEVER)

    def scattered(self, job: JobView) -> bool:
        """Return whether a suspended gang is to be brought together on one node at its turn."""
        moves = self._moves and len(job.nodes) > 1 and movable_at_turn(job, self.now)
        return moves and is_scattered(job, self._node_gpus, self.now)

    def beside_larger(self, job: JobView) -> bool:
        """Return whether a suspended job may move, and only larger jobs have GPUs at its home."""
        if not self._moves or len(job.nodes) != 1 or not movable_at_turn(job, self.now):
            return False
        there = self.on.get(job.nodes[0][0], {}).values()
        return bool(there) and all(each.gpus > job.gpus for each in there)

    def _stands(self, share: float) -> int:
        """Return how long a job with a share stands at most, in nanoseconds."""
        return int((PATIENCE_TURNS / share if share > 0 else NEVER) * self._slice)

    def order(self, job: JobView) -> tuple[int, int, int]:
        """Return the sort key of jobs that may be suspended: the lowest is suspended first."""
        return job.spec.priority, self.of(job), job.sequence

    def ranks(self) -> Mapping[Likeness, Mapping[str, AlikeSummary]]:
        """Return, for jobs that are alike, by node, a summary of those that may be suspended."""
        for node in self._unranked:
            for alike in self._ranked.pop(node, ()):
                del self._ranks[alike][node]
                if not self._ranks[alike]:
                    del self._ranks[alike]
            found: dict[Likeness, list[JobView]] = {}
            for job in self.on.get(node, {}).values():
                if job.job in self.able:
                    alike = Likeness(job.pin, job.gpus, kind_of(job, self._weigh))
                    found.setdefault(alike, []).append(job)
            for alike, jobs in found.items():
                self._ranks.setdefault(alike, {})[node] = self._rank(node, jobs)
            if found:
                self._ranked[node] = tuple(found)
        self._unranked = {}
        return self._ranks

    def _rank(self, node: str, jobs: Sequence[JobView]) -> AlikeSummary:
        now, low = self.now, min(map(self.of, jobs))
        age = max(max(now, job.since) - self._accounts[job.job].begun for job in jobs)
        # A job whose deficit is at the minimum may really have less: it does not rise at once.
        rest = 0 if low <= -self._deficit_max else min(max(now - job.since, 0) for job in jobs)
        first = min(job.since for job in jobs)
        return AlikeSummary(
            now, low, self.share(jobs[0]), min(rest, age), age, first, self.load(node)
        )

    def lower_bounds(
        self, alike: Likeness, ranks: Mapping[str, AlikeSummary], since: int
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the nodes with a job that has run since an instant.

        Args:
            alike: Which jobs.
            ranks: Their summaries by node, from `ranks`.
            since: The instant, in nanoseconds.

        Yields:
            The node, a lower bound of their deficits (nanoseconds), and its load (thousandths).
        """
        now, share, most = self.now, self._share.get(alike.kind, 1.0), -self._deficit_max
        for node, (at, low, then, rest, age, first, load) in ranks.items():
            if first <= since:
                gone = (share - 1) * (now - at) + (share - then) * (rest if share > then else age)
                yield node, max(int(low + gone) - SLACK_NS, most), load

    def load(self, node: str) -> int:
        """Return the GPUs that are allocated on a node, in thousandths of those it has."""
        view = self._node_capacity.nodes.get(node)
        if view is None:
            return 0
        size = view.free + sum(gpus for _, gpus in view.pins) + self._held.get(node, 0)
        return 1000 * self._taken.get(node, 0) // max(size, 1)

    def busy(self, node: str) -> set[int]:
        """Return the GPUs of a node that no job is leaving, as far as they are known."""
        found = set[int]()
        for job in self.on.get(node, {}).values():
            if job.phase is not Phase.STOPPING:
                found.update(*(gpus for name, gpus in job.devices if name == node))
        return found

    # --- following a view ------------------------------------------------------------------------

    def _count(self, job: JobView, sign: int) -> None:
        """Add a job (sign 1), or remove it as it was (sign -1)."""
        name, come = job.job, sign > 0
        if come:
            fixed = job.borrows or is_fixed(job)
            kind = None if fixed else kind_of(job, self._weigh)
            self._accounts[name] = Account(job, self._group(kind))
        else:
            kind = self._accounts.pop(name).group.kind
        if not job.borrows:
            if kind is None:
                add(self._fixed, job.pin, sign * job.gpus)
            else:
                add(self._turning, kind, sign * job.gpus)
            for node, gpus in job.nodes:
                add(self._taken, node, sign * gpus)
                add(self._counts.setdefault(node, {}), job.gpus, sign)
        if job.phase in HOLDING and not job.borrows:
            for node, gpus in job.nodes:
                add(self._held, node, sign * gpus)
                keep(self.on.setdefault(node, {}), job, come)
            if job.phase is Phase.STOPPING:
                keep(self.stopping, job, come)
            else:
                add(self._stays, job.pin, sign * job.gpus)
            if may_yield(job):
                keep(self.able, job, come)
                set_or_cancel(self.slice_ends, name, job.since + self._slice, come)
        if job.phase in QUEUED:
            self._queue(job, come)

    def _group(self, kind: Kind | None) -> Group:
        group = self._groups.get(kind)
        if group is None:
            share = 1.0 if kind is None else self._share.get(kind, 1.0)
            group = self._groups[kind] = Group(kind, share, self._stands(share))
        return group

    def _queue(self, job: JobView, come: bool) -> None:
        name = job.job
        keep(self.waiting, job, come)
        if job.began_at:
            set_or_cancel(self.stand_ends, name, job.waiting_since + self._slice, come)
        if not is_home(job):
            keep(self.homeless, job, come)
            return
        for node, _ in job.nodes:
            keep(self.homes.setdefault(node, {}), job, come)
        if "migrate" in job.can:
            shape = job.spec.priority, job.spec.resources, job.gpus, job.workers
            there = self.movers.setdefault(shape, {})
            keep(there, job, come)
            if not there:
                del self.movers[shape]
        if come:
            self.awake[name] = None
        else:
            self.awake.pop(name, None)
            self._quiet.cancel(name)

    def _follow_nodes(self, view: VcView, touched: dict[str, None]) -> None:
        """Update nodes that differ, and add them to `touched`: nodes on which jobs differ."""
        touched.update(self._node_capacity.follow(view.nodes))
        if self._order is not self._node_capacity.order:
            self._order = self._node_capacity.order
            self.sizes = {name: self._sizes_on(name) for name in self._order}
        for name in touched:
            if name in self._order:
                self.sizes[name] = self._sizes_on(name)

    def _sizes_on(self, node: str) -> frozenset[int]:
        return frozenset(self._counts.get(node, ()))

    def _update_shares(self, view: VcView) -> None:
        gpus = view.gpus_for()
        divided = gpus, {**self._fixed}, {**self._turning}
        if divided == self._divided:
            return  # And so are the shares.
        self._divided = divided
        before, self._share = self._share, divide(gpus, self._fixed, self._turning)
        self._groups = {
            kind: group
            for kind, group in self._groups.items()
            if kind is None or kind in self._turning
        }
        for kind, group in self._groups.items():
            if kind is not None:
                group.share = self._share.get(kind, 1.0)
                group.stands = self._stands(group.share)
        most = 0.0
        for kind, share in self._share.items():
            if kind not in before:
                self._base_shares[kind] = share
            most = max(most, abs(share - self._base_shares[kind]))
        if most > SHARE_DRIFT:
            self._base_shares = dict(self._share)
            names = [name for there in self.homes.values() for name in there]
            # Bounds that are older still are computed at once.
            late = {*(names if most > JUMP_DRIFTS * SHARE_DRIFT else self._stale_bounds)}
            self._update_bounds(late)
            self._stale_bounds = [name for name in names if name not in late]
            self._bounds_per_plan = -(-len(self._stale_bounds) // BOUND_PLANS)

    # --- quiet jobs ------------------------------------------------------------------------------

    def _summary(self, node: str) -> NodeSummary:
        """Return a summary of the jobs that have GPUs on a node now."""
        found = self._summaries.get(node)
        if found is not None:
            return found
        now, drift, most = self.now, DRIFTS_MAX * SHARE_DRIFT, self._deficit_max
        least = able = int(NEVER)
        leave = []
        for job in self.on.get(node, {}).values():
            level = job.spec.priority
            least = min(least, level)
            if job.job in self.able:
                able = min(able, level)
                account = self._accounts[job.job]
                falls = 1 - account.group.share + 2 * drift
                down = self.of(job) - drift * (now - account.begun) - SLACK_NS
                lowest = now + int(max(down + most, 0) / falls)
                leave.append((job.since + self._soon, job.since + self._slice, lowest, down, falls))
        found = self._summaries[node] = NodeSummary(least, able, leave)
        return found

    def _quiet_until(self, job: JobView) -> int:
        """Return a time before which a suspended job has no place, and no job would leave for it.

        Before that time its deficit is also too small for a job at its home to leave.
        """
        assert self._empty is not None
        now, capacity, pin = self.now, self._empty, job.pin
        if not job.began_at or all(capacity.free(node, pin) >= gpus for node, gpus in job.nodes):
            return now
        if self.scattered(job):
            return now
        beside = [self._summary(node) for node, _ in job.nodes]
        level = job.spec.priority
        if "migrate" in job.can and all(there.least > level for there in beside):
            return now
        account = self._accounts[job.job]
        drift = DRIFTS_MAX * SHARE_DRIFT
        rate = account.group.share + 2 * drift
        up = self.of(job) + drift * (now - account.begun) + SLACK_NS
        soonest, lasts = int(NEVER), min(job.waiting_since + self._stands(rate), NEVER)
        short = self._swap - up
        for there in beside:
            if there.able < level:
                soonest = 0
                break
            # Instants are too large for floats: only their differences are floats.
            for soon, slices, lowest, down, falls in there.leave:
                apart = short + down
                at = now + int(apart / (rate + falls)) if apart > 0 else now
                at = max(at, soon)
                falls_at = max(slices, lowest)
                ends_at = max(soon, lasts)
                soonest = min(soonest, at, falls_at, ends_at)
        until = max(job.waiting_since + self._slice, soonest - 1)
        if len(job.nodes) > 1:  # Once it starves it keeps other jobs off its nodes.
            starves = now + int(max(self._deficit_max - up, 0) / rate)
            until = min(until, starves, lasts)
        if self.beside_larger(job):  # Then it may have its turn elsewhere.
            until = min(until, max(now, lasts))
        return until


def is_home(job: JobView) -> bool:
    """Return whether a suspended job has nodes to go back to."""
    return job.phase is Phase.AWAY and bool(job.nodes)
