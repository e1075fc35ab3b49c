"""Where a loader is that a library iterates: seen from its sampler, and taken up again there.

A stand-in for the sampler stays in the loader. At the beginning of each pass it remembers the
random generators at the two moments of `skep_job.data.samplers`; the library says how many batches
of the pass are done. A later process sets the generators at both moments, passes over what is done,
and then has the generators as they were at the place: the batches that follow are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skep_job.data import data_position
from skep_job.data.samplers import Plan, Sampler, holder
from skep_job.state import random_state


class LoaderPlace:
    """The place in one DataLoader of torch, which has a sampler."""

    def __init__(self, loader: Any) -> None:
        """Put the stand-in into `loader`."""
        self._generators = data_position.generators(loader)
        self._begin: list[random_state.State] = []
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        attributes = vars(holder(loader, name))  # The loader refuses an assignment.
        self._sampler = Staying(attributes[name])
        self._sampler.plan = self._plan = Plan(self._remember, 0, None)
        attributes[name] = self._sampler

    def take(self, consumed: int) -> dict[str, Any]:
        """Return the place.

        Args:
            consumed: The batches of this pass that are done.
        """
        now = [random_state.text(each.get_state()) for each in self._generators]
        return {"consumed": consumed, "begin": self._begin, "now": now}

    def put(self, place: dict[str, Any], arrived: Callable[[], None]) -> None:
        """Have the pass that begins next go on at a place.

        Args:
            place: What `take` returned in an earlier process.
            arrived: Called when the loader is there, before anything is read for it; it sets the
                generators that are not the loader's own.
        """
        self._begin = list(place["begin"])

        def recall(moment: int) -> None:
            if moment < len(self._begin):
                random_state.restore(self._begin[moment], self._generators)

        def arrive(_: int) -> None:
            self._sampler.plan = self._plan
            arrived()
            for each, text in zip(self._generators, place["now"], strict=True):
                each.set_state(random_state.tensor(text))

        self._sampler.plan = Plan(recall, int(place["consumed"]), arrive)

    def _remember(self, moment: int) -> None:
        del self._begin[moment:]
        self._begin.append(random_state.capture(self._generators))


class Staying(Sampler):
    """A stand-in for every pass: the first of two iterators of a pass is its beginning."""

    def __iter__(self) -> Any:
        made = super().__iter__()
        return self._opening(made)

    def _opening(self, made: Any) -> Any:
        self.opened = False  # What is asked for now is the first index; the next pass opens again.
        yield from made


def placeable(loader: Any) -> bool:
    """Return whether the place in `loader` is seen from its sampler."""
    return data_position.is_loader(loader) and data_position.is_map_style(loader)
