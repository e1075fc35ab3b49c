"""Fills the tensors of this rank from pieces that files, other ranks or this process have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from skep_job.shards.pieces import as_split, block, copies, shards_in
from skep_job.shards.templates import Templates, pieces_of
from skep_job.state.piece import Piece, is_shard, local_of, piece_of
from skep_job.state.state_tree import Tensors


class Block(NamedTuple):
    """A part of what a holder has, and where it goes."""

    name: str
    offsets: tuple[int, ...]  # in the holder's piece
    lengths: tuple[int, ...]
    into: Any  # a view of the tensor that is filled


class Holder(Protocol):
    """What has pieces of a state: a file of a rank, another rank, or this process."""

    pieces: dict[str, Piece]
    """What it has, by the names of the tensors."""

    def give(self, blocks: Sequence[Block]) -> None:
        """Fill blocks. Called on a thread of its own.

        Args:
            blocks: What to fill, ordered by name.
        """
        ...


def wanted(tracked: dict[str, Any], plain: Any, layout: dict[str, Any]) -> Tensors:
    """Return the tensors that this process needs of a state, split as they are here.

    Args:
        tracked: The tracked things by name.
        plain: The plain values of the state.
        layout: dtype and shape of each tensor, as the process that wrote it had it.

    Raises:
        NotThere: Nothing tells how a tensor is to be split here, or the whole has another size.
    """
    templates, split = Templates(tracked, plain), dict(shards_in(plain))
    return {
        name: templates.make(name, layout[name]["dtype"], piece, split=name in split)
        for name, piece in pieces_of(plain, layout).items()
    }


def _pass_over(_part: str) -> None:
    """Measure nothing."""


def fill(
    tracked: dict[str, Any],
    plain: Any,
    layout: dict[str, Any],
    holders: Sequence[Holder],
    *,
    fresh: bool = False,
    part: Callable[[str], object] = _pass_over,
) -> Tensors:
    """Return the tensors of this process with their content.

    Args:
        tracked: The tracked things by name.
        plain: The plain values of the state.
        layout: dtype and shape of each tensor.
        holders: What has pieces; of equal pieces that of the first holder is taken.
        fresh: Whether the tensors are to have memory of their own, and not the job's.
        part: It is called at the end of each part of the work: memory, plan, bytes.

    Raises:
        NotThere: A part is in no holder, or cannot be split as it is here.
    """
    tensors = wanted(tracked, plain, layout)
    if fresh:
        tensors = {name: _empty_like(each) for name, each in tensors.items()}
    part("memory")
    tasks: dict[int, list[Block]] = {}
    for name, tensor in tensors.items():
        local = local_of(tensor)
        have = [number for number, holder in enumerate(holders) if name in holder.pieces]
        pieces = [holders[number].pieces[name] for number in have]
        for each in copies(name, pieces, piece_of(tensor)):
            into = block(local, each.offsets, each.lengths)
            task = Block(name, each.source_offsets, each.lengths, into)
            tasks.setdefault(have[each.source], []).append(task)
    part("plan")
    if tasks:
        with ThreadPoolExecutor(len(tasks), "skep-shards") as pool:
            list(pool.map(lambda number: holders[number].give(tasks[number]), tasks))
    part("bytes")
    return tensors


def _empty_like(tensor: Any) -> Any:
    import torch

    return as_split(tensor, torch.empty_like(local_of(tensor), device="cpu"))


def rewrite(node: Any, tensors: Tensors) -> Any:
    """Return a tree in which every tensor is split as it is in `tensors`."""
    if isinstance(node, list):
        return [rewrite(each, tensors) for each in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        ((kind, body),) = node.items()
        if kind in ("shard", "tensor") and not isinstance(body, dict):
            name = body[0] if kind == "shard" else body
            tensor = tensors[name]
            if is_shard(tensor):
                return {"shard": [name, *(list(each) for each in piece_of(tensor))]}
            return {"tensor": name}
    return {kind: rewrite(body, tensors) for kind, body in node.items()}
