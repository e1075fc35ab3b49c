"""Runs a script as it is, and slowly while the file SLOW_FILE is there: `slow.py SCRIPT ARGUMENTS`.

What is done to a job then happens in the middle of its training, however fast the machine is.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

STEP_S = 0.4


def wait(*_: Any) -> None:
    """Make a step of the optimizer long."""
    if os.path.exists(os.environ.get("SLOW_FILE", "")):
        # tidy: allow sleep because the training itself is slow, and nothing waits for it by time
        time.sleep(STEP_S)


def of_keras() -> None:
    """Make a step of an optimizer of Keras long."""
    import keras

    apply = keras.optimizers.Optimizer.apply

    def slowly(self: Any, *words: Any, **options: Any) -> Any:
        wait()
        return apply(self, *words, **options)

    keras.optimizers.Optimizer.apply = slowly


if __name__ == "__main__":
    torch.set_num_threads(1)
    register_optimizer_step_post_hook(wait)
    if "KERAS_BACKEND" in os.environ:
        of_keras()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
