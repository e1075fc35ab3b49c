"""The state of a job at one boundary: plain values as JSON, and the tensors these name.

The bytes of a tensor are read and written where the tensor has them, without a copy, if it is dense
in the host's memory; otherwise by way of the host.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from skep_job.shards.pieces import shards_in, unsplit
from skep_job.shards.templates import Templates, has_shards, pieces_of, wrap
from skep_job.state.piece import local_of
from skep_job.state.state_tree import DTYPES, Encoder, Tensors, decode, dtype_of, items_of

Peek = Callable[[Any], Any]
"""Returns the bytes of a storage whose memory was given back, as a tensor in host memory."""

VERSION = 2
"""Of the plain values' form. 2: the place has `beside`, which readers of version 1 would lose."""
SPLIT_VERSION = 3
"""Of the form with tensors of which each rank has a part."""
REFERRING_VERSION = 4
"""Of the form of files that have tensors in older files, where each rank may have a part or all."""
READABLE = (1, VERSION, SPLIT_VERSION, REFERRING_VERSION)
"""Versions that are read. What any other wrote is refused."""


class Snapshot(NamedTuple):
    """State as it is at this moment: the tensors are the job's own, and change with it."""

    plain: Any  # a node of skep_job.state.state_tree
    tensors: Tensors
    peek: Peek | None = None
    """Where the bytes of tensors are whose memory was given back while the job is suspended."""

    @property
    def bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def version_of(plain: Any) -> int:
    """Return the version of the form that these plain values have."""
    return SPLIT_VERSION if has_shards(plain) else VERSION


def state_of(part: Any) -> Any:
    """Return the state of a tracked thing, as its own method tells it."""
    if callable(getattr(part, "state_dict", None)):
        return part.state_dict()
    if callable(getattr(part, "get_state", None)):
        return part.get_state()  # A torch.Generator.
    return part.bit_generator.state  # A numpy.random.Generator.


def take(tracked: dict[str, Any], place: dict[str, Any]) -> Snapshot:
    """Return the state of every tracked thing, and `place` beside them.

    Args:
        tracked: The things by name.
        place: Where the training is: plain values and tensors.

    Raises:
        Unsaveable: A value cannot be written so that it is read back as it was.
    """
    encoder = Encoder()
    plain = {
        "place": encoder.encode(place, "place"),
        "tracked": {name: encoder.encode(state_of(part), name) for name, part in tracked.items()},
    }
    return Snapshot(plain, encoder.tensors)


def place_of(plain: Any, tensors: Tensors) -> dict[str, Any]:
    """Return the place that `take` was given."""
    place = decode(plain["place"], tensors)
    assert isinstance(place, dict)
    return place


def why_unfit(tracked: dict[str, Any], plain: Any, layout: dict[str, Any]) -> str:
    """Return why this state cannot be that of the tracked things.

    Args:
        tracked: The things by name.
        plain: The plain values of the state.
        layout: The dtype (in safetensors' names) and shape of each tensor.

    Returns:
        Empty if it can.
    """
    theirs, there = plain["tracked"], pieces_of(plain, layout)
    if sorted(theirs) != sorted(tracked):
        return f"it has {', '.join(sorted(theirs))}; tracked are {', '.join(sorted(tracked))}"
    for name, part in tracked.items():
        if not _is_module(part):
            continue
        encoder = Encoder()
        ours = encoder.encode(part.state_dict(), name)
        if unsplit(ours) != unsplit(theirs[name]):
            return f"{name} has other parameters or buffers"
        for path, tensor in encoder.tensors.items():
            whole: Any = encoder.shards.get(path, tensor)
            here = list(whole.shape)
            if here != list(there[path].size):
                return f"{path} is {list(there[path].size)} there and {here} here"
    return ""


class Another(Exception):  # noqa: N818  a name for what it is
    """The state is one of another optimizer."""


def require_optimizers(tracked: dict[str, Any], plain: Any) -> None:
    """Require that the optimizers are those whose state this is.

    PyTorch loads the state of another one, and fails in a later step. An older PyTorch may have
    fewer settings of the same optimizer, or more: that is no other.

    Args:
        tracked: The things by name.
        plain: The plain values of the state.

    Raises:
        Another: One is not; the text says in what they differ.
    """
    for name, part in tracked.items():
        groups: Any = getattr(part, "param_groups", None)
        saved = dict(items_of(plain["tracked"][name])).get("param_groups") if groups else None
        if not isinstance(saved, dict) or not isinstance(saved.get("list"), list):
            continue
        theirs = [dict(items_of(each)) for each in saved["list"]]
        counts = [len(each.get("params", {}).get("list", ())) for each in theirs]
        here = [len(each["params"]) for each in groups]
        if counts != here:
            reason = f"{name} steps groups of {counts} parameters there, and of {here} here"
            raise Another(reason)
        for one, other in zip(theirs, groups, strict=True):
            more, less = set(one) - set(other), set(other) - set(one)
            if more and less:
                named = f"{', '.join(sorted(more))} there, and {', '.join(sorted(less))} here"
                reason = f"{name} is another optimizer: it has {named}"
                raise Another(reason)


