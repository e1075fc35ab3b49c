"""Skep for the Trainer of Lightning.

    from skep_job.lightning_callback import SkepCallback
    trainer = Trainer(..., callbacks=[SkepCallback()])
    trainer.fit(model, loader)

The job can then be stored, moved and begun again, and goes on in the middle of its epoch: from the
checkpoint that the Trainer itself writes where Skep asks for it. What that lacks is kept beside it:
the random generators, and where the loaders are.
"""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from skep_job.cooperate.begin import begin_library
from skep_job.cooperate.run import Extra
from skep_job.data.loader_place import LoaderPlace, placeable
from skep_job.observe.reporter import complain

FILE = "lightning.ckpt"


class SkepCallback(Callback):  # type: ignore[misc]
    """Hands the Trainer's batches to Skep, and reports what the model logs."""

    def __init__(self, checkpoint_every: float | str | None = None, keep: int = 2) -> None:
        """Prepare; nothing is written before the Trainer trains.

        Args:
            checkpoint_every: The time between two checkpoints that are written without being asked
                for: seconds, or text such as "10m". None: there are none.
            keep: How many checkpoints stay.
        """
        super().__init__()
        self._run = begin_library(checkpoint_every, keep)
        self._trainer: Any = None
        self._stepped = -1  # the Trainer's count of steps after the batch before
        self._loaders: list[LoaderPlace] = []

    def newest(self) -> None:
        """Return what scripts gave as `ckpt_path`: the Trainer has it without."""

    # --- what the Trainer calls -------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or not self._run.active:
            return
        self._trainer = trainer
        # Last, so that all callbacks have seen a batch before it is stored. Another list: this one
        # is iterated over.
        trainer.callbacks = [each for each in trainer.callbacks if each is not self] + [self]
        self._run.keep("lightning.loaders", Extra(self._places, lambda _: None))
        folder = self._run.begin(self._save, pl_module)
        if folder is not None:
            self._go_on_from(folder / FILE)
        if callable(signal.getsignal(signal.SIGTERM)):  # Skep's: it ends all ranks at a boundary.
            trainer._signal_connector._sigterm_notifier_fn = _pass
        fit_loop = trainer.fit_loop
        original = fit_loop._load_combined_loader_states

        @functools.wraps(original)
        def place_loaders() -> None:
            original()
            self._place_loaders(fit_loop._combined_loader.flattened)

        fit_loop._load_combined_loader_states = place_loaders

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._stepped = int(trainer.global_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self._trainer is not None:
            self._run.forget()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        step = int(trainer.global_step)
        within, self._stepped = step == self._stepped, step
        if self._trainer is None:
            return
        if not within:
            self._run.tick()
        self._run.tell(trainer.callback_metrics)
        if not within and not _has_more_to_do(trainer):
            self._run.between()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._trainer is not None:
            self._run.end()

    # --- inside -----------------------------------------------------------------------------------

    def _go_on_from(self, file: Path) -> None:
        connector = self._trainer._checkpoint_connector
        original = connector._restore_modules_and_callbacks

        @functools.wraps(original)
        def restore(_path: Any = None, *words: Any, **options: Any) -> Any:
            # Once: a test behind the training reads a checkpoint of the script's.
            connector._restore_modules_and_callbacks = original
            return original(str(file), *words, **options)

        connector._restore_modules_and_callbacks = restore

    def _place_loaders(self, loaders: list[Any]) -> None:
        """Have the loaders of the training, which are made, go on where they were."""
        places = self._run.taken("lightning.loaders")
        self._loaders = []
        for loader in loaders:
            if hasattr(loader, "state_dict"):
                continue  # Lightning keeps its place.
            if not placeable(loader):
                complain(
                    "the place in the data is kept of loaders over map-style datasets, and of those"
                    f" with state_dict(); a pass over a {type(loader).__name__} begins anew"
                )
                continue
            self._loaders.append(LoaderPlace(loader))
        if places is None:
            return
        if len(places) != len(self._loaders):
            complain("the loaders are not those of the checkpoint: their passes begin anew")
            self._run.arrive()
            return
        for loader_place, place in zip(self._loaders, places, strict=True):
            loader_place.put(place, self._run.arrive)
        if not places:
            self._run.arrive()

    def _places(self) -> list[dict[str, Any]]:
        consumed = int(self._trainer.fit_loop.epoch_loop.batch_progress.current.ready)
        return [each.take(consumed) for each in self._loaders]

    def _save(self, folder: Path) -> None:
        self._trainer.save_checkpoint(folder / FILE)


def _has_more_to_do(trainer: Any) -> bool:
    """Return whether something follows the batch before the next: an evaluation, or a new epoch.

    The Trainer's own checkpoint within that does not say that it is still to be done.
    """
    batches = trainer.num_training_batches
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if batches == 1:
        return False
    if progress.is_last_batch:
        return True
    every = trainer.val_check_batch
    validates = bool(trainer.enable_validation) and isinstance(every, int)
    return validates and progress.current.ready % every == 0


def _pass(_number: int, _frame: Any) -> None:
    """Do nothing where Lightning would end between two batches, without a checkpoint."""
