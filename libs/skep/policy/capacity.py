"""Where gangs could go, as far as a policy sees: GPUs, processors and memory of each node.

The cells decide in the end. A policy uses this so as not to stop jobs for a gang that would still
not fit: a gang of eight on one node has no use for eight free GPUs on two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from heapq import heapify, heappop
from typing import NamedTuple

from skep.policy.incremental import changes
from skep.policy.view import HOLDING, JobView, NodeView, Phase, VcView
from skep.wire.spec import suits

Place = tuple[tuple[str, int], ...]
"""GPUs on each node."""


class NodeCapacity:
    """What nodes have free, kept from one view to the next."""

    def __init__(self) -> None:
        """Begin without nodes."""
        self._begin(())

    def _begin(self, nodes: tuple[NodeView, ...]) -> None:
        self._seen = nodes
        self.nodes = {node.node: node for node in nodes}
        self.order = {node.node: place for place, node in enumerate(nodes)}
        """Place of each node in the view, which breaks ties: the order of names would depend on
        hardware."""
        self.gpus = {"": {node.node: node.free for node in nodes}}
        """By pin, by node."""
        for node in nodes:
            for pin, free in node.pins:
                self.gpus.setdefault(pin, {})[node.node] = free
        self.cpus = {node.node: node.cpus_free for node in nodes}
        self.memory = {node.node: node.memory_free for node in nodes}

    def follow(self, nodes: tuple[NodeView, ...]) -> dict[str, None]:
        """Update the nodes from a view.

        Returns:
            Names of the nodes that differ from the view before, or are no longer in it.
        """
        found = [*changes(self._seen, nodes)] if nodes is not self._seen else []
        if any(
            old is None or new is None or old.node != new.node or old.pins or new.pins
            for old, new in found
        ):
            self._begin(nodes)
        self._seen = nodes
        for node in (new for _, new in found if new is not None):
            name = node.node
            self.nodes[name], self.gpus[""][name] = node, node.free
            self.cpus[name], self.memory[name] = node.cpus_free, node.memory_free
        return {each.node: None for pair in found for each in pair if each is not None}


class FreeCapacity:
    """GPUs, processors and memory that a VC and its nodes have left while a plan is made.

    A pinned cell is counted apart: it is only for jobs that name it, and these go nowhere else.
    """

    def __init__(self, view: VcView, staying: Iterable[JobView]) -> None:
        """Begin with all that the VC could have, less what `staying` jobs hold."""
        stays = {job.job: job for job in staying}
        kept = dict[str, int]()
        for job in stays.values():
            if job.phase is not Phase.STOPPING:
                kept[job.pin] = kept.get(job.pin, 0) + job.gpus
        there = (job for job in view.jobs if job.phase in HOLDING and not job.borrows)
        self._begin(view, (job for job in there if job.job not in stays), kept)

    @classmethod
    def after(
        cls,
        view: VcView,
        leaving: Iterable[JobView],
        kept: Mapping[str, int],
        nodes: NodeCapacity | None = None,
    ) -> FreeCapacity:
        """Return what the VC has free, plus what leaving jobs hold.

        Args:
            view: The VC.
            leaving: Jobs whose GPUs count as free.
            kept: By pin, the GPUs of the jobs that stay.
            nodes: The nodes of the view, if they are known already; None: they are not.
        """
        capacity = cls.__new__(cls)
        capacity._begin(view, leaving, kept, nodes)
        return capacity

    def copy(self) -> FreeCapacity:
        """Return a copy that changes independently."""
        capacity = copy(self)
        capacity._left = {**self._left}
        capacity._cpus, capacity._memory = {**self._cpus}, {**self._memory}
        capacity._gpus = {pin: {**there} for pin, there in self._gpus.items()}
        capacity._open = {**self._open}
        return capacity

    def _begin(
        self,
        view: VcView,
        leaving: Iterable[JobView],
        kept: Mapping[str, int],
        nodes: NodeCapacity | None = None,
    ) -> None:
        if nodes is None:
            nodes = NodeCapacity()
            nodes.follow(view.nodes)
        self._nodes, self._order = nodes.nodes, nodes.order
        self._left = view.free_for()
        """By pin: GPUs that no job has. Nodes may have more, in cells of other VCs."""
        self._gpus = {pin: {**nodes.gpus.get(pin, {})} for pin in (*self._left, *nodes.gpus)}
        """By pin, by node."""
        self._open = dict[str, list[str]]()
        """By pin: the result of `open`, until a node gets its first free GPU or loses its last."""
        self._cpus, self._memory = {**nodes.cpus}, {**nodes.memory}
        for job in leaving:
            self.release(job)
        most = view.gpus_for()
        for pin, gpus in kept.items():
            most[pin] = most.get(pin, 0) - gpus
        # Cells of a job that is being stopped may be free already: they count once.
        self._left = {pin: min(left, most.get(pin, 0)) for pin, left in self._left.items()}

    @property
    def pins(self) -> tuple[str, ...]:
        """Return the pins of the VC, and the empty one of its other cells."""
        return tuple(self._left)

    def left(self, pin: str) -> int:
        """Return how many GPUs no job has, for jobs with a pin (empty: without one)."""
        return self._left.get(pin, 0)

    def free(self, node: str, pin: str) -> int:
        """Return how many GPUs are left on a node for jobs with a pin (empty: without one)."""
        return self._gpus.get(pin, {}).get(node, 0)

    def open(self, pin: str) -> Sequence[str]:
        """Return the nodes with GPUs left for jobs with a pin, in the order of the view."""
        found = self._open.get(pin)
        if found is None:
            there = [node for node, free in self._gpus.get(pin, {}).items() if free > 0]
            found = self._open[pin] = sorted(there, key=self._order.__getitem__)
        return found

    def release(self, job: JobView) -> None:
        """Count a job's GPUs as free."""
        self._add(job, 1)

    def keep(self, job: JobView) -> None:
        """Count a job's GPUs as its own again: undo `release`."""
        self._add(job, -1)

    def take(self, job: JobView, place: Place) -> None:
        """Count GPUs as taken by a waiting job.

        Args:
            job: The job.
            place: Its GPUs by node, from `fit`.
        """
        self.take_gpus(job, job.gpus, place)

    def take_gpus(self, job: JobView, gpus: int, place: Place) -> None:
        """Count so many GPUs as taken by a waiting job that begins with another number of workers.

        Args:
            job: The job.
            gpus: Its GPUs.
            place: The same by node.
        """
        self._left[job.pin] -= gpus
        for node, there in place:
            self._change_node(node, job, -there)

    def fit(self, job: JobView, only: Sequence[str] | None = None) -> Place | None:
        """Return where a gang would go: the fullest node that holds it, else the fewest nodes.

        Args:
            job: The gang, with its needs of GPUs, processors and memory for each worker.
            only: The nodes that it may use; None: all.

        Returns:
            GPUs by node; None if it does not fit, or not as closely as its topology requires.
        """
        if job.gpus > self.left(job.pin):
            return None
        if job.at_home:
            return self.home(job, only)
        per_worker = max(job.gpus // max(job.workers, 1), 1)
        slots = self.workers_that_fit(job, per_worker, only)
        free = self._gpus.get(job.pin, {})
        whole = [node for node, count in slots.items() if count >= job.workers]
        if whole:
            _, _, tightest = min((free[node], self._order[node], node) for node in whole)
            return ((tightest, job.gpus),)
        topology = job.spec.resources.topology
        if topology is not None and topology.hard and topology.within == "node":
            return None
        for chain in dict.fromkeys(self._nodes[node].chain for node in slots):
            place = self._fit_several(job, per_worker, slots, chain)
            if place is not None:
                return place
        return None

    def home(self, job: JobView, only: Sequence[str] | None = None) -> Place | None:
        """Return a suspended job's own nodes, if each has enough free GPUs.

        Args:
            job: It is suspended, and was on some nodes.
            only: The nodes that it may use; None: all.
        """
        pin = job.pin
        if job.gpus > self._left.get(pin, 0):
            return None
        free = self._gpus.get(pin, {})
        for node, gpus in job.nodes:
            if free.get(node, 0) < gpus or (only is not None and node not in only):
                return None
        return job.nodes

    def _fit_several(
        self, job: JobView, per_worker: int, slots: dict[str, int], chain: str
    ) -> Place | None:
        there = [node for node in slots if self._nodes[node].chain == chain]
        there.sort(key=lambda node: (-slots[node], self._order[node]))
        place: list[tuple[str, int]] = []
        left = job.workers
        for node in there:
            if slots[node] >= left:
                able = [each for each in there[len(place) :] if slots[each] >= left]
                last = min(able, key=lambda each: (slots[each], self._order[each]))
                place.append((last, left * per_worker))
                return tuple(place)
            place.append((node, slots[node] * per_worker))
            left -= slots[node]
        return None

    def workers_that_fit(
        self, job: JobView, per_worker: int, only: Sequence[str] | None = None
    ) -> dict[str, int]:
        """Return how many of a job's workers each node would hold, without those that hold none.

        Args:
            job: The job.
            per_worker: GPUs of each worker.
            only: The nodes that it may use; None: all.
        """
        wants, free = job.spec.resources, self._gpus.get(job.pin, {})
        slots = {}
        for name in self.open(job.pin) if only is None else only:
            count = free.get(name, 0) // per_worker
            if count <= 0:
                continue
            node = self._nodes.get(name)
            if node is None or not suits(wants.gpu_type, node.gpu_type):
                continue  # Of another type; or bad, or of other VCs.
            if wants.cpus and node.cpus:
                count = min(count, self._cpus[name] // wants.cpus)
            if isinstance(wants.memory, int) and wants.memory and node.memory:
                count = min(count, self._memory[name] // wants.memory)
            if count > 0:
                slots[name] = count
        return slots

    def _add(self, job: JobView, sign: int) -> None:
        self._left[job.pin] = self._left.get(job.pin, 0) + sign * job.gpus
        for node, gpus in job.nodes:
            if node in self._nodes:
                self._change_node(node, job, sign * gpus)

    def _change_node(self, node: str, job: JobView, gpus: int) -> None:
        wants = job.spec.resources
        pin = wants.pinned
        free = self._gpus.setdefault(pin, {})
        before = free.get(node, 0)
        free[node] = before + gpus
        if (before > 0) is not (before + gpus > 0) and pin in self._open:
            self._open[pin] = self._with_open(pin, node, before <= 0)
        if wants.cpus or wants.memory:
            workers = gpus * max(job.workers, 1) // max(job.gpus, 1)
            self._cpus[node] += workers * wants.cpus
            if isinstance(wants.memory, int):
                self._memory[node] += workers * wants.memory

    def _with_open(self, pin: str, node: str, come: bool) -> list[str]:
        """Return the open nodes with one added or removed, as a new list."""
        there = [*self._open[pin]]
        at = bisect_left(there, self._order[node], key=self._order.__getitem__)
        there[at : at + (not come)] = [node] if come else []
        return there


MayLeave = Callable[[Sequence[JobView]], bool]
"""Whether these jobs may leave together."""


def choose_victims(
    job: JobView,
    capacity: FreeCapacity,
    lower: Sequence[JobView],
    cost: Mapping[str, int],
    may_leave: MayLeave | None = None,
) -> list[JobView] | None:
    """Return which jobs have to leave so that a gang fits.

    The cheapest node is cleared: the one with the lowest total cost of leaving jobs, and among
    equal ones with the fewest GPUs. Affinity counts before age (HiveD, section 5).

    Args:
        job: The gang.
        capacity: What is free; the same again after the call.
        lower: Jobs that may leave, the first to leave first.
        cost: By job, 0 or more; 0 for those not in it.
        may_leave: Whether some of `lower` may leave together; None: they may.

    Returns:
        The jobs that leave; None if the gang would not fit even if all left that may.
    """
    ranks = {each.job: rank for rank, each in enumerate(lower)}

    def costs(each: JobView) -> int:
        return cost.get(each.job, 0)

    def floor(_: str, there: Sequence[JobView]) -> int:
        return min(map(costs, there))

    price = Price(costs, lambda each: (ranks[each.job],), floor)
    return choose_cheap_victims(job, capacity, lower, price, may_leave)


class Price(NamedTuple):
    """What it costs that jobs leave."""

    cost: Callable[[JobView], int]
    """The cost of one job: 0 or more."""
    order: Callable[[JobView], tuple[int, ...]]
    """A unique sort key of a job: the lowest leaves first."""
    floor: Callable[[str, Sequence[JobView]], int]
    """A lower bound of the cost of any of these jobs on a node."""


Bound = tuple[int, int, tuple[int, ...]]
"""A lower bound of clearing a node: the cost, GPUs, and the sort key of the first job to leave."""


def choose_cheap_victims(
    job: JobView,
    capacity: FreeCapacity,
    lower: Iterable[JobView],
    price: Price,
    may_leave: MayLeave | None = None,
) -> list[JobView] | None:
    """Return the same as `choose_victims`, but compute costs and order only where they may matter.

    Args:
        job: The gang.
        capacity: What is free; the same again after the call.
        lower: Jobs that may leave.
        price: Their costs and order.
        may_leave: Whether some of `lower` may leave together; None: they may.
    """
    lower = [each for each in lower if each.pin == job.pin]  # It cannot use GPUs of other pins.
    nodes: dict[str, list[JobView]] = {}
    for each in lower:
        for name, _ in each.nodes:
            nodes.setdefault(name, []).append(each)
    bounds: list[tuple[Bound, str]] = []
    for node, there in nodes.items():
        full = capacity.free(node, job.pin) < job.gpus  # Else perhaps no job has to leave.
        bounds.append(((price.floor(node, there) if full else 0, 0, ()), node))
    return clear_cheapest_node(
        job, capacity, bounds, nodes.__getitem__, lambda: lower, price=price, may_leave=may_leave
    )


def clear_cheapest_node(
    job: JobView,
    capacity: FreeCapacity,
    bounds: list[tuple[Bound, str]],
    on: Callable[[str], Sequence[JobView]],
    everywhere: Callable[[], Sequence[JobView]],
    *,
    price: Price,
    may_leave: MayLeave | None = None,
) -> list[JobView] | None:
    """Return the same as `choose_victims`, but look up the jobs of a node only where needed.

    Nodes are tried in the order of their bounds, until no other node can be cheaper. If no single
    node suffices, jobs on all nodes are tried for a gang: one worker has to be on one node.

    Args:
        job: The gang.
        capacity: What is free; the same again after the call.
        bounds: A bound for each node on which a job may leave.
        on: The jobs that may leave on a node.
        everywhere: All jobs that may leave.
        price: Their costs and order.
        may_leave: Whether some of them may leave together; None: they may.
    """
    heapify(bounds)
    any_there, best = False, None
    least: tuple[int, int, tuple[int, ...], int] = (0, 0, (), 0)
    while bounds:
        bound, node = heappop(bounds)
        if best is not None and bound > least[:3]:
            break
        there = on(node)
        any_there = any_there or bool(there)
        if not there or capacity.free(node, job.pin) + _gpus(there) < job.gpus:
            continue
        there = sorted(there, key=price.order)
        leaving = _clear(job, capacity, there, node, may_leave)
        if leaving is not None:
            place = [name for name, _ in there[0].nodes].index(node)
            found = (sum(map(price.cost, leaving)), _gpus(leaving), price.order(there[0]), place)
            if best is None or found < least:
                best, least = leaving, found
    one_node = job.workers <= 1 and may_leave is None
    if best is None and any_there and not one_node:
        best = _clear(job, capacity, sorted(everywhere(), key=price.order), None, may_leave)
    return best


def _clear(
    job: JobView,
    capacity: FreeCapacity,
    lower: Sequence[JobView],
    node: str | None,
    may_leave: MayLeave | None,
) -> list[JobView] | None:
    """Return which jobs have to leave so that a gang fits, on one node or anywhere."""
    only = None if node is None else (node,)
    leaving: list[JobView] = []
    enough = False
    for each in lower:
        if may_leave is not None and not may_leave([*leaving, each]):
            continue
        capacity.release(each)
        leaving.append(each)
        enough = capacity.fit(job, only) is not None
        if enough:
            break
    needed = leaving[:]
    for each in leaving if enough else ():
        capacity.keep(each)
        needed.remove(each)
        if capacity.fit(job, only) is None:
            capacity.release(each)
            needed.append(each)
    for each in needed:
        capacity.keep(each)
    return needed if enough else None


def _gpus(jobs: Iterable[JobView]) -> int:
    return sum(job.gpus for job in jobs)


def room_on(job: JobView, view: VcView, nodes: Sequence[str]) -> bool:
    """Return whether a gang would fit on some nodes now, as far as the view shows.

    Args:
        job: The gang.
        view: The VC.
        nodes: The nodes; no others are used.
    """
    staying = [each for each in view.jobs if each.phase in HOLDING and not each.borrows]
    return FreeCapacity(view, staying).fit(job, nodes) is not None


def best_locality(job: JobView, view: VcView, *, emptied: bool = False) -> bool:
    """Return whether a gang would be on as few nodes as possible now.

    Args:
        job: The gang.
        view: The VC.
        emptied: Whether GPUs of the VC's jobs on these nodes count as free.
    """
    able = [node for node in view.nodes if _suits_type(job, node)]
    free = [node.free_for(job.pin) for node in able]
    if emptied:
        like = {each.job: None for each in view.jobs if each.pin == job.pin}
        for at, node in enumerate(able):
            free[at] += sum(gpus for name, gpus in node.jobs if name in like)
    free.sort(reverse=True)
    size = max((node.gpus for node in able), default=1)
    fewest = -(-job.gpus // max(size, 1))
    return sum(free[:fewest]) >= job.gpus


def fit_close(job: JobView, capacity: FreeCapacity, fewest: int) -> Place | None:
    """Return where a gang would go now, if that is on so many nodes at most.

    Args:
        job: The gang.
        capacity: What is free.
        fewest: How many nodes it needs at least, from `fewest_nodes`.
    """
    place = capacity.fit(job)
    return place if place is not None and (job.at_home or len(place) <= fewest) else None


def fewest_nodes(job: JobView, view: VcView) -> int:
    """Return on how few nodes a gang could be if all jobs of the VC were gone.

    Returns:
        As many as it has workers if the nodes of the view do not hold it.
    """
    each = max(job.gpus // max(job.workers, 1), 1)
    like = {other.job for other in view.jobs if other.pin == job.pin}
    able = [node for node in view.nodes if _suits_type(job, node)]
    slots = sorted(
        (
            (node.free_for(job.pin) + sum(gpus for name, gpus in node.jobs if name in like)) // each
            for node in able
        ),
        reverse=True,
    )
    left = job.workers
    for count, room in enumerate(slots, 1):
        left -= room
        if left <= 0:
            return count
    return max(job.workers, 1)


def _suits_type(job: JobView, node: NodeView) -> bool:
    return suits(job.spec.resources.gpu_type, node.gpu_type)
