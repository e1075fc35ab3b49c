"""The cells of a cluster: what jobs hold, claim and give back, and which GPUs are bad.

Every change is one that a fact states, and nothing is chosen here. Two choices are left open: which
VC takes a bad cell (`unsettled`), and which job leads a set whose leader has left (`unled`).
`decide.bad_cells` makes them, and the result comes back as `bind_bad_cell`, `unbind_bad_cell` and
`set_leader`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skep.cells import sets
from skep.cells.chain import ChainState
from skep.cells.holdings import Choosers, Holdings
from skep.cells.holds import CellHold, Placement, Request, Spot
from skep.ids import AttemptId
from skep.wire.bearing import BadCell
from skep.wire.cluster import Cluster


class Cells(Holdings):
    """The cells of a cluster. Every GPU is healthy until `set_bad` says otherwise."""

    def __init__(self, cluster: Cluster, choosers: Choosers | None = None) -> None:
        """Lay out a valid, feasible cluster with everything free.

        Args:
            cluster: Its quotas are in cells; a shorthand in GPUs was turned into cells before.
            choosers: Decide at once what a change leaves open. None: it is left to the caller.
        """
        super().__init__(cluster, choosers)
        self.off_chain: dict[AttemptId, dict[tuple[str, int], None]] = {}
        """By job: GPUs (node, device) that it uses outside its chain: in another chain, or in
        none."""
        self._ill: dict[tuple[str, int], None] = {}
        """Leaves that were reported bad, by chain; those that jobs use off their chain also count
        as bad."""

    def __eq__(self, other: object) -> bool:
        """Return whether two states are equal, apart from orders that are not guaranteed."""
        return isinstance(other, Cells) and self._summary() == other._summary()

    __hash__ = None  # type: ignore[assignment]

    def _summary(self) -> tuple[object, ...]:
        holds = {
            job: (
                hold.vc,
                hold.asked,
                hold.priority,
                hold.chain,
                hold.spots,
                hold.claims,
                hold.pin,
                hold.lazy,
                hold.partners,
                hold.further,
            )
            for job, hold in self.holds.items()
        }
        bad_cells = {
            (name, cell.pool.vc, cell.level, cell.index)
            for name, chain in self.chains.items()
            for cell in chain.bad_cells
        }
        return self.cluster, holds, bad_cells, self._ill, self.off_chain

    def carry_out(self, request: Request, where: Placement) -> CellHold:
        """Carry out a placement: cancel claims, demote jobs, then hold the GPUs, or claim them.

        Bad cells are decided again only after that: a cell that is given back meanwhile is meant
        for this job, and must not become a bad cell of a VC because of bad GPUs beside it.

        Args:
            request: What the job asked for.
            where: The placement.
        """
        for job in where.cancels:
            self.release(job, settle=False)
        for job in where.demoted:
            self.demote(job)
        return self.reserve(request, where) if where.victims else self.allocate(request, where)

    def allocate(self, request: Request, where: Placement) -> CellHold:
        """Give a gang its GPUs.

        Args:
            request: What the job asked for.
            where: Its placement, without victims.

        Raises:
            AssertionError: Another job uses or claims one of the GPUs.
        """
        hold = CellHold(request, where)
        self.enter(hold)
        return hold

    def reserve(self, request: Request, where: Placement) -> CellHold:
        """Claim a gang's GPUs until their users are gone; no other job is offered them.

        Args:
            request: What the job asked for.
            where: Its placement.

        Raises:
            AssertionError: Another job claims one of the GPUs.
        """
        hold = CellHold(request, where, claims=True)
        self.enter(hold)
        return hold

    def begin_change(self) -> None:
        """Begin a change: everything that the last one left open must have been decided."""
        if self.unsettled or self.unled or self.returned:
            self.unsettled.clear()
            self.unled.clear()
            self.returned.clear()

    @property
    def undecided(self) -> bool:
        """Return whether the current change left something to decide, or to record."""
        return bool(self.unsettled or self.unled or self.returned)

    def bind_bad_cell(self, cell: BadCell) -> None:
        """Bind a bad cell to the VC that it names."""
        self.chains[cell.chain].bind_bad_cell(cell.vc, cell.level, cell.index)

    def unbind_bad_cell(self, cell: BadCell) -> None:
        """Take a bad cell from its VC; it may have gone back already."""
        chain = self.chains[cell.chain]
        known = chain.bound[cell.level].get(cell.index)
        if known is not None and known.bad_cell:
            chain.unbind_bad_cell(cell.level, cell.index)

    def bound_bad_cells(self) -> tuple[BadCell, ...]:
        """Return the bad cells that VCs have, in the form of facts."""
        return tuple(
            chain.bad_cell_of(cell) for chain in self.chains.values() for cell in chain.bad_cells
        )

    def set_leader(self, name: AttemptId, leader: AttemptId) -> None:
        """Give the hold of a set the name of another of its jobs.

        Args:
            name: The name that it has.
            leader: A job of the set.
        """
        hold = self.holds[name]
        assert leader in hold.partners, (name, leader)
        self.unled.pop(name, None)
        sets.rename_hold(self, hold, leader)

    def release(self, job: AttemptId, node: str = "", *, settle: bool = True) -> None:
        """Take from a job what it holds or claims; jobs that share it keep it.

        Args:
            job: The job; it may hold nothing.
            node: Only what is on this node; empty: everywhere.
            settle: Whether bad cells are to be decided again; False if more follows (`carry_out`).
        """
        if self.off_chain:
            self._return_off_chain(job, node)
        if job in self.sets and len(self.sets[job].partners) > 1:
            sets.leave_set(self, job, node)
            return
        if job in self.sets:
            self.sets.pop(job).partners = {}
        hold = self.holds.get(job)
        if hold is None:
            return
        self.count_hold(hold, -1)
        held = hold.portions
        left = [(name, self._release_in(hold, name, spots, node)) for name, spots in held]
        hold.have(left)
        if hold.spots:
            self.count_hold(hold, 1)
        else:
            del self.holds[job]
        if settle:
            self.mark_all_unsettled(held)

    def _release_in(
        self, hold: CellHold, name: str, spots: tuple[Spot, ...], node: str
    ) -> tuple[Spot, ...]:
        """Free or unclaim spots of a hold in one chain, on a node or on all; return the others."""
        chain = self.chains[name]
        gone = [spot for spot in spots if not node or chain.topology.node(spot.leaves[0]) == node]
        for spot in gone:
            if hold.claims:
                chain.cancel_claim(spot)
            else:
                chain.free_leaves(spot.leaves, hold)
        if self.sets:
            for user in dict.fromkeys(chain.user[leaf] for spot in gone for leaf in spot.leaves):
                if user is not None and user.partners:
                    sets.review_leader(self, user)  # The claim is gone: its GPUs are theirs.
        return tuple([spot for spot in spots if spot not in gone])

    def widen(self, job: AttemptId, spots: Sequence[Spot]) -> None:
        """Give a job further idle GPUs, guaranteed or opportunistic as those that it has.

        Args:
            job: A job that shares with no other, in one chain.
            spots: The further GPUs, with the levels of the cells that cover them.
        """
        hold = self.holds[job]
        assert not hold.partners, job
        assert not hold.further, job
        chain = self.chains[hold.chain]
        self.count_hold(hold, -1)
        hold.spots += tuple(spots)
        self.count_hold(hold, 1)
        for spot in spots:
            chain.allocate_spot(hold, spot)
        self.mark_unsettled(chain)

    def narrow(self, job: AttemptId, gpus: Sequence[tuple[str, int]]) -> None:
        """Take some GPUs from a job that keeps others.

        Args:
            job: A job that shares with no other, in one chain.
            gpus: The GPUs, as (node, device).
        """
        self._come_home(job, [gpu for gpu in gpus if gpu in self.off_chain.get(job, {})])
        hold = self.holds.get(job)
        if hold is None:
            return
        assert not hold.partners, job
        assert not hold.further, job
        shape = self.chains[hold.chain].topology
        leaves = [shape.leaf(*gpu) for gpu in gpus]
        sets.free_part(self, hold, [leaf for leaf in leaves if leaf is not None])

    def share(self, request: Request, on: AttemptId, leaves: Sequence[int]) -> None:
        """Add a job to GPUs that another job holds, by a recorded decision.

        Args:
            request: What the job was submitted with.
            on: A job that uses the GPUs.
            leaves: The GPUs that the new job uses, in the chain of the hold.
        """
        sets.join_set(self, request, on, leaves)

    def stand_back(self, job: AttemptId) -> None:
        """Let a job that is to end hold nothing against others, unless they claim it already.

        Its VC's cells are free again, or belong to the set that it leaves behind.
        """
        hold = self.hold_of(job)
        if hold is not None and hold.partners:
            sets.stop_counting(self, job)
        elif hold is not None and hold.guaranteed and not self.claimers(job):
            self.demote(job)

    def set_bad(self, node: str, devices: Sequence[int] | None, *, bad: bool) -> None:
        """Note that GPUs of a node are bad or healthy.

        Args:
            node: Its name.
            devices: Device indices; None: all its GPUs, in every chain.
            bad: Whether they are bad.
        """
        for chain in self.chains.values():
            index = chain.topology.node_index.get(node)
            if index is not None:
                self._set_bad(chain, index, devices, bad=bad)

    def _set_bad(
        self, chain: ChainState, index: int, devices: Sequence[int] | None, *, bad: bool
    ) -> None:
        shape = chain.topology
        leaves: Sequence[int] = shape.span(shape.node_level, index)
        if devices is not None:
            leaves = [leaf for leaf in leaves if shape.device(leaf) in devices]
        if bad:
            self._ill.update(dict.fromkeys((shape.name, leaf) for leaf in leaves))
        else:
            for leaf in leaves:
                self._ill.pop((shape.name, leaf), None)
            leaves = [leaf for leaf in leaves if not self._is_off_chain(shape.name, leaf)]
        if chain.set_bad(leaves, bad=bad):
            self.mark_unsettled(chain, health=True)

    def covers(self, job: AttemptId, node: str, device: int) -> bool:
        """Return whether a GPU that a job uses can be given to no other job.

        That is so if it is part of the job's hold, noted as outside its chain, or in no chain.

        Args:
            job: The job.
            node: The node of the GPU.
            device: Its device index.
        """
        found = self.find(node, device)
        if found is None:
            return True
        hold = self.hold_of(job)
        user = self.chains[found[0]].user[found[1]]
        there = dict(self.leaves_by_chain(job)).get(found[0], ())
        mine = hold is not None and user is hold and found[1] in there
        return mine or (node, device) in self.off_chain.get(job, {})

    def note_off_chain(self, job: AttemptId, node: str, device: int) -> None:
        """Note that a job uses a GPU outside its chain, which counts as bad until the job leaves.

        Args:
            job: The job.
            node: The node of the GPU.
            device: Its device index.
        """
        self.off_chain.setdefault(job, {})[node, device] = None
        found = self.find(node, device)
        if found is not None:
            self.chains[found[0]].set_bad([found[1]], bad=True)

    def set_health(self, node: str, bad: Callable[[int, str], bool]) -> None:
        """Note which GPUs of a node are bad, in every chain.

        Args:
            node: Its name.
            bad: Returns whether a GPU is bad, by its device index and the type that its chain has.
        """
        for chain in self.chains.values():
            shape = chain.topology
            index = shape.node_index.get(node)
            if index is not None:
                devices = [shape.device(leaf) for leaf in shape.span(shape.node_level, index)]
                ill = [device for device in devices if bad(device, shape.gpu)]
                self._set_bad(chain, index, ill, bad=True)
                self._set_bad(chain, index, [d for d in devices if d not in ill], bad=False)

    def note_bad_gpu(self, node: str, device: int) -> None:
        """Note that a GPU is bad, without deciding again which VCs have bad cells.

        Args:
            node: The node of the GPU.
            device: Its device index.
        """
        found = self.find(node, device)
        if found is not None:
            self._ill[found] = None
            self.chains[found[0]].set_bad([found[1]], bad=True)

    def bad_gpus(self) -> list[tuple[str, int]]:
        """Return the GPUs that were reported bad, as (node, device)."""
        shapes = {name: chain.topology for name, chain in self.chains.items()}
        return [(shapes[name].node(leaf), shapes[name].device(leaf)) for name, leaf in self._ill]

    def _is_off_chain(self, name: str, leaf: int) -> bool:
        shape = self.chains[name].topology
        gpu = shape.node(leaf), shape.device(leaf)
        return any(gpu in parts for parts in self.off_chain.values())

    def _return_off_chain(self, job: AttemptId, node: str) -> None:
        self._come_home(job, [gpu for gpu in self.off_chain.get(job, {}) if node in ("", gpu[0])])

    def _come_home(self, job: AttemptId, gpus: Sequence[tuple[str, int]]) -> None:
        parts = self.off_chain.get(job, {})
        for gpu in gpus:
            del parts[gpu]
            found = self.find(*gpu)
            if found is not None and found not in self._ill and not self._is_off_chain(*found):
                self.chains[found[0]].set_bad([found[1]], bad=False)
                self.mark_unsettled(self.chains[found[0]], health=True)
        if not parts:
            self.off_chain.pop(job, None)
