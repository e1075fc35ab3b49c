"""Says in the job's log where the training writes what a TensorBoard shows.

`skep show` finds the lines there, and `skep tensorboard` shows those folders.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from types import ModuleType
from typing import Any

from skep_job.observe.import_watcher import ImportWatcher

MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
FOLDERS_MAX = 8
"""Of one process: a script that makes a writer for each epoch must not fill its log."""
LINE = "[skep] tensorboard: "
ATTRIBUTES = ("log_dir", "logdir")

_told: dict[str, bool] = {}


def watch() -> None:
    """Tell of each folder from the import of a library of TensorBoard's on."""
    ImportWatcher(dict.fromkeys(MODULES, _hook)).install()


def _hook(module: ModuleType) -> None:
    writer: Any = getattr(module, "SummaryWriter", None)
    if writer is None:
        return
    original = writer.__init__

    @functools.wraps(original)
    def telling(self: Any, *words: Any, **options: Any) -> None:
        original(self, *words, **options)
        with contextlib.suppress(Exception):  # Nothing of a job may fail for our sake.
            _tell(next(getattr(self, each) for each in ATTRIBUTES if hasattr(self, each)))

    writer.__init__ = telling


def _tell(folder: Any) -> None:
    path = os.path.abspath(os.fspath(folder))
    if path in _told or len(_told) >= FOLDERS_MAX or not path.isprintable():
        return
    _told[path] = True
    sys.stderr.write(f"{LINE}{path}\n")
    sys.stderr.flush()
