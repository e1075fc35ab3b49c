"""Who holds which GPUs by which right, and the cells that follow from it.

What is kept is on the nodes (`Taken`) and the jobs (`claims`): the cells are made of that when
somebody asks first, and follow the facts from then on. The allocator's own cells are the truth;
these agree with them in what is held, owned, claimed and bad. Only which VC bears a bad cell may
differ, where several could: that depends on the order in which hardware failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from skep.cells.holds import OPPORTUNISTIC, Hold, Placement, Request, Spot
from skep.cells.keep import reconfigure
from skep.cells.state import Cells
from skep.ids import job_sequence
from skep.wire.facts import CellsSet, JobBound, Member, ReservationDropped
from skep.wire.reasons import Reason
from skep_services.gateway.mirror import Mirror
from skep_services.gateway.rows import PLACED, Job, Node, Taken

if TYPE_CHECKING:
    from skep_services.gateway.fold import Fold

GUARANTEED_CLASS, OPPORTUNISTIC_CLASS = "guaranteed", "opportunistic"

Gpu = tuple[str, int]
"""A node and the index of a device."""


class Rank(NamedTuple):
    """What one rank uses: GPUs of one node, and the level of the VC's cell they are in, or 0."""

    gpus: list[Gpu]
    level: int


class Holdings:
    """The right by which jobs hold GPUs, kept in a fold's rows."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self.mirror = Mirror(self._made)

    def cells(self) -> Cells:
        """Return the cells as they are; not to be changed.

        Takes half a second for 65,536 GPUs at first and after other cells were set, else nothing.
        """
        return self.mirror.cells()

    # --- what facts change ---------------------------------------------------------------------

    def take(self, job: Job, fact: JobBound) -> None:
        """Give a job what it was bound to."""
        self.give(job, fact.attempt, fact.members)
        self.own(job, fact.attempt)

    def give(self, job: Job, attempt: int, members: Sequence[Member]) -> None:
        """Give an attempt its GPUs."""
        for member in members:
            node = self._fold.node(member.node)
            levels = member.levels or (0,) * len(member.devices)
            for rank, devices, level in zip(member.numbers, member.devices, levels, strict=True):
                taken = Taken(job.row.job, job.row.vc, attempt, rank, level)
                node.taken.update(dict.fromkeys(devices, taken))
        name = job.row.job, attempt
        self.mirror.follow(lambda cells: self._enter(cells, name, _ranks(members)))

    def own(self, job: Job, attempt: int) -> None:
        """Have a job hold its GPUs by the right by which its attempt has them."""
        mine = [taken for part in job.attempt(attempt).members
                for taken in self._fold.node(part.node).taken.values()
                if (taken.job, taken.attempt) == (job.row.job, attempt)]  # fmt: skip
        owns = any(taken.level for taken in mine)
        job.row.class_in_force = GUARANTEED_CLASS if owns else OPPORTUNISTIC_CLASS

    def _enter(self, cells: Cells, name: tuple[str, int], ranks: dict[int, Rank]) -> None:
        """Give an attempt its GPUs, or what it had claimed."""
        if _name(*name) in cells.holds:
            cells.occupy(_name(*name))
        elif (hold := self._hold(cells, name, ranks)) is not None:
            cells.enter(hold)

    def claimed(self, job: Job) -> None:
        """Take over that something is reserved for a job."""

        def enter(cells: Cells) -> None:
            for hold in self._claims(cells, job):
                cells.enter(hold)

        self.mirror.follow(enter)

    def unclaimed(self, fact: ReservationDropped) -> None:
        """Take over that nothing is reserved for a job any more."""
        name, settle = _name(fact.job, fact.attempt), fact.why is not Reason.PREEMPTED
        self.mirror.follow(lambda cells: cells.release(name, settle=settle))

    def freed(self, node: str, job: str, attempt: int) -> None:
        """Take over that an attempt has left a node."""
        self.mirror.follow(lambda cells: cells.release(_name(job, attempt), node))

    def health(self, node: Node) -> None:
        """Take over which GPUs of a node may be given to anybody."""
        self.mirror.follow(lambda cells: cells.set_health(node.node, node.bad))

    def regain(self, job: Job, number: int) -> None:
        """Give an attempt that had given its GPUs back the same ones again, borrowed."""
        ranks: dict[int, Rank] = {}
        for part in job.attempt(number).members:
            node = self._fold.node(part.node)
            there = zip(part.numbers, part.devices, strict=True) if part.outcome is None else ()
            for rank, devices in there:
                taken = Taken(job.row.job, job.row.vc, number, rank, 0)
                node.taken.update(dict.fromkeys(devices, taken))
                ranks[taken.rank] = Rank([(part.node, device) for device in devices], 0)
        job.row.class_in_force = OPPORTUNISTIC_CLASS
        self.mirror.follow(lambda cells: self._enter(cells, (job.row.job, number), ranks))

    def widen(self, job: Job, attempt: int, member: Member) -> None:
        """Give an attempt further GPUs, by the right by which it has its own."""
        ranks, node = _ranks((member,)), self._fold.node(member.node)
        for rank, (gpus, level) in ranks.items():
            taken = Taken(job.row.job, job.row.vc, attempt, rank, level)
            node.taken.update(dict.fromkeys((device for _, device in gpus), taken))
        name = job.row.job, attempt

        def widen(cells: Cells) -> None:
            more = self._hold(cells, name, ranks)
            assert more is not None, member
            cells.widen(_name(*name), more.spots)

        self.mirror.follow(widen)

    def narrow(self, job: Job, attempt: int, name: str, devices: Sequence[int]) -> None:
        """Take some of its GPUs of a node from an attempt that keeps others."""
        node = self._fold.node(name)
        for device in devices:
            node.taken.pop(device, None)
        gpus = [(name, device) for device in devices]
        self.mirror.follow(lambda cells: cells.narrow(_name(job.row.job, attempt), gpus))

    def regrade(self, job: Job, attempt: int, levels: Sequence[int]) -> None:
        """Have an attempt hold its GPUs by another right.

        `levels` are those of the ranks it still has, in their order; without any it borrows.
        """
        self.mirror.follow(lambda cells: _regrade(cells, _name(job.row.job, attempt), levels))
        row = job.row
        nodes = [self._fold.node(member.node) for member in job.attempt(attempt).members]
        mine = [(node, device, taken) for node in nodes for device, taken in node.taken.items()
                if (taken.job, taken.attempt) == (row.job, attempt)]  # fmt: skip
        ranks = sorted({taken.rank for _, _, taken in mine})
        by_rank = dict(zip(ranks, levels or (0,) * len(ranks), strict=True))
        for node, device, taken in mine:
            node.taken[device] = msgspec.structs.replace(taken, level=by_rank[taken.rank])
        if row.attempt == attempt and row.state in PLACED:
            row.class_in_force = GUARANTEED_CLASS if levels else OPPORTUNISTIC_CLASS

    def give_back(self, job: Job, attempt: int) -> None:
        """Free its VC's cells of an attempt that is to end, unless they are claimed already."""
        if not self._claimed(job.row.job, attempt):
            self.regrade(job, attempt, ())

    def _claimed(self, job: str, attempt: int) -> bool:
        """Return whether some of what an attempt uses is reserved for another job."""
        nodes = self._fold.nodes
        for other in self._fold.active.values():
            for member in other.claims:
                taken = nodes[member.node].taken
                for device in (each for devices in member.devices for each in devices):
                    user = taken.get(device)
                    if user is not None and (user.job, user.attempt) == (job, attempt):
                        return True
        return False

    def carry_over(self, fact: CellsSet) -> None:
        """Find the cells that jobs are in by a new cluster, as the allocator does."""
        before = self._fold.clusters.resolved
        shapes = [{name: chain.levels for name, chain in cluster.chains.items()}
                  for cluster in (before, fact.cluster)]  # fmt: skip
        # Nodes that join or leave put nobody into another cell.
        same = shapes[0] == shapes[1] and before.vcs == fact.cluster.vcs
        owners = {} if same else {
            name: job for name, ranks in self._held().items()
            if any(rank.level for rank in ranks.values())
            and (job := self._fold.find(name[0])) is not None
        }  # fmt: skip
        if owners:
            new, _ = reconfigure(self.cells(), fact.cluster)
            self.mirror.drop()
            demoted = [fate.job for fate in fact.fates if fate.fate == "demoted"]
            for (name, attempt), job in owners.items():
                hold = new.holds.get(_name(name, attempt))
                kept = hold is not None and hold.guaranteed and name not in demoted
                levels = [spot.level for spot in hold.spots] if hold is not None and kept else []
                self.regrade(job, attempt, levels)
        self.mirror.drop()

    # --- the cells -----------------------------------------------------------------------------

    def _held(self) -> dict[tuple[str, int], dict[int, Rank]]:
        """Return what each attempt uses by rank, in the order in which they got it."""
        found: dict[tuple[str, int], dict[int, Rank]] = {}
        for node in self._fold.nodes.values():
            for device, taken in sorted(node.taken.items()):
                ranks = found.setdefault((taken.job, taken.attempt), {})
                ranks.setdefault(taken.rank, Rank([], taken.level)).gpus.append((node.node, device))
        return {name: dict(sorted(found[name].items()))
                for name in sorted(found, key=self._bound_at)}  # fmt: skip

    def _bound_at(self, name: tuple[str, int]) -> tuple[int, int]:
        job = self._fold.find(name[0])
        attempts = job.attempts if job is not None else ()
        at = next((one.bound_at for one in attempts if one.attempt == name[1]), None)
        return at or 0, job_sequence(name[0]) or 0

    def _made(self) -> Cells:
        cells = Cells(self._fold.clusters.resolved)
        holds = [hold for name, ranks in self._held().items()
                 if (hold := self._hold(cells, name, ranks)) is not None]  # fmt: skip
        for chain in cells.chains.values():
            for at, name in enumerate(chain.topology.nodes):
                node, shape = self._fold.nodes.get(name), chain.topology
                for leaf in shape.span(shape.node_level, at):
                    if node is None or node.bad(shape.device(leaf), shape.gpu):
                        cells.note_ill(name, shape.device(leaf))
        # Who borrows goes in late: it binds nothing, and whoever binds may do so around it.
        for hold in sorted(holds, key=lambda hold: not hold.guaranteed):
            if hold.guaranteed and not _fits(cells, hold):
                covered = cells.cover(hold)
                hold.priority = hold.asked if covered else OPPORTUNISTIC
                hold.spots = covered or tuple(Spot(spot.leaves) for spot in hold.spots)
            cells.enter(hold, settle=False)
        for job in self._fold.active.values():
            for hold in self._claims(cells, job):
                if not hold.guaranteed or _fits(cells, hold):
                    cells.enter(hold, settle=False)
        for state in cells.chains.values():
            state.settle()
        return cells

    def _hold(self, cells: Cells, name: tuple[str, int], ranks: dict[int, Rank]) -> Hold | None:
        """Return what an attempt holds in the chain where most of it is; the rest strays."""
        job = self._fold.find(name[0])
        if job is None:
            return None
        homes = {gpu: cells.find(*gpu) for rank in ranks.values() for gpu in rank.gpus}
        chains = [home[0] for home in homes.values() if home is not None]
        chain = max(dict.fromkeys(chains), key=chains.count, default="")
        spots = []
        for rank in ranks.values():
            inside = [home[1] for gpu in rank.gpus
                      if (home := homes[gpu]) is not None and home[0] == chain]  # fmt: skip
            if inside:
                spots.append(Spot(tuple(sorted(inside)), rank.level))
        for gpu, home in homes.items():
            if home is None or home[0] != chain:
                cells.stray(_name(*name), *gpu)
        if not spots:
            return None
        hold = Hold(request_of(job, name[1]), Placement(chain, tuple(spots)))
        if not all(spot.level for spot in spots):
            hold.priority = OPPORTUNISTIC
        return hold

    def _claims(self, cells: Cells, job: Job) -> Iterator[Hold]:
        """Yield what is reserved for a job, if anything is."""
        found = [
            (level, [cells.find(member.node, device) for device in devices])
            for member in job.claims
            for devices, level in zip(
                member.devices, member.levels or (0,) * len(member.devices), strict=True
            )
        ]
        homes = [home for _, each in found for home in each]
        if found and None not in homes:
            chain = next(home[0] for home in homes if home is not None)
            spots = tuple(Spot(tuple(home[1] for home in each if home is not None), level)
                          for level, each in found)  # fmt: skip
            request = request_of(job, job.row.attempt + 1)
            hold = Hold(request, Placement(chain, spots), claims=True)
            if not all(spot.level for spot in spots):
                hold.priority = OPPORTUNISTIC
            yield hold


