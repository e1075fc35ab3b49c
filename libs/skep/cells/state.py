"""All chains and all virtual clusters: what jobs may hold, hold, claim, and give back.

Every change is one that a fact states, and nothing is chosen here. Which VC bears a bad cell, and
which job leads a set whose leader has left, is left open (`unsettled`, `unled`): `decide.bad_cells`
decides it, and it comes back as `bear`, `relieve` and `lead`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skep.cells import sets
from skep.cells.chain import ChainState
from skep.cells.holdings import Choosers, Holdings
from skep.cells.holds import CellHold, Placement, Request, Spot
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
        self.off_chain: dict[str, dict[tuple[str, int], None]] = {}
        """By job: GPUs (node, device) it uses outside its chain: in another one, or in none yet."""
        self._ill: dict[tuple[str, int], None] = {}
        """Leaves reported bad, by chain; those that jobs use off their chain count as bad too."""

    def __eq__(self, other: object) -> bool:
        """Return whether everything is as there, apart from orders that nothing was promised of."""
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

        Who bears bad hardware is settled only then: what is given back on the way is meant for
        this job, and must not be given to somebody for the bad GPUs beside it.
        """
        for job in where.cancels:
            self.release(job, settle=False)
        for job in where.demoted:
            self.demote(job)
        return self.reserve(request, where) if where.victims else self.allocate(request, where)

    def allocate(self, request: Request, where: Placement) -> CellHold:
        """Give a gang its GPUs; none of them is used or claimed by another."""
        hold = CellHold(request, where)
        self.enter(hold)
        return hold

    def reserve(self, request: Request, where: Placement) -> CellHold:
        """Claim a gang's GPUs until their users are gone: nobody else is offered them."""
        hold = CellHold(request, where, claims=True)
        self.enter(hold)
        return hold

    def begin_change(self) -> None:
        """Begin a change: what the last one left open is decided by now."""
        self.unsettled.clear()
        self.unled.clear()
        for chain in self.chains.values():
            if chain.returned:
                chain.returned.clear()

    @property
    def undecided(self) -> bool:
        """Return whether the change at hand left something to be decided, or to be told."""
        if self.unsettled or self.unled:
            return True
        return any(chain.returned for chain in self.chains.values())

    def bind_bad_cell(self, cell: BadCell) -> None:
        """Have a VC bear a bad cell."""
        self.chains[cell.chain].bind_bad_cell(cell.vc, cell.level, cell.index)

    def unbind_bad_cell(self, cell: BadCell) -> None:
        """Have a VC bear a cell no longer; it may have gone back already."""
        chain = self.chains[cell.chain]
        known = chain.bound[cell.level].get(cell.index)
        if known is not None and known.bad_cell:
            chain.unbind_bad_cell(cell.level, cell.index)

    def bound_bad_cells(self) -> tuple[BadCell, ...]:
        """Return the cells that VCs bear."""
        return tuple(
            chain.bad_cell_of(cell) for chain in self.chains.values() for cell in chain.bad_cells
        )

    def set_leader(self, name: str, leader: str) -> None:
        """Have another job of a set give its name to what they hold."""
        hold = self.holds[name]
        assert leader in hold.partners, (name, leader)
        self.unled.pop(name, None)
        sets.rename_hold(self, hold, leader)

    def release(self, job: str, node: str = "", *, settle: bool = True) -> None:
        """Take from a job what it holds or claims (on one node, or everywhere).

        Of jobs that share, the others keep it. Without `settle` who bears bad hardware is left to
        what follows (see `carry_out`).
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
        chain = self.chains[hold.chain]
        self.count_hold(hold, -1)
        gone = [
            spot for spot in hold.spots if not node or chain.topology.node(spot.leaves[0]) == node
        ]
        for spot in gone:
            if hold.claims:
                chain.cancel_claim(spot)
            else:
                chain.free_leaves(spot.leaves, hold)
        if self.sets:
            for user in dict.fromkeys(chain.user[leaf] for spot in gone for leaf in spot.leaves):
                if user is not None and user.partners:
                    sets.review_leader(
                        self, user
                    )  # What they had to leave to the claimer is theirs.
        hold.spots = tuple([spot for spot in hold.spots if spot not in gone])
        if hold.spots:
            self.count_hold(hold, 1)
        else:
            del self.holds[job]
        if settle:
            self.mark_unsettled(chain)

    def widen(self, job: str, spots: Sequence[Spot]) -> None:
        """Give a job further GPUs, by the right by which it has its own; nobody uses them."""
        hold = self.holds[job]
        assert not hold.partners, job
        chain = self.chains[hold.chain]
        self.count_hold(hold, -1)
        hold.spots += tuple(spots)
        self.count_hold(hold, 1)
        for spot in spots:
            chain.allocate_spot(hold, spot)
        self.mark_unsettled(chain)

    def narrow(self, job: str, gpus: Sequence[tuple[str, int]]) -> None:
        """Take some of its GPUs, as (node, device), from a job that keeps others."""
        self._come_home(job, [gpu for gpu in gpus if gpu in self.off_chain.get(job, {})])
        hold = self.holds.get(job)
        if hold is None:
            return
        assert not hold.partners, job
        shape = self.chains[hold.chain].topology
        leaves = [shape.leaf(*gpu) for gpu in gpus]
        sets.free_part(self, hold, [leaf for leaf in leaves if leaf is not None])

    def share(self, request: Request, on: str, leaves: Sequence[int]) -> None:
        """Let a further job use GPUs of what another holds, by a recorded decision."""
        sets.join_set(self, request, on, leaves)

    def stand_back(self, job: str) -> None:
        """Have a job that is to end hold nothing against others, unless they claim it already.

        Its VC's cells are free again, or those of the set that it leaves behind.
        """
        hold = self.hold_of(job)
        if hold is not None and hold.partners:
            sets.stop_counting(self, job)
        elif hold is not None and hold.guaranteed and not self.claimers(job):
            self.demote(job)

    def set_bad(self, node: str, devices: Sequence[int] | None, *, bad: bool) -> None:
        """Note that GPUs of a node (None: all of them, in every chain) are bad or healthy."""
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

    def covers(self, job: str, node: str, device: int) -> bool:
        """Return whether nobody else can be given a GPU that a job uses: it is its, or in no chain.

        The GPU may be part of its hold, or noted as outside the chain.
        """
        found = self.find(node, device)
        if found is None:
            return True
        hold = self.hold_of(job)
        user = self.chains[found[0]].user[found[1]]
        mine = hold is not None and user is hold and found[1] in self.leaves_of(job)
        return mine or (node, device) in self.off_chain.get(job, {})

    def note_off_chain(self, job: str, node: str, device: int) -> None:
        """Note that a job uses a GPU outside its chain: nobody else gets it until it leaves."""
        self.off_chain.setdefault(job, {})[node, device] = None
        found = self.find(node, device)
        if found is not None:
            self.chains[found[0]].set_bad([found[1]], bad=True)

    def set_health(self, node: str, bad: Callable[[int, str], bool]) -> None:
        """Note which GPUs of a node are bad, asked by device index and type, in every chain."""
        for chain in self.chains.values():
            shape = chain.topology
            index = shape.node_index.get(node)
            if index is not None:
                devices = [shape.device(leaf) for leaf in shape.span(shape.node_level, index)]
                ill = [device for device in devices if bad(device, shape.gpu)]
                self._set_bad(chain, index, ill, bad=True)
                self._set_bad(chain, index, [d for d in devices if d not in ill], bad=False)

    def note_bad_gpu(self, node: str, device: int) -> None:
        """Take over that a GPU is bad, without settling who bears it: that is known already."""
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

    def _return_off_chain(self, job: str, node: str) -> None:
        self._come_home(job, [gpu for gpu in self.off_chain.get(job, {}) if node in ("", gpu[0])])

    def _come_home(self, job: str, gpus: Sequence[tuple[str, int]]) -> None:
        parts = self.off_chain.get(job, {})
        for gpu in gpus:
            del parts[gpu]
            found = self.find(*gpu)
            if found is not None and found not in self._ill and not self._is_off_chain(*found):
                self.chains[found[0]].set_bad([found[1]], bad=False)
                self.mark_unsettled(self.chains[found[0]], health=True)
        if not parts:
            self.off_chain.pop(job, None)
