"""Where in its data a pass is, and how a later process gets there again without reading it twice.

A pass over a map-style DataLoader continues by its sampler (`skep_job.data.samplers`). The
order of samples is the same with workers; what workers draw for augmentation is not, since they
begin anew. Loaders and datasets with `state_dict` and `load_state_dict` continue by these;
sequences by their index; anything else is read again and thrown away, with a warning. What data
sets of libraries count from pass to pass is kept too (`skep_job.data.own_counts`).
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from skep_job.data import samplers
from skep_job.data.own_counts import Met, has_state, keeping_workers, streaming_state
from skep_job.data.samplers import Plan
from skep_job.state import random_state

Notice = Callable[[str], None]


class Generators:
    """The torch generators that loaders draw from, by where in the script their passes are.

    A loader other than the one at work has one too, which a later process has to set when it gets
    there. It does so if the generator is then as the first process found it: one that the script
    made anew meanwhile, with a seed of its own for each epoch, is left as it is.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[Any, str]]] = {}  # with what each was at first
        self._saved: dict[str, list[list[str]]] = {}

    def load(self, saved: dict[str, list[list[str]]]) -> None:
        """Take over what `save` returned in an earlier process."""
        self._saved = saved

    def save(self) -> dict[str, list[list[str]]]:
        """Return, as JSON, what every generator was at first and is."""
        known = {
            where: [[first, random_state.text(each.get_state())] for each, first in generators]
            for where, generators in self._known.items()
        }
        return self._saved | known

    def meet(self, where: str, source: Any) -> None:
        """Note the generators of a loader at the beginning of a pass, and set them if need be.

        Args:
            where: The place of the pass in the script.
            source: What the pass is over; what is no loader is passed over.
        """
        if not is_loader(source):
            return
        saved = self._saved.pop(where, [])
        known = {id(each): first for met in self._known.values() for each, first in met}
        now = []
        for number, generator in enumerate(generators(source)):
            first = known.get(id(generator))
            if first is None:
                first = random_state.text(generator.get_state())
                if number < len(saved) and saved[number][0] == first:
                    generator.set_state(random_state.tensor(saved[number][1]))
            now.append((generator, first))
        if now:
            self._known[where] = now


