"""All chains and all virtual clusters: what jobs may hold, hold, claim, and give back.

`place` and `cover` decide and change nothing. Everything else changes the state to what it is told
and chooses nothing: which VC bears bad hardware, and who leads a set whose leader has left, is left
open (`unsettled`, `unled`) for `decide.bad_cells`, and comes back as `bear`, `relieve` and `lead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from skep.cells import sets
from skep.cells.chain import ChainState
from skep.cells.decide.gpu_choice import Loss
from skep.cells.decide.opportunistic import place_idle
from skep.cells.decide.search import Found, Limit, Search, placement
from skep.cells.forest import Draft
from skep.cells.holds import OPPORTUNISTIC, Hold, Placement, Request, Spot
from skep.cells.pools import Pool
from skep.cells.topology import Topology
from skep.wire.bearing import BadCell
from skep.wire.cluster import Cluster
from skep.wire.spec import suits


class Offer(NamedTuple):
    """A VC's cells in one chain."""

    chain: ChainState
    pool: Pool


def _has_level(chain: ChainState, request: Request) -> bool:
    """Return whether a chain has the level a request is tied to, if it is tied to one."""
    return not (request.hard and request.within) or request.within in chain.topology.levels[1:]


class Choosers(Protocol):
    """What decides at once, inside a change: where no facts are, and by rules 1 (see `rules1`)."""

    def settle(self, chain: ChainState, *, health: bool) -> None:
        """Choose who bears bad hardware of a chain; `health`: GPUs turned bad or healed."""
        ...

    def lead(self, candidates: Sequence[str]) -> str:
        """Choose who leads a set."""
        ...


def nothing_lost(_job: str) -> float:
    """Weigh every victim alike."""
    return 1.0


