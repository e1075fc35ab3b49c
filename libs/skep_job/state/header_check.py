"""Checks what the header of a checkpoint says of its tensors, before anything is read by it.

A header with a right sum may still have been written by another program. What it says decides how
much memory is taken and which bytes are read, so that every number is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from skep_job.state.state_tree import DTYPES

NUMBER_MAX = 2**53
"""Of an offset, and of the elements along a dimension."""
DIMENSIONS_MAX = 64
"""PyTorch's own limit."""
SHOWN = 80
"""Characters of a name in a message."""

_ONE_BYTE = ("BOOL", "F8_E4M3", "F8_E5M2")


def check(plain: Any, layout: dict[str, Any], crcs: dict[str, Any]) -> None:
    """Check that every tensor has a place of its own, and that the tree names only these.

    Args:
        plain: The plain values.
        layout: dtype, shape, begin and end of each tensor, and the `file` that has it if it is
            another one.
        crcs: The sum of each tensor.

    Raises:
        ValueError: It is not so; the text says what.
    """
    if not isinstance(plain, dict):
        reason = "it has no plain values"
        raise ValueError(reason)
    end = 0
    for name, each in layout.items():
        _check_place(name, each)
        if "file" not in each:
            if each["begin"] != end:
                reason = f"{name[:SHOWN]} begins at {each['begin']}, where {end} is expected"
                raise ValueError(reason)
            end = each["end"]
        if type(crcs.get(name)) is not str:
            reason = f"{name[:SHOWN]} has no sum"
            raise ValueError(reason)
    for kind, body in _named(plain):
        name = body[0] if kind == "shard" and isinstance(body, list) and body else body
        if not isinstance(name, str) or name not in layout:
            reason = f"the plain values name {str(name)[:SHOWN]!r}, which is no tensor of it"
            raise ValueError(reason)
        if kind == "shard":
            _check_part(name, body, layout[name]["shape"])


def _check_place(name: str, each: dict[str, Any]) -> None:
    """Check type, shape and bytes of one tensor.

    Raises:
        ValueError: They do not fit.
    """
    dtype, shape, begin, end = each["dtype"], each["shape"], each["begin"], each["end"]
    if dtype not in DTYPES:
        reason = f"{name[:SHOWN]} is of type {str(dtype)[:SHOWN]!r}, which is not known"
        raise ValueError(reason)
    if not _are_counts(shape) or not _are_counts([begin, end]):
        reason = f"{name[:SHOWN]} has a shape or offsets that are no counts"
        raise ValueError(reason)
    size = math.prod(shape) * _item_bytes(dtype)
    if end - begin != size:
        reason = f"{name[:SHOWN]} has {end - begin} bytes, where its shape takes {size}"
        raise ValueError(reason)


def _check_part(name: str, body: list[Any], shape: list[int]) -> None:
    """Check that a part of a whole is within that, and is as large as its tensor.

    Raises:
        ValueError: It is not.
    """
    numbers = body[1:]
    if len(numbers) == 3 and all(_are_counts(each) for each in numbers):
        size, offsets, lengths = numbers
        ranks = len(size) == len(offsets) == len(lengths)
        within = ranks and all(
            at + count <= all_ for all_, at, count in zip(size, offsets, lengths, strict=True)
        )
        if within and lengths == shape:
            return
    reason = f"{name[:SHOWN]} is a part that is not within its whole"
    raise ValueError(reason)


def _named(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield what in a tree names a tensor: the kind of node, and its body."""
    if isinstance(node, list):
        for each in node:
            if isinstance(each, (list, dict)):
                yield from _named(each)
    elif isinstance(node, dict):
        for kind, body in node.items():
            if kind in ("tensor", "array", "shard") and not isinstance(body, dict):
                yield kind, body
            elif isinstance(body, (list, dict)):
                yield from _named(body)


def _are_counts(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) <= DIMENSIONS_MAX
        and all(type(each) is int and 0 <= each <= NUMBER_MAX for each in numbers)
    )


def _item_bytes(dtype: str) -> int:
    return 1 if dtype in _ONE_BYTE else int(dtype.lstrip("BCFIU")) // 8
