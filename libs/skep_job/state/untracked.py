"""Finds what trains with the tracked things, and has a state that is not saved."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

LEVELS = 2
"""How deep a tracked thing is looked into: wrappers hold optimizers, schedules lists of others."""

AVERAGES = (
    ("torch.optim.swa_utils", "AveragedModel"),
    ("diffusers.training_utils", "EMAModel"),
    ("timm.utils.model_ema", "ModelEma"),
    ("timm.utils.model_ema", "ModelEmaV2"),
    ("timm.utils.model_ema", "ModelEmaV3"),
    ("torch_ema.ema", "ExponentialMovingAverage"),
    ("ema_pytorch.ema_pytorch", "EMA"),
)
"""What keeps averages of weights, by module and name."""

Kinds = tuple[type, ...]


def untracked(tracked: dict[str, Any]) -> list[str]:
    """Return the types of optimizers, schedules, scalers and averages that are not tracked.

    Only optimizers of tracked parameters count, and schedules of tracked optimizers. Looks at all
    objects, which takes some 20 ms.
    """
    if "torch" not in sys.modules or not tracked:
        return []
    optimizers = _kinds("torch.optim.optimizer", "Optimizer")
    schedules = _kinds("torch.optim.lr_scheduler", "LRScheduler")
    others = _kinds("torch.amp.grad_scaler", "GradScaler")
    for module, name in AVERAGES:
        others += _kinds(module, name)
    held = {id(each) for part in tracked.values() for each in _within(part, LEVELS, schedules)}
    parameters = {id(each) for part in tracked.values() for each in _parameters(part)}
    found: dict[str, None] = {}
    for each in gc.get_objects():
        # By type: to ask an instance for its class makes some modules warn, or import.
        kind = type(each)
        if not issubclass(kind, optimizers + schedules + others) or id(each) in held:
            continue
        if issubclass(kind, optimizers):
            counts = any(
                id(p) in parameters for group in each.param_groups for p in group["params"]
            )
        elif issubclass(kind, schedules):
            counts = id(each.optimizer) in held
        else:
            counts = bool(getattr(each, "_enabled", True))  # A scaler may be there and do nothing.
        if counts:
            found[kind.__name__] = None
    return sorted(found)


def _kinds(module: str, name: str) -> Kinds:
    kind = getattr(sys.modules.get(module), name, None)
    return (kind,) if isinstance(kind, type) else ()


def _within(part: Any, levels: int, schedules: Kinds) -> Iterator[Any]:
    """Yield a tracked thing and what it holds: of a schedule only others, not its optimizer."""
    yield part
    if levels:
        attributes = getattr(part, "__dict__", {}).values()
        for each in attributes:
            for inner in each if isinstance(each, (list, tuple)) else (each,):
                if not issubclass(type(part), schedules) or issubclass(type(inner), schedules):
                    yield from _within(inner, levels - 1, schedules)
    if callable(getattr(part, "modules", None)):
        yield from part.modules()


def _parameters(part: Any) -> Iterator[Any]:
    if callable(getattr(part, "named_parameters", None)):
        for _, parameter in part.named_parameters():
            yield parameter
