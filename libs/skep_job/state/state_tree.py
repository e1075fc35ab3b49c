"""Turns what `state_dict()` returns into plain JSON and named tensors, and back.

No class is ever named by what is read, so reading a file or a connection runs no foreign code: what
is not in the short list here is refused when it is written.
"""

from __future__ import annotations

import base64
import sys
from collections import Counter, OrderedDict
from typing import Any

from skep_job.state.piece import UnknownSplit, is_shard, piece_of

Tensors = dict[str, Any]
"""Tensors by name: the path by which they were reached, with dots."""

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Names of element types in the safetensors format, and in torch."""
_DTYPE_NAMES = {torch_name: name for name, torch_name in DTYPES.items()}

VALUES = "place.state."
"""How paths of the script's own values begin."""

DEPTH_MAX = 64
"""Levels of nesting; more is a structure that refers to itself."""


class Unsaveable(TypeError):  # noqa: N818  a name for what the value is
    """A value that cannot be written so that it is read back as it was."""


def dtype_of(tensor: Any) -> str:
    """Return the safetensors name of a tensor's type of elements."""
    return _DTYPE_NAMES[str(tensor.dtype).removeprefix("torch.")]


class Encoder:
    """Collects the tensors of one state. Tensors that are one and the same are kept once."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.shards: Tensors = {}
        """The DTensors whose parts on this rank are in `tensors`, under the same names."""
        self._names: dict[tuple[object, ...], str] = {}

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        """Return `value` as JSON, tensors replaced by their names; they are added to `tensors`.

        Args:
            value: What `state_dict()` returned, or a part of that.
            path: How it was reached, which names its tensors.
            depth: The levels of nesting above it.

        Raises:
            Unsaveable: A value cannot be written so that it is read back as it was.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):
            return float(value)  # NumPy's double is one too.
        if depth > DEPTH_MAX:
            reason = f"{path} is nested more than {DEPTH_MAX} levels deep"
            raise Unsaveable(reason)
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            parts = enumerate(value)
            return {kind: [self.encode(v, f"{path}.{i}", depth + 1) for i, v in parts]}
        if isinstance(value, dict):
            return {_dict_kind(value): self._items(value, path, depth)}
        if isinstance(value, (set, frozenset)):
            ordered = sorted(value, key=repr)
            return {"set": [self.encode(v, path, depth + 1) for v in ordered]}
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        return self._special(value, path)

    def _items(self, value: dict[Any, Any], path: str, depth: int) -> list[Any]:
        return [
            [self.encode(key, path, depth + 1), self.encode(v, f"{path}.{key}", depth + 1)]
            for key, v in value.items()
        ]

    def _special(self, value: Any, path: str) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            if is_shard(value):
                return {"shard": self._shard(value, path)}
            if value.layout == torch.sparse_coo and type(value) in (
                torch.Tensor,
                torch.nn.Parameter,
            ):
                return {"sparse": self._sparse(value.detach(), path)}
            return {"tensor": self._name(value, path)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self.encode(value.item(), path)
        if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype != object:
            # A copy: a view that torch cannot have (a negative stride) is then no problem.
            return {"array": self._name(torch.from_numpy(value.copy()), path)}
        reason = (
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}; "
            "state is made of tensors, numbers, text, lists, tuples, dicts and sets"
        )
        raise Unsaveable(reason)

    def _shard(self, tensor: Any, path: str) -> list[Any]:
        """Return the name of this rank's part, the shape of the whole, and where the part is.

        Raises:
            Unsaveable: It is in a value of the script's own, or is no part that can be stored.
        """
        if path.startswith(VALUES):
            reason = (
                f"{path} is split over ranks; run.state is for whole values: track what holds it"
            )
            raise Unsaveable(reason)
        try:
            piece = piece_of(tensor)
        except UnknownSplit as error:
            reason = f"{path} cannot be stored: {error}"
            raise Unsaveable(reason) from error
        name = self._name(tensor._local_tensor, path)
        self.shards[name] = tensor
        return [name, *(list(each) for each in piece)]

    def _sparse(self, tensor: Any, path: str) -> list[Any]:
        """Return indices, values, shape, and whether equal indices were added up already."""
        indices = self._name(tensor._indices(), f"{path}.indices")
        values = self._name(tensor._values(), f"{path}.values")
        return [indices, values, list(tensor.shape), bool(tensor.is_coalesced())]

    def _name(self, tensor: Any, path: str) -> str:
        import torch

        tensor = tensor.detach()
        kind = str(tensor.dtype).removeprefix("torch.")
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout != torch.strided or kind not in DTYPES.values():
            reason = (
                f"{path} is a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}; "
                "only plain dense tensors and DTensors can be saved"
            )
            raise Unsaveable(reason)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        storage = tensor.untyped_storage()
        # Memory that was given back is nowhere; whose it was is known still.
        where = tensor.data_ptr() if storage.size() else (storage._cdata, tensor.storage_offset())
        key = (where, kind, tuple(tensor.shape), tensor.stride(), str(tensor.device))
        name = self._names.get(key) if tensor.numel() else None
        if name is None:
            name = path
            while name in self.tensors:
                name += "'"  # Two paths may read alike: {"a.b": ...} and {"a": {"b": ...}}.
            self.tensors[name] = tensor
            self._names[key] = name
        return name


def decode(node: Any, tensors: Tensors) -> Any:
    """Return what `node` was encoded from.

    Args:
        node: What `Encoder.encode` returned.
        tensors: The tensors by name.

    Raises:
        ValueError: No encoder wrote the node.
    """
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if not isinstance(node, dict) or len(node) != 1:
        reason = f"not a node: {str(node)[:80]}"
        raise ValueError(reason)
    ((kind, body),) = node.items()
    if kind in ("dict", "ordered", "counter"):
        pairs = [(decode(key, tensors), decode(value, tensors)) for key, value in body]
        made = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[kind]
        return made(pairs) if kind != "counter" else Counter(dict(pairs))
    if kind in ("list", "tuple", "set"):
        parts = [decode(part, tensors) for part in body]
        return parts if kind == "list" else tuple(parts) if kind == "tuple" else set(parts)
    if kind == "bytes":
        return base64.b64decode(body)
    if kind == "tensor":
        return tensors[body]
    if kind == "shard":
        return tensors[body[0]]
    return _decode_special(kind, body, tensors)


def items_of(node: Any) -> list[Any]:
    """Return the pairs of an encoded dict; none of anything else."""
    if not isinstance(node, dict):
        return []
    return next((node[kind] for kind in ("dict", "ordered") if kind in node), [])


def _decode_special(kind: str, body: Any, tensors: Tensors) -> Any:
    import torch

    if kind == "sparse":
        indices, values, shape, is_coalesced = body
        made = torch.sparse_coo_tensor(
            tensors[indices], tensors[values], shape, check_invariants=True
        )
        return made._coalesced_(is_coalesced)
    if kind == "array":
        return tensors[body].numpy()
    if kind == "dtype" and body in DTYPES.values():
        return getattr(torch, body)
    if kind == "device":
        return torch.device(body)
    reason = f"an unknown kind of node: {kind[:80]!r}"
    raise ValueError(reason)


def _dict_kind(value: dict[Any, Any]) -> str:
    if isinstance(value, OrderedDict):
        return "ordered"
    return "counter" if isinstance(value, Counter) else "dict"
