"""Which samples a rank gets, so that the job sees the same samples in the same order at any size.

The loader is made for global batches of GB samples, as in a job of one process. Rank r of n takes
samples [len * r // n, len * (r + 1) // n) of every global batch, before anything is read. The
order depends on the epoch and on the job's seed (or the seed of the loader's own generator) and on
nothing else, so that a newcomer draws the same one. Shares may differ by a sample: `weight` is what
a rank's mean gradient counts for in the global batch's, and 0 for a rank that has no sample of a
short last batch and is given one so that it can take part in the all-reduce.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple


class Share(NamedTuple):
    """A rank's part of one global batch."""

    indices: list[Any]
    weight: float


def share(batch: list[Any], rank: int, world: int) -> Share:
    """Return what `rank` of `world` takes of a global batch.

    Args:
        batch: The indices of its samples.
        rank: The rank.
        world: How many ranks there are.

    Returns:
        A rank that has no sample is given the first one, with weight 0.
    """
    size = len(batch)
    begin, end = size * rank // world, size * (rank + 1) // world
    if begin == end:
        return Share(batch[:1], 0.0)
    return Share(batch[begin:end], (end - begin) / size)


class Shares:
    """Stands in for a loader's batch sampler: yields this rank's indices from a position on."""

    def __init__(self, loader: Any, global_batch: int, seed: int) -> None:
        """Look at how the loader makes its batches.

        Args:
            loader: A DataLoader; `batches` puts this in the place of its batch sampler.
            global_batch: The samples of a mini-batch of all ranks together.
            seed: It decides the order, unless the loader's sampler has a generator.

        Raises:
            ValueError: The loader cannot be shared out.
        """
        self._sampler = _batch_sampler(loader, global_batch)
        self._loader = loader
        inner = getattr(self._sampler, "sampler", None)
        self._shuffler = inner if hasattr(inner, "generator") else None
        own = self._shuffler.generator if self._shuffler is not None else None
        self._seed = own.initial_seed() if own is not None else seed
        self._epoch, self._skip, self._rank, self._world = 0, 0, 0, 1
        self.weights: deque[float] = deque()
        """Of the batches that are on their way, in the loader's order."""

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        import torch

        if self._shuffler is not None:
            generator = torch.Generator()
            # A product, so that neighbouring seeds do not share epochs.
            generator.manual_seed((self._seed * 1_000_003 + self._epoch) % 2**63)
            self._shuffler.generator = generator
        inner = getattr(self._sampler, "sampler", None)
        set_epoch = getattr(inner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self._epoch)
        for number, batch in enumerate(self._sampler):
            if number >= self._skip:
                indices, weight = share(list(batch), self._rank, self._world)
                self.weights.append(weight)
                yield indices

    def batches(self, epoch: int, skip: int, rank: int, world: int) -> Iterator[Any]:
        """Return the loader's batches of this rank.

        Args:
            epoch: The number of the epoch, which decides the order of the samples.
            skip: How many batches of the epoch are done.
            rank: The rank.
            world: How many ranks there are.
        """
        self._epoch, self._skip, self._rank, self._world = epoch, skip, rank, world
        self.weights.clear()
        attributes = vars(self._loader)  # The loader itself refuses to have it set.
        original = attributes["batch_sampler"]
        attributes["batch_sampler"] = self
        try:
            iterator: Iterator[Any] = iter(self._loader)
        finally:
            attributes["batch_sampler"] = original
        return iterator


def _batch_sampler(loader: Any, global_batch: int) -> Any:
    module = sys.modules.get("torch.utils.data")
    if module is None or not isinstance(loader, module.DataLoader):
        reason = f"an elastic job's data come from a DataLoader, not a {type(loader).__name__}"
        raise ValueError(reason)
    if isinstance(loader.dataset, module.IterableDataset) or loader.batch_sampler is None:
        reason = (
            "an elastic job's loader needs a map-style dataset and a batch size: "
            "ranks take their shares by index"
        )
        raise ValueError(reason)
    if loader.batch_size is not None and loader.batch_size != global_batch:
        reason = (
            f"the loader's batch_size is {loader.batch_size} and the job's global_batch is "
            f"{global_batch}: give the loader the global batch, ranks take their shares of it"
        )
        raise ValueError(reason)
    distributed = sys.modules.get("torch.utils.data.distributed")
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if distributed is not None and isinstance(sampler, distributed.DistributedSampler):
        reason = "an elastic job's loader needs no DistributedSampler: Skep shares the data out"
        raise ValueError(reason)
    return loader.batch_sampler
