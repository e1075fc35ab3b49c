"""What every tenant may ask for at any moment, counted from facts alone, and whether it got it.

A model that shares nothing with `skep.cells`: each tenant's cells as a private cluster, holding
what the recorded facts say the tenant's guaranteed jobs hold. A request is *legal* if it fits
there. It must then be granted in the same decision: placed, or given a claim on cells whose users
are opportunistic, or of the same tenant with a lower priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from skep.machines.allocator import AllocatorMachine
from skep.wire.cluster import Cluster
from skep.wire.facts import (
    AllocatorFact,
    CellsReserved,
    GpuQuarantined,
    JobBound,
    JobDemoted,
    JobEnded,
    JobPromoted,
    JobQueued,
    JobStopping,
    Member,
    MemberGone,
    NodeDrained,
    ReservationDropped,
)
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec

OPPORTUNISTIC = -1


class Part(NamedTuple):
    """One worker's GPUs (numbered through the chain), and the level of the cell they are in."""

    node: str
    gpus: tuple[int, ...]
    level: int


class Held(msgspec.Struct):
    """What one attempt has, or claims. `priority` is OPPORTUNISTIC where no cell covers it."""

    vc: str
    priority: int
    parts: list[Part]
    claims: bool = False


class Counts(msgspec.Struct):
    """How many requests were judged, and what came of them."""

    legal: int = 0
    """Guaranteed requests that were legal when they were the tenant's next."""
    placed: int = 0
    reserved: int = 0
    victims: int = 0
    lower: int = 0
    """Victims of the same tenant with a lower priority; all others were opportunistic."""
    not_legal: int = 0
    """Looks at a waiting job that its tenant's cells could not hold."""
    unhealthy: int = 0
    """The same, where the cells could, were there not too few healthy ones for all tenants."""


class BrokenError(AssertionError):
    """A legal request was not granted, or something was granted that was not legal."""


