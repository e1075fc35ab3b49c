"""The model of an elastic job whose parameters are split: made anew for every gang.

FSDP2 and DTensor bind a module to the ranks that there are. So the script says how a module is
split, and the module is made again from a copy without memory for each gang that is formed. Its
gradients are sums over the ranks, each weighted by its share of the global batch.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from skep_job.link.orders import describe
from skep_job.shards.gradients import fsdp_modules
from skep_job.shards.pieces import NotThere
from skep_job.state.piece import is_shard, local_of

if TYPE_CHECKING:
    from skep_job.elastic.parts import Clock, Seat

Split = Callable[[nn.Module], object]
"""Applies `fully_shard` or `parallelize_module` over the ranks of the default process group.

It returns the mesh over which the data are split (1-D), or anything else: then all ranks have data
of their own."""


class SplitModel(nn.Module):
    """A thin wrapper around a module that `split` is applied to."""

    def __init__(self, module: nn.Module, split: Split, weight: Callable[[], float]) -> None:
        super().__init__()
        self.module = module
        self._split = split
        self._weight = weight
        self._bare = [_without_memory(module)]  # A list: it is no submodule.
        self._syncs = True
        self.unsynced = False
        """Whether the gradients are this rank's alone, accumulated under `no_sync`."""
        self.data_seat = (0, 1)
        """Which share of the data this rank has, and how many there are."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model on this rank's share."""
        output = self.module(*inputs, **named)
        if torch.is_grad_enabled():
            if self.unsynced and self._syncs:
                self.unsynced = False
            _weigh(output, self._weight())
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without reducing them.

        Until they are reduced, the gang does not change its size and stores no checkpoint.
        """
        parts = list(fsdp_modules(self.module))
        if not parts:
            yield
            return
        self._syncs, self.unsynced = False, True
        parts[0].set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._syncs = True
            parts[0].set_requires_gradient_sync(True)

    def release(self) -> None:
        """Do nothing: what this rank has is needed until the next gang has it."""

    def rebuild(self, seat: Seat, *, first: bool) -> None:
        """Split the module for the `first` gang, every rank with rank 0's values."""
        if not first:
            return  # `Regroup` has done that.
        if seat.world > 1:
            with torch.no_grad():
                for tensor in (*self.module.parameters(), *self.module.buffers()):
                    dist.broadcast(tensor, 0)
        self._apply_split(self.module, seat)

    def renew(self, seat: Seat, clock: Clock) -> None:
        """Make the module for another gang, without content.

        Buffers, modes and what is frozen are as they were.

        Args:
            seat: This rank's place in that gang.
            clock: It measures the parts: template, split, empty.

        Raises:
            NotThere: The module cannot be split over that gang.
        """
        old = self.module
        was = dict(old.named_parameters())
        device = next((local_of(each).device for each in was.values()), torch.device("cpu"))
        new = copy.deepcopy(self._bare[0])
        clock.part("template")
        self._apply_split(new, seat)
        clock.part("split")
        _with_memory(new, device)
        clock.part("empty")
        _copy_buffers(old, new)
        modes = {name: each.training for name, each in old.named_modules()}
        for name, each in new.named_modules():
            each.training = modes.get(name, each.training)
        for name, parameter in new.named_parameters():
            parameter.requires_grad_(was[name].requires_grad)
        self.module = new

    def _apply_split(self, module: nn.Module, seat: Seat) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        if seat.world == 1:
            self.data_seat = (0, 1)
            return
        try:
            told: Any = self._split(module)
        except Exception as error:
            reason = f"the script cannot split it over {seat.world} ranks: {describe(error)}"
            raise NotThere(reason) from error
        own = (seat.rank, seat.world)
        by_mesh = isinstance(told, DeviceMesh)
        self.data_seat = (told.get_local_rank(), told.size()) if by_mesh else own
        parts = list(fsdp_modules(module))
        for each in parts:
            each.set_gradient_divide_factor(1.0)  # The weights of the shares add up to 1.
            each.set_force_sum_reduction_for_comms(True)  # Gloo knows no other with a divisor.
        _check(module, self.data_seat[1], skipped=1 if parts else 0)


def _check(module: nn.Module, shares: int, skipped: int) -> None:
    """Check that the gradients are added up, and that every part has the same size.

    Args:
        module: The module, which is split.
        shares: Over how many ranks the data are split.
        skipped: How many of the dimensions of the mesh that split a parameter, the outer ones, may
            do so unequally.

    Raises:
        NotThere: They are not.
    """
    named: list[tuple[str, Any]] = list(module.named_parameters())
    for name, parameter in named:
        if not is_shard(parameter):
            if shares > 1 and parameter.requires_grad:
                reason = (
                    f"{name} is on every rank and its gradient would not be added up: "
                    "apply fully_shard to the whole model, or return the mesh of the data"
                )
                raise NotThere(reason)
            continue
        mesh = parameter.device_mesh
        splits = [each for each in enumerate(parameter.placements) if each[1].is_shard()]
        for number, placement in splits[skipped:]:
            ranks = mesh.size(number)
            if parameter.shape[placement.dim] % ranks:
                size = parameter.shape[placement.dim]
                reason = (
                    f"{name} cannot be split over {ranks} ranks: its dimension {placement.dim} "
                    f"has {size} elements"
                )
                raise NotThere(reason)


def _without_memory(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters and buffers have shapes and no memory.

    Raises:
        TypeError: It cannot be copied.
    """
    memo: dict[int, Any] = {
        id(each): nn.Parameter(each.detach().to("meta"), requires_grad=each.requires_grad)
        for each in module.parameters()
    }
    memo |= {id(each): each.detach().to("meta") for each in module.buffers()}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        reason = f"run.shard(): the model cannot be copied: {type(error).__name__}: {error}"
        raise TypeError(reason) from error


def _with_memory(module: nn.Module, device: torch.device) -> None:
    """Give a module memory, and keep parameters tied: PyTorch gives each name its own.

    Args:
        module: The module, which is changed.
        device: Where the memory is.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    module.to_empty(device=device)
    for first, *others in names.values():
        for name in others:
            owner, _, own = name.rpartition(".")
            module.get_submodule(owner)._parameters[own] = module.get_parameter(first)


def _copy_buffers(old: nn.Module, new: nn.Module) -> None:
    """Have the buffers of a new module be as those of the old one are.

    The script may have made them anew since, in another size: a mask that grows, for example.
    """
    with torch.no_grad():
        for path, module in old.named_modules():
            there = new.get_submodule(path)
            for name, buffer in module._buffers.items():
                own = there._buffers.get(name)
                if buffer is None or own is None or own.shape != buffer.shape:
                    there._buffers[name] = None if buffer is None else buffer.clone()
                else:
                    local_of(own).copy_(local_of(buffer))


def _weigh(output: Any, weight: float) -> None:
    """Have gradients that come back to an output count for this rank's share of the batch."""
    from torch.utils._pytree import tree_leaves

    if weight == 1.0:
        return
    for each in tree_leaves(output):
        if isinstance(each, torch.Tensor) and each.requires_grad:
            tensor: Any = each
            tensor.register_hook(lambda gradient: gradient * weight)
