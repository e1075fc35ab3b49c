"""Random histories of a cluster's cells: what may happen to them, in any order.

A history is a small random cluster and a list of random events. After every event all invariants
are checked; what the events promise beyond them is asserted here. Everything follows from the seed.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from skep.cells.check import check_cells
from skep.cells.decide import placement
from skep.cells.decide.bad_cells import AT_ONCE
from skep.cells.decide.cover import find_cover, out_of_reach
from skep.cells.decide.reconfigure import reconfigure
from skep.cells.forest import Forest
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement, Request
from skep.cells.snapshot import CellsSnapshot, restore_cells, take_snapshot
from skep.cells.state import Cells
from skep.cells.topology import Topology
from skep.ids import AttemptId
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.spec import suits

EVENTS = 80
PRIORITIES = (OPPORTUNISTIC, 0, 0, 1, 2, 5)
BELOW = ("switch", "socket", "board")
ABOVE = ("rack", "row", "hall")
WAITING_MAX = 8
CHAINS_MIXED = 2
LEAVES_MAX = 40
"""A chain stays this small, so that recounting it after each event takes a millisecond."""

SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 2), 2),  # nodes of four, on their own
    ((2, 1), 2),
    ((1, 2, 2), 2),  # a level of fan-out one at the bottom, racks of two nodes
    ((2, 2, 2), 3),  # nodes of eight, on their own
    ((2, 2, 2, 2), 3),
    ((2, 2, 3), 2),
    ((2, 3, 2), 2),
    ((4, 2, 1), 2),  # a rack is one node
    ((2, 2, 2, 2, 1), 4),  # nodes of sixteen
    ((4, 4, 2), 2),
    ((2, 2, 2, 2), 1),  # three levels above a node of two
    ((2, 1, 2, 2, 2), 2),
    ((3, 3), 1),
    ((2, 4), 1),
)
"""Fan-outs from the lowest level up, and how many of them make a node."""


# --- clusters -------------------------------------------------------------------------------------


def rng_of(seed: int) -> random.Random:
    """Return the chance that everything in a history follows from."""
    return random.Random(seed)


def random_cluster(
    rng: random.Random, *, shapes: Cluster | None = None, leaves: int = LEAVES_MAX
) -> Cluster:
    """Return a feasible cluster; with `shapes`, one that has mostly the same nodes.

    `leaves` bounds the GPUs of a chain.
    """
    chains = _same_chains(rng, shapes) if shapes is not None else _new_chains(rng, leaves)
    pins: dict[str, Pin] = {}
    names = ("a", "b", "c")[: rng.choice((2, 3))]
    vcs: dict[str, dict[tuple[str, str], int]] = {vc: {} for vc in names}
    pinned: dict[str, list[str]] = {vc: [] for vc in vcs}
    for name, chain in chains.items():
        shape = Topology(name, chain)
        forest = Forest(shape)
        for _ in range(rng.choice((0, 0, 1, 2))):
            level = rng.randint(1, shape.top)
            index = rng.randrange(shape.count[level])
            if forest.enclosing_free_level(level, index):
                forest.allocate(level, index)
                pin = f"p{len(pins)}"
                pins[pin] = Pin(chain=name, level=shape.levels[level], index=index)
                if rng.random() < 0.9:
                    pinned[rng.choice(list(vcs))].append(pin)
        for _ in range(rng.choice((3, 8, 16, 40))):
            level = min(rng.randint(1, shape.top), rng.randint(1, shape.top + 1))
            forest.owed[level] += 1
            if not forest.is_safe():
                forest.owed[level] -= 1
                continue
            owned = vcs[rng.choice(list(vcs))]
            owned[name, shape.levels[level]] = owned.get((name, shape.levels[level]), 0) + 1
    owners = {
        vc: VirtualCluster(
            cells=tuple(
                Quota(chain=chain, level=level, count=count)
                for (chain, level), count in owned.items()
            ),
            pinned=tuple(pinned[vc]),
            weight=rng.choice((1.0, 1.0, 3.0)),
        )
        for vc, owned in vcs.items()
    }
    return Cluster(chains=chains, pins=pins, vcs=owners)


def _new_chains(rng: random.Random, leaves: int) -> dict[str, Chain]:
    chains: dict[str, Chain] = {}
    for number in range(rng.choice((1, 1, 2))):
        chains[f"c{number}"] = _chain(rng, f"c{number}", f"g{number}", leaves)
    if rng.random() < 0.15:
        # A machine with two kinds of GPU is a node of two chains.
        first = next(iter(chains.values()))
        size = Topology("", first).node_size
        nodes = tuple(
            NodeCell(node=cell.node, devices=tuple(range(size, size + 2))) for cell in first.nodes
        )
        chains["twin"] = Chain(
            gpu="g9", levels=(Level(name="node", fanout=2),), node_level="node", nodes=nodes
        )
    return chains


def _chain(rng: random.Random, name: str, gpu: str, leaves: int) -> Chain:
    fans, at = rng.choice([each for each in SHAPES if math.prod(each[0]) <= leaves])
    names = [*BELOW[: at - 1], "node", *ABOVE]
    size = top = 1
    for level, fan in enumerate(fans):
        top *= fan
        if level < at:
            size *= fan
    tops = max(1, min(rng.randint(1, 4), leaves // top))
    nodes = []
    for number in range(tops * top // size):
        devices = tuple(rng.sample(range(size), size)) if rng.random() < 0.1 else ()
        nodes.append(NodeCell(node=f"{name}n{number}", devices=devices))
    levels = tuple(Level(name=each, fanout=fan) for each, fan in zip(names, fans, strict=False))
    return Chain(gpu=gpu, levels=levels, node_level="node", nodes=tuple(nodes))


def _same_chains(rng: random.Random, cluster: Cluster) -> dict[str, Chain]:
    """Return the chains with a few changes: top cells gone or moved, a level less, a chain more."""
    chains: dict[str, Chain] = {}
    for name, chain in cluster.chains.items():
        shape = Topology(name, chain)
        nodes = list(chain.nodes)
        levels = chain.levels
        each = shape.size[shape.top] // shape.node_size
        if rng.random() < 0.3:
            rng.shuffle(nodes)
        if shape.top > shape.node_level and rng.random() < 0.3:
            levels = levels[:-1]
            each //= chain.levels[-1].fanout
        if rng.random() < 0.3:
            nodes = nodes[each:]
        if nodes:
            # A changed name is a new chain, as where a kind of rack is added.
            named = name if rng.random() < 0.8 else f"{name}x"
            chains[named] = msgspec.structs.replace(chain, nodes=tuple(nodes), levels=levels)
    if not chains:
        return dict(cluster.chains)
    return chains


# --- histories ------------------------------------------------------------------------------------


class History:
    """One history: the cells, the jobs that hold some of them, and those that wait."""

    def __init__(self, seed: int, leaves: int = LEAVES_MAX, *, mixed: bool = False) -> None:
        """Begin with a new cluster that nobody uses; `mixed` gangs need one of several chains."""
        self.seed, self.mixed = seed, mixed
        self.rng = rng_of(seed)
        cluster = random_cluster(self.rng, leaves=leaves)
        while mixed and len(cluster.chains) < CHAINS_MIXED:
            cluster = random_cluster(self.rng, leaves=leaves)
        self.cells = Cells(cluster, AT_ONCE)
        self.stats: Counter[str] = Counter()
        self.waiting: list[Request] = []
        self.requests: dict[AttemptId, Request] = {}
        self.jobs = 0
        self.verify()

    def run(self, events: int = EVENTS) -> Counter[str]:
        """Go through so many events, then give everything back. Return how often what happened."""
        kinds = (
            (self.submit, 46),
            (self.flood, 1),
            (self.finish, 12),
            (self.part, 3),
            (self.break_something, 9),
            (self.heal_something, 9),
            (self.victims_go, 10),
            (self.cancel_a_claim, 3),
            (self.promote, 6),
            (self.demote, 4 if self.mixed else 1),
            (self.share, 4),
            (self.stand_back, 1),
            (self.restart, 3),
            (self.reconfigure, 1),
        )
        acts, weights = zip(*kinds, strict=True)
        for _ in range(events):
            (act,) = self.rng.choices(acts, weights)
            act()
            self.occupy()
            self.verify()
            if self.rng.random() < 0.1:
                self.retry()
        self.end()
        return self.stats

    def verify(self) -> None:
        """Check every invariant."""
        check_cells(self.cells)
        self.stats["checks"] += 1

    # --- jobs ----------------------------------------------------------------------------------

    def submit(self) -> None:
        """Hand in a random job."""
        self.jobs += 1
        self.attempt(self.request(AttemptId(f"j{self.jobs}")))

    def flood(self) -> None:
        """Have one tenant take whatever is idle, opportunistically."""
        vc = self.rng.choice(list(self.cells.cluster.vcs))
        for _ in range(20):
            self.jobs += 1
            size = self.rng.choice((1, 2, 4))
            if not self.attempt(
                Request(AttemptId(f"j{self.jobs}"), vc, OPPORTUNISTIC, ((1, size),))
            ):
                break

    def request(self, job: AttemptId) -> Request:
        """Return a random request, more often than not one that its VC could serve."""
        rng, cluster = self.rng, self.cells.cluster
        vc = rng.choice(list(cluster.vcs))
        priority = rng.choice(PRIORITIES)
        pin = ""
        if priority > OPPORTUNISTIC and cluster.vcs[vc].pinned and rng.random() < 0.2:
            pin = rng.choice(cluster.vcs[vc].pinned)
        owned = [
            (chain.topology, level)
            for chain in self.cells.chains.values()
            if (vc, pin) in chain.pools
            for level, count in enumerate(chain.pools[vc, pin].total)
            if count
        ]
        if not owned or rng.random() < 0.1:
            shape = rng.choice(list(self.cells.chains.values())).topology
            owned = [(shape, rng.randint(1, shape.top))]
        shape, level = rng.choice(owned)
        largest = min(shape.size[level], shape.node_size)
        whole = min(largest, shape.size[rng.randint(1, level)])
        gpus = whole if rng.random() < 0.7 else rng.randint(1, largest)
        if rng.random() < 0.5:
            members: tuple[tuple[int, int], ...] = ((1, gpus),)
        elif rng.random() < 0.5:
            members = ((min(12, max(2, shape.size[level] // gpus)), gpus),)
        else:
            members = ((rng.randint(1, 3), gpus), (rng.randint(1, 3), rng.randint(1, largest)))
        within = shape.levels[rng.randint(1, level)] if rng.random() < 0.4 else ""
        gpu = rng.choice(("", "", shape.gpu))
        if self.mixed and priority > OPPORTUNISTIC and not pin and rng.random() < 0.7:
            gpus = rng.choice((1, 1, 2, gpus))
            owned_gpus = sum(
                count * size
                for chain, pool in self.cells.offers(vc, "")
                for count, size in zip(pool.total, chain.topology.size, strict=True)
            )
            members = ((rng.randint(2, max(2, owned_gpus // gpus)), gpus),)
            kinds = "|".join(sorted({each.topology.gpu for each in self.cells.chains.values()}))
            gpu = rng.choice(("", kinds, shape.gpu))
            return Request(
                job, vc, priority, members, gpu, within=within, lazy=rng.random() < 0.5, mixed=True
            )
        return Request(
            job,
            vc,
            priority,
            members,
            gpu=gpu,
            pin=pin,
            within=within,
            hard=rng.random() < 0.5,
            lazy=rng.random() < 0.5,
        )

    def attempt(self, request: Request) -> bool:
        """Place a job if that is possible now, or let it wait; return whether it holds GPUs."""
        self.stats["asked"] += 1
        found = placement.find_placement(self.cells, request, self.loss)
        if found is not None:
            self.accept(request, found)
            return True
        if request.mixed:
            assert not together_they_fit(self.cells, request), request
            self.stats["mixed waited"] += 1
        borrowed = request.guaranteed and not request.pin and self.rng.random() < 0.3
        if borrowed:
            idle = placement.find_placement(self.cells, request._replace(priority=OPPORTUNISTIC))
            if idle is not None:
                self.stats["borrowed"] += 1
                hold = CellHold(request, idle)
                hold.priority = OPPORTUNISTIC
                self.cells.enter(hold)
                self.requests[request.job] = request
                return True
        self.stats["waited"] += 1
        if len(self.waiting) < WAITING_MAX:
            self.waiting.append(request)
        return False

    def accept(self, request: Request, found: Placement) -> None:
        """Carry a placement out as far as that is done at once, and check what it promised."""
        assert_fits(self.cells, request, found)
        self.cells.carry_out(request, found)
        self.verify()
        self.waiting += [self.requests.pop(job) for job in found.cancels]
        self.requests[request.job] = request
        self.stats["preempting" if found.victims else "bound"] += 1
        self.stats["guaranteed" if request.guaranteed else "opportunistic"] += 1
        self.stats["cancelled"] += len(found.cancels)
        self.stats["demoted"] += len(found.demoted)
        self.stats["gangs"] += len(found.spots) > 1
        self.stats["mixed"] += bool(found.further)
        self.stats["mixed, preempting"] += bool(found.further and found.victims)
        if found.victims and self.rng.random() < 0.6:
            self.victims_go()

    def retry(self) -> None:
        """Try those that wait once more, the most important first."""
        order = sorted(self.waiting, key=lambda request: -request.priority)
        self.waiting = []
        for request in order:
            if self.attempt(request):
                self.stats["granted later"] += 1
        self.occupy()
        self.verify()

    def finish(self) -> None:
        """End a random job."""
        if self.requests:
            self.gone(self.rng.choice(list(self.requests)))

    def part(self) -> None:
        """End a random job on one of its nodes."""
        jobs = [job for job in self.requests if job in self.cells.holds]
        if jobs:
            job = self.rng.choice(jobs)
            node = self.rng.choice(self.cells.nodes_of(self.cells.holds[job]))
            self.cells.release(job, node)
            self.forget(job)

    def gone(self, job: AttemptId) -> None:
        """End a job, and check that nobody else's guarantee was touched by that."""
        before = guaranteed(self.cells)
        shared = self.cells.sets.get(job)
        mates = dict(shared.partners) if shared is not None else {}
        theirs = {other: list(devices_of(self.cells, other)) for other in mates}
        self.cells.release(job)
        self.forget(job)
        for other, held in guaranteed(self.cells).items():
            mine = other == job or job in before or other in mates
            assert mine or before.get(other) == held, other
        for other, gpus in theirs.items():
            assert other == job or sorted(devices_of(self.cells, other)) == sorted(gpus), other
        self.stats["ended"] += 1

    def forget(self, job: AttemptId) -> None:
        """Drop a job that has nothing any more."""
        cells = self.cells
        if cells.hold_of(job) is None and job not in cells.off_chain:
            self.requests.pop(job, None)

    def victims_go(self) -> None:
        """End some of the jobs that others wait for."""
        for claimer in [hold for hold in self.cells.holds.values() if hold.claims]:
            for chain, leaf in leaves_of(claimer):
                holder = self.cells.chains[chain].user[leaf]
                if holder is not None and self.rng.random() < 0.7:
                    partners = list(holder.partners)
                    self.rng.shuffle(partners)
                    for job in partners or [holder.job]:
                        self.gone(job)
                    self.stats["victims gone"] += 1
        self.occupy()

    def occupy(self) -> None:
        """Bind the claims whose GPUs are idle by now."""
        for job, hold in list(self.cells.holds.items()):
            if hold.claims and self.cells.claim_is_free(job):
                self.cells.occupy(job)
                self.stats["claims bound"] += 1

    def cancel_a_claim(self) -> None:
        """Take a claim back: everything is as if it had never been."""
        claims = [job for job, hold in self.cells.holds.items() if hold.claims]
        if claims:
            self.gone(self.rng.choice(claims))
            self.stats["claims taken back"] += 1

    def promote(self) -> None:
        """Have jobs run on their VC's cells again where those cover them."""
        for job, hold in list(self.cells.holds.items()):
            if hold.priority < hold.asked and not hold.claims:
                spots = find_cover(self.cells, hold)
                chain = self.cells.chains[hold.chain]
                pool = chain.pools.get((hold.vc, hold.pin))
                if hold.further:
                    pool = None
                if pool is not None and out_of_reach(pool, chain.topology, hold.spots):
                    assert spots is None, job
                    self.stats["out of reach"] += 1
                if spots is not None:
                    self.cells.promote(job, [spot.level for spot in spots])
                    self.verify()
                    self.stats["promoted"] += 1
                    self.stats["mixed, promoted"] += bool(hold.further)

    def demote(self) -> None:
        """Have one guaranteed job go on opportunistically, as an operator might want."""
        jobs = [
            job
            for job, hold in self.cells.holds.items()
            if hold.guaranteed
            and not hold.claims
            and not any(leaf in self.cells.chains[name].claim for name, leaf in leaves_of(hold))
        ]
        if jobs:
            self.cells.demote(self.rng.choice(jobs))
            self.stats["demoted by hand"] += 1

    def share(self) -> None:
        """Let one more job use some of what another holds on one node: nothing else changes."""
        hosts = [
            job
            for job in self.requests
            if (hold := self.cells.hold_of(job)) is not None
            and not hold.claims
            and job not in self.cells.off_chain
            and self._on_one_node(hold)
        ]
        if not hosts:
            return
        self.jobs += 1
        host, name = self.rng.choice(hosts), AttemptId(f"j{self.jobs}")
        hold = self.cells.hold_of(host)
        assert hold is not None
        idle = {
            each: [chain.is_idle(leaf) for leaf in range(chain.topology.leaves)]
            for each, chain in self.cells.chains.items()
        }
        spots, borrowed = hold.spots, dict(self.cells.borrowed)
        leaves = self.cells.leaves_of(host)
        mine = sorted(self.rng.sample(leaves, self.rng.randint(1, len(leaves))))
        request = self.request(name)._replace(vc=hold.vc, pin="")
        self.cells.share(request, host, mine)
        self.requests[name] = request
        assert self.cells.hold_of(name) is self.cells.hold_of(host) is hold
        assert (hold.spots, self.cells.borrowed) == (spots, borrowed), "a set is counted once"
        assert idle == {
            each: [chain.is_idle(leaf) for leaf in range(chain.topology.leaves)]
            for each, chain in self.cells.chains.items()
        }
        self.stats["shared"] += 1

    def stand_back(self) -> None:
        """Have a job that shares with others be about to end: the others hold what it brought."""
        if not self.cells.sets:
            return
        job = self.rng.choice(list(self.cells.sets))
        hold = self.cells.sets[job]
        before = hold.guaranteed
        self.cells.stand_back(job)
        left = any(each.asked > OPPORTUNISTIC for each in hold.partners.values())
        assert hold.guaranteed is (before and (left or self._claimed(hold)))
        self.stats["stood back"] += 1

    def _on_one_node(self, hold: CellHold) -> bool:
        shape = self.cells.chains[hold.chain].topology
        nodes = {shape.node(leaf) for spot in hold.spots for leaf in spot.leaves}
        return len(nodes) == 1 and not hold.further

    def _claimed(self, hold: CellHold) -> bool:
        claim = self.cells.chains[hold.chain].claim
        return any(leaf in claim for spot in hold.spots for leaf in spot.leaves)

    @staticmethod
    def loss(job: AttemptId) -> float:
        """Return what stopping a job loses."""
        return float(sum(job.encode()) * 7919 % 11)

    # --- hardware ------------------------------------------------------------------------------

    def break_something(self) -> None:
        """Have a node, or some of its GPUs, turn bad."""
        self._set(bad=True)

    def heal_something(self) -> None:
        """Have a node, or some of its GPUs, be repaired: more often than not one that was bad."""
        self._set(bad=False)

    def _set(self, *, bad: bool) -> None:
        rng = self.rng
        nodes = [cell.node for chain in self.cells.cluster.chains.values() for cell in chain.nodes]
        ill = [node for node, _ in self.cells.bad_gpus()]
        node = rng.choice(ill) if ill and not bad and rng.random() < 0.7 else rng.choice(nodes)
        before = guaranteed(self.cells)
        devices = None if rng.random() < 0.5 else rng.sample(range(16), rng.choice((1, 1, 4)))
        self.cells.set_bad(node, devices, bad=bad)
        assert guaranteed(self.cells) == before, "hardware that turns bad evicts nobody"
        self.stats["bad" if bad else "healed"] += 1
        self.stats["doomed"] += sum(len(chain.bad_cells) for chain in self.cells.chains.values())

    # --- restarts and other clusters -----------------------------------------------------------

    def restart(self) -> None:
        """Go on with what a snapshot says, which must be everything that matters."""
        before, kept = self.cells, take_snapshot(self.cells)
        raw = msgspec.json.encode(kept)
        self.cells = restore_cells(msgspec.json.decode(raw, type=CellsSnapshot), AT_ONCE)
        assert guaranteed(self.cells) == guaranteed(before)
        assert ordered(take_snapshot(self.cells)) == ordered(kept)
        assert take_snapshot(self.cells).orders == kept.orders
        for number in range(6):
            request = self.request(AttemptId(f"probe{number}"))
            old, new = (
                placement.find_placement(before, request, self.loss),
                placement.find_placement(self.cells, request, self.loss),
            )
            assert old == new, f"{request}: {old} and after a restart {new}"
        self.stats["restarts"] += 1

    def reconfigure(self) -> None:
        """Carry the jobs over to another cluster file: none is stopped by that."""
        cluster = random_cluster(self.rng, shapes=self.cells.cluster)
        before = self.cells
        self.cells, changes = reconfigure(before, cluster)
        told = {change.job: change for change in changes}
        assert list(before.holds) == [job for job in before.holds if job in told]
        for job in dict.fromkeys((*before.holds, *before.sets)):
            hold, change, now = before.hold_of(job), told[job], self.cells.hold_of(job)
            assert hold is not None
            if hold.claims:
                assert change.fate == "released", change
                self.waiting.append(self.requests.pop(job))
                continue
            used, still = devices_of(before, job), devices_of(self.cells, job)
            assert sorted(used) == sorted(still), change
            if change.fate == "kept":
                assert now is not None, change
                assert now.guaranteed, change
            self.stats[f"reconfigured: {change.fate}"] += 1
            if hold.further:
                self.stats[f"mixed, reconfigured: {change.fate}"] += 1
        for job in list(self.requests):
            self.forget(job)
        self.waiting = [
            request for request in self.waiting if request.vc in cluster.vcs and not request.pin
        ]
        self.stats["reconfigurations"] += 1

    # --- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """Give everything back: what is left is the cluster as it was at the beginning."""
        jobs = [*dict.fromkeys([*self.cells.sets, *self.cells.holds, *self.cells.off_chain])]
        self.rng.shuffle(jobs)
        for job in jobs:
            self.cells.release(job)
            self.verify()
        nodes = [cell.node for chain in self.cells.cluster.chains.values() for cell in chain.nodes]
        self.rng.shuffle(nodes)
        for node in nodes:
            self.cells.set_bad(node, None, bad=False)
            self.verify()
        fresh = Cells(self.cells.cluster)
        assert ordered(take_snapshot(self.cells)) == ordered(take_snapshot(fresh))
        for name, chain in self.cells.chains.items():
            other = fresh.chains[name]
            assert chain.forest.free == other.forest.free, name
            assert chain.forest.owed == other.forest.owed, name
            for key, pool in chain.pools.items():
                assert pool.left == other.pools[key].left, key
        assert not self.cells.sets
        assert not any(self.cells.priorities.values()), "priorities are counted to zero"


