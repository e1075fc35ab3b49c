"""Gandiva's reactive mode: every job gets nodes at once, if necessary in turns with others.

A node's affinity is the size of the jobs on it. Jobs of one size share nodes. Where more of them
have come than the nodes hold, they take turns by being suspended. A gang is suspended as one,
whichever nodes it is on, so all its ranks are in the same slice.

Source: Gandiva, section 4.2.1 (algorithm 1), 4.2.2 (turns, `introspect`), 4.1 (60 s slices).
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import ClassVar

import msgspec

from skep.base.timers import NEVER
from skep.policy.api import Planner, Policy
from skep.policy.capacity import Bound, Place, Price, choose_cheap_victims, clear_cheapest_node
from skep.policy.gandiva.deficits import Deficits, is_home
from skep.policy.gandiva.improve import improve
from skep.policy.gandiva.packs import Units, weight
from skep.policy.gandiva.rules import Rules
from skep.policy.gandiva.shares import OWED_SLICES_MAX
from skep.policy.incremental import Change
from skep.policy.parts import check_one_or_more, check_unique
from skep.policy.plan import Plan, Suspend, Turn
from skep.policy.powers import Powers
from skep.policy.view import JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.reasons import Reason

SWAP_AT = 0.5
"""A waiting job replaces a running one if its deficit is larger by this part of a slice. Two jobs
on one GPU then change places at every slice."""
LOOK_PARTS = 4
"""A slice is divided into so many parts by looking again, where nothing says when to look."""
LOOKS_MAX = 240
"""At most so many times in a slice a plan is made because a deficit becomes large enough."""
SIZE_COSTS = 10**6
"""The cost of suspending a job of another size: more than any load or deficit."""

FIRST_TO_LEAVE = ((True, True), (True, False), (False, True), (False, False))
"""Which jobs are suspended first for another one: whether only those of lower priorities, and
whether only those of its size."""


class Gandiva(Policy, frozen=True):
    """Algorithm 1, and weighted round robin in slices of `slice_s` where there are too many jobs.

    Only jobs that can release their GPUs while they are suspended take turns; the others keep them
    to their end. A job that has never run comes first, and starts within one slice: early feedback
    is the aim. Only a job with a deficit of two slices comes before it, so that new jobs starve no
    job. A job stands for at least one slice, and is not suspended before it has run for one, with
    one exception: a higher priority takes GPUs from lower ones at once, and never the other way.

    `weights` are pairs of a value of the label `label` and a number: jobs with that value have GPUs
    for that many times as long as those without, whose weight is 1.

    A suspended job returns to its own nodes. It moves to free GPUs, or away from nodes that are
    full of higher priorities, if it can migrate. In the paper a job whose size no over-subscribed
    node has stays in the queue; here it takes turns with other sizes after a slice, so that it ends
    at some time. With `introspect` the policy also tries packs, moves and growth: see
    docs/explanation/introspection.md for these and their options.
    """

    name: ClassVar[str] = "gandiva"
    source: ClassVar[str] = (
        "Gandiva, section 4.2.1 (algorithm 1), 4.2.2 (turns, `introspect`), 4.1 (60 s slices)"
    )
    slice_s: float = 60
    weights: tuple[tuple[str, float], ...] = ()
    label: str = "user"
    introspect: bool = False
    grow_after_s: float = 60
    defrag_free: float = 0.75
    stalled_s: float = 600
    idle_s: float = 0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `slice_s` is too short, a weight is not positive or named twice, `label`
                is empty, `defrag_free` is not above 0 and at most 1, or a time is negative.
        """
        check_one_or_more("slice_s", self.slice_s, "seconds")
        if any(weight <= 0 for _, weight in self.weights):
            reason = "a weight is more than 0"
            raise ValueError(reason)
        check_unique("weights", (name for name, _ in self.weights))
        if not self.label:
            reason = "label names the label that tells a job's weight: it is empty"
            raise ValueError(reason)
        if not 0 < self.defrag_free <= 1:
            reason = f"defrag_free is a part of a server's GPUs, above 0: not {self.defrag_free}"
            raise ValueError(reason)
        for option in ("grow_after_s", "stalled_s", "idle_s"):
            if getattr(self, option) < 0:
                reason = f"{option} is seconds, 0 or more"
                raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    @property
    def sees_rates(self) -> bool:
        """Return `introspect`."""
        return self.introspect

    @property
    def powers(self) -> Powers:
        """Return that it gives turns; with `introspect` also packs, moves and growth by rates."""
        more = self.introspect
        return Powers(
            suspends=True,
            moves=more,
            packs=more,
            resizes=more,
            passes=True,
            priority="takes",
            run_times=more,
            rates=more,
        )

    def plan(self, view: VcView) -> Plan:
        """Return a turn for each job with a place, and which jobs are suspended for the others."""
        return self._planner_with_state()(view)

    def planner(self) -> Planner:
        """Return a function that plans the same, and keeps deficits from one view to the next."""
        plan_with_state = self._planner_with_state()

        def plan(view: VcView) -> Plan:
            nonlocal plan_with_state
            try:
                return plan_with_state(view)
            except Exception:
                plan_with_state = self._planner_with_state()  # The state may be half changed.
                raise

        return plan

    def _planner_with_state(self) -> Planner:
        swap, soon = round(SWAP_AT * self.slice_ns), self.slice_ns // LOOK_PARTS
        deficits = Deficits(self.weigh, self.slice_ns, swap, soon, moves=self.introspect)
        if not self.introspect:
            return lambda view: self._react(view, deficits, None)
        units = Units(self._rules())
        return lambda view: improve(
            view, units, lambda seen, known: self._react(seen, deficits, known)
        )

    def _rules(self) -> Rules:
        return Rules(
            Duration(self.slice_ns),
            grow_after=seconds(self.grow_after_s),
            defrag_free=self.defrag_free,
            stalled=seconds(self.stalled_s),
            idle=seconds(self.idle_s),
        )

    def _react(self, view: VcView, deficits: Deficits, known: Sequence[Change] | None) -> Plan:
        deficits.follow(view, known)
        while True:
            turns = _Turns(self, view, deficits)
            plan = turns.plan()
            if not turns.missed:
                return plan
            deficits.wake(turns.missed)

    @property
    def slice_ns(self) -> int:
        """Return the time slice, in nanoseconds."""
        return round(self.slice_s * NS_PER_SECOND)

    def weigh(self, job: JobView) -> float:
        """Return a job's weight: that of its label, times that of its pack."""
        if not self.weights and not self.introspect:
            return 1.0
        value = job.label(self.label)
        label_weight = next((weight for name, weight in self.weights if name == value), 1.0)
        return label_weight * weight(job) if self.introspect and job.proven_milli else label_weight


