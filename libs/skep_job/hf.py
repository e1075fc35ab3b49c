"""Skep for the Trainer of Hugging Face's transformers.

    from skep_job.hf import SkepCallback
    skep = SkepCallback()
    args = TrainingArguments(output_dir=skep.folder or "out", ...)
    trainer = Trainer(..., args=args, callbacks=[skep])
    trainer.train(resume_from_checkpoint=skep.newest())

The Trainer writes and reads its own checkpoints, when Skep asks and when the job is told to end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from skep_job.cooperate.library_checkpoints import Keeper


class SkepCallback(TrainerCallback):  # type: ignore[misc]
    """Saves at the end of a step when Skep wants it, and reports what the Trainer logs."""

    def __init__(self) -> None:
        self._keeper = Keeper()
        folder = self._keeper.folder
        self.folder = str(folder) if folder is not None else None
        """What `output_dir` has to be under Skep, None outside."""

    def newest(self) -> str | None:
        """Return what `resume_from_checkpoint` has to be: None at the first attempt."""
        path = self._keeper.newest()
        return str(path) if path is not None else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._keeper.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._keeper.wants():
            control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        path = Path(args.output_dir, f"checkpoint-{state.global_step}")
        self._keeper.saved(path.absolute(), state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._keeper.report(logs or {}, state.global_step)
