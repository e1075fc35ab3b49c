"""Which part of a whole tensor a rank has, as PyTorch's `DTensor` says it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

OFFSETS_MAX = 10_000
"""Kinds of parts whose place is remembered: a model has a few."""
_OFFSETS: dict[tuple[Any, ...], tuple[int, ...]] = {}
"""Where parts begin, by all that it depends on: PyTorch takes long to say it."""


class UnknownSplit(ValueError):  # noqa: N818  a name for what happened
    """A tensor is split over ranks in a way that cannot be stored."""


class Piece(NamedTuple):
    """One block of a whole tensor."""

    size: tuple[int, ...]  # of the whole
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.lengths)


def is_shard(value: object) -> bool:
    """Return whether a value is a DTensor, of which this rank has a part."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return isinstance(kind, type) and isinstance(value, kind)


def local_of(tensor: Any) -> Any:
    """Return this rank's part of a DTensor, without a copy; any other tensor as it is."""
    return tensor._local_tensor.detach() if is_shard(tensor) else tensor


def piece_of(tensor: Any) -> Piece:
    """Return which part of the whole a tensor has on this rank; all of it unless it is a DTensor.

    Raises:
        UnknownSplit: The tensor is a sum that is not added up yet, or has several parts here.
    """
    size = tuple(tensor.shape)
    if not is_shard(tensor):
        return Piece(size, (0,) * len(size), size)
    local = tuple(tensor._local_tensor.shape)
    mesh = tensor.device_mesh
    key = (size, local, tensor.placements, tuple(mesh.shape), tuple(mesh.get_coordinate() or ()))
    offsets = _OFFSETS.get(key)
    if offsets is None:
        offsets = _offsets(tensor, local)
        if len(_OFFSETS) >= OFFSETS_MAX:
            _OFFSETS.clear()
        _OFFSETS[key] = offsets
    return Piece(size, offsets, local)


def learn(tensors: Iterable[Any]) -> None:
    """Ask once where parts begin, at the start of a job: PyTorch takes long to say it."""
    for tensor in tensors:
        with contextlib.suppress(UnknownSplit):  # Said when it is to be stored.
            piece_of(tensor)


def _offsets(tensor: Any, local: tuple[int, ...]) -> tuple[int, ...]:
    """Return where this rank's part of a DTensor begins in the whole.

    Raises:
        UnknownSplit: The tensor is a sum that is not added up yet, or has several parts here.
    """
    try:
        chunks = tensor.__create_chunk_list__()
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0]
        raise UnknownSplit(reason) from error
    if len(chunks) != 1 or tuple(chunks[0].sizes) != local:
        reason = f"it is split over ranks as {tensor.placements}"
        raise UnknownSplit(reason)
    return tuple(int(each) for each in chunks[0].offsets)