class _Turns:
    """One plan in the making: the waiting jobs in order, and the free capacity.

    GPUs of jobs that are being stopped count as free, so a plan does not change while it is carried
    out. Quiet jobs are left out.
    """

    def __init__(self, policy: Gandiva, view: VcView, deficits: Deficits) -> None:
        self._view, self._now, self._slice = view, view.now, policy.slice_ns
        self._deficits = deficits
        self._swap = round(SWAP_AT * self._slice)
        self._most = OWED_SLICES_MAX * self._slice
        self._capacity = deficits.capacity()
        self._leaving = {name for job in deficits.stopping.values() for name, _ in job.nodes}
        self._sizes = {**deficits.sizes}
        self._busy: dict[str, set[int]] = {}
        self._turns: list[Turn] = []
        self._actions: list[Suspend] = []
        self._gone: set[str] = set()
        self._cleared: dict[str, None] = {}
        """Nodes that a job is to leave by this plan."""
        self._next_at: dict[str, str] = {}
        """By node: the gang on several nodes that starves, and is next there."""
        self.missed: dict[str, None] = {}
        """Quiet jobs that have to be considered after all: the plan is then made again."""

    def plan(self) -> Plan:
        """Give away free GPUs, then GPUs of jobs whose slice is over, by priority."""
        deficits = self._deficits
        line = [*deficits.homeless.values(), *(deficits.waiting[name] for name in deficits.awake)]
        levels: dict[int, list[JobView]] = {key[0]: [] for key in deficits.movers}
        for job in sorted(line, key=self._rank):
            levels.setdefault(job.spec.priority, []).append(job)
        without: list[JobView] = []
        for priority in sorted(levels, reverse=True):
            without += self._serve(priority, levels[priority])
        return Plan(
            turns=tuple(self._turns),
            strict=False,
            actions=tuple(self._actions),
            look_at=self._look_at(without),
        )

    def _serve(self, priority: int, line: Sequence[JobView]) -> list[JobView]:
        """Place jobs of one priority; return those that get no GPUs."""
        without = [job for job in line if not self._give_turn(job, self._place(job))]
        self._look_for_movers(priority, without)
        # Height: a suspended job goes to free GPUs elsewhere, if no job of that server wants them.
        moving = [job for job in without if job.nodes and "migrate" in job.can]
        moved = {job.job for job in moving if self._give_turn(job, self._free_place(job))}
        return self._suspend_for_all([job for job in without if job.job not in moved])

    def _look_for_movers(self, priority: int, without: Sequence[JobView]) -> None:
        """Note quiet jobs that could continue elsewhere: those that come first, for what is free.

        Jobs of one shape go to the same places. So of those that wait, no more can move than there
        are places, and these are the first ones by rank.
        """
        for (level, *_), jobs in self._deficits.movers.items():
            one = next(iter(jobs.values()))
            if level != priority or one.gpus > self._capacity.left(one.pin):
                continue
            resting = [name for name in jobs if name not in self._deficits.awake]
            if not resting or self._free_place(one) is None:
                continue
            waiting = [job for job in without if job.job in jobs]
            waiting += [jobs[name] for name in resting]
            places = self._capacity.left(one.pin) // max(one.gpus, 1)
            first = heapq.nsmallest(places, waiting, key=self._rank)
            awake = self._deficits.awake
            self.missed.update((job.job, None) for job in first if job.job not in awake)

    def _free_place(self, job: JobView) -> Place | None:
        """Return where a suspended job could continue now, on nodes that no job has to leave first.

        On a node that a job is leaving it could not continue yet; it would go home, to GPUs that
        are another job's.
        """
        if job.gpus > self._capacity.left(job.pin):
            return None
        there = self._capacity.open(job.pin)
        return self._capacity.fit(
            job, [node for node in there if node not in self._leaving and node not in self._cleared]
        )

    def _rank(self, job: JobView) -> tuple[int, bool, bool, int, int, int]:
        (deficit, patience), ran = self._deficits.standing(job), not _never_ran(job)
        starves = ran and (deficit >= self._most or self._now >= patience)
        # Deficits are bounded: of starving jobs the one that has stood the longest comes first.
        return (-job.spec.priority, not starves, ran, -deficit, job.waiting_since, job.sequence)

    def _starves(self, job: JobView) -> bool:
        return not _never_ran(job) and (
            self._deficits.of(job) >= self._most or self._out_of_patience(job)
        )

    def _out_of_patience(self, job: JobView) -> bool:
        """Return whether a job has stood longer than deficits may keep it waiting."""
        return self._now >= self._deficits.patience(job)

    def _give_turn(self, job: JobView, place: Place | None) -> bool:
        """Give a job a turn at a place; return whether there is a place."""
        if place is None:
            return False
        self._capacity.take(job, place)
        if _needs_same_gpus(job):
            for node, devices in job.devices:
                self._busy_on(node).update(devices)
        for node, _ in place:
            self._sizes[node] |= {job.gpus}
        self._turns.append(Turn(job.job, Reason.ARRIVAL, tuple(node for node, _ in place)))
        return True

    def _busy_on(self, node: str) -> set[int]:
        found = self._busy.get(node)
        if found is None:
            found = self._busy[node] = self._deficits.busy(node)
        return found

    def _jobs_on(self, node: str) -> Iterable[JobView]:
        """Return the jobs that have GPUs on a node."""
        return self._deficits.on.get(node, {}).values()

    # --- algorithm 1 -----------------------------------------------------------------------------

    def _place(self, job: JobView) -> Place | None:
        """Return nodes1, nodes2 or nodes3 of the algorithm, as far as GPUs there are free.

        For a suspended job: where it belongs, or else where it was.
        """
        if job.nodes and job.phase is Phase.AWAY:
            return self._better_place(job) or self._home(job)
        if job.gpus > self._capacity.left(job.pin):
            return None
        there = self._capacity.open(job.pin)
        # Jobs that GPUs are cleared for may be suspended on those nodes, and can go nowhere else.
        calm = [node for node in there if node not in self._leaving]
        return (
            self._least_loaded(job, [node for node in there if self._sizes[node] == {job.gpus}])
            or self._capacity.fit(job, [node for node in there if not self._sizes[node]])
            or (self._capacity.fit(job, calm) if self._leaving else None)
            or self._capacity.fit(job)
        )

    def _better_place(self, job: JobView) -> Place | None:
        """Return free GPUs where a suspended job belongs, if its home is elsewhere."""
        return self._fit_well(job, self._where_it_belongs(job))

    def _fit_well(self, job: JobView, nodes: Sequence[str]) -> Place | None:
        """Return the least loaded of some nodes on which a whole job fits now."""
        if not nodes or job.gpus > self._capacity.left(job.pin):
            return None
        return self._least_loaded(job, nodes)

    def _where_it_belongs(self, job: JobView) -> Sequence[str]:
        """Return the nodes to which a suspended job is brought at its turn; empty: it goes home."""
        deficits = self._deficits
        if deficits.scattered(job):
            return tuple(self._sizes)
        if deficits.beside_larger(job) and self._out_of_patience(job):
            return [node for node, sizes in self._sizes.items() if sizes == {job.gpus}]
        return ()

    def _least_loaded(self, job: JobView, nodes: Sequence[str]) -> Place | None:
        capacity = self._capacity
        able = [node for node in nodes if capacity.free(node, job.pin) >= job.gpus]
        able.sort(key=lambda node: (node in self._leaving, -capacity.free(node, job.pin)))
        return next((place for node in able if (place := capacity.fit(job, (node,)))), None)

    def _home(self, job: JobView) -> Place | None:
        """Return where a suspended job was, if it fits there; a tied job needs the same GPUs."""
        if _needs_same_gpus(job) and any(
            self._busy_on(node).intersection(devices) for node, devices in job.devices
        ):
            return None
        return self._capacity.home(job)

    # --- turns -----------------------------------------------------------------------------------

    def _suspend_for_all(self, line: Sequence[JobView]) -> list[JobView]:
        """Suspend some jobs for those without a place; return those that still have none."""
        while True:
            taken, line = len(self._actions), self._suspend_for_each(line)
            if not line or len(self._actions) == taken:
                return list(line)

    def _suspend_for_each(self, line: Sequence[JobView]) -> list[JobView]:
        without, failed = [], set()
        for job in line:
            if self._actions and self._give_turn(job, self._place(job)):
                continue  # A larger job left more than was needed.
            key = (
                job.spec.priority,
                job.spec.resources,
                job.gpus,
                job.can,
                _never_ran(job),
                self._stood_for_slice(job),
                self._out_of_patience(job),
                job.nodes,
            )
            if key in failed or not self._suspend_for(job):
                failed.add(key)  # Later ones have smaller deficits, and would find no more.
                without.append(job)
                self._reserve_next_turn(job)
        return without

    def _reserve_next_turn(self, job: JobView) -> None:
        """Reserve the next turn on the nodes of a gang that starves, within its priority.

        Else its nodes would never all be due at once: other jobs would take turns on them, one
        after the other.
        """
        if is_home(job) and len(job.nodes) > 1 and self._starves(job):
            for node, _ in job.nodes:
                self._next_at.setdefault(node, job.job)

    def _next_turn_reserved(self, job: JobView, to: JobView) -> bool:
        """Return whether the next turn on a job's nodes is reserved for a third job."""
        equal = job.spec.priority == to.spec.priority
        return equal and any(self._next_at.get(node, to.job) != to.job for node, _ in job.nodes)

    def _suspend_for(self, job: JobView) -> bool:
        """Give a job GPUs that other jobs leave for it; return whether that was possible."""
        if job.phase is Phase.AWAY and not self._stood_for_slice(job):
            return False
        homes = job.nodes if job.phase is Phase.AWAY else ()
        beside = {each.job: each for node, _ in homes for each in self._jobs_on(node)}
        strays = "migrate" in job.can and not any(
            each.spec.priority <= job.spec.priority for each in beside.values()
        )
        if homes and self._suspend_where_it_belongs(job):
            return True
        there = self._yielding(job, beside.values()) if homes and not strays else None
        if there is not None and not there:
            return False
        target = job if there is None else _at_home(job)
        if there is not None and _needs_same_gpus(job):
            return self._suspend_for_own_gpus(job, there)
        for below, alike in FIRST_TO_LEAVE:
            if there is None:
                leaving = self._victims_anywhere(job, below, alike)
            else:
                able = [each for each in there if _matches(each, job, below, alike)]
                leaving = (
                    choose_cheap_victims(target, self._capacity, able, self._price(job))
                    if able
                    else None
                )
            if leaving is not None:
                self._suspend(leaving, job)
                found = self._give_turn(job, self._capacity.fit(target))
                self._look_for_rest(leaving)
                return found
        return False

    def _suspend_where_it_belongs(self, job: JobView) -> bool:
        """Give a suspended job GPUs that others leave on one node where it belongs."""
        nodes = self._where_it_belongs(job)
        for below, alike in FIRST_TO_LEAVE if nodes else ():
            leaving = self._victims_anywhere(job, below, alike, nodes)
            if leaving:
                self._suspend(leaving, job)
                found = self._give_turn(job, self._fit_well(job, nodes))
                self._look_for_rest(leaving)
                return found
        return False

    def _victims_anywhere(
        self, job: JobView, below: bool, alike: bool, only: Sequence[str] | None = None
    ) -> list[JobView] | None:
        """Return which jobs would have to leave, of all that may be suspended.

        Args:
            job: The job that they leave for.
            below: Whether only jobs of lower priorities leave.
            alike: Whether only jobs of its size leave.
            only: The nodes one of which has to hold it whole; None: any number of any nodes.
        """

        def on(node: str) -> list[JobView]:
            near = [each for each in self._jobs_on(node) if _matches(each, job, below, alike)]
            return self._yielding(job, (each for each in near if each.pin == job.pin))

        def everywhere() -> list[JobView]:
            near = self._deficits.able.values()
            such = [each for each in near if _matches(each, job, below, alike)]
            return self._yielding(job, (each for each in such if each.pin == job.pin))

        bounds = self._bounds(job, below, alike)
        if only is not None:
            bounds = [each for each in bounds if each[1] in only]
        rest = everywhere if only is None else tuple[JobView, ...]
        return clear_cheapest_node(job, self._capacity, bounds, on, rest, price=self._price(job))

    def _bounds(self, job: JobView, below: bool, alike: bool) -> list[tuple[Bound, str]]:
        """Return a lower bound of the cost of clearing each node on which a job may leave."""
        deficits, found, priority = self._deficits, dict[str, Bound](), job.spec.priority
        soon = self._stood_for_slice(job) and not (_never_ran(job) and alike)
        for like, ranks in deficits.ranks().items():
            level, same = like.kind[1], like.gpus == job.gpus
            if like.pin != job.pin or level + below > priority or (alike and not same):
                continue
            if level == priority and not (self._stood_for_slice(job) or (same and _never_ran(job))):
                continue
            since = self._now - (self._slice // LOOK_PARTS if soon else self._slice)
            size = SIZE_COSTS * (not same)
            for node, low, load in deficits.lower_bounds(
                like, ranks, since if level == priority else NEVER
            ):
                bound = size + self._load_cost(load, low), 1, (level, low)
                other = found.get(node)
                found[node] = (
                    bound
                    if other is None
                    else (min(bound[0], other[0]), 1, min(bound[2], other[2]))
                )
        for node in self._capacity.open(job.pin):
            if node in found and self._capacity.free(node, job.pin) >= job.gpus:
                found[node] = 0, 0, ()  # Perhaps no job has to leave.
        return [(bound, node) for node, bound in found.items()]

    def _price(self, job: JobView) -> Price:
        return Price(lambda each: self._cost(each, job), self._deficits.order, lambda *_: 0)

    def _yielding(self, job: JobView, near: Iterable[JobView]) -> list[JobView]:
        """Return which jobs of `quiet_until` may be suspended for a job."""
        return [
            each
            for each in near
            if each.job in self._deficits.able
            and each.job not in self._gone
            and self._yields(each, job)
            and not self._next_turn_reserved(each, job)
        ]

    def _suspend_for_own_gpus(self, job: JobView, there: Sequence[JobView]) -> bool:
        """Give a job the GPUs that it had, if all jobs that have them now may leave."""
        leaving = sorted(
            (each for each in there if _shares_gpu(job, each)), key=self._deficits.order
        )
        left = {each.job for each in leaving} | self._gone
        others = [
            each
            for node, _ in job.nodes
            for each in self._jobs_on(node)
            if each.phase is not Phase.STOPPING and each.job not in left
        ]
        if not leaving or any(_shares_gpu(job, each) for each in others):
            return False
        self._suspend(leaving, job)
        found = self._give_turn(job, self._home(job))
        self._look_for_rest(leaving)
        return found

    def _look_for_rest(self, left: Sequence[JobView]) -> None:
        """Note quiet jobs where more GPUs have come free than were needed."""
        for node in dict.fromkeys(node for each in left for node, _ in each.nodes):
            for job in self._deficits.homes.get(node, {}).values():
                resting = job.job not in self._deficits.awake
                if resting and self._capacity.free(node, job.pin) >= dict(job.nodes)[node]:
                    self.missed[job.job] = None

    def _suspend(self, leaving: Sequence[JobView], job: JobView) -> None:
        for each in leaving:
            lower = each.spec.priority < job.spec.priority
            why = Reason.OUTRANKED if lower else Reason.SLICE_OVER
            self._actions.append(Suspend(each.job, why, self._deficits.of(each)))
            self._gone.add(each.job)
            self._cleared.update((node, None) for node, _ in each.nodes)
            self._capacity.release(each)
            for node, devices in each.devices:
                self._busy_on(node).difference_update(devices)

    def _yields(self, job: JobView, to: JobView) -> bool:
        """Return whether a running job is to be suspended for a waiting one."""
        if job.spec.priority != to.spec.priority:
            return job.spec.priority < to.spec.priority
        going = self._now - job.since
        ran = going >= self._slice
        soon = going >= self._slice // LOOK_PARTS and job.ran(self._now) >= self._slice
        if _never_ran(to) and job.gpus == to.gpus:
            return ran
        if _never_ran(to) and self._stood_for_slice(to) and soon:
            return True  # Seldom are enough jobs of other sizes due at once.
        if not self._stood_for_slice(to):
            return False
        if (ran or (soon and to.gpus > job.gpus)) and self._out_of_patience(to):
            return True
        running, waiting = self._deficits.of(job), self._deficits.of(to)
        if ran and (waiting - running >= self._swap or running <= -self._most):
            return True
        # Many small jobs are never all due at once: they leave sooner for a larger starving gang.
        return soon and waiting >= self._most and waiting - running >= self._slice

    def _stood_for_slice(self, job: JobView) -> bool:
        """Return whether a job has stood for a slice."""
        return self._now - job.waiting_since >= self._slice

    def _cost(self, job: JobView, to: JobView) -> int:
        """Return the cost of suspending a job: its size, its node's load, its deficit."""
        load = max((self._deficits.load(node) for node, _ in job.nodes), default=0)
        size = SIZE_COSTS * (job.gpus != to.gpus)
        return size + self._load_cost(load, self._deficits.of(job))

    def _load_cost(self, load: int, owed: int) -> int:
        scaled = (owed + self._most) * 1000 // max(self._slice, 1)
        return 4 * OWED_SLICES_MAX * load + scaled

    # --- when to look again ----------------------------------------------------------------------

    def _look_at(self, without: Sequence[JobView]) -> Instant | None:
        """Return the soonest time at which a job without a place may get one."""
        deficits, placed = self._deficits, {turn.job for turn in self._turns}
        there = len(deficits.able) > len(self._gone)
        if len(deficits.waiting) == len(placed) or not (there or self._gone or self._leaving):
            return None
        soonest = self._now + max(self._slice // LOOK_PARTS, NS_PER_SECOND // LOOK_PARTS)
        looks = [next(deficits.stand_ends.upcoming(NEVER, placed), (NEVER, ""))[0]]
        looks.append(next(deficits.slice_ends.upcoming(NEVER, self._gone), (NEVER, ""))[0])
        looks += [self._now + self._slice for _ in self._actions[:1]]
        near = deficits.waking_by(min(looks))
        looks += self._swap_times([*(job for job in without if not _never_ran(job)), *near], placed)
        looks = [at for at in looks if self._now < at < NEVER]
        return Instant(min(looks, default=soonest))

    def _swap_times(self, some: Iterable[JobView], placed: Container[str]) -> Iterator[int]:
        """Yield when a waiting job's deficit suffices to replace a running job where it was."""
        deficits, homes = self._deficits, {job.nodes: job for job in some if job.job not in placed}
        for nodes, one in homes.items():
            there = deficits.homes[nodes[0][0]] if is_home(one) else deficits.homeless
            like = [
                job
                for job in there.values()
                if job.nodes == nodes and job.began_at and job.job not in placed
            ]
            first = max(like, key=lambda job: (deficits.of(job), job.spec.priority, -job.sequence))
            patience = min(map(deficits.patience, like))
            for node, _ in nodes or (("", 0),):
                last = self._first_to_suspend(node)
                if last is not None:
                    yield self._swap_time(first, last)
                    yield max(patience, last.since + self._slice)
                since = self._now if deficits.of(first) >= self._most else patience
                for each in self._jobs_on(node) if node and one.gpus > 1 else ():
                    yield max(since, each.since + self._slice // LOOK_PARTS)

    def _first_to_suspend(self, node: str) -> JobView | None:
        """Return which job is suspended first on a node, or (without a name) anywhere."""
        there = self._jobs_on(node) if node else self._deficits.able.values()
        able = [
            job for job in there if job.job in self._deficits.able and job.job not in self._gone
        ]
        return min(able, key=self._deficits.order, default=None)

    def _swap_time(self, job: JobView, last: JobView) -> int:
        deficits = self._deficits
        rate = deficits.share(job) + 1 - deficits.share(last)
        short = self._swap - (deficits.of(job) - deficits.of(last))
        # A deficit at its maximum rises no more: then it never quite gets there.
        apart = max(round(short / rate) + 1, self._slice // LOOKS_MAX) if rate > 0 else 0
        at = self._now + apart if short > 0 and rate > 0 else 0
        return max(at, last.since + self._slice, job.waiting_since + self._slice)


def _needs_same_gpus(job: JobView) -> bool:
    """Return whether a suspended job can continue at home only with the GPUs that it had."""
    return job.phase is Phase.AWAY and bool(job.devices) and "rebind" not in job.can


def _shares_gpu(job: JobView, other: JobView) -> bool:
    """Return whether two jobs have, or had, a GPU in common."""
    devices = dict(job.devices)
    return any(not set(devices.get(node, ())).isdisjoint(gpus) for node, gpus in other.devices)


def _never_ran(job: JobView) -> bool:
    """Return whether a job has never run."""
    return not job.began_at


def _matches(job: JobView, to: JobView, below: bool, alike: bool) -> bool:
    """Return whether a job has a lower priority (if `below`) and the same size (if `alike`)."""
    lower = job.spec.priority < to.spec.priority
    return (lower or not below) and (job.gpus == to.gpus or not alike)


def _at_home(job: JobView) -> JobView:
    """Return a suspended job as one that cannot migrate: it fits where it was, or nowhere."""
    return msgspec.structs.replace(job, can=tuple(each for each in job.can if each != "migrate"))
