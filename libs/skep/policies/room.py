"""Where gangs could go, as far as a policy sees: GPUs, processors and memory of each node.

The cells have the last word. This is what a policy needs in order not to stop jobs for a gang that
would not fit afterwards: a gang of eight on one node has no use for eight free GPUs on two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from skep.view.view import HOLDING, JobView, NodeView, VcView

Place = tuple[tuple[str, int], ...]
"""GPUs on each node."""


class Room:
    """What a VC's nodes have left in a plan, whoever is there now."""

    def __init__(self, view: VcView, staying: Iterable[JobView]) -> None:
        """Begin with all that the VC could have, less what `staying` jobs hold."""
        self._nodes = {node.node: node for node in view.nodes}
        self._order = {node.node: place for place, node in enumerate(view.nodes)}
        """Of equal nodes the first of the view is taken: names would tell of the hardware."""
        self._gpus = {node.node: node.free for node in view.nodes}
        self._cpus = {node.node: node.cpus_free for node in view.nodes}
        self._memory = {node.node: node.memory_free for node in view.nodes}
        for job in view.jobs:
            if job.phase in HOLDING and not job.borrows:
                self._add(job, 1)
        for job in staying:
            self._add(job, -1)

    def free(self, node: str) -> int:
        """Return the GPUs that are left on a node."""
        return self._gpus.get(node, 0)

    def release(self, job: JobView) -> None:
        """Count a job's GPUs as free."""
        self._add(job, 1)

    def keep(self, job: JobView) -> None:
        """Count a job's GPUs as its own again."""
        self._add(job, -1)

    def take(self, job: JobView, place: Place) -> None:
        """Give GPUs to a job that waits."""
        for node, gpus in place:
            self._change(node, job, -gpus)

    def fit(self, job: JobView, only: Sequence[str] | None = None) -> Place | None:
        """Return where a gang would go: the fullest node that holds it, else the fewest nodes.

        None: nowhere, or not as closely together as it has to be.
        """
        per_worker = max(job.gpus // max(job.workers, 1), 1)
        slots = self._slots(job, per_worker, only)
        whole = [node for node, count in slots.items() if count >= job.workers]
        if whole:
            tightest = min(whole, key=lambda node: (self._gpus[node], self._order[node]))
            return ((tightest, job.gpus),)
        topology = job.spec.resources.topology
        if topology is not None and topology.hard and topology.within == "node":
            return None
        for chain in dict.fromkeys(self._nodes[node].chain for node in slots):
            place = self._spread(job, per_worker, slots, chain)
            if place is not None:
                return place
        return None

    def _spread(
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

    def _slots(self, job: JobView, per_worker: int, only: Sequence[str] | None) -> dict[str, int]:
        """Return how many of the job's workers each node would hold."""
        wants = job.spec.resources
        slots = {}
        for name in self._nodes if only is None else only:
            node = self._nodes.get(name)
            if node is None:
                continue  # Its hardware is bad, or others have it: there is no room for anybody.
            if wants.gpu_type is not None and wants.gpu_type != node.gpu_type:
                continue
            count = self._gpus[name] // per_worker
            if wants.cpus and node.cpus:
                count = min(count, self._cpus[name] // wants.cpus)
            if isinstance(wants.memory, int) and wants.memory and node.memory:
                count = min(count, self._memory[name] // wants.memory)
            if count > 0:
                slots[name] = count
        return slots

    def _add(self, job: JobView, sign: int) -> None:
        for node, gpus in job.nodes:
            if node in self._nodes:
                self._change(node, job, sign * gpus)

    def _change(self, node: str, job: JobView, gpus: int) -> None:
        workers = gpus * max(job.workers, 1) // max(job.gpus, 1)
        self._gpus[node] += gpus
        self._cpus[node] += workers * job.spec.resources.cpus
        if isinstance(job.spec.resources.memory, int):
            self._memory[node] += workers * job.spec.resources.memory


MayLeave = Callable[[Sequence[JobView]], bool]
"""Whether these may leave together."""


def make_room(
    job: JobView,
    room: Room,
    lower: Sequence[JobView],
    left: int,
    cost: Mapping[str, int],
    may_leave: MayLeave | None = None,
) -> list[JobView] | None:
    """Return which of `lower` (the first to leave first) have to leave so that a gang fits.

    None: it would not fit even if all left that may. `left` are the GPUs that nobody has. Where
    the `cost` of those that leave is the lowest, and then their GPUs, they leave: a node is cleared
    for the affinity that is wanted, not by age (HiveD, section 5).
    """
    best: list[JobView] | None = None
    least = (0, 0)
    nodes = dict.fromkeys(name for each in lower for name, _ in each.nodes)
    for node in (*nodes, None):
        if node is None and best is not None:
            break
        there = [each for each in lower if node is None or node in dict(each.nodes)]
        leaving = _clear(job, room, there, node, left, may_leave)
        if leaving is not None:
            price = sum(cost.get(each.job, 0) for each in leaving), _gpus(leaving)
            if best is None or price < least:
                best, least = leaving, price
    return best


def _clear(
    job: JobView,
    room: Room,
    lower: Sequence[JobView],
    node: str | None,
    left: int,
    may_leave: MayLeave | None,
) -> list[JobView] | None:
    """Return who has to leave so that a gang fits, on one node or anywhere."""
    only = None if node is None else (node,)

    def fits(leaving: Sequence[JobView]) -> bool:
        return job.gpus <= left + _gpus(leaving) and room.fit(job, only) is not None

    if node is not None and room.free(node) + _gpus(lower) < job.gpus:
        return None
    leaving: list[JobView] = []
    enough = False
    for each in lower:
        if may_leave is not None and not may_leave([*leaving, each]):
            continue
        room.release(each)
        leaving.append(each)
        enough = fits(leaving)
        if enough:
            break
    needed = leaving[:]
    for each in leaving if enough else ():
        room.keep(each)
        needed.remove(each)
        if not fits(needed):
            room.release(each)
            needed.append(each)
    for each in needed:
        room.keep(each)
    return needed if enough else None


def _gpus(jobs: Iterable[JobView]) -> int:
    return sum(job.gpus for job in jobs)


def best_locality(job: JobView, nodes: Iterable[NodeView], *, emptied: bool = False) -> bool:
    """Return whether a gang would be on as few nodes as possible now.

    `emptied`: once the VC's jobs that are there have left.
    """
    able = [node for node in nodes if _may(job, node)]
    free = [node.free for node in able]
    if emptied:
        free = [node.free + sum(gpus for _, gpus in node.jobs) for node in able]
    free.sort(reverse=True)
    size = max((node.gpus for node in able), default=1)
    fewest = -(-job.gpus // max(size, 1))
    return sum(free[:fewest]) >= job.gpus


def _may(job: JobView, node: NodeView) -> bool:
    return job.spec.resources.gpu_type in (None, node.gpu_type)
