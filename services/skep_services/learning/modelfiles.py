"""Files of models as people hand them in: whether they load, and what they say of themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.learn import modelfile
from skep.wire.learned import SCHEMA
from skep_services.learning.problems import LearningError, Why

LENGTH_BYTES = 8
"""Of the number before the header of a file of safetensors."""


def about(data: bytes, what: str = "it") -> dict[str, Any]:
    """Return what a model's file says of itself, from its header alone.

    Args:
        data: The file.
        what: What a person calls it.

    Raises:
        LearningError: It is no such file.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    text = data[LENGTH_BYTES : LENGTH_BYTES + min(length, modelfile.HEADER_BYTES_MAX)]
    try:
        header = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        said = msgspec.convert(header.pop("__metadata__", {}), dict[str, str])
        shapes = {name: header[name]["shape"] for name in sorted(header)}
    except (msgspec.MsgspecError, KeyError):
        reason = f"{what} is damaged, or no model of Skep's: it has no header of safetensors"
        raise LearningError(Why.DAMAGED_MODEL, reason) from None
    found = {key: _decoded(text) for key, text in sorted(said.items())}
    if len(found) == 1 and isinstance(only := next(iter(found.values())), dict):
        found = only
    return {**found, "tensors": shapes}


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def check(data: bytes, what: str) -> None:
    """See that a model can be used by this Skep.

    Args:
        data: The file.
        what: What a person calls it.

    Raises:
        LearningError: It is damaged, or made for other features.
    """
    schema = about(data, what).get("schema", SCHEMA)
    try:
        modelfile.load(data)
    except modelfile.ModelError as error:
        why = Why.DAMAGED_MODEL if schema == SCHEMA else Why.OTHER_SCHEMA
        raise LearningError(why, f"{what} cannot be used: {error}") from None
