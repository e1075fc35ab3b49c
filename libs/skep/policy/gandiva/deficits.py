"""What turns go by, kept from one view of a VC to the next: a plan costs what changed.

A cluster with thousands of nodes has a plan made many times a second, and each time almost nothing
is different on almost every node. So accounts are kept by node, changed where a view is different
from the one before, and a suspended job is *quiet* until the soonest time at which it could go on
at home: until then no plan has to look at it, unless something happens on its nodes.

That time is a bound. Shares, and with them all accounts, change a little with every job that comes
or ends; a bound holds for shares that are DRIFTS * SHARE_DRIFT away at most. Beyond one SHARE_DRIFT
all are found again, some in each plan. At worst one was found when shares were that far from what
is reckoned from on one side, then they jump by twice that, and go on by as much as before.
Nothing here decides anything: with everybody awake the plan is the same, and takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from skep.base.timers import NEVER, TimerHeap
from skep.policy.capacity import Ground, Room
from skep.policy.gandiva.shares import (
    OWED_SLICES_MAX,
    Kind,
    Weigh,
    begun,
    divide,
    is_fixed,
    kind_of,
    may_yield,
    owed,
)
from skep.policy.incremental import Change, add, changes, keep, set_or_cancel
from skep.policy.preempt import QUEUED
from skep.policy.view import HOLDING, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.spec import Resources

PATIENCE_TURNS = 3
"""So many times as long as a job with its share stands between two slices it stands at most, if the
others at its home are due too: shares are of the whole VC, and there may be more than there is."""
SHARE_DRIFT = 0.001
"""By how much shares may change before all bounds are found again: ten jobs of ten thousand, and
a bound comes a quarter of a second too soon for a minute's account."""
DRIFTS, JUMPS = 4, 2
"""How often that they may be off where a bound still holds; beyond how often that a change is a
jump, after which bounds hold no more."""
PARTS = 32
"""Plans in which all bounds are found again."""
SLACK_NS = 16
"""More than all roundings of two accounts come to."""


class Alike(NamedTuple):
    """What those have in common whose accounts go on alike, and who are as good to suspend."""

    pin: str
    gpus: int
    kind: Kind


class Rank(NamedTuple):
    """What is known of jobs that are alike, and have GPUs on one node."""

    at: Instant
    """When it was found out."""
    low: int
    """What nobody's account was below."""
    share: float
    rest: int
    """For how long each has run at least: so much a share that is higher has given it since."""
    age: int
    """For how long any account had counted at most."""
    since: Instant
    """Since when the first has run."""
    load: int


class Beside(NamedTuple):
    """Who has GPUs on a node, as far as it matters to who was suspended there."""

    least: int
    """The lowest priority of all."""
    able: int
    """The lowest one of those that may be suspended."""
    leave: list[tuple[int, int, int, float, float]]
    """Of each of these when it may be for who is owed more, and when at all; when its account is as
    low as any, at the soonest; what its account is not below, and how fast that falls."""