class Mirror:
    """The private clusters of all tenants of a cluster with one chain."""

    def __init__(self, cluster: Cluster) -> None:
        """Start with everything free and healthy."""
        ((_, chain),) = cluster.chains.items()
        self.levels = ("", chain.leaf, *(level.name for level in chain.levels))
        self.size = [0, 1]
        for level in chain.levels:
            self.size.append(self.size[-1] * level.fanout)
        self.node_size = self.size[self.levels.index(chain.node_level)]
        self.first = {cell.node: at * self.node_size for at, cell in enumerate(chain.nodes)}
        self.total = {
            vc: {self.levels.index(quota.level): quota.count for quota in owned.cells}
            for vc, owned in cluster.vcs.items()
        }
        self.counts = Counts()
        self.specs: dict[str, JobSpec] = {}
        self.held: dict[tuple[str, int], Held] = {}
        self.cells: dict[str, dict[tuple[int, int], int]] = {vc: {} for vc in self.total}
        """By tenant: its cells in use (level and index), each with how many GPUs of it are."""
        self.holds: dict[str, dict[int, list[int]]] = {vc: {} for vc in self.total}
        """By tenant: GPUs its guaranteed jobs use or claim, each with their priorities."""
        self.ill: dict[str, None] = {}
        self.bad: dict[int, None] = {}
        self._versions = dict.fromkeys(self.total, 0)
        self._looked: dict[str, tuple[str, int, int]] = {}
        self._changes = 0

    # --- watching ----------------------------------------------------------------------------

    def watch(self, machine: AllocatorMachine, facts: list[AllocatorFact]) -> None:
        """Follow one decision: every grant in it, and the jobs that still wait after it.

        One that binds very many goes on in further ones at the same instant, which belong to it.

        Args:
            machine: The allocator after the decision.
            facts: The decision.

        Raises:
            BrokenError: A legal request was not granted, or something was granted that is not
                legal.
        """
        for fact in facts:
            self.follow(fact)
        for vc in self.total:
            queue = machine.state.queues.get((vc, False))
            head = queue.head() if queue is not None else None
            if head is None:
                continue
            look = head.entry.job, self._versions[vc], self._changes
            if self._looked.get(vc) != look:
                self._looked[vc] = look
                self._look(head.entry.job)

    def _look(self, job: str) -> None:
        spec = self.specs[job]
        if not self.legal(spec):
            self.counts.not_legal += 1
        elif self._healthy(spec):
            message = f"{job} of {spec.vc} waits, though its cells can hold it: {spec.resources}"
            raise BrokenError(message)
        else:
            self.counts.unhealthy += 1

    def follow(self, fact: AllocatorFact) -> None:
        """Take over one fact; a grant is judged first.

        Raises:
            BrokenError: The grant is not legal, or it is less than what was legal.
        """
        match fact:
            case JobQueued():
                self.specs[fact.job] = fact.spec
            case CellsReserved():
                self._reserved(fact)
            case JobBound():
                self._bound(fact)
            case ReservationDropped():
                self._leave((fact.job, fact.attempt))
            case MemberGone():
                self._leave((fact.job, fact.attempt), fact.node)
            case JobDemoted():
                held = self.held[fact.job, fact.attempt]
                self._enter(held, -1)
                held.priority = OPPORTUNISTIC
            case JobPromoted():
                self._promoted(fact)
            case JobStopping(why=Reason.PREEMPTED):
                self._stopped(fact)
            case JobEnded():
                del self.specs[fact.job]
            case NodeDrained() | GpuQuarantined():
                self._health(fact)
            case _:
                pass

    def _reserved(self, fact: CellsReserved) -> None:
        held = self._judged(fact)
        held.claims = True
        self.counts.reserved += held.priority > OPPORTUNISTIC

    def _bound(self, fact: JobBound) -> None:
        claim = self.held.get((fact.job, fact.attempt))
        if claim is not None:
            claim.claims = False
        else:
            self.counts.placed += self._judged(fact).priority > OPPORTUNISTIC

    def _judged(self, fact: JobBound | CellsReserved) -> Held:
        """Judge a grant; return what it gives.

        Raises:
            BrokenError: The cells are not the tenant's, or it has cells and the job has to borrow.
        """
        spec, parts = self.specs[fact.job], self._parts(fact.members)
        covered = parts[0].level > 0
        if covered:
            self._granted(fact.job, spec)
        elif not spec.opportunistic and self.legal(spec) and self._healthy(spec):
            message = f"{fact.job} of {spec.vc} runs opportunistically; its cells can hold it"
            raise BrokenError(message)
        held = Held(spec.vc, spec.priority if covered else OPPORTUNISTIC, parts)
        self.held[fact.job, fact.attempt] = held
        self._enter(held, 1)
        return held

    def _granted(self, job: str, spec: JobSpec) -> None:
        self.counts.legal += 1
        if not self.legal(spec):
            message = f"{job} got cells that {spec.vc} does not have: {spec.resources}"
            raise BrokenError(message)

    def _promoted(self, fact: JobPromoted) -> None:
        held = self.held[fact.job, fact.attempt]
        held.parts = [
            part._replace(level=level) for part, level in zip(held.parts, fact.levels, strict=True)
        ]
        held.priority = self.specs[fact.job].priority
        self._enter(held, 1)

    def _stopped(self, fact: JobStopping) -> None:
        """Check that a job that is preempted had to expect it.

        Raises:
            BrokenError: It had cells, and no job claims them, or another tenant's job does, or one
                whose priority is not higher.
        """
        victim = self.held[fact.job, fact.attempt]
        self.counts.victims += 1
        if victim.priority == OPPORTUNISTIC:
            return
        gpus = {gpu for part in victim.parts for gpu in part.gpus}
        claims = [
            held
            for held in self.held.values()
            if held.claims and any(gpu in gpus for part in held.parts for gpu in part.gpus)
        ]
        due = [each.vc == victim.vc and each.priority > victim.priority for each in claims]
        if not due or not all(due):
            message = f"{fact.job} of {victim.vc} was preempted {fact.detail}"
            raise BrokenError(message)
        self.counts.lower += 1

    def _health(self, fact: NodeDrained | GpuQuarantined) -> None:
        if isinstance(fact, NodeDrained):
            where, bad = fact.node, fact.drain
        else:
            where, bad = f"{fact.node}/{fact.device}", fact.quarantine
        if bad:
            self.ill[where] = None
        else:
            self.ill.pop(where, None)
        self.bad = {}
        for each in self.ill:
            node, _, device = each.partition("/")
            gpus = (int(device),) if device else range(self.node_size)
            self.bad.update(dict.fromkeys(self.first[node] + gpu for gpu in gpus))
        self._changes += 1

    # --- holding -----------------------------------------------------------------------------

    def _parts(self, members: tuple[Member, ...]) -> list[Part]:
        return [
            Part(member.node, tuple(self.first[member.node] + gpu for gpu in gpus), level)
            for member in members
            for gpus, level in zip(
                member.devices, member.levels or (0,) * len(member.devices), strict=True
            )
        ]

    def _enter(self, held: Held, sign: int) -> None:
        """Count what a guaranteed job holds into (or out of) its tenant's cells."""
        if held.priority == OPPORTUNISTIC:
            return
        cells, holds = self.cells[held.vc], self.holds[held.vc]
        for part in held.parts:
            key = part.level, part.gpus[0] // self.size[part.level]
            cells[key] = cells.get(key, 0) + sign * len(part.gpus)
            if not cells[key]:
                del cells[key]
            for gpu in part.gpus:
                if sign > 0:
                    holds.setdefault(gpu, []).append(held.priority)
                else:
                    holds[gpu].remove(held.priority)
                    if not holds[gpu]:
                        del holds[gpu]
        self._versions[held.vc] += sign < 0

    def _leave(self, key: tuple[str, int], node: str = "") -> None:
        held = self.held[key]
        gone = [part for part in held.parts if node in ("", part.node)]
        self._enter(Held(held.vc, held.priority, gone), -1)
        held.parts = [part for part in held.parts if part not in gone]
        if not held.parts:
            del self.held[key]

    # --- judging -----------------------------------------------------------------------------

    def legal(self, spec: JobSpec, *, new: bool = True) -> bool:
        """Return whether a tenant's cells hold a gang beside those of its priority and higher ones.

        Args:
            spec: The gang, and its tenant.
            new: Whether the tenant may use cells for it that it does not use yet.
        """
        wanted, topology = spec.resources, spec.resources.topology
        most = len(self.size) - 1
        hard = topology is not None and topology.hard
        if hard and topology is not None:
            most = self.levels.index(topology.within)
        room = 0
        for each in self._rooms(spec, most, new=new):
            room = each if hard else room + each
            if room >= wanted.workers:
                return True
        return False

    def _rooms(self, spec: JobSpec, most: int, *, new: bool) -> Iterator[int]:
        """Yield how many workers fit each cell of the tenant, or each part of it (level `most`)."""
        cells, gpus = self.cells[spec.vc], spec.resources.gpus
        for level, index in cells:
            part = self.size[min(level, most)]
            begin = index * self.size[level]
            for at in range(begin, begin + self.size[level], part):
                yield self._workers(spec, range(at, at + part), gpus)
        if new:
            for level, total in self.total[spec.vc].items():
                left = total - sum(each == level for each, _ in cells)
                part = self.size[min(level, most)]
                whole = max(1, part // self.node_size) * (min(part, self.node_size) // gpus)
                yield from [whole] * (left * (self.size[level] // part))

    def _workers(self, spec: JobSpec, span: range, gpus: int) -> int:
        """Return how many workers fit the GPUs of a part, none over two nodes."""
        holds, unit, workers = self.holds[spec.vc], min(len(span), self.node_size), 0
        for begin in range(span.start, span.stop, unit):
            free = sum(
                gpu not in self.bad and max(holds.get(gpu, (OPPORTUNISTIC,))) < spec.priority
                for gpu in range(begin, begin + unit)
            )
            workers += free // gpus
        return workers

    def _healthy(self, spec: JobSpec) -> bool:
        """Return whether there are enough healthy cells: in use by the tenant, or for all tenants.

        Where healthy cells are too few for all that is promised, some tenant has to bear it.
        """
        if not self.bad or self.legal(spec, new=False):
            return True
        taken = dict(self.bad)
        for cells in self.cells.values():
            for level, index in cells:
                begin = index * self.size[level]
                taken.update(dict.fromkeys(range(begin, begin + self.size[level])))
        top, gpus = len(self.size) - 1, len(self.first) * self.node_size
        spare = 0
        whole: dict[int, None] = {}
        for level in range(top, 0, -1):
            size = self.size[level]
            above = self.size[level + 1] if level < top else 0
            now = dict.fromkeys(
                cell
                for cell in range(gpus // size)
                if all(gpu not in taken for gpu in range(cell * size, (cell + 1) * size))
            )
            fresh = sum(not above or cell * size // above not in whole for cell in now)
            owed = sum(
                total.get(level, 0) - sum(each == level for each, _ in self.cells[vc])
                for vc, total in self.total.items()
            )
            spare = spare * (above // size) + fresh - owed
            if spare < 0:
                return False
            whole = now
        return True
