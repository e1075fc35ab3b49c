"""How this process splits a state that another one wrote: a template for each split tensor of it.

A module's own tensors are templates. An optimizer that has not stepped has no state yet, and what
it will have is split as its parameters are; so are gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from skep_job.shards.pieces import NotThere, like, shards_in
from skep_job.state.piece import Piece, is_shard, local_of, piece_of
from skep_job.state.state_tree import DTYPES, Encoder, Tensors, dtype_of, items_of

GRADIENTS = "place.beside."
"""How the paths of gradients begin; what follows is the tracked thing, and the parameter's path."""


def has_shards(plain: Any) -> bool:
    """Return whether some tensor of a state is one rank's part of a larger one."""
    return next(shards_in(plain), None) is not None


def pieces_of(plain: Any, layout: dict[str, Any]) -> dict[str, Piece]:
    """Return the piece that each tensor of a state is, the whole of those that are not split.

    Args:
        plain: The plain values of the state.
        layout: dtype and shape of each tensor.
    """
    split = dict(shards_in(plain))
    whole = {
        name: Piece(tuple(about["shape"]), (0,) * len(about["shape"]), tuple(about["shape"]))
        for name, about in layout.items()
    }
    return {name: split.get(name, piece) for name, piece in whole.items()}


class Templates:
    """The tensors of this process by the names that they have in a state."""

    def __init__(self, tracked: dict[str, Any], plain: Any) -> None:
        """Look at what is tracked.

        Args:
            tracked: The tracked things by name.
            plain: The plain values of the state that is to be loaded.
        """
        encoder = Encoder()
        for name, part in tracked.items():
            if callable(getattr(part, "state_dict", None)):
                encoder.encode(part.state_dict(), name)
        self._own: Tensors = {**encoder.tensors, **encoder.shards}
        self._like: Tensors = {}
        for name, part in tracked.items():
            groups = getattr(part, "param_groups", None)
            if isinstance(groups, list):
                parameters = [p for group in groups for p in group["params"]]
                node = plain["tracked"].get(name)
                self._like |= {
                    path: parameters[index]
                    for index, path in _of_optimizer(node)
                    if index < len(parameters)
                }
            if callable(getattr(part, "named_parameters", None)):
                self._like |= {
                    f"{GRADIENTS}{name}.gradients.{path}.0": parameter
                    for path, parameter in part.named_parameters()
                }

    def make(self, name: str, dtype: str, piece: Piece, *, split: bool) -> Any:
        """Return the tensor that a named one is to be loaded into: the job's own if it has it.

        Args:
            name: The name in the state.
            dtype: Its type of elements, in safetensors' names.
            piece: What of the whole tensor is there.
            split: Whether the process that wrote it had only a part.

        Raises:
            NotThere: It is split there, and nothing tells how it is to be split here; or the whole
                is of another size here.
        """
        import torch

        size = piece.size
        own = self._own.get(name)
        if own is not None and tuple(own.shape) != size:
            reason = f"{name} is {list(size)} there and {list(own.shape)} here"
            raise NotThere(reason)
        kind = getattr(torch, DTYPES[dtype])
        if own is not None and own.dtype == kind:
            return own
        parameter = self._like.get(name)
        if parameter is None and split:
            reason = f"{name} is split over ranks there, and nothing here tells how to split it"
            raise NotThere(reason)
        if parameter is None:
            return torch.empty(size, dtype=kind)
        if tuple(parameter.shape) != size:
            # A count of steps is plain beside split parameters, sums over rows or columns are not.
            if not is_shard(parameter) or not (split or size):
                return torch.empty(size, dtype=kind)
            return _beside(parameter, kind, piece)
        local = local_of(parameter)
        empty = torch.empty(local.shape, dtype=kind, device=local.device)
        return like(parameter, empty) if is_shard(parameter) else empty


def _beside(parameter: Any, kind: Any, piece: Piece) -> Any:
    """Return a DTensor of another shape than the parameter whose state it is.

    It is split as the parameter is if the process that wrote it had that part. Else it is on every
    rank, which means the same: operations on DTensors do what is needed.

    Args:
        parameter: The parameter, a DTensor.
        kind: The type of elements.
        piece: What was there.
    """
    from torch.distributed.tensor import Replicate, empty

    mesh, placements = parameter.device_mesh, parameter.placements
    dims = [each.dim for each in placements if each.is_shard()]
    # Of one row the first rank has all, so that it could not tell that from a copy.
    if all(dim < len(piece.size) and piece.size[dim] > 1 for dim in dims):
        made = empty(piece.size, dtype=kind, device_mesh=mesh, placements=placements)
        if piece_of(made) == piece:
            return made
    everywhere = [Replicate()] * mesh.ndim
    return empty(piece.size, dtype=kind, device_mesh=mesh, placements=everywhere)


def wrap(tracked: dict[str, Any], plain: Any, tensors: Tensors) -> Tensors:
    """Return the tensors with this rank's parts as DTensors, for the things that load them.

    Args:
        tracked: The tracked things by name.
        plain: The plain values of the state.
        tensors: The tensors of the state by name, of split ones this rank's part.

    Raises:
        NotThere: A part is not one that this rank has here.
    """
    split = {name: piece for name, piece in shards_in(plain) if not name.startswith(GRADIENTS)}
    if not split:
        return tensors
    templates = Templates(tracked, plain)
    made: Tensors = {}
    for name, piece in split.items():
        template = templates.make(name, dtype_of(tensors[name]), piece, split=True)
        if piece_of(template) != piece:
            reason = f"{name} is split in another way there"
            raise NotThere(reason)
        made[name] = like(template, tensors[name]) if is_shard(template) else tensors[name]
    return tensors | made


def split_otherwise(tracked: dict[str, Any], plain: Any, layout: dict[str, Any]) -> str:
    """Return which tensor of a state is not the part that this rank has here, if there is one."""
    templates = Templates(tracked, plain)
    for name, piece in shards_in(plain):
        try:
            own = templates.make(name, layout[name]["dtype"], piece, split=True)
        except NotThere as error:
            return str(error)
        if piece_of(own) != piece:
            return f"{name} is split in another way there"
    return ""


def why_not_anew(tracked: dict[str, Any], models: Iterable[Any], plain: Any) -> str:
    """Return what is split over the ranks of now, and is by nothing known to be split over others.

    Args:
        tracked: The tracked things by name.
        models: Those that are split anew for other ranks.
        plain: The plain values of the state.

    Returns:
        Empty if there is nothing.
    """
    known = {id(each) for each in models}
    for name, part in tracked.items():
        if id(part) in known:
            continue
        split = {path for path, _ in shards_in(plain["tracked"][name])}
        if isinstance(getattr(part, "param_groups", None), list):
            split -= {path for _, path in _of_optimizer(plain["tracked"][name])}
        if split:
            return (
                f"{min(split)} is split over the ranks of now, and only models of run.shard() and "
                "their optimizers are split over others: make an average such a model, too"
            )
    return ""


def _of_optimizer(node: Any) -> Iterator[tuple[int, str]]:
    """Yield the number of the parameter and the name of each tensor of an optimizer's state."""
    state = next((value for key, value in items_of(node) if key == "state"), None)
    for index, values in items_of(state):
        for _, value in items_of(values):
            if isinstance(index, int) and isinstance(value, dict):
                if "shard" in value:
                    yield index, value["shard"][0]
                elif "tensor" in value:
                    yield index, value["tensor"]