def assert_fits(cells: Cells, request: Request, found: Placement) -> None:
    """Assert that a placement is what was asked for, at nobody's expense but who must yield."""
    if found.further:
        assert_mixed_fits(cells, request, found)
        return
    chain = cells.chains[found.chain]
    shape = chain.topology
    assert suits(request.gpu, shape.gpu) or request.pin, request
    assert [len(spot.leaves) for spot in found.spots] == request.sizes, request
    leaves = [leaf for spot in found.spots for leaf in spot.leaves]
    assert len(leaves) == len(set(leaves)), "two workers on one GPU"
    assert not any(leaf in chain.bad for leaf in leaves), "a worker on a bad GPU"
    for spot in found.spots:
        assert len({shape.node(leaf) for leaf in spot.leaves}) == 1, "a worker over two nodes"
        assert bool(spot.level) is request.guaranteed, spot
    if request.hard and request.within:
        within = shape.level(request.within)
        assert within is not None, f"{request} in {shape.name}, which has no such level"
        assert len({shape.up(leaf, within) for leaf in leaves}) == 1, f"{request}: {found}"
    users = dict.fromkeys(user.job for leaf in leaves if (user := chain.user[leaf]) is not None)
    # What a demoted job leaves is its cell, not its GPUs.
    assert set(users) == set(found.victims), f"{request}: {found}, on GPUs of {list(users)}"
    claims = {chain.claim[leaf].job for leaf in leaves if leaf in chain.claim}
    assert claims == set(found.cancels), f"{request}: {found}, on GPUs claimed by {claims}"
    assert request.guaranteed or not (found.victims or found.cancels or found.demoted)
    for job in (*found.victims, *found.cancels, *found.demoted):
        hold = cells.holds[job]
        own = hold.vc == request.vc and hold.priority < request.priority
        assert own or not hold.guaranteed, f"{job} yields to {request.job}"
    assert all(cells.holds[job].lazy for job in found.demoted), found