class Cells:
    """The cells of a cluster. Every GPU is healthy until `set_bad` says otherwise."""

    def __init__(self, cluster: Cluster, choosers: Choosers | None = None) -> None:
        """Lay out a valid, feasible cluster with everything free.

        Quotas are in cells (a shorthand in GPUs was turned into cells before). Without `choosers`
        what a change leaves open is left to the caller.
        """
        self.cluster = cluster
        self.chains = {
            name: ChainState(Topology(name, chain)) for name, chain in cluster.chains.items()
        }
        self.holds: dict[str, Hold] = {}
        self.sets: dict[str, Hold] = {}
        """By job that shares GPUs with others: what they hold together."""
        self.astray: dict[str, dict[tuple[str, int], None]] = {}
        """By job: GPUs (node, device) it uses outside its chain: in another one, or in none yet."""
        self._ill: dict[tuple[str, int], None] = {}
        """Leaves that are bad in themselves, by chain; those astray count as bad beside them."""
        self.choosers = choosers
        self.unsettled: dict[str, bool] = {}
        """Chains of which it is to be decided again who bears what is bad: if GPUs turned bad or
        healed there."""
        self.unled: dict[str, None] = {}
        """Sets whose leader has left and where several could lead, by the name they still have."""
        self.borrowed: dict[str, int] = {}
        """By VC: GPUs its jobs use opportunistically."""
        self.priorities: dict[str, dict[int, int]] = {}
        """By VC: how many holds of each priority."""
        for vc, owned in cluster.vcs.items():
            for name in owned.pinned:
                pin = cluster.pins[name]
                chain = self.chains[pin.chain]
                level = chain.topology.level(pin.level)
                assert level is not None, name
                self._pool(chain, vc, name)
                chain.pin(chain.pools[vc, name], level, pin.index)
        for vc, owned in cluster.vcs.items():
            for quota in owned.cells:
                chain = self.chains[quota.chain]
                level = chain.topology.level(quota.level)
                assert level is not None, quota
                pool = self._pool(chain, vc, "")
                pool.total[level] += quota.count
                pool.left[level] += quota.count
                chain.forest.owed[level] += quota.count

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
        doomed = {
            (name, cell.pool.vc, cell.level, cell.index)
            for name, chain in self.chains.items()
            for cell in chain.doomed
        }
        return self.cluster, holds, doomed, self._ill, self.astray

    @staticmethod
    def _pool(chain: ChainState, vc: str, pin: str) -> Pool:
        pool = chain.pools.get((vc, pin))
        if pool is None:
            shape = chain.topology
            pool = Pool(vc, [0] * (shape.top + 1), shape.node_level, pin)
            chain.pools[vc, pin] = pool
        return pool

    # --- deciding ------------------------------------------------------------------------------

    def offers(self, vc: str, gpu: str, pin: str = "") -> Iterator[Offer]:
        """Yield what a VC owns of a GPU type (empty: of any)."""
        for chain in self.chains.values():
            pool = chain.pools.get((vc, pin))
            if pool is not None and (pin or suits(gpu, chain.topology.gpu)):
                yield Offer(chain, pool)

    def place(
        self, request: Request, loss: Loss = nothing_lost, limit: Limit = None
    ) -> Placement | None:
        """Return where a gang goes and at whose expense, or None if it has to wait.

        Guaranteed gangs only ever go to their VC's cells, and put aside nobody but opportunistic
        jobs and lower priorities of the same VC.
        """
        if not request.guaranteed:
            idle = [
                found
                for chain in self.chains.values()
                if suits(request.gpu, chain.topology.gpu)
                and _has_level(chain, request)
                and (found := place_idle(chain, request, limit)) is not None
            ]
            return min(idle, key=lambda found: self._extent(found.chain, found.spots), default=None)
        offers = [
            offer
            for offer in self.offers(request.vc, request.gpu, request.pin)
            if _has_level(offer.chain, request)
        ]
        need = sum(workers * gpus for workers, gpus in request.members)
        for below in self._thresholds(request):
            best: tuple[tuple[float, int, int], Offer, Found] | None = None
            for offer in offers:
                if below == 0 and offer.pool.room(offer.chain.topology.size) < need:
                    continue  # Most queues are told so, most of the time.
                search = Search(offer.chain, offer.pool, request, below, loss, limit)
                if below > 0 and (lazy := self._lazily(offer, request, search)) is not None:
                    return lazy
                result = search.run()
                if result is not None and len(offers) == 1:
                    return placement(offer.chain, request, result)
                if result is not None:
                    # Opportunistic jobs do not decide either in which chain a VC is served.
                    lost = result.loss if below else 0.0
                    cost = lost, *self._extent(offer.chain.topology.name, result.spots)
                    if best is None or cost < best[0]:
                        best = cost, offer, result
            if best is not None:
                return placement(best[1].chain, request, best[2])
        return None

    def _extent(self, chain: str, spots: Sequence[Spot]) -> tuple[int, int]:
        """Return how many nodes a gang would span, and how large those are: fewer, smaller first.

        Larger nodes are kept for workers that no others hold.
        """
        shape = self.chains[chain].topology
        nodes = dict.fromkeys(spot.leaves[0] // shape.node_size for spot in spots)
        return len(nodes), shape.node_size

    def _thresholds(self, request: Request) -> list[int]:
        lower = any(priority < request.priority for priority in self.priorities.get(request.vc, ()))
        return [0, request.priority] if lower and request.priority > 0 else [0]

    def _lazily(self, offer: Offer, request: Request, search: Search) -> Placement | None:
        """Return a placement in a cell that demoting lower priorities in place sets free.

        The VC's cell moves to other hardware and its jobs go on where they are, opportunistically.
        """
        chain, pool = offer
        for (level, index), cell in sorted(pool.bound.items()):
            if level < search.least or pool.pin:
                continue
            users = {
                leaf: hold
                for leaf in chain.topology.span(level, index)
                if (hold := chain.claim.get(leaf) or chain.user[leaf]) is not None
                and hold.guaranteed
            }
            holds = dict.fromkeys(users.values())
            movable = all(
                hold.lazy
                and hold.priority < request.priority
                and not hold.claims
                and len(hold.spots) == self._spots_in(hold, level, index, chain)
                for hold in holds
            )
            if not movable or not cell.used:
                continue
            draft = Draft(chain.forest)
            span = chain.topology.span(level, index)
            draft.returned(level, bad=any(leaf in span for leaf in chain.bad))
            for new, _, _ in chain.forest.clean_cells(level):
                if draft.take(level, new):
                    found = self._lay(chain, request, search, level, new)
                    if found is not None:
                        made = placement(chain, request, found)
                        return made._replace(demoted=tuple(hold.job for hold in holds))
                break
        return None

    @staticmethod
    def _spots_in(hold: Hold, level: int, index: int, chain: ChainState) -> int:
        return sum(chain.topology.up(spot.leaves[0], level) == index for spot in hold.spots)

    @staticmethod
    def _lay(
        chain: ChainState, request: Request, search: Search, level: int, cell: int
    ) -> Found | None:
        """Return the gang's workers one after the other on a clean cell."""
        if search.sizes[0] > chain.topology.node_size or (search.tied and level > search.hard):
            return None
        at = chain.topology.span(level, cell).start
        spots, size = [], chain.topology.node_size
        for gpus in search.sizes:
            if at % size + gpus > size:
                at += size - at % size
            if at + gpus > chain.topology.span(level, cell).stop:
                return None
            spots.append(Spot(tuple(range(at, at + gpus)), level))
            at += gpus
        if search.limit is not None:
            counts: dict[str, int] = {}
            for spot in spots:
                node = chain.topology.node(spot.leaves[0])
                counts[node] = counts.get(node, 0) + 1
            if any(search.limit(node) < count for node, count in counts.items()):
                return None
        return Found(spots)

    def cover(self, hold: Hold) -> tuple[Spot, ...] | None:
        """Return a job's own leaves as cells its VC can own now, or None if it cannot.

        A worker fits a cell the VC has bound there, or a new one that may be taken safely. A job
        that has to make room for another has no claim to where it is.
        """
        chain = self.chains[hold.chain]
        pool = chain.pools.get((hold.vc, hold.pin))
        claimed = any(leaf in chain.claim for spot in hold.spots for leaf in spot.leaves)
        if pool is None or claimed:
            return None
        draft, left, shape = Draft(chain.forest), list(pool.left), chain.topology
        new: dict[tuple[int, int], None] = {}
        spots = []
        for spot in hold.spots:
            level = self._cover_level(chain, pool, spot, new)
            if not level:
                first, last = min(spot.leaves), max(spot.leaves)
                for at in self._levels(spot.level, shape.top):
                    cell = first // shape.size[at]
                    if cell == last // shape.size[at] and left[at] and draft.take(at, cell):
                        left[at] -= 1
                        new[at, cell] = None
                        level = at
                        break
            if not level:
                return None
            spots.append(Spot(spot.leaves, level))
        return tuple(spots)

    @staticmethod
    def _levels(preferred: int, top: int) -> list[int]:
        levels = list(range(1, top + 1))
        return sorted(levels, key=lambda level: (level != preferred, level))

    @staticmethod
    def _cover_level(
        chain: ChainState, pool: Pool, spot: Spot, new: dict[tuple[int, int], None]
    ) -> int:
        shape = chain.topology
        for level in range(1, shape.top + 1):
            first = spot.leaves[0] // shape.size[level]
            if all(leaf // shape.size[level] == first for leaf in spot.leaves):
                key = level, first
                if key in new or key in pool.bound:
                    return level
        return 0

    # --- changing ------------------------------------------------------------------------------

    def carry_out(self, request: Request, where: Placement) -> Hold:
        """Do what `place` decided: claims cancelled, jobs demoted, GPUs held or (victims) claimed.

        Who bears bad hardware is settled only then: what is given back on the way is meant for
        this job, and must not be given to somebody for the bad GPUs beside it.
        """
        for job in where.cancels:
            self.release(job, settle=False)
        for job in where.demoted:
            self.demote(job)
        return self.reserve(request, where) if where.victims else self.hold(request, where)

    def hold(self, request: Request, where: Placement) -> Hold:
        """Give a gang its GPUs; none of them is used or claimed by another."""
        hold = Hold(request, where)
        self.enter(hold)
        return hold

    def reserve(self, request: Request, where: Placement) -> Hold:
        """Claim a gang's GPUs until their users are gone: nobody else is offered them."""
        hold = Hold(request, where, claims=True)
        self.enter(hold)
        return hold

    def enter(self, hold: Hold, *, settle: bool = True) -> None:
        """Put a hold in force as it is: its cells are bound, its GPUs used or claimed.

        Where several are entered as they were, who bears bad hardware is not settled between them:
        a cell that one of the later ones needs might be given to somebody for its bad GPUs.
        """
        assert hold.job not in self.holds, hold.job
        self.holds[hold.job] = hold
        self.recount(hold, 1)
        chain = self.chains[hold.chain]
        for spot in hold.spots:
            if hold.claims:
                chain.reserve(hold, spot)
            else:
                chain.use(hold, spot)
        if hold.partners:
            self.sets.update(dict.fromkeys(hold.partners, hold))
        if settle:
            self.disturbed(chain)

    def disturbed(self, chain: ChainState, *, health: bool = False) -> None:
        """Note that who bears bad hardware of a chain is to be decided again.

        `health`: because GPUs turned bad or healed.
        """
        if self.choosers is not None:
            chain.returned.clear()
            self.choosers.settle(chain, health=health)
            return
        chain.healed.clear()
        if chain.bad or chain.doomed:
            name = chain.topology.name
            self.unsettled[name] = self.unsettled.get(name, False) or health

    def begin(self) -> None:
        """Begin a change: what the last one left open is decided by now."""
        self.unsettled.clear()
        self.unled.clear()
        for chain in self.chains.values():
            if chain.returned:
                chain.returned.clear()

    @property
    def open(self) -> bool:
        """Return whether the change at hand left something to be decided, or to be told."""
        if self.unsettled or self.unled:
            return True
        return any(chain.returned for chain in self.chains.values())

    def bear(self, cell: BadCell) -> None:
        """Have a VC bear a bad cell."""
        self.chains[cell.chain].bear(cell.vc, cell.level, cell.index)

    def relieve(self, cell: BadCell) -> None:
        """Have a VC bear a cell no longer; it may have gone back already."""
        chain = self.chains[cell.chain]
        known = chain.bound[cell.level].get(cell.index)
        if known is not None and known.doomed:
            chain.relieve(cell.level, cell.index)

    def borne(self) -> tuple[BadCell, ...]:
        """Return the cells that VCs bear."""
        return tuple(chain.borne(cell) for chain in self.chains.values() for cell in chain.doomed)

    def lead(self, name: str, leader: str) -> None:
        """Have another job of a set give its name to what they hold."""
        hold = self.holds[name]
        assert leader in hold.partners, (name, leader)
        self.unled.pop(name, None)
        sets.rename(self, hold, leader)

    def hold_of(self, job: str) -> Hold | None:
        """Return what a job holds, alone or with others; None for nothing."""
        return self.sets.get(job) or self.holds.get(job)

    def leaves_of(self, job: str) -> tuple[int, ...]:
        """Return what a job uses or claims of its hold, which may be shared."""
        if job in self.sets:
            return self.sets[job].partners[job].leaves
        hold = self.holds.get(job)
        spots = hold.spots if hold is not None else ()
        return tuple(leaf for spot in spots for leaf in spot.leaves)

    def users(self, chain: str, spots: Sequence[Spot]) -> list[str]:
        """Return the jobs that use any of these GPUs, also those that share them."""
        found: dict[str, None] = {}
        for leaf in (leaf for spot in spots for leaf in spot.leaves):
            hold = self.chains[chain].user[leaf]
            if hold is not None:
                names = [name for name, each in hold.partners.items() if leaf in each.leaves]
                found.update(dict.fromkeys(names or (hold.job,)))
        return list(found)

    def claimers(self, job: str) -> list[str]:
        """Return the jobs that claim some of what a job uses."""
        hold = self.hold_of(job)
        if hold is None:
            return []
        claim = self.chains[hold.chain].claim
        if not claim:
            return []
        return list(dict.fromkeys(claim[leaf].job for leaf in self.leaves_of(job) if leaf in claim))

    def ready(self, job: str) -> bool:
        """Return whether nobody uses what a job claims any more."""
        hold = self.holds[job]
        user = self.chains[hold.chain].user
        return all(user[leaf] is None for spot in hold.spots for leaf in spot.leaves)

    def occupy(self, job: str) -> None:
        """Turn a job's claim into use."""
        hold = self.holds[job]
        assert hold.claims, job
        assert self.ready(job), job
        hold.claims = False
        for spot in hold.spots:
            self.chains[hold.chain].use(hold, spot)

    def release(self, job: str, node: str = "", *, settle: bool = True) -> None:
        """Take from a job what it holds or claims (on one node, or everywhere).

        Of jobs that share, the others keep it. Without `settle` who bears bad hardware is left to
        what follows (see `carry_out`).
        """
        if self.astray:
            self._return_astray(job, node)
        if job in self.sets and len(self.sets[job].partners) > 1:
            sets.part(self, job, node)
            return
        if job in self.sets:
            self.sets.pop(job).partners = {}
        hold = self.holds.get(job)
        if hold is None:
            return
        chain = self.chains[hold.chain]
        self.recount(hold, -1)
        gone = [
            spot for spot in hold.spots if not node or chain.topology.node(spot.leaves[0]) == node
        ]
        for spot in gone:
            if hold.claims:
                chain.unclaim(spot)
            else:
                chain.leave(spot.leaves, hold)
        if self.sets:
            for user in dict.fromkeys(chain.user[leaf] for spot in gone for leaf in spot.leaves):
                if user is not None and user.partners:
                    sets.review(self, user)  # What they had to leave to the claimer is theirs.
        hold.spots = tuple([spot for spot in hold.spots if spot not in gone])
        if hold.spots:
            self.recount(hold, 1)
        else:
            del self.holds[job]
        if settle:
            self.disturbed(chain)

    def widen(self, job: str, spots: Sequence[Spot]) -> None:
        """Give a job further GPUs, by the right by which it has its own; nobody uses them."""
        hold = self.holds[job]
        assert not hold.partners, job
        chain = self.chains[hold.chain]
        self.recount(hold, -1)
        hold.spots += tuple(spots)
        self.recount(hold, 1)
        for spot in spots:
            chain.use(hold, spot)
        self.disturbed(chain)

    def narrow(self, job: str, gpus: Sequence[tuple[str, int]]) -> None:
        """Take some of its GPUs, as (node, device), from a job that keeps others."""
        self._come_home(job, [gpu for gpu in gpus if gpu in self.astray.get(job, {})])
        hold = self.holds.get(job)
        if hold is None:
            return
        assert not hold.partners, job
        shape = self.chains[hold.chain].topology
        leaves = [shape.leaf(*gpu) for gpu in gpus]
        sets.drop(self, hold, [leaf for leaf in leaves if leaf is not None])

    def demote(self, job: str) -> None:
        """Have a job go on where it is, opportunistically: its VC's cells are free again.

        Nobody claims its GPUs: it would have to make room already. Who bears bad hardware is
        settled by what follows: a placement that wanted the cells.
        """
        hold = self.holds[job]
        self._regrade(hold, [Spot(spot.leaves) for spot in hold.spots], OPPORTUNISTIC)

    def promote(self, job: str, spots: Sequence[Spot]) -> None:
        """Have a demoted job go on where it is, on its VC's cells again (`spots` by `cover`)."""
        hold = self.holds[job]
        self._regrade(hold, spots, hold.asked)
        self.disturbed(self.chains[hold.chain])

    def share(self, request: Request, on: str, leaves: Sequence[int]) -> None:
        """Let a further job use GPUs of what another holds, by a recorded decision."""
        sets.join(self, request, on, leaves)

    def stand_back(self, job: str) -> None:
        """Have a job that is to end hold nothing against others, unless they claim it already.

        Its VC's cells are free again, or those of the set that it leaves behind.
        """
        hold = self.hold_of(job)
        if hold is not None and hold.partners:
            sets.step_down(self, job)
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
            leaves = [leaf for leaf in leaves if not self._is_astray(shape.name, leaf)]
        if chain.set_bad(leaves, bad=bad):
            self.disturbed(chain, health=True)

    def find(self, node: str, device: int) -> tuple[str, int] | None:
        """Return the chain and the leaf that a GPU of a node is, or None if it is in no chain."""
        for name, chain in self.chains.items():
            leaf = chain.topology.leaf(node, device)
            if leaf is not None:
                return name, leaf
        return None

    def covers(self, job: str, node: str, device: int) -> bool:
        """Return whether nobody else can be given a GPU that a job uses: it is its, or in no chain.

        The GPU may be part of its hold, or noted as astray.
        """
        found = self.find(node, device)
        if found is None:
            return True
        hold = self.hold_of(job)
        user = self.chains[found[0]].user[found[1]]
        mine = hold is not None and user is hold and found[1] in self.leaves_of(job)
        return mine or (node, device) in self.astray.get(job, {})

    def stray(self, job: str, node: str, device: int) -> None:
        """Note that a job uses a GPU outside its chain: nobody else gets it until it leaves."""
        self.astray.setdefault(job, {})[node, device] = None
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

    def note_ill(self, node: str, device: int) -> None:
        """Take over that a GPU is bad, without settling who bears it: that is known already."""
        found = self.find(node, device)
        if found is not None:
            self._ill[found] = None
            self.chains[found[0]].set_bad([found[1]], bad=True)

    def ill(self) -> list[tuple[str, int]]:
        """Return the GPUs that were reported bad, as (node, device)."""
        shapes = {name: chain.topology for name, chain in self.chains.items()}
        return [(shapes[name].node(leaf), shapes[name].device(leaf)) for name, leaf in self._ill]

    def _is_astray(self, name: str, leaf: int) -> bool:
        shape = self.chains[name].topology
        gpu = shape.node(leaf), shape.device(leaf)
        return any(gpu in parts for parts in self.astray.values())

    def _return_astray(self, job: str, node: str) -> None:
        self._come_home(job, [gpu for gpu in self.astray.get(job, {}) if node in ("", gpu[0])])

    def _come_home(self, job: str, gpus: Sequence[tuple[str, int]]) -> None:
        parts = self.astray.get(job, {})
        for gpu in gpus:
            del parts[gpu]
            found = self.find(*gpu)
            if found is not None and found not in self._ill and not self._is_astray(*found):
                self.chains[found[0]].set_bad([found[1]], bad=False)
                self.disturbed(self.chains[found[0]], health=True)
        if not parts:
            self.astray.pop(job, None)

    def _regrade(self, hold: Hold, spots: Sequence[Spot], priority: int) -> None:
        self.recount(hold, -1)
        self.chains[hold.chain].regrade(hold, spots, priority)
        self.recount(hold, 1)

    def recount(self, hold: Hold, change: int) -> None:
        """Count a hold, or (-1) do without it, around a change of it."""
        if not hold.guaranteed:
            self.borrowed[hold.vc] = self.borrowed.get(hold.vc, 0) + change * hold.gpus
        else:
            counts = self.priorities.setdefault(hold.vc, {})
            counts[hold.priority] = counts.get(hold.priority, 0) + change
            if not counts[hold.priority]:
                del counts[hold.priority]
