"""What a script shows of its model for nothing: how many parameters, of which shapes and types.

The training thread only notes shapes, once for each optimizer, when that steps for the first time
(`see_optimizer`): the first mini-batch is slow anyway. All else is done by the reporter's thread
(`told`), once the second mini-batch is done: by then all optimizers of a mini-batch have stepped.
Only lengths and names are looked at, never the content of a tensor.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

TENSORS_MAX = 20_000
"""Parameters that are looked at, 2 us each. Larger models exist; their first ones tell enough."""
TOLD_FROM = 2
"""Mini-batches after which the fingerprint is complete."""
BATCHES_MAX = 64
"""Batches of data loaders that are looked at: the latest before the first optimizer's step counts,
since some scripts validate first."""
NESTED_MAX = 3
"""How deep in a batch its first tensor may be."""
DIMENSIONS_MAX = 8
DTYPES_MAX = 8
SIZES_MAX = 48
SCRIPT_BYTES_MAX = 1 << 20
"""Of the script's text that its digest is made of."""
VERSION_CHARACTERS_MAX = 64
COUNT_MAX = 2**53

Kind = tuple[tuple[int, ...], str, int, bool]
"""Of a parameter: its shape, its dtype, bytes of an element, and whether it has gradients."""


class Fingerprint:
    """Gathers what is seen. Never raises into the script."""

    def __init__(self) -> None:
        self._kinds: Counter[Kind] = Counter()
        self._seen: set[int] = set()
        self._closed = False
        self._batch: tuple[int, ...] = ()
        self._made: dict[str, object] | None = None

    def see_optimizer(self, optimizer: object) -> None:
        """Note the parameters of an optimizer that steps for the first time."""
        if self._closed:
            return
        try:
            for group in optimizer.param_groups:  # type: ignore[attr-defined]
                self._see(group["params"])
        except Exception:
            # Of an unknown kind: no fingerprint is better than a wrong one.
            self._kinds.clear()
            self._closed = True

    def see_batch(self, batch: object, number: int) -> None:
        """Note the shape of the first tensor of a batch, the `number`th of a data loader."""
        if number > BATCHES_MAX or self._closed:
            return
        try:
            self._batch = _shape(batch, NESTED_MAX)
        except Exception:  # A container of the script's own may raise anything.
            self._batch = ()

    def told(self, steps: int, *, ended: bool = False) -> dict[str, object] | None:
        """Return the fingerprint once it is complete; None before, and where nothing was seen.

        Args:
            steps: Mini-batches that are done.
            ended: The script is over: nothing more will be seen.
        """
        if self._made is None and self._kinds and (ended or steps >= TOLD_FROM):
            self._closed = True
            try:
                self._made = self._make()
            except Exception:  # Whatever a foreign dtype's name raises.
                self._kinds.clear()
        return self._made

    def _see(self, parameters: Iterable[Any]) -> None:
        for parameter in parameters:
            if len(self._seen) >= TENSORS_MAX:
                return
            if id(parameter) in self._seen:
                continue
            self._seen.add(id(parameter))
            shape = tuple(int(length) for length in parameter.shape)
            kind = shape, str(parameter.dtype), parameter.element_size(), parameter.requires_grad
            self._kinds[kind] += 1

    def _make(self) -> dict[str, object]:
        kinds = self._kinds.copy()  # The training thread may still be adding to it.
        elements = gradient_bytes = 0
        sizes = [0] * SIZES_MAX
        dtypes: Counter[str] = Counter()
        for (shape, dtype, size, learns), count in kinds.items():
            each = 1
            for length in shape:
                each *= length
            elements += count * each
            gradient_bytes += count * each * size if learns else 0
            dtypes[dtype.removeprefix("torch.")] += count * each
            sizes[min(max(each, 1).bit_length() - 1, SIZES_MAX - 1)] += count
        while sizes and not sizes[-1]:
            sizes.pop()
        text = repr(sorted((shape, dtype, n) for (shape, dtype, _, _), n in kinds.items()))
        return {
            "parameters": min(elements, COUNT_MAX),
            "gradient_bytes": min(gradient_bytes, COUNT_MAX),
            "shapes": _digest(text.encode()),
            "dtypes": [name for name, _ in dtypes.most_common(DTYPES_MAX)],
            "sizes": sizes,
            "script": _script(),
            "arguments": _digest("\0".join(sys.argv[1:]).encode(errors="replace")),
            "torch": _version(getattr(sys.modules.get("torch"), "__version__", "")),
            "python": _version(sys.version.split()[0]),
            "batch": [min(length, COUNT_MAX) for length in self._batch],
        }


def _shape(batch: object, depth: int) -> tuple[int, ...]:
    """Return the shape of the first tensor in a batch, () if none is found."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return tuple(int(length) for length in shape)[:DIMENSIONS_MAX]
    if depth and isinstance(batch, dict):
        return _shape(next(iter(batch.values()), None), depth - 1)
    if depth and isinstance(batch, (list, tuple)) and batch:
        return _shape(batch[0], depth - 1)
    return ()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _script() -> str:
    """Return the digest of the script's text, "" if it has none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        with open(str(path), "rb") as file:
            return _digest(file.read(SCRIPT_BYTES_MAX))
    except OSError:
        return ""


def _version(text: object) -> str:
    shown = str(text)[:VERSION_CHARACTERS_MAX]
    return "".join(one for one in shown if one.isascii() and (one.isalnum() or one in ".+_-"))
