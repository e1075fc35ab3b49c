"""Who holds which GPUs by which right, and the cells that follow from it.

What is kept is on the nodes (`Taken`) and the jobs (`claims`): the cells are made of that when
somebody asks first, and follow the facts from then on. The allocator's own cells are the truth;
these agree with them in what is held, owned, claimed, bad and borne: facts say all of it. Only in
epochs by rules 1, whose facts leave open which VC bears a bad cell, may that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from skep.cells import rules1
from skep.cells.decide.cover import find_cover
from skep.cells.holds import OPPORTUNISTIC, CellHold, Partner, Placement, Request, Spot
from skep.cells.state import Cells
from skep.ids import job_sequence
from skep.wire.bearing import BadCellBound, BadCellReturned, Fate, SetLed
from skep.wire.facts import CellsSet, JobBound, Member, ReservationDropped
from skep.wire.reasons import Reason
from skep_services.gateway.mirror import Mirror
from skep_services.gateway.rows import PLACED, Job, Node, State, Taken

if TYPE_CHECKING:
    from skep_services.gateway.fold import Fold

GUARANTEED_CLASS, OPPORTUNISTIC_CLASS = "guaranteed", "opportunistic"

Gpu = tuple[str, int]
"""A node and the index of a device."""


Name = tuple[str, int]
"""A job and the number of an attempt."""


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

    def give(self, job: Job, attempt: int, members: Sequence[Member]) -> None:
        """Give an attempt its GPUs: a guest those that others have."""
        ranks = _ranks(members)
        self._put(job, attempt, ranks)
        self.mirror.follow(lambda cells: self._enter(cells, job, attempt, ranks))

    def _put(self, job: Job, attempt: int, ranks: dict[int, Rank]) -> None:
        """Note who is on GPUs; of a guest those that others have as guaranteed ones are as well."""
        guest = job.packed is not None and job.packed.attempt == attempt
        for rank, (gpus, level) in ranks.items():
            for name, device in gpus:
                node = self._fold.node(name)
                there = node.on(device) if guest else ()
                right = level
                if guest and job.row.service_class == GUARANTEED_CLASS:
                    right = max((taken.level for taken in there), default=0)
                taken = Taken(job.row.job, job.row.vc, attempt, rank, right)
                node.put(device, (*there, taken))
        if job.row.attempt == attempt:
            self.own(job, attempt)
        self._look([gpu for gpus, _ in ranks.values() for gpu in gpus] if guest else ())

    def own(self, job: Job, attempt: int) -> None:
        """Have a job hold its GPUs by the right by which its attempt has them."""
        owns = any(taken.level for _, _, taken in self._mine(job, attempt))
        job.row.class_in_force = GUARANTEED_CLASS if owns else OPPORTUNISTIC_CLASS

    def counted(self, job: Job) -> int:
        """Return how many GPUs a job has, each counted for one of those that share it."""
        mine = self._mine(job, job.row.attempt)
        return sum(node.taken[device] == taken for node, device, taken in mine)

    def _mine(self, job: Job, attempt: int) -> list[tuple[Node, int, Taken]]:
        """Return the GPUs that an attempt is on, with their nodes."""
        nodes = [self._fold.node(part.node) for part in job.attempt(attempt).members]
        return [
            (node, device, taken)
            for node in nodes
            for device in list(node.taken)
            for taken in node.on(device)
            if (taken.job, taken.attempt) == (job.row.job, attempt)
        ]

    def _look(self, gpus: Iterable[Gpu]) -> None:
        """Tell whoever is on these GPUs who else is, and by which right they are there."""
        there = (taken for name, device in gpus for taken in self._fold.node(name).on(device))
        users = dict.fromkeys((taken.job, taken.attempt) for taken in there)
        for name, attempt in users:
            job = self._fold.touch(name)
            if job is None or job.row.attempt != attempt or job.row.state not in PLACED:
                continue
            mine = self._mine(job, attempt)
            job.row.beside = tuple(
                dict.fromkeys(
                    other.job
                    for node, device, _ in mine
                    for other in node.on(device)
                    if other.job != name
                )
            )
            if not job.row.beside:
                job.row.share = None
            self.own(job, attempt)

    def _enter(self, cells: Cells, job: Job, attempt: int, ranks: dict[int, Rank]) -> None:
        """Give an attempt its GPUs, or what it had claimed, or what it is to share."""
        name, packed = _name(job.row.job, attempt), job.packed
        if packed is not None and packed.attempt == attempt:
            leaves = _leaves(cells, ranks)
            cells.share(request_of(job, attempt), _name(*packed.beside[0]), leaves)
        elif name in cells.holds:
            cells.occupy(name)
        elif (hold := self._hold(cells, (job.row.job, attempt), ranks)) is not None:
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

    def freed(self, name: str, job: str, attempt: int) -> None:
        """Take over that an attempt has left a node: who shared its GPUs has them."""
        self.mirror.follow(lambda cells: cells.release(_name(job, attempt), name))
        node, shared = self._fold.node(name), []
        for device in list(node.taken):
            there = node.on(device)
            stay = [taken for taken in there if (taken.job, taken.attempt) != (job, attempt)]
            if len(stay) < len(there):
                node.put(device, stay)
                shared += [(name, device)] if stay else []
        self._look(shared)

    def health(self, node: Node) -> None:
        """Take over which GPUs of a node may be given to anybody."""
        self.mirror.follow(lambda cells: cells.set_health(node.node, node.bad))

    def regain(self, job: Job, number: int) -> None:
        """Give an attempt that had given its GPUs back the same ones again, borrowed."""
        ranks = {
            rank: Rank([(part.node, device) for device in devices], 0)
            for part in job.attempt(number).members
            if part.outcome is None
            for rank, devices in zip(part.numbers, part.devices, strict=True)
        }
        self._put(job, number, ranks)
        self.mirror.follow(lambda cells: self._enter(cells, job, number, ranks))

    def widen(self, job: Job, attempt: int, member: Member) -> None:
        """Give an attempt further GPUs, by the right by which it has its own."""
        ranks, node = _ranks((member,)), self._fold.node(member.node)
        for rank, (gpus, level) in ranks.items():
            taken = Taken(job.row.job, job.row.vc, attempt, rank, level)
            for _, device in gpus:
                node.put(device, (taken,))
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
            node.put(device, ())
        gpus = [(name, device) for device in devices]
        self.mirror.follow(lambda cells: cells.narrow(_name(job.row.job, attempt), gpus))

    def regrade(self, job: Job, attempt: int, levels: Sequence[int]) -> None:
        """Have an attempt hold its GPUs by another right.

        `levels` are those of the ranks it still has, in their order; without any it borrows.
        """
        self.mirror.follow(lambda cells: _regrade(cells, _name(job.row.job, attempt), levels))
        mine = self._mine(job, attempt)
        ranks = sorted({taken.rank for _, _, taken in mine})
        if len(levels) != len(ranks):  # It has them from another, whose workers had others each.
            levels = (max(levels, default=0),) * len(ranks)
        by_rank, own = dict(zip(ranks, levels, strict=True)), [taken for _, _, taken in mine]
        at = {(node.node, device): by_rank[taken.rank] for node, device, taken in mine}
        for name, device in self._set(at):
            level = at.get((name, device), max(levels, default=0))
            node = self._fold.node(name)
            users = [
                msgspec.structs.replace(
                    each, level=level if each in own or self._may_own(each) else 0
                )
                for each in node.on(device)
            ]
            node.put(device, users)
        if job.row.attempt == attempt and job.row.state in PLACED:
            self.own(job, attempt)
        self._look(at)

    def _set(self, gpus: Iterable[Gpu]) -> list[Gpu]:
        """Return these GPUs, and all that whoever is on them is on together with others."""
        found, left = dict.fromkeys(gpus), list(gpus)
        while left:
            name, device = left.pop()
            node = self._fold.node(name)
            users = {(taken.job, taken.attempt) for taken in node.on(device)}
            for each in node.taken if len(users) > 1 else ():
                same = any((taken.job, taken.attempt) in users for taken in node.on(each))
                if same and (name, each) not in found:
                    found[name, each] = None
                    left.append((name, each))
        return list(found)

    def _may_own(self, taken: Taken) -> bool:
        """Return whether an attempt may have cells of its VC: it is guaranteed, and is to go on."""
        job = self._fold.find(taken.job)
        if job is None or job.row.attempt not in (taken.attempt, taken.attempt - 1):
            return False
        return job.row.service_class == GUARANTEED_CLASS and _goes_on(job)

    def give_back(self, job: Job, attempt: int) -> None:
        """Free its VC's cells of an attempt that is to end, unless they are claimed already.

        Where it shares them, the others have them.
        """
        name = _name(job.row.job, attempt)
        if self._claimed(job.row.job, attempt):
            return
        self.mirror.follow(lambda cells: cells.stand_back(name))
        mine = self._mine(job, attempt)
        for node, device, taken in mine:
            others = [other for other in node.on(device) if other != taken]
            node.put(device, [*others, msgspec.structs.replace(taken, level=0)])
        if job.row.attempt == attempt and job.row.state in PLACED:
            job.row.class_in_force = OPPORTUNISTIC_CLASS

    def _claimed(self, job: str, attempt: int) -> bool:
        """Return whether some of what an attempt uses is reserved for another job."""
        nodes = self._fold.nodes
        for other in self._fold.active.values():
            for member in other.claims:
                node = nodes[member.node]
                for device in (each for devices in member.devices for each in devices):
                    if any((user.job, user.attempt) == (job, attempt) for user in node.on(device)):
                        return True
        return False

    def carry_over(self, fact: CellsSet) -> None:
        """Find the cells that jobs are in by a new cluster, as the fact says it."""
        before = self._fold.clusters
        if before.rules < 2:
            self._carry_over_by_rules_1(fact)
            return
        shapes = [
            {name: chain.levels for name, chain in cluster.chains.items()}
            for cluster in (before.resolved, fact.cluster)
        ]
        # Nodes that join or leave put nobody into another cell.
        same = shapes[0] == shapes[1] and before.resolved.vcs == fact.cluster.vcs
        self.mirror.drop()
        changed = [each for each in fact.carried if each.fate in (Fate.KEPT, Fate.DEMOTED)]
        if same and not any(each.fate is Fate.DEMOTED for each in changed):
            return
        held = self._held()
        for each in changed:
            job, ranks = self._fold.find(each.job), held.get((each.job, each.attempt), {})
            levels = [rank.level for rank in ranks.values()]
            if job is not None and levels != list(each.levels or (0,) * len(levels)):
                self.regrade(job, each.attempt, each.levels)
        self.mirror.drop()

    def _carry_over_by_rules_1(self, fact: CellsSet) -> None:
        before = self._fold.clusters.resolved
        shapes = [
            {name: chain.levels for name, chain in cluster.chains.items()}
            for cluster in (before, fact.cluster)
        ]
        same = shapes[0] == shapes[1] and before.vcs == fact.cluster.vcs
        owners = (
            {}
            if same
            else {
                name: job
                for name, ranks in self._held().items()
                if any(rank.level for rank in ranks.values())
                and (job := self._fold.find(name[0])) is not None
            }
        )
        if owners:
            new, _ = rules1.reconfigure(self.cells(), fact.cluster)
            self.mirror.drop()
            demoted = [(fate.job, fate.attempt) for fate in fact.fates if fate.fate == "demoted"]
            for (name, attempt), job in owners.items():
                hold = new.holds.get(_name(name, attempt))
                kept = hold is not None and hold.guaranteed and (name, attempt) not in demoted
                levels = [spot.level for spot in hold.spots] if hold is not None and kept else []
                self.regrade(job, attempt, levels)
        self.mirror.drop()

    def bear(self, fact: BadCellBound | BadCellReturned) -> None:
        """Take over which VC bears a bad cell, or does so no longer."""
        if isinstance(fact, BadCellBound):
            self.mirror.follow(lambda cells: cells.bind_bad_cell(fact.cell))
        else:
            self.mirror.follow(lambda cells: cells.unbind_bad_cell(fact.cell))

    def led(self, fact: SetLed) -> None:
        """Take over which of several jobs names what they share."""
        leader = _name(fact.job, fact.attempt)

        def lead(cells: Cells) -> None:
            hold = cells.sets.get(leader)
            if hold is not None and hold.job != leader:
                cells.set_leader(hold.job, leader)

        self.mirror.follow(lead)

    # --- the cells -----------------------------------------------------------------------------

    def _held(self) -> dict[tuple[str, int], dict[int, Rank]]:
        """Return what each attempt uses by rank, in the order in which they got it."""
        found: dict[tuple[str, int], dict[int, Rank]] = {}
        for node in self._fold.nodes.values():
            for device in sorted(node.taken):
                for taken in node.on(device):
                    ranks = found.setdefault((taken.job, taken.attempt), {})
                    rank = ranks.setdefault(taken.rank, Rank([], taken.level))
                    rank.gpus.append((node.node, device))
        return {
            name: dict(sorted(found[name].items())) for name in sorted(found, key=self._bound_at)
        }

    def _bound_at(self, name: tuple[str, int]) -> tuple[int, int]:
        job = self._fold.find(name[0])
        attempts = job.attempts if job is not None else ()
        at = next((one.bound_at for one in attempts if one.attempt == name[1]), None)
        return at or 0, job_sequence(name[0]) or 0

    def _made(self) -> Cells:
        known, held = self._fold.clusters, self._held()
        cells = Cells(known.resolved, rules1.RULES1 if known.rules < 2 else None)
        holds = [
            hold
            for names in _sets(held)
            if (hold := self._together(cells, names, held)) is not None
        ]
        for chain in cells.chains.values():
            for at, name in enumerate(chain.topology.nodes):
                node, shape = self._fold.nodes.get(name), chain.topology
                for leaf in shape.span(shape.node_level, at):
                    if node is None or node.bad(shape.device(leaf), shape.gpu):
                        cells.note_bad_gpu(name, shape.device(leaf))
        for cell in known.bad_cells:
            cells.bind_bad_cell(cell)
        # Who borrows goes in late: it binds nothing, and whoever binds may do so around it.
        for hold in sorted(holds, key=lambda hold: not hold.guaranteed):
            if hold.guaranteed and not _fits(cells, hold):
                covered = find_cover(cells, hold)
                hold.priority = hold.asked if covered else OPPORTUNISTIC
                hold.spots = covered or tuple(Spot(spot.leaves) for spot in hold.spots)
            cells.enter(hold, settle=False)
        for job in self._fold.active.values():
            for hold in self._claims(cells, job):
                if not hold.guaranteed or _fits(cells, hold):
                    cells.enter(hold, settle=False)
        for state in cells.chains.values():
            cells.mark_unsettled(state)
        return cells

    def _together(
        self, cells: Cells, names: list[Name], held: dict[Name, dict[int, Rank]]
    ) -> CellHold | None:
        """Return what attempts hold together: one alone, or a set that has one hold."""
        if len(names) == 1:
            return self._hold(cells, names[0], held[names[0]])
        ranks = [rank for name in names for rank in held[name].values()]
        levels = {
            gpu: max(one.level for one in ranks if gpu in one.gpus)
            for rank in ranks
            for gpu in rank.gpus
        }
        hold = self._hold(
            cells, names[0], {at: Rank([gpu], levels[gpu]) for at, gpu in enumerate(levels)}
        )
        for name in names if hold is not None else ():
            job = self._fold.find(name[0])
            assert job is not None, name
            asked, leaves = request_of(job, name[1]), _leaves(cells, held[name])
            stays = job.row.attempt == name[1] and _goes_on(job)
            assert hold is not None
            hold.partners[_name(*name)] = Partner(
                asked.priority if stays else OPPORTUNISTIC, asked.lazy, asked.pin, tuple(leaves)
            )
        if hold is not None:
            hold.asked = max(one.asked for one in hold.partners.values())
            hold.lazy = all(one.lazy for one in hold.partners.values())
        return hold

    def _hold(self, cells: Cells, name: tuple[str, int], ranks: dict[int, Rank]) -> CellHold | None:
        """Return what an attempt holds in the chain where most of it is; the rest strays."""
        job = self._fold.find(name[0])
        if job is None:
            return None
        homes = {gpu: cells.find(*gpu) for rank in ranks.values() for gpu in rank.gpus}
        chains = [home[0] for home in homes.values() if home is not None]
        chain = max(dict.fromkeys(chains), key=chains.count, default="")
        spots: list[Spot] = []
        for rank in ranks.values():
            inside = [
                home[1]
                for gpu in rank.gpus
                if (home := homes[gpu]) is not None and home[0] == chain
            ]
            if inside:
                spots += _spots(cells, chain, sorted(inside), rank.level)
        for gpu, home in homes.items():
            if home is None or home[0] != chain:
                cells.note_off_chain(_name(*name), *gpu)
        if not spots:
            return None
        hold = CellHold(request_of(job, name[1]), Placement(chain, tuple(spots)))
        if not all(spot.level for spot in spots):
            hold.priority = OPPORTUNISTIC
        return hold

    def _claims(self, cells: Cells, job: Job) -> Iterator[CellHold]:
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
            spots = tuple(
                Spot(tuple(home[1] for home in each if home is not None), level)
                for level, each in found
            )
            request = request_of(job, job.row.attempt + 1)
            hold = CellHold(request, Placement(chain, spots), claims=True)
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


def _goes_on(job: Job) -> bool:
    return job.row.state in PLACED and job.row.state is not State.STOPPING


def _leaves(cells: Cells, ranks: dict[int, Rank]) -> list[int]:
    homes = [cells.find(*gpu) for gpus, _ in ranks.values() for gpu in gpus]
    return [home[1] for home in homes if home is not None]


def _spots(cells: Cells, chain: str, leaves: list[int], level: int) -> Iterator[Spot]:
    """Yield what a rank holds: in one cell, unless it has that from several ranks of another."""
    shape, groups = cells.chains[chain].topology, dict[int, list[int]]()
    for leaf in leaves:
        groups.setdefault(shape.up(leaf, level) if level else 0, []).append(leaf)
    for group in groups.values():
        yield Spot(tuple(group), level)


def _sets(held: dict[Name, dict[int, Rank]]) -> list[list[Name]]:
    """Return attempts with those that they share GPUs with, those that have cells first."""
    on: dict[Gpu, list[Name]] = {}
    for name, ranks in held.items():
        for gpu in (gpu for rank in ranks.values() for gpu in rank.gpus):
            on.setdefault(gpu, []).append(name)
    sets: dict[Name, list[Name]] = {name: [name] for name in held}
    for names in on.values():
        merged = list(dict.fromkeys(each for name in names for each in sets[name]))
        for name in merged:
            sets[name] = merged
    firm = {name: not any(rank.level for rank in ranks.values()) for name, ranks in held.items()}
    return list(
        {id(names): sorted(names, key=firm.__getitem__) for names in sets.values()}.values()
    )


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


def _fits(cells: Cells, hold: CellHold) -> bool:
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
            if not chain.forest.enclosing_free_level(level, cell):
                return False
            new[level, cell] = None
        elif bound.pool is not pool:
            return False
    levels = [level for level, _ in new]
    return all(pool.left[level] >= levels.count(level) for level in levels)
