"""What a job asks of the cells, where it is placed, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from skep.ids import AttemptId
from skep.wire.spec import JobSpec

OPPORTUNISTIC = -1
"""The priority of jobs that yield to any guaranteed job (HiveD section 3.3)."""
FREE = -2


class Spot(NamedTuple):
    """One worker's GPUs: leaves of one node, and the level of the VC's cell that covers them.

    `level` is 0 where no cell of a VC covers them: the worker runs opportunistically.
    """

    leaves: tuple[int, ...]
    level: int = 0


Portion = tuple[str, tuple[Spot, ...]]
"""What a gang has in one chain: its name, and the spots there."""


class Placement(NamedTuple):
    """Where a gang goes: one spot for each worker, in the order asked for.

    `chain` and `spots` are all of it, unless the gang is mixed: then `further` are its portions in
    other chains, whose workers follow those of `spots`.

    Jobs in `victims` hold some of it, and all their GPUs must be free first. Jobs in `cancels`
    claim some of it for a lower priority, and lose the claim. Jobs in `demoted` keep running where
    they are as opportunistic jobs, and lose their hold on the VC's cells (lazy preemption).
    """

    chain: str
    spots: tuple[Spot, ...]
    victims: tuple[AttemptId, ...] = ()
    cancels: tuple[AttemptId, ...] = ()
    demoted: tuple[AttemptId, ...] = ()
    further: tuple[Portion, ...] = ()

    @property
    def portions(self) -> tuple[Portion, ...]:
        """Return what the gang has in each chain, in the order of its workers."""
        return ((self.chain, self.spots), *self.further)


class Request(NamedTuple):
    """What a job asks for: `members` are (workers, GPUs of each).

    All are on GPUs of one chain, unless the job may be `mixed` and no chain holds it.
    `priority` is OPPORTUNISTIC or 0 and more, meaningful within the VC. `gpu` names the type (or
    several: `v100|p100`), empty for any; `pin` the pinned cell it must be in. `within` names the
    level of the cell all workers should share: a `hard` wish waits for it. `lazy`: as a victim it
    may be demoted in place.
    """

    job: AttemptId
    vc: str
    priority: int
    members: tuple[tuple[int, int], ...]
    gpu: str = ""
    pin: str = ""
    within: str = ""
    hard: bool = False
    lazy: bool = False
    mixed: bool = False

    @classmethod
    def of(cls, spec: JobSpec, name: AttemptId, *, guaranteed: bool, workers: int = 0) -> Request:
        """Return what a job asks of the cells.

        Args:
            spec: The job's specification.
            name: The name under which it is to hold them.
            guaranteed: Whether it asks for its VC's own cells, else for idle GPUs.
            workers: How many workers, where that is not the number in the specification; 0: it is.
        """
        wanted, topology = spec.resources, spec.resources.topology
        return cls(
            name,
            spec.vc,
            spec.priority if guaranteed else OPPORTUNISTIC,
            ((workers or wanted.workers, wanted.gpus),),
            wanted.gpu_type or "",
            wanted.pinned if guaranteed else "",
            topology.within if topology is not None else "",
            topology is not None and topology.hard,
            spec.demotable,
            guaranteed and wanted.mixed,
        )

    @property
    def guaranteed(self) -> bool:
        """Return whether it asks for cells of its VC."""
        return self.priority > OPPORTUNISTIC

    @property
    def sizes(self) -> list[int]:
        """Return the GPUs of each worker, in the order asked for."""
        return [gpus for workers, gpus in self.members for _ in range(workers)]


class Partner(NamedTuple):
    """One of several jobs on the GPUs of one hold: what it was submitted with, and what it uses."""

    asked: int
    lazy: bool
    pin: str
    leaves: tuple[int, ...]


class CellHold:
    """What one job, or several that share under one recorded decision, hold in one chain.

    A mixed gang has `further` portions in other chains. It shares with no other job.
    A hold *claims* its spots while other jobs still use some of them; else it uses them. `asked` is
    the priority that its job was submitted with: a demoted job has the `priority` OPPORTUNISTIC.
    """

    __slots__ = (
        "asked",
        "chain",
        "claims",
        "further",
        "job",
        "lazy",
        "partners",
        "pin",
        "priority",
        "spots",
        "vc",
    )

    def __init__(self, request: Request, placement: Placement, *, claims: bool = False) -> None:
        """Describe the hold; the state of the chain says what of it is in force.

        Args:
            request: What the job asked for.
            placement: The chain and the GPUs.
            claims: Whether it claims its spots, else it uses them.
        """
        self.job, self.vc = request.job, request.vc
        self.priority = self.asked = request.priority
        self.chain, self.spots = placement.chain, placement.spots
        self.further = placement.further
        self.pin, self.lazy, self.claims = request.pin, request.lazy, claims
        self.partners: dict[AttemptId, Partner] = {}
        """By name, the jobs on its GPUs where there are several (see `sets`); `job` is their
        leader."""

    @property
    def guaranteed(self) -> bool:
        """Return whether its GPUs are in cells of its VC."""
        return self.priority > OPPORTUNISTIC

    @property
    def gpus(self) -> int:
        """Return how many GPUs it holds."""
        return sum(len(spot.leaves) for _, spots in self.portions for spot in spots)

    @property
    def portions(self) -> tuple[Portion, ...]:
        """Return what it has in each chain, in the order of its workers."""
        return ((self.chain, self.spots), *self.further)

    def spots_in(self, chain: str) -> tuple[Spot, ...]:
        """Return what it has in a chain; nothing where it has no GPUs there."""
        return next((spots for name, spots in self.portions if name == chain), ())

    def have(self, portions: Iterable[Portion]) -> None:
        """Replace what it has; portions without spots are dropped.

        Args:
            portions: By chain, in the order of the workers. With nothing left the chain stays.
        """
        left = [(name, spots) for name, spots in portions if spots]
        (self.chain, self.spots), *further = left or [(self.chain, ())]
        self.further = tuple(further)

    def levelled(self, levels: Iterable[int]) -> tuple[Portion, ...]:
        """Return what it has, with other levels of the cells that cover it.

        Args:
            levels: One for each spot, in the order of the workers.

        Raises:
            ValueError: There are fewer levels, or more.
        """
        rest = iter(tuple(levels))
        made = tuple(
            (name, tuple(Spot(spot.leaves, next(rest, -1)) for spot in spots))
            for name, spots in self.portions
        )
        if next(rest, None) is not None or any(s.level < 0 for _, spots in made for s in spots):
            message = f"{self.job}: a level for each spot"
            raise ValueError(message)
        return made
