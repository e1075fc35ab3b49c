"""Skep for loops with Hugging Face's accelerate: the five lines, after `prepare`.

run = skep_job.init()
track(run, accelerator)
for epoch in run.epochs(3):
    for batch in run.batches(loader):      # the prepared one
        ...
"""

from __future__ import annotations

from typing import Any

from skep_job.cooperate.run import Extra, Run


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
