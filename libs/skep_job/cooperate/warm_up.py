"""One step without meaning, so that what a process does lazily is done before it matters.

Memory is allocated and touched, kernels are chosen, the optimizer makes its state. The successor's
parameters, buffers, optimizer state and generators are overwritten by what arrives, or it never
trains; what is not overwritten (buffers that are not saved) is put back here.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from skep_job.link.orders import describe
from skep_job.observe.reporter import complain

ELEMENTWISE = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "ASGD",
)
"""Optimizers of PyTorch whose step changes each element by itself."""


def warm_up(tracked: dict[str, Any], step: Callable[[], object] | None) -> bool:
    """Do one step of training without meaning; return whether it went well.

    Args:
        tracked: By name. Models run and optimizers step; gradients are dropped afterwards, and
            buffers that are not saved are put back.
        step: The user's own step; None: one is guessed.

    Returns:
        False if the step failed; the optimizers have then stepped with gradients of zero.
    """
    import torch

    modules = [part for part in tracked.values() if isinstance(part, torch.nn.Module)]
    optimizers = [part for part in tracked.values() if isinstance(part, torch.optim.Optimizer)]
    unsaved = [
        (buffer, buffer.clone()) for module in modules for buffer in _unsaved_buffers(module)
    ]
    went_well = True
    try:
        if step is not None:
            step()
        else:
            _guess(modules, optimizers)
    except Exception as error:
        if step is not None:
            complain(f"the warm-up step failed; it goes on without: {describe(error)}")
        went_well = False
        _touch(optimizers)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    for module in modules:
        module.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in unsaved:
            buffer.copy_(before)
    return went_well


def make_state(tracked: dict[str, Any]) -> None:
    """Have optimizers make their state, and touch its memory, without a word to other ranks.

    It is done for those of PyTorch that change each element by itself. Others may need numbers of
    all ranks for a step, and a rank whose step fails would leave the rest waiting. Parameters may
    change: what arrives overwrites them.

    Args:
        tracked: By name; whose parameters may be split over ranks.
    """
    import torch

    kinds = {getattr(torch.optim, name) for name in ELEMENTWISE if hasattr(torch.optim, name)}
    optimizers = [part for part in tracked.values() if type(part) in kinds]
    _touch(optimizers)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def _guess(modules: list[Any], optimizers: list[Any]) -> None:
    """Run the first module on a batch of the script's most likely loader, forward and back."""
    batch = _example()
    output = None
    if modules and batch is not None:
        model = modules[0]
        parameter = next(model.parameters(), None)
        device = parameter.device if parameter is not None else "cpu"
        output = _call(model, batch, device)
    loss = _scalar(output)
    if loss is None:
        _touch(optimizers)
        return
    loss.backward()
    _fill_gradients(optimizers)
    for optimizer in optimizers:
        optimizer.step()


def _touch(optimizers: list[Any]) -> None:
    """Have the optimizers make their state: a step with gradients of zero."""
    _fill_gradients(optimizers)
    for optimizer in optimizers:
        try:
            optimizer.step()
        except Exception:  # noqa: S112  one that needs a closure, for example
            continue


def _fill_gradients(optimizers: list[Any]) -> None:
    import torch

    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)


def _example() -> Any:
    """Return the first samples of a data loader of the script, or None.

    Taken from the dataset itself, so that no sampler, which may count its passes, is touched.
    """
    dataloader = sys.modules.get("torch.utils.data.dataloader")
    if dataloader is None:
        return None
    # By type: to ask an instance for its class makes some modules warn, or import.
    kind = dataloader.DataLoader
    loaders = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    loaders = [each for each in loaders if hasattr(each.dataset, "__getitem__")]
    # Whoever shuffles trains; among those the first.
    loaders.sort(key=lambda each: type(each.sampler).__name__ == "SequentialSampler")
    for loader in loaders:
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if not isinstance(size, int):
            continue
        samples = [loader.dataset[index] for index in range(min(size, len(loader.dataset)))]
        return loader.collate_fn(samples)
    return None


def _call(model: Any, batch: Any, device: Any) -> Any:
    batch = _to(batch, device)
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (list, tuple)) else batch)


def _to(value: Any, device: Any) -> Any:
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to(each, device) for key, each in value.items()}
    return [_to(each, device) for each in value] if isinstance(value, (list, tuple)) else value


def _scalar(output: Any) -> Any:
    """Return the sum of the first tensor in `output` that has a gradient, or None."""
    import torch

    if isinstance(output, torch.Tensor):
        return output.float().sum() if output.requires_grad else None
    if hasattr(output, "values") and callable(output.values):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return next((found for each in output if (found := _scalar(each)) is not None), None)
    return None


def _unsaved_buffers(module: Any) -> list[Any]:
    saved = {tensor.data_ptr() for tensor in module.state_dict().values() if _is_tensor(tensor)}
    return [buffer for buffer in module.buffers() if buffer.data_ptr() not in saved]


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
