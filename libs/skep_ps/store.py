"""A server's memory: chunks with their optimizer state, and the arithmetic on them.

Every operation rounds once: a product and a sum are never one instruction. The result is thus the
same bits whatever the vector width, the thread count, the place of an element in its chunk, or the
server. (`tensor.add_(other, alpha=x)` would not be: PyTorch fuses the two where the processor can.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skep_ps.placement import Spec

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Hyper(NamedTuple):
    """One parameter group's numbers, as `torch.optim.SGD` names them."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool


class Kept:
    """A chunk at its server."""

    __slots__ = ("momentum", "updates", "values")

    def __init__(self, values: Tensor, momentum: Tensor | None, updates: int) -> None:
        self.values, self.momentum = values, momentum
        self.updates = updates
        """Whether the momentum has begun: the first update takes the gradient as it is."""

    def parts(self, *, state: bool) -> list[memoryview]:
        """Return its memory, as it goes over the wire.

        Args:
            state: Whether the momentum is part of it.
        """
        if state and self.momentum is not None:
            return [view(self.values), view(self.momentum)]
        return [view(self.values)]

    def take(self, other: Kept, updates: int, *, state: bool) -> None:
        """Be what `other` is; its momentum too, if that came with it.

        Args:
            other: It is copied, and stays as it is.
            updates: How many updates its momentum has had; 0: it has not begun.
            state: Whether the momentum came with it.
        """
        self.values.copy_(other.values)
        if state and self.momentum is not None and other.momentum is not None:
            self.momentum.copy_(other.momentum)
        self.updates = updates


def view(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU. The tensor must outlive it."""
    count = tensor.numel() * tensor.element_size()
    if not count:
        return memoryview(b"")
    assert tensor.is_contiguous()
    assert tensor.device.type == "cpu"
    memory = (ctypes.c_char * count).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B")


class Store:
    """What a server keeps. Not for several threads at once."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.chunks = spec.chunks()
        self.kept: dict[int, Kept] = {}
        self.gradients: dict[int, dict[int, Tensor]] = {}  # by worker, then by chunk
        self._scratch: dict[tuple[torch.dtype, int], Tensor] = {}

    def empty(self, chunk: int) -> Tensor:
        """Return memory for the elements of a chunk, every page of it touched.

        The first touch of fresh memory costs ten times what copying into it does.
        """
        segment = self.spec.segments[self.chunks[chunk].segment]
        return torch.zeros(self.chunks[chunk].elements, dtype=DTYPES[segment.dtype])

    def fresh(self, chunk: int) -> Kept:
        """Return a chunk without content."""
        return Kept(self.empty(chunk), self.empty(chunk) if self.spec.momentum else None, 0)

    def group(self, chunk: int) -> int:
        """Return the parameter group of a chunk."""
        return self.spec.segments[self.chunks[chunk].segment].group

    def update(
        self, chunk: int, gradients: Sequence[Tensor], hypers: Sequence[Hyper], divisor: int
    ) -> None:
        """Sum gradients in the order given, divide, and do SGD's step (PyTorch's formula).

        Args:
            chunk: The number of the chunk, whose values and momentum are changed.
            gradients: At least one; the first is overwritten.
            hypers: The numbers of each parameter group.
            divisor: What the sum is divided by: the number of workers for a mean, else 1.
        """
        kept, hyper = self.kept[chunk], hypers[self.group(chunk)]
        values, scratch = kept.values, self._scratch_like(kept.values)
        total = gradients[0]
        for gradient in gradients[1:]:
            total.add_(gradient)
        if divisor != 1:
            total.div_(divisor)
        if hyper.maximize:
            total.neg_()
        if hyper.weight_decay:
            total.add_(torch.mul(values, hyper.weight_decay, out=scratch))
        if hyper.momentum:
            assert kept.momentum is not None, "this job's chunks carry no momentum"
            momentum = kept.momentum
            if kept.updates:
                momentum.mul_(hyper.momentum)
                if hyper.dampening:
                    momentum.add_(torch.mul(total, 1 - hyper.dampening, out=scratch))
                else:
                    momentum.add_(total)
            else:
                momentum.copy_(total)
            if hyper.nesterov:
                total.add_(torch.mul(momentum, hyper.momentum, out=scratch))
            else:
                total = momentum
        values.sub_(torch.mul(total, hyper.lr, out=scratch))
        kept.updates += 1

    def _scratch_like(self, values: Tensor) -> Tensor:
        key = (values.dtype, values.numel())
        if key not in self._scratch:
            self._scratch[key] = torch.empty_like(values)
        return self._scratch[key]
