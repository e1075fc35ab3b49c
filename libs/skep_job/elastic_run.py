"""A run of a job that may change its size: `skep_job.init(elastic=(1, 8), global_batch=256)`.

    run = skep_job.init(elastic=(1, 8), global_batch=256)
    model = run.ddp(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, opt=optimizer)
    for epoch in run.epochs(90):
        for x, y in run.batches(loader):        # the loader is made for the global batch
            ...                                 # a loss that is a mean over x, as ever

The samples of every global batch, their order, and the learning rate are the same at any size, so
the result is too, up to the order in which numbers are added; what depends on the samples that
happen to be on one rank (batch statistics, dropout) is not.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from typing import Any

import skep_job
from skep_job import chance, warm
from skep_job.chance import State
from skep_job.control import Control
from skep_job.elastic import PATIENCE_S, Gang, Rules, Seat
from skep_job.elastic_data import Shares
from skep_job.plain import Alone, Under
from skep_job.run import Batches, Run
from skep_job.tally import Tally


class ElasticRun(Run):
    """One rank's training, as the script drives it."""

    def __init__(self, rules: Rules, seed: int = 0, base: Under | None = None) -> None:
        """Not for scripts: `init` makes the run."""
        self._base = base or Alone()
        super().__init__(_Elastic(self._base))
        observation = skep_job.current()
        self._tally: Tally | None = observation.tally if observation is not None else None
        control: Control | None = observation.control if observation is not None else None
        self.gang = Gang(rules, control, self._tallied, _Whole(self))
        self.weight = 1.0
        """What this rank's mean gradient counts for in that of the current global batch."""
        self._seed = seed
        self._shares: dict[int, Shares] = {}  # by id(loader), which is held beside it
        self._loaders: list[Any] = []
        self._aim_of_newcomer: dict[str, Any] | None = None

    @property
    def seat(self) -> Seat:
        """This process's place in the gang, which may be another after every mini-batch."""
        return self.gang.seat

    def ddp(self, model: Any, **options: Any) -> Any:
        """Return `model`, its gradients those of the whole global batch at any size of the gang.

        `options` are DistributedDataParallel's.
        """
        from skep_job.elastic_model import ElasticModel

        wrapped = ElasticModel(model, lambda: self.weight, options)
        self.gang.adopt(wrapped)
        return wrapped

    def batches(self, source: Any) -> Batches:
        """Iterate over this rank's shares of the global batches of a DataLoader.

        Raises ValueError for a loader that cannot be shared out.
        """
        shares = self._shares.get(id(source))
        if shares is None:
            shares = Shares(source, self.gang.rules.global_batch, self._seed)
            self._shares[id(source)] = shares
            self._loaders.append(source)
        return super().batches(_Shared(self, source, shares))

    def _tallied(self) -> int:
        return self._tally.reached() if self._tally is not None else self._steps

    def _count_from(self, counted: int) -> None:
        """Have the agent see a newcomer where the others are."""
        tally = self._tally
        if tally is None:
            return
        for level in tally.levels.values():
            level.steps += counted - tally.steps
        tally.steps = counted


class _Shared:
    """The source of one pass: this rank's batches, whatever rank it is from one to the next."""

    def __init__(self, run: ElasticRun, loader: Any, shares: Shares) -> None:
        self._run = run
        self._loader = loader
        self._shares = shares
        self._handed_out = 0

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, int]:
        """Return the position, for `feeds`: the same for every rank."""
        return {"handed_out": self._handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin there."""
        self._handed_out = int(state["handed_out"])

    def __iter__(self) -> Iterator[Any]:
        run, gang, shares = self._run, self._run.gang, self._shares
        while True:
            rank, world = gang.seat.rank, gang.seat.world
            batches = shares.batches(run._epoch, self._handed_out, rank, world)
            for batch in batches:
                run.weight = shares.weights.popleft()
                self._handed_out += 1
                yield batch
                # Here and not before: the loop has done with the batch, its step included.
                if gang.due and gang.boundary():
                    break  # What the loader has fetched ahead is of the old shares.
            else:
                self._handed_out = 0
                return


class _Whole:
    """The state that all members share."""

    def __init__(self, run: ElasticRun) -> None:
        self._run = run

    @property
    def tracked(self) -> dict[str, Any]:
        return self._run.tracked

    def place(self) -> dict[str, Any]:
        return {**self._run.place(), "chance": {}, "counted": self._run._tallied()}

    def go_to(self, place: dict[str, Any]) -> None:
        run = self._run
        # Its own chance, not a member's: two ranks with the same dropout would learn less.
        run._aim_of_newcomer = {**place, "chance": chance.capture()}
        run._count_from(place["counted"])

    def warm_up(self) -> None:
        warm.warm_up(self.tracked, None)


class _Elastic:
    """What an elastic run needs of what it runs under: a newcomer begins where the others are."""

    active = True

    def __init__(self, base: Under) -> None:
        self._base = base

    def start(self, run: Run) -> dict[str, Any] | None:
        assert isinstance(run, ElasticRun)
        if run.gang.is_member:
            return self._base.start(run)
        run.gang.settle()
        return run._aim_of_newcomer

    def arrive(self, chance: State) -> None:
        self._base.arrive(chance)

    def count(self) -> None:
        self._base.count()

    def boundary(self) -> None:
        self._base.boundary()

    def report(self, values: dict[str, Any]) -> None:
        self._base.report(values)

    def shield(self, on: bool) -> None:
        self._base.shield(on)

    def notice(self, text: str) -> None:
        self._base.notice(text)


def init(
    elastic: tuple[int, int],
    global_batch: int,
    *,
    seed: int = 0,
    backend: str = "",
    patience_s: float = PATIENCE_S,
    base: Under | None = None,
) -> ElasticRun:
    """Join the gang as the environment says, or be ready to; return the run.

    `elastic` are the smallest and the largest number of ranks; `global_batch` the samples of a
    mini-batch of all ranks together. `seed` decides the order of samples, for loaders without a
    generator of their own. `backend` is torch's choice for the device if empty. `patience_s` bounds
    how long a rank that could train waits for others during a change. Raises ValueError.
    """
    low, high = elastic
    if not 1 <= low <= high:
        reason = f"elastic is {elastic}, expected the smallest and the largest number of ranks"
        raise ValueError(reason)
    if global_batch < 1 or patience_s <= 0:
        reason = f"global_batch is {global_batch} and patience_s {patience_s}: both are above 0"
        raise ValueError(reason)
    run = ElasticRun(Rules((low, high), global_batch, backend, patience_s), seed, base)
    run.gang.open(os.environ)
    atexit.register(run.gang.close)
    return run