def destinations(tracked: dict[str, Any], layout: dict[str, Any], plain: Any = None) -> Tensors:
    """Return a tensor in host memory for each of `layout`: the job's own where it has the like.

    Args:
        tracked: The things by name.
        layout: The dtype (in safetensors' names) and shape of each tensor.
        plain: The plain values of the state; None: nothing of it is split over ranks.
    """
    import torch

    encoder = Encoder()
    for name, part in tracked.items():
        encoder.encode(state_of(part), name)
    split = dict(shards_in(plain))
    templates = Templates(tracked, plain) if split else None
    found: Tensors = {}
    for name, about in layout.items():
        own = encoder.tensors.get(name)
        if own is None and templates is not None and name in split:
            made = templates.make(name, about["dtype"], split[name], split=True)
            own = local_of(made)
        dtype = getattr(torch, DTYPES[about["dtype"]])
        fits = (
            own is not None
            and own.dtype == dtype
            and list(own.shape) == about["shape"]
            and own.device.type == "cpu"
            and own.is_contiguous()
            and _has_storage(own)
        )
        found[name] = own if fits else torch.empty(about["shape"], dtype=dtype)
    return found


def load(tracked: dict[str, Any], plain: Any, tensors: Tensors) -> None:
    """Give every tracked thing its state. Raises what their own methods raise.

    Args:
        tracked: The things by name, which are changed.
        plain: The plain values of the state.
        tensors: The tensors of the state; a module that has them already is left as it is.
    """
    wrapped = wrap(tracked, plain, tensors)
    for name, part in tracked.items():
        node = plain["tracked"][name]
        if _is_module(part) and _is_loaded(part, name, node, tensors):
            continue
        load_part(part, decode(node, wrapped))


def load_part(part: Any, state: Any) -> None:
    """Give one tracked thing its state. Raises what its own method raises."""
    if callable(getattr(part, "load_state_dict", None)):
        part.load_state_dict(state)
        _keep_types(part, state)
    elif callable(getattr(part, "set_state", None)):
        part.set_state(state)
    else:
        part.bit_generator.state = state


def _keep_types(part: Any, state: Any) -> None:
    """Have an optimizer's state be of the types that it was saved in.

    PyTorch gives it the parameters' types: beside `bfloat16` a factor of NAdam's loses most digits.
    """
    optim = sys.modules.get("torch.optim")
    if optim is None or not isinstance(part, optim.Optimizer):
        return
    if type(part).load_state_dict is not optim.Optimizer.load_state_dict:
        return  # It has its own way.
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in part.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in state["state"].get(number, {}).items():
            own = part.state[parameter].get(name)
            if hasattr(value, "dtype") and hasattr(own, "dtype") and own.dtype != value.dtype:
                part.state[parameter][name] = value.to(own.device, copy=True)


def layout_of(tensors: Tensors) -> dict[str, Any]:
    """Return dtype, shape and bytes of each tensor, in order."""
    return {
        name: {
            "dtype": dtype_of(tensor),
            "shape": list(tensor.shape),
            "bytes": tensor.numel() * tensor.element_size(),
        }
        for name, tensor in tensors.items()
    }


def is_released(tensors: Tensors) -> bool:
    """Return whether the memory of some tensor was given back while the job is suspended."""
    return any(tensor.numel() and not _has_storage(tensor) for tensor in tensors.values())


def host_bytes(tensor: Any, peek: Peek | None = None) -> tuple[memoryview, Any]:
    """Return a tensor's bytes in order, and what has to stay alive while they are used.

    They are the tensor's own if it is dense in host memory, and then writing them writes it.

    Args:
        tensor: On any device.
        peek: It returns the bytes if the tensor's memory was given back; None: it was not.
    """
    tensor = tensor.detach()
    if peek is not None and not _has_storage(tensor):
        tensor = _lent(tensor, peek(tensor.untyped_storage()))
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    tensor = tensor.contiguous()
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b""), tensor
    buffer = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    return memoryview(buffer).cast("B"), tensor


def _lent(tensor: Any, data: Any) -> Any:
    """Return a tensor like one whose memory was given back, on a copy of what was in that."""
    import torch

    there = torch.empty(0, dtype=tensor.dtype)
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    return there.set_(data.untyped_storage(), *place)


def _is_loaded(part: Any, name: str, node: Any, tensors: Tensors) -> bool:
    """Return whether a module's own tensors are those that were filled: nothing is left to load."""
    encoder = Encoder()
    if encoder.encode(part.state_dict(), name) != node:
        return False
    return all(
        tensors[path].data_ptr() == tensor.data_ptr() and tensors[path].device == tensor.device
        for path, tensor in encoder.tensors.items()
        if tensor.numel()
    )


def _is_module(part: Any) -> bool:
    module = sys.modules.get("torch.nn")
    return module is not None and isinstance(part, module.Module)


def _has_storage(tensor: Any) -> bool:
    return not tensor.numel() or tensor.untyped_storage().size() > 0
