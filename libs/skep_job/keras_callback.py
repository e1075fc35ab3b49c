"""Skep for `fit` of Keras 3 on torch.

    from skep_job.keras_callback import SkepCallback
    model.fit(x, y, epochs=9, callbacks=[SkepCallback()])

The job can then be stored, moved and begun again, and goes on in the middle of its epoch. Kept are
all variables (of the model, its optimizer, its metrics and its seed generators), the history, the
random generators, and the place in the data.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import torch
from keras.src.backend.torch.trainer import TorchEpochIterator

from skep_job.cooperate.begin import begin_library
from skep_job.cooperate.run import Extra
from skep_job.data.loader_place import LoaderPlace, placeable
from skep_job.observe.reporter import complain
from skep_job.state import random_state

FILE = "keras.pt"


class SkepCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Hands the batches of `fit` to Skep, and reports its logs."""

    at_work: SkepCallback | None = None
    """The one whose `fit` iterates over its training data at this moment."""

    def __init__(self, checkpoint_every: float | str | None = None, keep: int = 2) -> None:
        """Prepare; nothing is written before `fit`.

        Args:
            checkpoint_every: The time between two checkpoints that are written without being asked
                for: seconds, or text such as "10m". None: there are none.
            keep: How many checkpoints stay.
        """
        super().__init__()
        self._run = begin_library(checkpoint_every, keep)
        self._epoch = self._consumed = 0
        self._place: LoaderPlace | None = None
        self._here: dict[str, Any] = {}
        """The place after the latest batch, before anything was drawn for the next one."""
        self._aim: dict[str, Any] | None = None
        self._state: dict[str, Any] | None = None

    # --- what `fit` calls -------------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._run.active:
            return
        self._run.keep("keras.place", Extra(lambda: self._here, lambda _: None))
        folder = self._run.begin(self._save, self.model)
        if folder is None:
            return
        self._aim = self._run.taken("keras.place")
        self._state = torch.load(folder / FILE, weights_only=True)
        self._run.forget()
        self.model._initial_epoch = self._aim["epoch"] if self._aim else 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._run.active:
            return
        self._epoch, self._consumed, self._place = epoch, 0, None
        self._here = self._take()
        SkepCallback.at_work = self
        if self._state is not None:
            self._load(self._state)
            self._state = None
            if self._aim is not None and not self._aim["consumed"]:
                random_state.restore(self._aim["chance"])
                self._aim = None
        elif self._run.done:
            self._run.between()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Here all callbacks have seen the batch before; what was drawn since is put back.
        if self._run.active and batch and batch == self._consumed:
            self._run.between()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._run.active:
            return
        self._consumed = batch + 1
        self._run.tick()
        self._run.tell(logs or {})
        self._here = self._take()

    def on_test_begin(self, logs: Any = None) -> None:
        SkepCallback.at_work = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        SkepCallback.at_work = None

    def on_train_end(self, logs: Any = None) -> None:
        if self._run.active:
            self._run.end()
            self.model._initial_epoch = None

    # --- what the iterator over an epoch calls ----------------------------------------------------

    def meet(self, loader: Any) -> None:
        """Note the loader of the pass that begins, and have it go on if need be."""
        self._place = LoaderPlace(loader) if placeable(loader) else None
        if self._place is not None and self._aim is not None and self._aim["place"] is not None:
            chance = self._aim["chance"]
            self._place.put(self._aim["place"], lambda: random_state.restore(chance))

    def passed(self) -> dict[str, Any]:
        """Return, once, the place in the epoch up to which its batches are passed over."""
        aim, self._aim = self._aim, None
        if aim is None:
            return {"consumed": 0, "place": None}
        if aim["place"] is None:
            complain(
                f"reading {aim['consumed']} batches again to get back to where the data was: "
                "the place is kept of arrays, and of loaders over map-style datasets"
            )
        return aim

    # --- inside -----------------------------------------------------------------------------------

    def _take(self) -> dict[str, Any]:
        place = self._place.take(self._consumed) if self._place and self._consumed else None
        history = getattr(self.model, "history", None)
        return {
            "epoch": self._epoch,
            "consumed": self._consumed,
            "place": place,
            "chance": random_state.capture(),
            "history": [history.epoch, _plain(history.history)] if history is not None else None,
        }

    def _variables(self) -> list[Any]:
        model = self.model
        optimizer = model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        found = {id(v): v for v in (*model.variables, *optimizer.variables)}
        found |= {id(v): v for v in model.metrics_variables}
        return list(found.values())

    def _save(self, folder: Path) -> None:
        values = [variable.value.detach() for variable in self._variables()]
        torch.save({"variables": values}, folder / FILE)

    def _load(self, state: dict[str, Any]) -> None:
        variables = self._variables()
        if len(variables) != len(state["variables"]):
            theirs = len(state["variables"])
            reason = f"the model has {len(variables)} variables, and its checkpoint {theirs}"
            raise ValueError(reason)
        for variable, value in zip(variables, state["variables"], strict=True):
            variable.assign(value)
        history = self._aim["history"] if self._aim else None
        if history is not None:
            self.model.history.epoch[:] = history[0]
            self.model.history.history.update(history[1])


def _plain(values: dict[str, list[Any]]) -> dict[str, list[float]]:
    return {name: [float(value) for value in each] for name, each in values.items()}


def _hook() -> None:
    """Have the iterator over an epoch's data pass over what is done."""
    make, enumerate_ = TorchEpochIterator._get_iterator, TorchEpochIterator._enumerate_iterator

    @functools.wraps(make)
    def get_iterator(self: Any) -> Any:
        loader = make(self)
        if SkepCallback.at_work is not None:
            SkepCallback.at_work.meet(loader)
        return loader

    @functools.wraps(enumerate_)
    def enumerate_iterator(self: Any) -> Iterator[Any]:
        callback = SkepCallback.at_work
        steps = enumerate_(self)
        if callback is None:
            yield from steps
            return
        first = next(steps, None)  # The loader is made here, and learns of the place.
        aim = callback.passed()
        for number, step in enumerate(itertools.chain([] if first is None else [first], steps)):
            if number >= aim["consumed"]:
                yield step
            elif aim["place"] is None:
                next(step[2])
                if number + 1 == aim["consumed"]:
                    random_state.restore(aim["chance"])

    TorchEpochIterator._get_iterator = get_iterator
    TorchEpochIterator._enumerate_iterator = enumerate_iterator


_hook()
