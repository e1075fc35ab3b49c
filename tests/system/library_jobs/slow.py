"""Runs a script as it is, and slowly while the file SLOW_FILE is there: `slow.py SCRIPT ARGUMENTS`.

What is done to a job then happens in the middle of its training, however fast the machine is.
With OWN_FOLDER the script has a copy of its folder, where it may write, and the hash of the weights
is printed here: scripts of others do not print one. What is in the folder BESIDE is then in the
copy too, and in the folders above it. With SEED the generators of random numbers begin with that
number.
"""

from __future__ import annotations

import itertools
import os
import random
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

STEP_S = 0.4
LATER_S = 2.0
FIRST = 40
"""Steps after which a step is longer: successors that start on a busy machine then find a job."""
numbers = itertools.count(1)
optimizers: dict[int, Any] = {}


def wait(*words: Any) -> None:
    """Make a step of the optimizer long."""
    number = next(numbers)
    if words:
        optimizers[id(words[0])] = words[0]
    if os.path.exists(os.environ.get("SLOW_FILE", "")):
        # tidy: allow sleep because the training itself is slow, and nothing waits for it by time
        time.sleep(STEP_S if number < FIRST else LATER_S)


def weights() -> Iterator[Any]:
    """Yield what the optimizers train: largest first, in whatever order they step."""
    trained = []
    for each in optimizers.values():
        if hasattr(each, "param_groups"):
            trained.append([weight for group in each.param_groups for weight in group["params"]])
        else:
            trained.append([variable.value for variable in each._trainable_variables])
    for weights in sorted(trained, key=lambda each: -sum(weight.numel() for weight in each)):
        yield from weights


def seed(number: int) -> None:
    """Seed all that draws random numbers in this process."""
    import numpy as np

    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def copied(script: Path) -> Path:
    """Return a script in a copy of its folder, with the files that it looks for around it."""
    top = Path(tempfile.mkdtemp())
    folder = top / "of" / "the" / "script" / script.parent.name
    shutil.copytree(script.parent, folder, ignore=shutil.ignore_patterns(".git"))
    beside = os.environ.get("BESIDE")
    if beside:
        for each in (folder, *list(folder.parents)[:3]):
            for there in Path(beside).iterdir():
                if not (each / there.name).exists():
                    (each / there.name).symlink_to(there)
    return folder / script.name


def of_keras() -> None:
    """Make a step of an optimizer of Keras long."""
    import keras

    apply = keras.optimizers.Optimizer.apply

    def slowly(self: Any, *words: Any, **options: Any) -> Any:
        wait(self)
        return apply(self, *words, **options)

    keras.optimizers.Optimizer.apply = slowly


def run(script: str) -> None:
    """Run a script in its own folder's copy, or where this is."""
    own = "OWN_FOLDER" in os.environ
    if own:
        script = str(copied(Path(script)))
        os.chdir(Path(script).parent)
    if "SEED" in os.environ:
        seed(int(os.environ["SEED"]))
    sys.argv[0] = script
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    if own:
        from digest import tell

        tell(weights())


if __name__ == "__main__":
    torch.set_num_threads(1)
    register_optimizer_step_post_hook(wait)
    if "KERAS_BACKEND" in os.environ:
        of_keras()
    sys.argv = sys.argv[1:]
    run(sys.argv[0])