def assert_mixed_fits(cells: Cells, request: Request, found: Placement) -> None:
    """Assert that each portion of a mixed gang is a gang's place in its chain."""
    assert request.mixed, request
    assert not found.demoted, found
    assert placement.find_placement(cells, request._replace(mixed=False)) is None, request
    nodes = [
        {cells.chains[name].topology.node(spot.leaves[0]) for spot in spots}
        for name, spots in found.portions
    ]
    assert len(set().union(*nodes)) == sum(map(len, nodes)), "two parts on one host"
    victims: set[AttemptId] = set()
    cancels: set[AttemptId] = set()
    workers = 0
    for name, spots in found.portions:
        chain, workers = cells.chains[name], workers + len(spots)
        leaves = [leaf for spot in spots for leaf in spot.leaves]
        theirs = {user.job for leaf in leaves if (user := chain.user[leaf]) is not None}
        claims = {chain.claim[leaf].job for leaf in leaves if leaf in chain.claim}
        alone = request._replace(members=((len(spots), request.sizes[0]),))
        assert_fits(cells, alone, Placement(name, spots, tuple(theirs), tuple(claims)))
        victims, cancels = victims | theirs, cancels | claims
    assert workers == len(request.sizes), request
    assert victims == set(found.victims), found
    assert cancels == set(found.cancels), found


