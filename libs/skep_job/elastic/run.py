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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from skep_job.cooperate import warm_up
from skep_job.cooperate.run import Alone, Batches, Run, Under, UsageError
from skep_job.elastic.data_shares import Shares
from skep_job.elastic.gang import Gang
from skep_job.elastic.parts import Rules, Seat
from skep_job.observe.step_counter import Tally
from skep_job.state import random_state

if TYPE_CHECKING:
    from skep_job.shards.regroup import Regroup


class ElasticRun(Run):
    """One rank's training, as the script drives it."""

    def __init__(self, rules: Rules, warm_up: Callable[[], object] | None = None) -> None:
        """Not for scripts: `skep_job.init` makes the run."""
        super().__init__()
        self._tally: Tally | None = None
        self.gang = Gang(rules, self._tallied, _Whole(self, warm_up))
        self.membership = _Membership(self)
        self.weight = 1.0
        """What this rank's mean gradient counts for in that of the current global batch."""
        self._shares: dict[int, Shares] = {}  # by id(loader), which is held beside it
        self._loaders: list[Any] = []
        self._ddp = False
        self._split: Regroup | None = None
        self._aim_of_newcomer: dict[str, Any] = {}

    def join(self, under: Under | None) -> None:
        """Join the gang as the environment says, or be ready to. Called once, by `init`.

        Args:
            under: The agent's side of the run; None: there is no agent.
        """
        self._under = under or Alone()
        observation = None
        if under is not None:
            from skep_job.observe.observation import current

            observation = current()
        if observation is not None:
            self._tally = tally = observation.tally
            self.gang.step_ns = lambda: tally.count().step_ns
        self.gang.open(os.environ, observation.control if observation is not None else None)
        atexit.register(self.gang.close)

    @property
    def seat(self) -> Seat:
        """This process's place in the gang, which may be another after every mini-batch."""
        return self.gang.seat

    def ddp(self, model: Any, **options: Any) -> Any:
        """Return `model`, its gradients those of the whole global batch at any size of the gang.

        Args:
            model: A module.
            options: DistributedDataParallel's.

        Raises:
            UsageError: The run has models that are split.
        """
        from skep_job.elastic.model import ElasticModel

        if self.gang.regroup is not None:
            reason = "ddp() after shard(): a job's models are all split, or all on every rank"
            raise UsageError(reason)
        self._ddp = True
        wrapped = ElasticModel(model, lambda: self.weight, options)
        self.gang.adopt(wrapped)
        return wrapped

    def shard(self, model: Any, split: Callable[[Any], object]) -> Any:
        """Return `model`, split over the ranks by `split` anew at any size of the gang.

        With one rank it is not split. Make optimizers of the result's parameters, and ask for
        `parameters()` where they are used: after a change of the size they are others.

        Args:
            model: A module that is not split.
            split: It applies `fully_shard` or `parallelize_module` to a module, over the ranks of
                the default process group. It returns the mesh (1-D) over which the data are split
                if not every rank has data of its own.

        Raises:
            UsageError: The run has models that are on every rank, or PyTorch is too old.
            TypeError: The model cannot be copied.
            NotThere: The model cannot be split over the ranks that there are.
        """
        import torch
        from torch.distributed import fsdp

        if not hasattr(getattr(fsdp, "FSDPModule", None), "set_force_sum_reduction_for_comms"):
            reason = f"shard() needs PyTorch 2.8 or later, and this is {torch.__version__}"
            raise UsageError(reason)
        from skep_job.shards.model import SplitModel
        from skep_job.shards.regroup import Regroup

        if self._ddp:
            reason = "shard() after ddp(): a job's models are all split, or all on every rank"
            raise UsageError(reason)
        if self._split is None:
            self._split = self.gang.regroup = Regroup(lambda: self.tracked)
        wrapped = SplitModel(model, split, lambda: self.weight)
        self._split.models.append(wrapped)
        self.gang.adopt(wrapped)
        return wrapped

    @property
    def data_seat(self) -> tuple[int, int]:
        """Which share of every global batch is this rank's, and how many shares there are."""
        return self._split.models[0].data_seat if self._split is not None else self.seat[1:]

    def batches(self, source: Any) -> Batches:
        """Iterate over this rank's shares of the global batches of a DataLoader.

        Args:
            source: A DataLoader that is made for the global batch.

        Raises:
            ValueError: The loader cannot be shared out.
            UsageError: It is called within another loop over batches.
        """
        shares = self._shares.get(id(source))
        if shares is None:
            shares = Shares(source, self.gang.rules.global_batch, self.gang.rules.seed)
            self._shares[id(source)] = shares
            self._loaders.append(source)
        return super().batches(_Shared(self, source, shares))

    def _start(self) -> None:
        begins = not self._started
        super()._start()
        if begins and self.gang.is_first and self.seat.world > 1:
            _check_same(self._steps)

    def _tallied(self) -> int:
        return self._tally.reached() if self._tally is not None else self._steps


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
        """Return the position, for `data_position`: the same for every rank."""
        return {"handed_out": self._handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin there."""
        self._handed_out = int(state["handed_out"])

    def __iter__(self) -> Iterator[Any]:
        run, gang, shares = self._run, self._run.gang, self._shares
        while True:
            rank, world = run.data_seat
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

    def __init__(self, run: ElasticRun, warm_up: Callable[[], object] | None) -> None:
        self._run = run
        self._warm_up = warm_up

    @property
    def tracked(self) -> dict[str, Any]:
        return self._run.tracked

    def place(self) -> dict[str, Any]:
        run = self._run
        return {**run.place(), "chance": {}, "counted": run._tallied(), "sums": run._under.sums()}

    def go_to(self, place: dict[str, Any]) -> None:
        run = self._run
        # Its own chance, not a member's: two ranks with the same dropout would learn less.
        run._aim_of_newcomer = {**place, "chance": random_state.capture()}
        run._under.go_on_from(place.get("sums", {}))
        if run._tally is not None:
            run._tally.steps = place["counted"]  # The agent sees it where the others are.

    def warm_up(self) -> None:
        warm_up.warm_up(self.tracked, self._warm_up)


class _Membership:
    """What `cooperate` asks of a rank of a gang."""

    def __init__(self, run: ElasticRun) -> None:
        self._run = run

    def regroup(self, leave: Callable[[], None], begin: Callable[[], None]) -> None:
        self._run.gang.follow(_Follower(leave, begin))

    def joins(self) -> bool:
        return not self._run.gang.is_member

    def join(self) -> dict[str, Any]:
        self._run.gang.settle()
        return self._run._aim_of_newcomer

    def world(self) -> int:
        return self._run.seat.world

    def is_whole(self) -> bool:
        return self._run.gang.is_whole()

    def writes(self) -> bool:
        return self._run.seat.rank == 0 or self.is_split()

    def attends(self) -> bool:
        return False

    def sizes(self) -> tuple[int, ...]:
        return ()

    def rank(self) -> int:
        return self._run.seat.rank

    def is_split(self) -> bool:
        return self._run.gang.regroup is not None


class _Follower:
    """What has a group of its own beside the models'."""

    def __init__(self, leave: Callable[[], None], begin: Callable[[], None]) -> None:
        self._leave, self._begin = leave, begin

    def release(self) -> None:
        self._leave()

    def rebuild(self, seat: Seat, *, first: bool) -> None:
        assert not first
        self._begin()  # Also where this rank is the last one: it finds that there are no others.


def _check_same(steps: int) -> None:
    """Check that all ranks of the first group begin at the same mini-batch.

    Args:
        steps: The mini-batches that are done by this rank's checkpoint.

    Raises:
        UsageError: They do not.
    """
    import torch.distributed as dist

    theirs: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(theirs, steps)
    if len(set(theirs)) > 1:
        reason = (
            f"the ranks begin after mini-batches {theirs}: they must find the same checkpoints, so "
            "SKEP_CHECKPOINTS has to be a folder that all nodes share"
        )
        raise UsageError(reason)
