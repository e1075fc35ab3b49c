"""Skep for the Trainer of Lightning.

    from skep_job.lightning_callback import SkepCallback
    skep = SkepCallback()
    trainer = Trainer(..., callbacks=[skep])
    trainer.fit(model, loader, ckpt_path=skep.newest())

The Trainer writes and reads its own checkpoints, when Skep asks and when the job is told to end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from skep_job.cooperate.library_checkpoints import Keeper

KEEP = 2
"""Checkpoints kept: the newest, and the one before."""


class SkepCallback(Callback):  # type: ignore[misc]
    """Saves at the end of a batch when Skep wants it, and reports what the model logs."""

    def __init__(self) -> None:
        super().__init__()
        self._keeper = Keeper()
        self._stepped = -1  # the Trainer's count of steps after the batch before

    def newest(self) -> str | None:
        """Return what `ckpt_path` has to be: None at the first attempt."""
        path = self._keeper.newest()
        return str(path) if path is not None else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._keeper.begin()
        self._stepped = int(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        step = int(trainer.global_step)
        self._keeper.report(trainer.callback_metrics, step)
        within, self._stepped = step == self._stepped, step
        if trainer.received_sigterm:  # Lightning has a handler of its own.
            self._keeper.ends = True
        if within and trainer.accumulate_grad_batches > 1:
            return  # The Trainer's checkpoints have no gradients: it saves when the window ends.
        if not self._keeper.wants():
            return
        folder = self._keeper.folder
        assert folder is not None, "nothing is wanted without a folder"
        path = folder / f"step-{step:012}.ckpt"
        part = path.with_suffix(".part")
        trainer.save_checkpoint(part)
        if trainer.is_global_zero:
            part.rename(path)
            self._prune(path)
        self._keeper.saved(path, step)

    def _prune(self, newest: Path) -> None:
        older = sorted(newest.parent.glob("step-*.ckpt"))[:-KEEP]
        for path in older:
            path.unlink(missing_ok=True)
