"""Prints every loss of a Trainer, to the bit, so that two runs can be compared."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class Losses(TrainerCallback):  # type: ignore[misc]
    """Prints what the Trainer logs, on its first rank."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print the loss of a step."""
        if state.is_world_process_zero and "loss" in (logs or {}):
            print("loss", state.global_step, float(logs["loss"]).hex(), flush=True)
