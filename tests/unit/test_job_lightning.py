"""When the callback for Lightning has the Trainer save, with as much of Lightning as it needs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Keeper:
    """Always wants a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ends = folder, False
        self.steps: list[int] = []

    def begin(self) -> None: ...

    def report(self, values: object, step: int) -> None: ...

    def wants(self) -> bool:
        return True

    def saved(self, path: Path, step: int) -> None:
        self.steps.append(step)


@pytest.mark.parametrize("window, expected", [(1, [5, 6, 7, 8, 9]), (3, [5, 6])])
def test_the_trainer_saves_when_a_window_of_accumulation_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, expected: list[int]
) -> None:
    package, lightning = ModuleType("lightning"), ModuleType("lightning.pytorch")
    setattr(lightning, "Callback", object)  # noqa: B010  a module that is made up has no types
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", lightning)
    monkeypatch.delitem(sys.modules, "skep_job.lightning_callback", raising=False)
    module: Any = importlib.import_module("skep_job.lightning_callback")
    monkeypatch.setitem(sys.modules, "skep_job.lightning_callback", module)
    monkeypatch.setattr(module, "Keeper", lambda: Keeper(tmp_path))
    callback = module.SkepCallback()
    trainer = SimpleNamespace(
        global_step=4,
        accumulate_grad_batches=window,
        callback_metrics={},
        received_sigterm=False,
        is_global_zero=True,
        save_checkpoint=lambda path: path.touch(),
    )
    callback.on_train_start(trainer, None)
    for batch in range(5):
        trainer.global_step += (batch + 1) % window == 0 or batch == 4
        callback.on_train_batch_end(trainer, None)
    assert callback._keeper.steps == expected
