"""Which parts of a whole tensor make up another part of it.

PyTorch says which bytes of which pieces fill another one: the planner of
`torch.distributed.checkpoint`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from skep_job.state.piece import Piece, is_shard


class Copy(NamedTuple):
    """Elements that go from a piece that exists to one that is wanted."""

    source: int  # which of the pieces
    source_offsets: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


class NotThere(Exception):  # noqa: N818  a name for what happened
    """A part of the state is nowhere, or cannot be split as it would have to be."""


def like(template: Any, local: Any) -> Any:
    """Return a DTensor that is split as `template` is, on memory of `local`."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        template.device_mesh,
        template.placements,
        run_check=False,
        shape=template.shape,
        stride=template.stride(),
    )


def as_split(template: Any, value: Any) -> Any:
    """Return a value as `template` is: this rank's part as a DTensor if that is one."""
    return like(template, value) if is_shard(template) and not is_shard(value) else value


def copies(name: str, pieces: Sequence[Piece], wanted: Piece) -> list[Copy]:
    """Return what fills a wanted piece.

    Args:
        name: The tensor's, for messages.
        pieces: What there is, of one whole; of equal pieces the first is taken.
        wanted: The piece.

    Raises:
        NotThere: The whole is of another size, a part of the piece is in none, or in several that
            are not the same.
    """
    if not wanted.numel:
        return []
    distinct: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for number, piece in enumerate(pieces):
        if piece.size != wanted.size:
            reason = f"{name} is {list(piece.size)} there and {list(wanted.size)} here"
            raise NotThere(reason)
        if piece.numel:
            distinct.setdefault((piece.offsets, piece.lengths), number)

    numbers = list(distinct.values())
    overlaps, apart = _overlaps(tuple(distinct), wanted)
    if not apart:
        reason = f"{name} has parts that overlap"
        raise NotThere(reason)
    found = [Copy(numbers[source], *each) for source, *each in overlaps]
    covered = sum(math.prod(each.lengths) for each in found)
    if covered != wanted.numel:
        reason = f"{name} has {wanted.numel} elements on this rank, of which {covered} are there"
        raise NotThere(reason)
    return found


@functools.lru_cache(maxsize=1024)
def _overlaps(
    chunks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], wanted: Piece
) -> tuple[list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]], bool]:
    """Return which blocks of chunks (offsets, lengths) are in a piece, as the planner says it.

    And whether no two of them have an element in common.

    Remembered: parameters of one shape and their moments ask the same.
    """
    import torch
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    def chunk(offsets: tuple[int, ...], lengths: tuple[int, ...]) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(offsets), torch.Size(lengths))

    stored = TensorStorageMetadata(
        TensorProperties(), torch.Size(wanted.size), [chunk(*each) for each in chunks]
    )
    items = create_read_items_for_chunk_list("", stored, [chunk(wanted.offsets, wanted.lengths)])
    found = [
        (
            item.storage_index.index or 0,
            tuple(item.storage_offsets),
            tuple(item.dest_offsets),
            tuple(item.lengths),
        )
        for item in items
    ]
    blocks = [(offsets, lengths) for *_, offsets, lengths in found]
    return found, not any(itertools.starmap(_meet, itertools.combinations(blocks, 2)))


def _meet(
    one: tuple[tuple[int, ...], tuple[int, ...]], other: tuple[tuple[int, ...], tuple[int, ...]]
) -> bool:
    """Return whether two blocks (offsets, lengths) have an element in common."""
    return all(max(a, b) < min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True))


def block(tensor: Any, offsets: Iterable[int], lengths: Iterable[int]) -> Any:
    """Return a view of a block of a plain tensor."""
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dimension, offset, length)
    return tensor


def shards_in(node: Any) -> Iterator[tuple[str, Piece]]:
    """Yield the name and the piece of every split tensor in what an `Encoder` made.

    The lengths are not in the tree: they are those of the tensor.
    """
    if isinstance(node, list):
        for each in node:
            yield from shards_in(each)
    elif isinstance(node, dict):
        for kind, body in node.items():
            if kind == "shard" and isinstance(body, list):  # Else a thing is tracked as "shard".
                name, size, offsets, lengths = body
                yield name, Piece(tuple(size), tuple(offsets), tuple(lengths))
            else:
                yield from shards_in(body)


def unsplit(node: Any) -> Any:
    """Return the tree as it would be if nothing was split, to compare those of different ranks."""
    if isinstance(node, list):
        return [unsplit(each) for each in node]
    if isinstance(node, dict):
        if isinstance(node.get("shard"), list):
            return {"tensor": node["shard"][0]}
        return {kind: unsplit(body) for kind, body in node.items()}
    return node