def _ranks(members: Sequence[Member]) -> dict[int, Rank]:
    ranks: dict[int, Rank] = {}
    for member in members:
        levels = member.levels or (0,) * len(member.devices)
        for rank, devices, level in zip(member.numbers, member.devices, levels, strict=True):
            ranks[rank] = Rank([(member.node, device) for device in devices], level)
    return ranks


def _regrade(cells: Cells, name: str, levels: Sequence[int]) -> None:
    """Do to the cells what was done to the rows."""
    hold = cells.holds.get(name)
    if hold is None:
        return
    if levels:
        pairs = zip(hold.spots, levels, strict=True)
        cells.promote(name, [Spot(spot.leaves, level) for spot, level in pairs])
    elif hold.guaranteed:
        cells.demote(name)


def _name(job: str, attempt: int) -> str:
    return f"{job}.{attempt}"


def job_of(name: str) -> str:
    """Return the job whose attempt the cells know under a name."""
    return name.rpartition(".")[0]


def request_of(job: Job, attempt: int) -> Request:
    """Return what an attempt of a job asks of the cells."""
    row = job.row
    guaranteed = row.service_class == GUARANTEED_CLASS
    workers = max(1, row.workers)
    return Request(
        job=_name(row.job, attempt),
        vc=row.vc,
        priority=row.priority if guaranteed else OPPORTUNISTIC,
        members=((workers, row.gpus // workers),),
        gpu=row.gpu_type or "",
        pin=job.pinned if guaranteed else "",
        within=job.within,
        hard=job.hard,
        lazy=job.demotable,
    )


def _fits(cells: Cells, hold: Hold) -> bool:
    """Return whether a VC can have the cells that a hold needs, among those held already."""
    chain = cells.chains[hold.chain]
    pool = chain.pools.get((hold.vc, hold.pin))
    if pool is None:
        return False
    new: dict[tuple[int, int], None] = {}
    for leaves, level in hold.spots:
        cell = chain.topology.up(leaves[0], level)
        bound = chain.bound[level].get(cell)
        if bound is None:
            if not chain.forest.enclosing(level, cell):
                return False
            new[level, cell] = None
        elif bound.pool is not pool:
            return False
    levels = [level for level, _ in new]
    return all(pool.left[level] >= levels.count(level) for level in levels)
