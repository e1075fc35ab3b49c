"""Skep for loops with Hugging Face's accelerate: one line after `prepare`.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
follow(accelerator)
for epoch in range(3):
    for batch in loader:
        ...

Or the five lines, with `run.epochs` and `run.batches` around the loops, and `track`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import skep_job
from skep_job.cooperate.begin import made
from skep_job.cooperate.run import Extra, Run

_followed: Run | None = None


def follow(accelerator: Any, checkpoint_every: float | str | None = None, keep: int = 2) -> Run:
    """Have the script's own loops over prepared loaders be those of a run.

    A pass over a loader while the first model is in training mode is training; any other is not
    touched. In a process that goes on, passes that are done yield nothing, and the one that the
    training was in yields what is left of it. What the script does between passes (an evaluation)
    is done again.

    `enumerate` in the script's module is one whose numbers go on there, for scripts that count
    their windows of accumulation by them.

    Args:
        accelerator: An `Accelerator`, after its `prepare`.
        checkpoint_every: As for `skep_job.init`.
        keep: As for `skep_job.init`.

    Returns:
        The run. The script needs nothing of it, but for what accelerate does not know: an average
        of the weights is kept by `follow(accelerator).track(ema=average)`.
    """
    global _followed  # noqa: PLW0603  a process has one run
    run = made()
    if run is not None and run is _followed:
        run.close()
    else:
        run = _followed = skep_job.init(checkpoint_every=checkpoint_every, keep=keep)
        track(run, accelerator)
    for loader in accelerator._dataloaders:
        _follow(loader, run, accelerator)
    sys._getframe(1).f_globals.setdefault("enumerate", Numbers)
    return run


class Numbers(enumerate):  # type: ignore[type-arg]
    """`enumerate`, with numbers that go on in a pass over a loader that goes on."""

    def __new__(cls, iterable: Iterable[Any], start: int = 0) -> Numbers:
        """Begin at `start`, and at a later number if batches of the pass are done."""
        # A progress bar of tqdm has the loader within.
        within = getattr(iterable, "__dict__", {}).get("iterable", iterable)
        done = getattr(type(within), "skep_done", None)
        return super().__new__(cls, iterable, start + (done(within) if done is not None else 0))


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

    def trains() -> bool:
        return not accelerator._models or bool(accelerator._models[0].training)

    def iterate(self: Any) -> Iterator[Any]:
        if run.in_batches or not trains():
            made: Iterator[Any] = kind.__iter__(self)
            return made
        return iter(run.batches(self))

    def done(self: Any) -> int:
        return 0 if run.in_batches or not trains() else run.batches(self).first

    followed = type(kind.__name__, (kind,), {"__iter__": iterate, "skep_done": done})
    # Prepared loaders have a `__class__` of their own, for `isinstance`, which cannot be set.
    vars(object)["__class__"].__set__(loader, followed)