class Feed:
    """One pass over `source`, beginning at its first batch or where `saved` says."""

    def __init__(
        self,
        source: Any,
        notice: Notice,
        saved: dict[str, Any] | None = None,
        met: Met | None = None,
    ) -> None:
        self.source = source
        self.consumed = self._skipped = 0 if saved is None else int(saved["consumed"])
        self._notice = notice
        self._counts = met.counts if met is not None else None
        # Whose workers began in an earlier process, with the draw of their seed.
        self._seeded = keeping_workers(source) if met is not None and met.again else None
        self._counted: Any = None  # before the pass
        self._loader = is_loader(source)
        self._generators = generators(source) if self._loader else []
        done: Callable[[], int] = lambda: self.consumed - self._skipped  # noqa: E731
        self._stateful = streaming_state(source, done) or _stateful(source, self._loader)
        self._saved = saved
        self._begin: list[random_state.State] = []  # at the moments of skep_job.data.samplers
        self._by_sampler = self._loader and self._stateful is None and is_map_style(source)
        self._iteration = getattr(source, "iteration", None) if self._loader else None

    def position(self) -> dict[str, Any]:
        """Return what a later process needs; `own` is for the tree encoder, the rest is JSON."""
        return {
            "consumed": self.consumed,
            "begin": self._begin,
            "now": [random_state.text(generator.get_state()) for generator in self._generators],
            "iteration": self._iteration if isinstance(self._iteration, int) else None,
            "own": self._stateful.state_dict() if self._stateful is not None else None,
            "counted": self._counted,
        }

    def batches(
        self, now: random_state.State | None, arrived: Callable[[], None] | None = None
    ) -> Iterator[Any]:
        """Yield the batches that are left.

        `consumed` is the caller's to count.

        Args:
            now: The generators at the saved moment; None: the pass begins at its first batch.
            arrived: Called when the pass is where it was, before anything is read for it.
        """
        saved = self._saved
        self._take_counts(saved)
        if saved is None or now is None:
            yield from self._whole() if self._seeded is None else self._seeded_before(self._seeded)
            return
        self._begin = saved["begin"]
        self._recall(0)
        if saved["iteration"] is not None and isinstance(self._iteration, int):
            self.source.iteration = self._iteration = saved["iteration"]
        state = {**now, "own": saved["now"]}

        def arrive() -> None:
            random_state.restore(state, self._generators)
            if arrived is not None:
                arrived()

        yield from self._rest(saved, arrive)

    def _whole(self) -> Iterator[Any]:
        if self._by_sampler:
            yield from samplers.batches(self.source, Plan(self._remember, 0, None))
        else:
            self._remember(0)
            yield from self.source

    def _seeded_before(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of a loader whose workers stay, without a draw for the workers."""
        import torch

        if self._stateful is self.source and is_map_style(self.source):
            # It draws an order when its workers begin, too: they begin, and the pass begins anew.
            before = random_state.capture(self._generators)
            iter(self.source)
            random_state.restore(before, self._generators)
            yield from self._whole()
            return
        own, loader.generator = loader.generator, torch.Generator()
        batches = self._whole()
        try:
            first = list(itertools.islice(batches, 1))
        finally:
            loader.generator = own
        yield from first
        yield from batches

    def _take_counts(self, saved: dict[str, Any] | None) -> None:
        """Have the data set count from where it did, and remember from where that is."""
        counts = self._counts
        if counts is None:
            return
        if saved is not None and saved.get("counted") is not None:
            counts.put(saved["counted"])
        if self._stateful is None:
            self._counted = counts.take()
        counts.begun()
        if counts.unsure:
            self._notice(counts.unsure)
            counts.unsure = ""

    def _rest(self, saved: dict[str, Any], arrive: Callable[[], None]) -> Iterator[Any]:
        skip = self.consumed
        if self._stateful is not None and saved["own"] is not None:
            self._tell_of_workers()
            self._stateful.load_state_dict(saved["own"])
            if self._loader and inspect.isgeneratorfunction(type(self.source).__iter__):
                # It makes its iterator, and draws for it, when the first batch is asked for.
                plan = Plan(lambda _: None, 0, lambda _: arrive())
                yield from samplers.batches(self.source, plan)
                return
            iterator = iter(self.source)
            arrive()
            yield from iterator
        elif self._by_sampler:
            self._tell_of_workers()
            plan = Plan(self._recall, skip, lambda done: self._arrive(done, arrive))
            yield from samplers.batches(self.source, plan)
        elif not self._loader and _is_sequence(self.source):
            arrive()
            yield from (self.source[index] for index in range(skip, len(self.source)))
        else:
            self._notice(
                f"reading {skip} batches again to get back to where the data was; give the "
                "dataset state_dict() and load_state_dict() to avoid it (num_workers=0), or use "
                "torchdata's StatefulDataLoader"
            )
            iterator = iter(self.source)
            done = sum(1 for _ in itertools.islice(iterator, skip))
            self._arrive(done, arrive)
            yield from iterator

    def _tell_of_workers(self) -> None:
        if self.consumed and self._loader and self.source.num_workers:
            self._notice(
                "the loader's workers draw random numbers anew: the samples come in the order "
                "they had, what is random in them (augmentation) is not what it would have been"
            )

    def _remember(self, moment: int) -> None:
        del self._begin[moment:]
        self._begin.append(random_state.capture(self._generators))

    def _recall(self, moment: int) -> None:
        random_state.restore(self._begin[moment], self._generators)

    def _arrive(self, skipped: int, arrive: Callable[[], None]) -> None:
        if skipped < self.consumed:
            self._notice(
                f"the data ended after {skipped} batches where {self.consumed} had been used: "
                "it is not what it was, and this pass ends here"
            )
        arrive()


def is_loader(source: Any) -> bool:
    """Return whether `source` is a DataLoader of torch, or derived from one."""
    module = sys.modules.get("torch.utils.data.dataloader")
    return module is not None and isinstance(source, module.DataLoader)


def is_map_style(loader: Any) -> bool:
    """Return whether a loader's dataset has an index, so that its sampler decides the order."""
    from torch.utils.data import IterableDataset

    return not isinstance(loader.dataset, IterableDataset)


def _is_sequence(source: Any) -> bool:
    module = sys.modules.get("torch.utils.data")
    if module is not None and isinstance(source, module.IterableDataset):
        return False  # It inherits an index that it has not.
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not _is_dict(source)


def _is_dict(source: Any) -> bool:
    return hasattr(source, "keys")


def _stateful(source: Any, loader: bool) -> Any:
    """Return what can say where it is: the loader or its dataset, or None."""
    if _has_state(source):
        return source
    if loader and not source.num_workers and _has_state(source.dataset):
        # Only an iterable dataset's state is a position.
        return None if is_map_style(source) else source.dataset
    return None


def _has_state(source: Any) -> bool:
    if getattr(source, "use_stateful_dataloader", True) is False:
        return False  # Accelerate's loaders have the methods in any case.
    return has_state(source)


def generators(loader: Any) -> list[Any]:
    """Return the torch generators that the loader and its samplers draw from, each once."""
    import torch

    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (loader, loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    found: dict[int, Any] = {}
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator):
            found.setdefault(id(generator), generator)
    return list(found.values())