def together_they_fit(cells: Cells, request: Request) -> bool:
    """Return whether chains that share no host have place for a gang's workers, one by one."""
    hosts: set[str] = set()
    room = 0
    for chain, _ in cells.offers(request.vc, request.gpu):
        nodes = set(chain.topology.nodes)
        if nodes & hosts:
            return False  # What one host may give depends on the other chain.
        hosts |= nodes
        for workers in range(len(request.sizes), 0, -1):
            alone = request._replace(
                members=((workers, request.sizes[0]),), gpu=chain.topology.gpu, mixed=False
            )
            where = placement.find_placement(cells, alone)
            if where is not None and where.chain == chain.topology.name and not where.demoted:
                room += workers
                break
    return room >= len(request.sizes)


def leaves_of(hold: CellHold) -> list[tuple[str, int]]:
    """Return what a hold has or claims, as (chain, leaf)."""
    return [(name, leaf) for name, spots in hold.portions for spot in spots for leaf in spot.leaves]


def guaranteed(cells: Cells) -> dict[AttemptId, tuple[object, ...]]:
    """Return what each guaranteed job holds or claims."""
    return {
        job: (hold.vc, hold.priority, hold.portions, hold.claims)
        for job, hold in cells.holds.items()
        if hold.guaranteed
    }


def devices_of(cells: Cells, job: AttemptId) -> Iterator[tuple[str, int]]:
    """Return the GPUs a job uses, also outside its chain, as (node, device)."""
    for name, leaves in cells.leaves_by_chain(job):
        shape = cells.chains[name].topology
        for leaf in leaves:
            yield shape.node(leaf), shape.device(leaf)
    yield from cells.off_chain.get(job, ())


def ordered(kept: CellsSnapshot) -> CellsSnapshot:
    """Return a snapshot with its lists in one order, to compare it with another."""
    return msgspec.structs.replace(
        kept,
        holds=tuple(sorted(kept.holds, key=lambda hold: hold.job)),
        doomed=tuple(sorted(kept.doomed)),
        astray=tuple(sorted(kept.astray)),
        orders={},
    )
