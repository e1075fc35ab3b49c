"""The nodes of a VC as its policy sees them: made again only where something is different."""

from __future__ import annotations

from typing import NamedTuple

from skep import ids
from skep.cells.decide.reach import reachable_gpus
from skep.cells.nodes import NodeState
from skep.cells.topology import Topology
from skep.ledger.state import ClusterState
from skep.policy.view import HOLDING, JobView, NodeView
from skep.wire.node import NodeJoined


class _Made(NamedTuple):
    """A view of a node, and what the node said of itself when it was made."""

    view: NodeView
    joined: NodeJoined


class Seats:
    """Which of a VC's jobs are on which node, and the node views made of that."""

    def __init__(self) -> None:
        """Start with no job on any node."""
        self._on: dict[str, dict[str, tuple[int, int]]] = {}
        """By node, by job: its place in the order of arrival, and its GPUs there."""
        self._homes: dict[str, JobView] = {}
        """The suspended jobs that go on only on their own GPUs."""
        self._made: dict[str, dict[str, _Made]] = {}
        """By chain, by node."""
        self._shapes: dict[str, Topology] = {}
        self._stale: dict[str, None] = {}

    def move(self, name: str, before: JobView | None, after: JobView | None) -> None:
        """Take over that a job is elsewhere than before.

        Args:
            name: The job.
            before: How its policy saw it; None: not at all.
            after: How its policy sees it; None: not at all.
        """
        if after is not None and after.at_home and not after.borrows:
            self._homes[name] = after
        else:
            self._homes.pop(name, None)
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

    def views(self, ledger: ClusterState, vc: str) -> tuple[NodeView, ...]:
        """Return the nodes that the VC has cells on, or could have."""
        made: dict[str, dict[str, _Made]] = {}
        lent = any(ledger.cells.borrowed.values())
        for name, chain in ledger.cells.chains.items():
            found = reachable_gpus(chain, vc, self._home_leaves(chain.topology))
            if found is None:
                continue
            shape, states, stale = chain.topology, ledger.nodes, self._stale
            before = self._made.get(name, {}) if self._shapes.get(name) is shape else {}
            self._shapes[name] = shape
            now = made[name] = {}
            for index, free in found.items():
                node = shape.nodes[index]
                state = states.get(node)
                if state is None:
                    continue
                known = before.get(node)
                # Nothing else tells of a node without pinned cells and borrowers.
                if (
                    known is None
                    or (view := known[0]).free != free[""]
                    or view.cpus_free != state.cpus_free
                    or view.memory_free != state.memory_free
                    or known[1] is not state.joined
                    or node in stale
                    or lent
                    or view.pins
                    or len(free) > 1
                ):
                    view = self._view(ledger, name, state, free, lent=lent)
                    known = _Made(view, state.joined)
                now[node] = known
        self._stale.clear()
        self._made = made
        return tuple([each.view for there in made.values() for each in there.values()])

    def _home_leaves(self, shape: Topology) -> list[int]:
        """Return the GPUs of one chain that suspended jobs go on with, by order of arrival."""
        jobs = sorted(self._homes.values(), key=lambda job: job.sequence)
        found = (
            shape.leaf(node, device)
            for job in jobs
            for node, devices in job.devices
            for device in devices
        )
        return [leaf for leaf in found if leaf is not None]

    def _view(
        self,
        ledger: ClusterState,
        chain: str,
        state: NodeState,
        free: dict[str, int],
        *,
        lent: bool,
    ) -> NodeView:
        """Return what a policy sees of a node."""
        cpus, memory = state.cpus_free, state.memory_free
        if lent:
            more = _lent(ledger, state)
            cpus, memory = cpus + more[0], memory + more[1]
        pins = tuple((pin, gpus) for pin, gpus in free.items() if pin)
        node, shape = state.joined.node, ledger.cells.chains[chain].topology
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
    """Return the nodes that a job holds GPUs of, as a policy sees it."""
    return view.nodes if view is not None and view.phase in HOLDING else ()


def _lent(ledger: ClusterState, node: NodeState) -> tuple[int, int]:
    """Return the CPUs and memory of a node that opportunistic jobs hold: they yield them."""
    cpus = memory = 0
    for attempt, holding in node.holdings.items():
        hold = ledger.cells.hold_of(ids.attempt_id(*attempt))
        if hold is not None and not hold.guaranteed:
            cpus, memory = cpus + holding.cpus, memory + holding.memory
    return cpus, memory
