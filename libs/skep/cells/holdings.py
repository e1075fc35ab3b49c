"""What jobs hold of a cluster's chains, and what a change of it leaves to be decided.

This is the part of the cells that a hold needs, alone or in a set (`sets`): entering, demoting,
promoting, and the counts by virtual cluster. `state.Cells` adds release, health, and GPUs off the
chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from skep.cells.chain import ChainState
from skep.cells.holds import OPPORTUNISTIC, CellHold, Portion
from skep.cells.pools import Pool
from skep.cells.topology import Topology
from skep.ids import AttemptId
from skep.wire.bearing import BadCell
from skep.wire.cluster import Cluster
from skep.wire.spec import suits


class Offer(NamedTuple):
    """A VC's cells in one chain."""

    chain: ChainState
    pool: Pool


class Choosers(Protocol):
    """Make choices that a change leaves open at once: where no facts are recorded, by rules 1."""

    def settle(self, chain: ChainState, *, health: bool) -> None:
        """Decide which VCs take the bad cells of a chain.

        Args:
            chain: The chain, after the change.
            health: Whether GPUs turned bad or healed.
        """
        ...

    def lead(self, candidates: Sequence[AttemptId]) -> AttemptId:
        """Return which of several jobs is to lead a set."""
        ...


class Holdings:
    """The chains of a cluster, and what jobs hold of them."""

    def __init__(self, cluster: Cluster, choosers: Choosers | None = None) -> None:
        """Lay out a cluster with everything free.

        Args:
            cluster: Valid and feasible. Quotas are in cells (a shorthand in GPUs was turned
                into cells before).
            choosers: Decide at once what a change leaves open. None: it is left to the caller.
        """
        self.cluster = cluster
        self.returned: list[BadCell] = []
        """Bad cells that were returned in the current change, as the last job of their VC left."""
        self.chains = {
            name: ChainState(Topology(name, chain), self.returned)
            for name, chain in cluster.chains.items()
        }
        self.holds: dict[AttemptId, CellHold] = {}
        self.sets: dict[AttemptId, CellHold] = {}
        """By job that shares GPUs with other jobs: the common hold."""
        self.choosers = choosers
        self.unsettled: dict[str, bool] = {}
        """Chains whose bad cells are to be decided again; True: GPUs turned bad or healed."""
        self.unled: dict[AttemptId, None] = {}
        """Sets whose leader has left and where several jobs could lead, by their present name."""
        self.borrowed: dict[str, int] = {}
        """By VC: GPUs that its jobs use opportunistically."""
        self.opportunistic: dict[CellHold, None] = {}
        """The holds by which they use them."""
        self.priorities: dict[str, dict[int, int]] = {}
        """By VC: how many holds of each priority."""
        for vc, owned in cluster.vcs.items():
            for name in owned.pinned:
                pin = cluster.pins[name]
                chain = self.chains[pin.chain]
                level = chain.topology.level(pin.level)
                assert level is not None, name
                self._pool(chain, vc, name)
                chain.bind_pinned_cell(chain.pools[vc, name], level, pin.index)
        for vc, owned in cluster.vcs.items():
            for quota in owned.cells:
                chain = self.chains[quota.chain]
                level = chain.topology.level(quota.level)
                assert level is not None, quota
                pool = self._pool(chain, vc, "")
                pool.total[level] += quota.count
                pool.left[level] += quota.count
                chain.forest.owed[level] += quota.count

    @staticmethod
    def _pool(chain: ChainState, vc: str, pin: str) -> Pool:
        pool = chain.pools.get((vc, pin))
        if pool is None:
            shape = chain.topology
            pool = Pool(vc, [0] * (shape.top + 1), shape.node_level, pin)
            chain.pools[vc, pin] = pool
        return pool

    # --- asking ------------------------------------------------------------------------------

    def offers(self, vc: str, gpu: str, pin: str = "") -> Iterator[Offer]:
        """Yield what a VC owns in each chain of a GPU type.

        Args:
            vc: The virtual cluster.
            gpu: A type, or several as `v100|p100`; empty: any.
            pin: A pinned cell of the VC; then its type does not matter.
        """
        for chain in self.chains.values():
            pool = chain.pools.get((vc, pin))
            if pool is not None and (pin or suits(gpu, chain.topology.gpu)):
                yield Offer(chain, pool)

    def hold_of(self, job: AttemptId) -> CellHold | None:
        """Return what a job holds, alone or in a set; None if it holds nothing."""
        return self.sets.get(job) or self.holds.get(job)

    def leaves_of(self, job: AttemptId) -> tuple[int, ...]:
        """Return the leaves of a job in its (first) chain; others of its set may use them too."""
        return next((leaves for _, leaves in self.leaves_by_chain(job)), ())

    def leaves_by_chain(self, job: AttemptId) -> list[tuple[str, tuple[int, ...]]]:
        """Return by chain the leaves that a job uses or claims; none if it holds nothing."""
        hold = self.hold_of(job)
        if hold is None:
            return []
        if job in hold.partners:
            return [(hold.chain, hold.partners[job].leaves)]
        return [
            (name, tuple(leaf for spot in spots for leaf in spot.leaves))
            for name, spots in hold.portions
        ]

    def users(self, portions: Iterable[Portion]) -> list[AttemptId]:
        """Return the jobs that use any of these GPUs, with those that share them.

        Args:
            portions: The GPUs by chain; the levels of their spots do not matter.
        """
        found: dict[AttemptId, None] = {}
        for chain, leaf in (
            (chain, leaf) for chain, spots in portions for spot in spots for leaf in spot.leaves
        ):
            hold = self.chains[chain].user[leaf]
            if hold is not None:
                names = [name for name, each in hold.partners.items() if leaf in each.leaves]
                found.update(dict.fromkeys(names or (hold.job,)))
        return list(found)

    def nodes_of(self, hold: CellHold) -> list[str]:
        """Return the node of each spot of a hold, in the order of the workers."""
        return [
            self.chains[name].topology.node(spot.leaves[0])
            for name, spots in hold.portions
            for spot in spots
        ]

    def claimers(self, job: AttemptId) -> list[AttemptId]:
        """Return the jobs that claim some of what a job uses."""
        hold = self.hold_of(job)
        if hold is None or not any(self.chains[name].claim for name, _ in hold.portions):
            return []  # The usual answer.
        return list(
            dict.fromkeys(
                claim[leaf].job
                for name, leaves in self.leaves_by_chain(job)
                if (claim := self.chains[name].claim)
                for leaf in leaves
                if leaf in claim
            )
        )

    def claim_is_free(self, job: AttemptId) -> bool:
        """Return whether no job uses any GPU that a job claims."""
        hold = self.holds[job]
        return all(
            user[leaf] is None
            for name, spots in hold.portions
            for user in (self.chains[name].user,)
            for spot in spots
            for leaf in spot.leaves
        )

    def meets_bad(self, job: AttemptId) -> bool:
        """Return whether a GPU that a job uses or claims is bad."""
        return any(
            leaf in self.chains[name].bad
            for name, leaves in self.leaves_by_chain(job)
            for leaf in leaves
        )

    def find(self, node: str, device: int) -> tuple[str, int] | None:
        """Return the chain and the leaf of a node's GPU; None: it is in no chain."""
        for name, chain in self.chains.items():
            leaf = chain.topology.leaf(node, device)
            if leaf is not None:
                return name, leaf
        return None

    # --- changing ------------------------------------------------------------------------------

    def enter(self, hold: CellHold, *, settle: bool = True) -> None:
        """Put a hold in force as it is: bind its cells, and use or claim its GPUs.

        Args:
            hold: A hold whose job has none yet.
            settle: Whether bad cells are to be decided again. False while several holds are entered
                as they were: a cell that a later one needs might become a bad cell of a VC in
                between.

        Raises:
            AssertionError: Its job has a hold, or its GPUs or cells are taken.
        """
        assert hold.job not in self.holds, hold.job
        self.holds[hold.job] = hold
        self.count_hold(hold, 1)
        for name, spots in hold.portions:
            chain = self.chains[name]
            for spot in spots:
                if hold.claims:
                    chain.claim_spot(hold, spot)
                else:
                    chain.allocate_spot(hold, spot)
        if hold.partners:
            self.sets.update(dict.fromkeys(hold.partners, hold))
        if settle:
            self.mark_all_unsettled(hold.portions)

    def occupy(self, job: AttemptId) -> None:
        """Turn a job's claim into use.

        Raises:
            AssertionError: It claims nothing, or its GPUs are still in use.
        """
        hold = self.holds[job]
        assert hold.claims, job
        assert self.claim_is_free(job), job
        hold.claims = False
        for name, spots in hold.portions:
            for spot in spots:
                self.chains[name].allocate_spot(hold, spot)

    def demote(self, job: AttemptId) -> None:
        """Make a job opportunistic where it is; its VC's cells are free again.

        No job may claim its GPUs: then it would have to leave already. Bad cells are not decided
        again here, but after the placement that needed the cells.

        Args:
            job: A job with a guaranteed hold.
        """
        hold = self.holds[job]
        self._regrade(hold, [0 for _, spots in hold.portions for _ in spots], OPPORTUNISTIC)

    def promote(self, job: AttemptId, levels: Sequence[int]) -> None:
        """Make a demoted job guaranteed where it is.

        Args:
            job: A job whose hold is opportunistic.
            levels: The levels of the cells that cover its spots (`find_cover`), in their order.
        """
        hold = self.holds[job]
        self._regrade(hold, levels, hold.asked)
        self.mark_all_unsettled(hold.portions)

    def _regrade(self, hold: CellHold, levels: Sequence[int], priority: int) -> None:
        """Make a hold guaranteed or opportunistic where it is: same leaves, other cells."""
        after = hold.levelled(levels)
        self.count_hold(hold, -1)
        for name, spots in hold.portions:
            for spot in spots:
                self.chains[name].free_leaves(spot.leaves, hold)
        hold.priority = priority
        hold.have(after)
        for name, spots in after:
            for spot in spots:
                self.chains[name].allocate_spot(hold, spot)
        self.count_hold(hold, 1)

    def count_hold(self, hold: CellHold, change: int) -> None:
        """Add a hold to the counts by VC and priority, or remove it.

        Args:
            hold: The hold.
            change: 1 or -1.
        """
        if not hold.guaranteed:
            self.borrowed[hold.vc] = self.borrowed.get(hold.vc, 0) + change * hold.gpus
            if change > 0:
                self.opportunistic[hold] = None
            else:
                self.opportunistic.pop(hold, None)
        else:
            counts = self.priorities.setdefault(hold.vc, {})
            counts[hold.priority] = counts.get(hold.priority, 0) + change
            if not counts[hold.priority]:
                del counts[hold.priority]

    def mark_all_unsettled(self, portions: Iterable[Portion]) -> None:
        """Note that bad cells of the chains of some portions are to be decided again."""
        for name, _ in portions:
            self.mark_unsettled(self.chains[name])

    def mark_unsettled(self, chain: ChainState, *, health: bool = False) -> None:
        """Note that bad cells of a chain are to be decided again; choosers decide at once.

        Args:
            chain: The chain that changed.
            health: Whether GPUs turned bad or healed.
        """
        if self.choosers is not None:
            self.returned.clear()
            self.choosers.settle(chain, health=health)
            return
        chain.healed.clear()
        if chain.bad or chain.bad_cells:
            name = chain.topology.name
            self.unsettled[name] = self.unsettled.get(name, False) or health
