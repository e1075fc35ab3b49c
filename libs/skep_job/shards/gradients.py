"""Gradients that FSDP2 keeps whole on each rank until they are reduced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def fsdp_modules(module: Any) -> Iterator[Any]:
    """Yield the modules that `fully_shard` was applied to."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is not None and callable(getattr(module, "modules", None)):
        yield from (each for each in module.modules() if isinstance(each, kind))


def has_own_gradients(tracked: dict[str, Any]) -> bool:
    """Return whether some gradient is this rank's alone, and in no parameter's `grad`."""
    return any(
        getattr(parameter, "unsharded_accumulated_grad", None) is not None
        for part in tracked.values()
        for module in fsdp_modules(part)
        for group in _groups(module)
        for parameter in getattr(group, "fsdp_params", ())
    )


def _groups(module: Any) -> Any:
    # Public nowhere; where a later PyTorch has it elsewhere, such a checkpoint is refused by none.
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    return getattr(state, "_fsdp_param_groups", None) or ()
