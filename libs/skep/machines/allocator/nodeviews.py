"""The nodes of a VC as its policy sees them: made again only where something is different."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skep.cells.nodes import NodeState
from skep.cells.reach import reach
from skep.machines.allocator import cellwork
from skep.view.view import HOLDING, JobView, NodeView

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


class Seats:
    """Which of a VC's jobs are on which node, and the node views made of that."""

    def __init__(self) -> None:
        """Start with nobody anywhere."""
        self._on: dict[str, dict[str, tuple[int, int]]] = {}
        """By node, by job: its place in the order of arrival, and its GPUs there."""
        self._made: dict[tuple[str, str], NodeView] = {}
        self._stale: dict[str, None] = {}

    def move(self, name: str, before: JobView | None, after: JobView | None) -> None:
        """Take over that a job is elsewhere than before."""
        left, come = _held(before), _held(after)
        if left == come:
            return
        for node, _ in left:
            del self._on[node][name]
            self._stale[node] = None
        for node, gpus in come:
            assert after is not None, name
            self._on.setdefault(node, {})[name] = after.sequence, gpus
            self._stale[node] = None

    def on(self, node: str) -> tuple[str, ...]:
        """Return the VC's jobs that hold GPUs of a node."""
        return tuple(self._on.get(node, ()))

    def views(self, machine: AllocatorMachine, vc: str) -> tuple[NodeView, ...]:
        """Return the nodes that the VC has cells on, or could have."""
        made: dict[tuple[str, str], NodeView] = {}
        lent = any(machine.cells.borrowed.values())
        for name, chain in machine.cells.chains.items():
            found = reach(chain, vc)
            if found is None:
                continue
            for index, free in found.items():
                node = chain.topology.nodes[index]
                state = machine.nodes.get(node)
                if state is not None:
                    place = name, node
                    made[place] = self._view(machine, place, state, free, lent=lent)
        self._stale.clear()
        self._made = made
        return tuple(made.values())

    def _view(
        self, machine: AllocatorMachine, place: tuple[str, str], state: NodeState,
        free: dict[str, int], *, lent: bool,
    ) -> NodeView:  # fmt: skip
        cpus, memory = state.cpus_free, state.memory_free
        if lent:
            more = _lent(machine, state)
            cpus, memory = cpus + more[0], memory + more[1]
        pins = tuple((pin, gpus) for pin, gpus in free.items() if pin)
        known = self._made.get(place)
        chain, node = place
        shape = machine.cells.chains[chain].topology
        if known is not None and node not in self._stale:
            same = known.free == free[""] and known.pins == pins
            same = same and known.cpus_free == cpus and known.memory_free == memory
            same = same and (known.gpu_type, known.gpus) == (shape.gpu, shape.node_size)
            same = same and known.gpu_memory == state.gpu_memory.get(shape.gpu, 0)
            if same and known.cpus == state.joined.cpus and known.memory == state.joined.memory:
                return known
        there = self._on.get(node, {})
        return NodeView(
            node=node,
            chain=chain,
            gpu_type=shape.gpu,
            gpus=shape.node_size,
            free=free[""],
            pins=pins,
            jobs=tuple(
                (job, gpus) for job, (_, gpus) in sorted(there.items(), key=lambda each: each[1])
            ),
            cpus=state.joined.cpus,
            cpus_free=cpus,
            memory=state.joined.memory,
            memory_free=memory,
            gpu_memory=state.gpu_memory.get(shape.gpu, 0),
        )


def _held(view: JobView | None) -> tuple[tuple[str, int], ...]:
    return view.nodes if view is not None and view.phase in HOLDING else ()


def _lent(machine: AllocatorMachine, node: NodeState) -> tuple[int, int]:
    """Return the CPUs and memory of a node that opportunistic jobs hold: they yield them."""
    cpus = memory = 0
    for attempt, holding in node.holdings.items():
        hold = machine.cells.hold_of(cellwork.holder(*attempt))
        if hold is not None and not hold.guaranteed:
            cpus, memory = cpus + holding.cpus, memory + holding.memory
    return cpus, memory
