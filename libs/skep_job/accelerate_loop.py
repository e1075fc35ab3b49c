"""Skep for loops with Hugging Face's accelerate: one line after `prepare`.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
follow(accelerator)
for epoch in range(3):
    for batch in loader:
        ...

Or the five lines, with `run.epochs` and `run.batches` around the loops, and `track`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import skep_job
from skep_job.cooperate.run import Extra, Run


def follow(accelerator: Any, checkpoint_every: float | str | None = None, keep: int = 2) -> Run:
    """Have the script's own loops over prepared loaders be those of a run.

    A pass over a loader while the first model is in training mode is training; any other is not
    touched. In a process that goes on, passes that are done yield nothing, and the one that the
    training was in yields what is left of it. What the script does between passes (an evaluation)
    is done again.

    Args:
        accelerator: An `Accelerator`, after its `prepare`.
        checkpoint_every: As for `skep_job.init`.
        keep: As for `skep_job.init`.

    Returns:
        The run, of which the script needs nothing.
    """
    run: Run = skep_job.init(checkpoint_every=checkpoint_every, keep=keep)
    track(run, accelerator)
    for loader in accelerator._dataloaders:
        _follow(loader, run, accelerator)
    return run


def track(run: Run, accelerator: Any) -> None:
    """Track all that was prepared with `accelerator`, and what it checkpoints for the user.

    Args:
        run: The parts are tracked in it under names such as `model0` and `opt0`.
        accelerator: An `Accelerator`, after its `prepare`.
    """
    kinds = {
        "model": accelerator._models,
        "opt": accelerator._optimizers,
        "sched": accelerator._schedulers,
        "own": accelerator._custom_objects,
    }
    parts = {
        f"{kind}{number}": part for kind, all_ in kinds.items() for number, part in enumerate(all_)
    }
    if accelerator.scaler is not None:
        parts["scaler"] = accelerator.scaler
    run.track(**parts)
    # By it `accumulate` knows whether the mini-batch ends a window.
    run.keep(
        "accelerate.step",
        Extra(lambda: int(accelerator.step), lambda step: setattr(accelerator, "step", step)),
    )


def _follow(loader: Any, run: Run, accelerator: Any) -> None:
    kind = type(loader)

    def iterate(self: Any) -> Iterator[Any]:
        trains = not accelerator._models or accelerator._models[0].training
        if run.in_batches or not trains:
            made: Iterator[Any] = kind.__iter__(self)
            return made
        return iter(run.batches(self))

    followed = type(kind.__name__, (kind,), {"__iter__": iterate})
    # Prepared loaders have a `__class__` of their own, for `isinstance`, which cannot be set.
    vars(object)["__class__"].__set__(loader, followed)