class Books:
    """Accounts, room and who is where in one VC, brought up to each view in turn."""

    def __init__(self, weigh: Weigh, slice_ns: int, swap_ns: int, soon_ns: int) -> None:
        """Begin with nothing known. `soon_ns`: nobody leaves for an equal before."""
        self._weigh, self._slice, self._swap, self._soon = weigh, slice_ns, swap_ns, soon_ns
        self._most = OWED_SLICES_MAX * slice_ns
        self._forget()

    def _forget(self) -> None:
        self.now = Instant(0)
        self._jobs: tuple[JobView, ...] = ()
        self._ground = Ground()
        self.waiting: dict[str, JobView] = {}
        """Who may be placed."""
        self.loose: dict[str, JobView] = {}
        """Those of them that have no home."""
        self.able: dict[str, JobView] = {}
        """Who may be suspended."""
        self.stopping: dict[str, JobView] = {}
        self.on: dict[str, dict[str, JobView]] = {}
        """By node: who has GPUs there."""
        self.homes: dict[str, dict[str, JobView]] = {}
        """By node: who is suspended there, without GPUs."""
        self.movers: dict[tuple[int, Resources, int, int], dict[str, JobView]] = {}
        """By priority and shape: suspended jobs that may go on elsewhere."""
        self.sizes: dict[str, frozenset[int]] = {}
        """By node: sizes of the jobs on it, in the order of the view."""
        self.awake: dict[str, None] = {}
        """Suspended jobs that a plan has to look at."""
        self.slices, self.stands = TimerHeap[str](), TimerHeap[str]()
        """When each that may be suspended has run for a slice; when each that has run before has
        stood back for one."""
        self._counts: dict[str, dict[int, int]] = {}
        self._taken: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._stays: dict[str, int] = {}
        self._fixed: dict[str, int] = {}
        self._turning: dict[Kind, int] = {}
        self._share: dict[Kind, float] = {}
        self._bases: dict[Kind, float] = {}
        """Shares since which no bounds have to be found again."""
        self._again: list[str] = []
        """Whose bounds are of shares before those."""
        self._part = 0
        """How many of them are found again in a plan."""
        self._kinds: dict[str, Kind | None] = {}
        """By job; None: it has all of its time."""
        self._quiet = TimerHeap[str]()
        self._ranks: dict[Alike, dict[str, Rank]] = {}
        self._ranked: dict[str, tuple[Alike, ...]] = {}
        self._unranked: dict[str, None] = {}
        """Nodes whose ranks have to be found out anew."""
        self._order: dict[str, int] = {}
        self._empty: Room | None = None
        self._owed: dict[str, int] = {}
        self._there: dict[str, Beside] = {}

    def bring_up(self, view: VcView, known: Sequence[Change] | None = None) -> None:
        """Follow a view; wakes whom something may have become possible for.

        `known`: how its jobs are different; all of them are after a clock was set back.
        """
        self._settle()  # As of the view before, for which accounts are known.
        if view.now < self.now:
            self._forget()  # A clock that was set back: what was passed is to come again.
        self.now = view.now
        touched: dict[str, None] = {}
        if known is None:
            known, self._jobs = [*changes(self._jobs, view.jobs)], view.jobs
        for sign, jobs in ((-1, (old for old, _ in known)), (1, (new for _, new in known))):
            for job in filter(None, jobs):
                self._count(job, sign)
                touched.update((node, None) for node, _ in job.nodes)
        self._follow_nodes(view, touched)
        self._empty = Room.after(view, self.stopping.values(), self._stays, self._ground)
        self._owed, self._there = {}, {}
        self._divide(view)
        self._unranked.update(touched)
        for node in touched:
            self.wake(self.homes.get(node, ()))
        self.awake.update(dict.fromkeys(self._quiet.pop_due(view.now)))
        for times in (self.slices, self.stands):
            times.pop_due(view.now)
        again, self._again = self._again[: self._part], self._again[self._part :]
        self._bound(again)

    def wake(self, names: Iterable[str]) -> None:
        """Have the next plan look at these."""
        for name in names:
            self._quiet.cancel(name)
            self.awake[name] = None

    def _settle(self) -> None:
        """Let those be for whom nothing is possible before some later time."""
        for name in list(self.awake):
            until = self._quiet_until(self.waiting[name])
            if until > self.now:
                del self.awake[name]
                self._quiet.set_timer(name, until)

    def _bound(self, names: Iterable[str]) -> None:
        """Find bounds again of those that are let be."""
        for name in names:
            job = self.waiting.get(name)
            if job is not None and is_home(job) and name not in self.awake:
                until = self._quiet_until(job)
                if until > self.now:
                    self._quiet.set_timer(name, until)
                else:
                    self.wake((name,))

    def near(self, until: int) -> list[JobView]:
        """Return who is let be, and yet could be owed enough by then."""
        return [self.waiting[name] for _, name in self._quiet.upcoming(until)]

    # --- what plans ask for ----------------------------------------------------------------------

    def room(self) -> Room:
        """Return what is left, as if all who are being stopped were gone."""
        assert self._empty is not None
        return self._empty.copy()

    def share(self, job: JobView) -> float:
        """Return for what part of the time a job should have its GPUs."""
        kind = self._kinds.get(job.job)
        return 1.0 if kind is None else self._share.get(kind, 1.0)

    def due(self, job: JobView) -> int:
        """Return for how long a job should have run longer by now, in nanoseconds."""
        found = self._owed.get(job.job)
        if found is None:
            found = self._owed[job.job] = owed(job, self.share(job), self.now, self._slice)
        return found

    def patience(self, job: JobView) -> int:
        """Return until when a job that stands may have to, whatever others are owed."""
        return self._patience(job, self.share(job))

    def _patience(self, job: JobView, share: float) -> int:
        slices = PATIENCE_TURNS / share if share > 0 else NEVER
        return min(job.waiting_since + int(slices * self._slice), NEVER)

    def order(self, job: JobView) -> tuple[int, int, int]:
        """Return by what those come who may be suspended: the first first."""
        return job.spec.priority, self.due(job), job.sequence

    def ranks(self) -> Mapping[Alike, Mapping[str, Rank]]:
        """Return by likeness and node who may be suspended."""
        for node in self._unranked:
            for alike in self._ranked.pop(node, ()):
                del self._ranks[alike][node]
                if not self._ranks[alike]:
                    del self._ranks[alike]
            found: dict[Alike, list[JobView]] = {}
            for job in self.on.get(node, {}).values():
                if job.job in self.able:
                    alike = Alike(job.pin, job.gpus, kind_of(job, self._weigh))
                    found.setdefault(alike, []).append(job)
            for alike, jobs in found.items():
                self._ranks.setdefault(alike, {})[node] = self._rank(node, jobs)
            if found:
                self._ranked[node] = tuple(found)
        self._unranked = {}
        return self._ranks

    def _rank(self, node: str, jobs: Sequence[JobView]) -> Rank:
        now, low = self.now, min(map(self.due, jobs))
        age = max(max(now, job.since) - begun(job) for job in jobs)
        # Who has no less than the least now may have still less: that does not rise at once.
        rest = 0 if low <= -self._most else min(max(now - job.since, 0) for job in jobs)
        first = min(job.since for job in jobs)
        return Rank(now, low, self.share(jobs[0]), min(rest, age), age, first, self.load(node))

    def lows(
        self, alike: Alike, ranks: Mapping[str, Rank], since: int
    ) -> Iterator[tuple[str, int, int]]:
        """Yield nodes with somebody who has run since then, what no account is below, the load."""
        now, share, most = self.now, self._share.get(alike.kind, 1.0), -self._most
        for node, (at, low, then, rest, age, first, load) in ranks.items():
            if first <= since:
                gone = (share - 1) * (now - at) + (share - then) * (rest if share > then else age)
                yield node, max(int(low + gone) - SLACK_NS, most), load

    def load(self, node: str) -> int:
        """Return the GPUs that are allocated on a node, in thousandths of those it has."""
        view = self._ground.nodes.get(node)
        if view is None:
            return 0
        size = view.free + sum(gpus for _, gpus in view.pins) + self._held.get(node, 0)
        return 1000 * self._taken.get(node, 0) // max(size, 1)

    def busy(self, node: str) -> set[int]:
        """Return the GPUs of a node that nobody leaves. Not all that are taken are known."""
        found = set[int]()
        for job in self.on.get(node, {}).values():
            if job.phase is not Phase.STOPPING:
                found.update(*(gpus for name, gpus in job.devices if name == node))
        return found

    # --- following a view ------------------------------------------------------------------------

    def _count(self, job: JobView, sign: int) -> None:
        """Take a job in (1), or out as it was (-1)."""
        name, come = job.job, sign > 0
        if come:
            fixed = job.borrows or is_fixed(job)
            self._kinds[name] = None if fixed else kind_of(job, self._weigh)
        kind = self._kinds[name] if come else self._kinds.pop(name)
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
                set_or_cancel(self.slices, name, job.since + self._slice, come)
        if job.phase in QUEUED:
            self._queue(job, come)

    def _queue(self, job: JobView, come: bool) -> None:
        name = job.job
        keep(self.waiting, job, come)
        if job.began_at:
            set_or_cancel(self.stands, name, job.waiting_since + self._slice, come)
        if not is_home(job):
            keep(self.loose, job, come)
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
        """Take over nodes that are different; in `touched` are those with other jobs."""
        touched.update(self._ground.follow(view.nodes))
        if self._order is not self._ground.order:
            self._order = self._ground.order
            self.sizes = {name: self._sizes_on(name) for name in self._order}
        for name in touched:
            if name in self._order:
                self.sizes[name] = self._sizes_on(name)

    def _sizes_on(self, node: str) -> frozenset[int]:
        return frozenset(self._counts.get(node, ()))

    def _divide(self, view: VcView) -> None:
        before, self._share = self._share, divide(view.gpus_for(), self._fixed, self._turning)
        most = 0.0
        for kind, share in self._share.items():
            if kind not in before:
                self._bases[kind] = share
            most = max(most, abs(share - self._bases[kind]))
        if most > SHARE_DRIFT:
            self._bases = dict(self._share)
            names = [name for there in self.homes.values() for name in there]
            # Those of which bounds are older still are found at once.
            late = {*(names if most > JUMPS * SHARE_DRIFT else self._again)}
            self._bound(late)
            self._again = [name for name in names if name not in late]
            self._part = -(-len(self._again) // PARTS)

    # --- who is let be ---------------------------------------------------------------------------

    def _beside(self, node: str) -> Beside:
        """Return who has GPUs on a node now."""
        found = self._there.get(node)
        if found is not None:
            return found
        now, drift = self.now, DRIFTS * SHARE_DRIFT
        least = able = int(NEVER)
        leave = []
        for job in self.on.get(node, {}).values():
            level = job.spec.priority
            least = min(least, level)
            if job.job in self.able:
                able = min(able, level)
                falls = 1 - self.share(job) + 2 * drift
                down = self.due(job) - drift * (now - begun(job)) - SLACK_NS
                lowest = now + int(max(down + self._most, 0) / falls)
                leave.append((job.since + self._soon, job.since + self._slice, lowest, down, falls))
        found = self._there[node] = Beside(least, able, leave)
        return found

    def _quiet_until(self, job: JobView) -> int:
        """Return a time before which a suspended job certainly has no place, and nobody leaves.

        Nor is it owed enough before for somebody at its home to leave.
        """
        assert self._empty is not None
        now, room = self.now, self._empty
        if not job.began_at or all(room.free(node, job.pin) >= gpus for node, gpus in job.nodes):
            return now
        beside = [self._beside(node) for node, _ in job.nodes]
        level = job.spec.priority
        if "migrate" in job.can and all(there.least > level for there in beside):
            return now
        drift = DRIFTS * SHARE_DRIFT
        share = self.share(job)
        up = self.due(job) + drift * (now - begun(job)) + SLACK_NS
        soonest, lasts = int(NEVER), self._patience(job, share + 2 * drift)
        short, rate = self._swap - up, share + 2 * drift
        for there in beside:
            if there.able < level:
                soonest = 0
            # Instants are too large for floats: only what they are apart is reckoned with those.
            for soon, slices, lowest, down, falls in there.leave:
                apart = short + down
                crosses = now + int(apart / (rate + falls)) if apart > 0 else now
                at = max(crosses, soon)
                soonest = min(soonest, at, max(lowest, slices), max(lasts, soon))
        until = max(job.waiting_since + self._slice, soonest - 1)
        if len(job.nodes) > 1:  # Once it starves it keeps others off its nodes.
            starves = now + int(max(self._most - up, 0) / (share + 2 * drift))
            until = min(until, starves, lasts)
        return until


def is_home(job: JobView) -> bool:
    """Return whether a suspended job has nodes to go back to."""
    return job.phase is Phase.AWAY and bool(job.nodes)
