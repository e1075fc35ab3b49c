"""What decides the next mini-batches and is in no `state_dict()`.

Gradients that are being accumulated, which parameters are frozen, which modules evaluate, buffers
that are not persistent and have changed, and parameters of a tracked optimizer that no tracked
module has. `Beside.take` returns them at a boundary, `Beside.put` puts them back.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

from skep_job.shards.pieces import as_split
from skep_job.state.piece import is_shard

Saved = dict[str, dict[str, Any]]
"""By the name of the tracked thing; lists, dicts, text and tensors."""


class Beside:
    """What one process's tracked things have beside their states. For the training thread."""

    def __init__(self, tracked: dict[str, Any]) -> None:
        """`tracked` are the tracked things by name, before a state is loaded into them."""
        self._tracked = tracked
        self._noted = {
            (name, path): (weakref.ref(buffer), _version(buffer))
            for name, module in self._modules()
            for path, buffer in _unsaved_buffers(module)
        }

    def take(self) -> Saved:
        """Return what there is now; its tensors are the script's own."""
        saved: Saved = {}
        met: set[int] = set()
        for name, module in self._modules():
            parameters = list(module.named_parameters())
            met.update(id(parameter) for _, parameter in parameters)
            saved[name] = {
                "gradients": {path: _gradient(p) for path, p in parameters if p.grad is not None},
                "frozen": [path for path, p in parameters if not p.requires_grad],
                "evaluating": [path for path, each in module.named_modules() if not each.training],
                "buffers": dict(self._changed_buffers(name, module)),
            }
        for name, optimizer in self._optimizers():
            loose = {path: p for path, p in _parameters(optimizer) if id(p) not in met}
            met.update(id(parameter) for parameter in loose.values())
            saved[name] = {
                "loose": loose,
                "gradients": {
                    path: _gradient(p) for path, p in loose.items() if p.grad is not None
                },
            }
        return saved

    def put(self, saved: Saved, *, gradients: bool) -> None:
        """Put back what was saved.

        Args:
            saved: What `take` returned; empty: nothing is put back. It is used up if the gradients
                are put back.
            gradients: Whether gradients are put back, too.
        """
        if not saved:
            return
        import torch

        with torch.inference_mode(False), torch.no_grad():
            for name, module in self._modules():
                if name in saved:
                    _put_module(module, saved[name], gradients=gradients)
            for name, optimizer in self._optimizers():
                if name in saved:
                    _put_loose(optimizer, saved[name], gradients=gradients)

    def _modules(self) -> Iterator[tuple[str, Any]]:
        nn = sys.modules.get("torch.nn")
        for name, part in self._tracked.items():
            if nn is not None and isinstance(part, nn.Module):
                yield name, part

    def _optimizers(self) -> Iterator[tuple[str, Any]]:
        for name, part in self._tracked.items():
            if isinstance(getattr(part, "param_groups", None), list):
                yield name, part

    def _changed_buffers(self, name: str, module: Any) -> Iterator[tuple[str, Any]]:
        for path, buffer in _unsaved_buffers(module):
            noted, version = self._noted.get((name, path), (_nothing, None))
            if noted() is not buffer or version != _version(buffer):
                yield path, buffer


def _put_module(module: Any, saved: dict[str, Any], *, gradients: bool) -> None:
    frozen, evaluating = set(saved["frozen"]), set(saved["evaluating"])
    if module.training == ("" in evaluating):
        module.train("" not in evaluating)  # A wrapper may have more to do than set the mark.
    for path, each in module.named_modules():
        if each.training == (path in evaluating):
            each.training = path not in evaluating
    for path, parameter in module.named_parameters():
        if parameter.requires_grad == (path in frozen):
            parameter.requires_grad_(path not in frozen)
        if gradients:
            _put_gradient(parameter, saved["gradients"].get(path))
    for path, value in saved["buffers"].items():
        owner, _, name = path.rpartition(".")
        holder = module.get_submodule(owner)
        buffer = holder._buffers.get(name)
        if buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype:
            buffer.copy_(value)
        else:
            device = value.device if buffer is None else buffer.device
            holder._buffers[name] = value.to(device, copy=True)


def _put_loose(optimizer: Any, saved: dict[str, Any], *, gradients: bool) -> None:
    for path, parameter in _parameters(optimizer):
        if path in saved["loose"]:
            parameter.copy_(as_split(parameter, saved["loose"][path]))
            if gradients:
                _put_gradient(parameter, saved["gradients"].get(path))


def _gradient(parameter: Any) -> list[Any]:
    """Return the gradient and, unless it is contiguous, its strides.

    Sums over a gradient, as clipping makes them, are taken in the order of its memory.
    """
    gradient = parameter.grad
    if is_shard(gradient) or gradient.is_sparse or gradient.is_contiguous():
        return [gradient, None]
    return [gradient, list(gradient.stride())]


def _put_gradient(parameter: Any, saved: list[Any] | None) -> None:
    if saved is None:
        parameter.grad = None
        return
    import torch

    gradient, stride = saved
    gradient = as_split(parameter, gradient)
    own = parameter.grad
    if is_shard(gradient):
        if own is None:
            parameter.grad = gradient.clone()
        else:
            own.copy_(gradient)
        return
    if gradient.is_sparse or own is None or own.is_sparse or not _is_like(own, gradient, stride):
        if stride is not None:
            empty = torch.empty_strided(
                gradient.shape, stride, dtype=gradient.dtype, device=parameter.device
            )
            gradient = empty.copy_(gradient)
        parameter.grad = gradient.to(parameter.device)
    else:
        own.copy_(gradient)  # It may be a view into a buffer of DistributedDataParallel's.


def _is_like(own: Any, gradient: Any, stride: list[int] | None) -> bool:
    strides = tuple(stride) if stride is not None else gradient.stride()
    return bool(
        own.shape == gradient.shape and own.dtype == gradient.dtype and own.stride() == strides
    )


def _parameters(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an optimizer, by group and place in it."""
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            yield f"{number}.{place}", parameter


def _unsaved_buffers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the buffers that `state_dict` leaves out."""
    for path, each in module.named_modules():
        for name in sorted(each._non_persistent_buffers_set):
            buffer = each._buffers.get(name)
            if buffer is not None:
                yield f"{path}.{name}" if path else name, buffer


def _version(tensor: Any) -> int:
    """Return how often a tensor was changed in place, -1 where PyTorch does not count."""
    return -1 if tensor.is_inference() else int(tensor._version)


def _nothing() -> None:
    return None
