"""The nodes of a VC as its policy sees them: made again only where something is different."""

from __future__ import annotations

import operator

from skep import ids
from skep.cells.chain import ChainState
from skep.cells.decide.reach import reachable_gpus, reaches_all
from skep.cells.nodes import NodeState
from skep.cells.topology import Topology
from skep.ids import AttemptId
from skep.ledger.state import ClusterState
from skep.policy.view import HOLDING, JobView, NodeView


class _Made:
    """The nodes of one chain as they were shown last."""

    def __init__(self, chain: ChainState, vc: str) -> None:
        """Start with no node.

        Args:
            chain: The chain as it is now.
            vc: The VC that is shown it.
        """
        self.chain, self.bindings = chain, chain.bindings
        self.all = reaches_all(chain, vc)
        """Whether the nodes are the same, in the same order, while the bindings are."""
        self.firm = list(_firm(chain))
        self.views: dict[str, NodeView] = {}


class Seats:
    """Which of a VC's jobs are on which node, and the node views made of that."""

    def __init__(self) -> None:
        """Start with no job on any node."""
        self._on: dict[str, dict[str, tuple[int, int]]] = {}
        """By node, by job: its place in the order of arrival, and its GPUs there."""
        self._homes: dict[str, JobView] = {}
        """The suspended jobs that go on only on their own GPUs."""
        self._made: dict[str, _Made] = {}
        """By chain."""
        self._shown: tuple[NodeView, ...] | None = ()
        """The views of all chains; None: one of them is another."""
        self._lent: dict[str, list[AttemptId]] = {}
        """Nodes with opportunistic jobs, and these."""
        self._stale: dict[str, None] = {}
        """Nodes of which something else than their firm GPUs may be another."""

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

    def node_changed(self, node: str) -> None:
        """Take over that a node's inventory, CPUs or memory are others."""
        self._stale[node] = None

    def views(self, ledger: ClusterState, vc: str) -> tuple[NodeView, ...]:
        """Return the nodes that the VC has cells on, or could have.

        A view is made again only of nodes of which something changed since the last call, and the
        tuple is the same object if nothing did.

        Args:
            ledger: The state. Its nodes that changed were named by `node_changed`.
            vc: The VC, always the same one.
        """
        lent, made = _nodes_with_borrowers(ledger), dict[str, _Made]()
        if lent != self._lent:
            both = (*lent, *self._lent)
            differ = (node for node in both if lent.get(node) != self._lent.get(node))
            self._stale.update(dict.fromkeys(differ))
            self._lent = lent
        for name, chain in ledger.cells.chains.items():
            known = self._made.get(name)
            if known is None or not self._follow(ledger, known, chain):
                known = self._make(ledger, chain, vc)
            if known is not None:
                made[name] = known
        self._stale.clear()
        if self._shown is None or [*made] != [*self._made]:
            self._shown = tuple([view for each in made.values() for view in each.views.values()])
        self._made = made
        return self._shown

    def _follow(self, ledger: ClusterState, made: _Made, chain: ChainState) -> bool:
        """Make the views of a chain again where something changed; return whether that is enough.

        It is if the VC has the same nodes in the same order as before.
        """
        if not made.all or made.chain is not chain or made.bindings != chain.bindings:
            return False
        shape, firm = chain.topology, _firm(chain)
        stale = dict.fromkeys(name for name in self._stale if name in shape.node_index)
        if firm != made.firm:
            differs = map(operator.ne, firm, made.firm)
            stale.update((shape.nodes[index], None) for index, each in enumerate(differs) if each)
            made.firm = list(firm)
        for node in stale:
            before, index = made.views.get(node), shape.node_index[node]
            if before is None:
                return False  # It has come, or has yet to come.
            free = {"": shape.node_size - firm[index]}
            view = self._view(ledger, shape, ledger.nodes[node], free)
            if view != before:
                made.views[node] = view
                self._shown = None
        return True

    def _make(self, ledger: ClusterState, chain: ChainState, vc: str) -> _Made | None:
        """Return the views of all nodes of a chain; None: the VC has no cells in it."""
        shape = chain.topology
        found = reachable_gpus(chain, vc, self._home_leaves(shape))
        if found is None:
            return None
        earlier, made = self._made.get(shape.name), _Made(chain, vc)
        before = earlier.views if earlier is not None and earlier.chain is chain else {}
        for index, free in found.items():
            node = shape.nodes[index]
            state, known = ledger.nodes.get(node), before.get(node)
            if state is None:
                continue
            if (
                known is None
                or known.free != free[""]
                or node in self._stale
                or known.pins
                or len(free) > 1
            ):
                known = self._view(ledger, shape, state, free)
            made.views[node] = known
        self._shown = None
        return made

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
        self, ledger: ClusterState, shape: Topology, state: NodeState, free: dict[str, int]
    ) -> NodeView:
        """Return what a policy sees of a node."""
        cpus, memory, node = state.cpus_free, state.memory_free, state.joined.node
        if node in self._lent:
            more = _lent(ledger, state)
            cpus, memory = cpus + more[0], memory + more[1]
        pins = tuple((pin, gpus) for pin, gpus in free.items() if pin)
        there = self._on.get(node, {})
        return NodeView(
            node=node,
            chain=shape.name,
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


def _firm(chain: ChainState) -> list[int]:
    """Return by node how many GPUs are bad, or are used or claimed by guaranteed jobs."""
    return chain.forest.firm[chain.topology.node_level]


def _held(view: JobView | None) -> tuple[tuple[str, int], ...]:
    """Return the nodes that a job holds GPUs of, as a policy sees it."""
    return view.nodes if view is not None and view.phase in HOLDING else ()


def _nodes_with_borrowers(ledger: ClusterState) -> dict[str, list[AttemptId]]:
    """Return the nodes with GPUs that opportunistic jobs use, and the attempts on each."""
    found: dict[str, list[AttemptId]] = {}
    for hold in ledger.cells.opportunistic:
        for node in ledger.cells.nodes_of(hold):
            found.setdefault(node, []).extend(hold.partners or (hold.job,))
    return found


def _lent(ledger: ClusterState, node: NodeState) -> tuple[int, int]:
    """Return the CPUs and memory of a node that opportunistic jobs hold: they yield them."""
    cpus = memory = 0
    for attempt, holding in node.holdings.items():
        hold = ledger.cells.hold_of(ids.attempt_id(*attempt))
        if hold is not None and not hold.guaranteed:
            cpus, memory = cpus + holding.cpus, memory + holding.memory
    return cpus, memory
