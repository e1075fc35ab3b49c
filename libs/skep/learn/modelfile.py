"""Files of models: weights as safetensors, named by the hash of their bytes. Nothing is unpickled.

The header of the file holds one text, `skep`: JSON of what the model is and what it comes from.
Equal weights and headers make equal bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import Meta
from numpy.typing import NDArray

from skep.learn.candidates import CANDIDATE_FEATURES
from skep.learn.features import CLUSTER_FEATURES, JOB_FEATURES, Matrix
from skep.learn.net import WIDTH_MAX, SetNet, Sizes, shapes
from skep.wire.bounds import one_line
from skep.wire.learned import SCHEMA

BYTES_MAX = 8 * 1024 * 1024
"""A network of the widest layers has 2 MB."""
HEADER_BYTES_MAX = 256 * 1024
"""The names, ranges and report of a model take 10 KB."""
SLACK = 0.05
"""A feature may leave the range of the training by so much, and the advice is still reliable."""
KEY = "skep"
"""Of the text in the file's header."""


class ModelError(Exception):
    """A file is no model that can be used: what is wrong with it, in one line."""


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """The least and the most that each feature was in training, in order; empty: not known."""

    job: tuple[tuple[float, float], ...] = ()
    cluster: tuple[tuple[float, float], ...] = ()
    candidate: tuple[tuple[float, float], ...] = ()


Width = Annotated[int, Meta(ge=1, le=WIDTH_MAX)]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is and what it comes from."""

    schema: int = SCHEMA
    """Of the features that it was trained on (`wire.learned.SCHEMA`)."""
    job: Width = 32
    head: Width = 32
    """Widths of its layers (`net.Sizes`)."""
    trained_on: str = ""
    """Traces, or the log and its hash."""
    learner: str = ""
    """How: the name of the learner and its settings."""
    seeds: tuple[int, ...] = ()
    parent: str = ""
    """Hash of the model that it began from; empty: from none."""
    report: dict[str, float] = {}
    """Summary of its evaluation."""
    ranges: Ranges = Ranges()


class Bounds(NamedTuple):
    """Between which features of one kind are reliable: those of the training, and a bit more.

    All features are in the ranges that they can have at all.
    """

    which: NDArray[np.int64]
    """The features that were in a narrower range in the training."""
    low: Matrix
    high: Matrix

    def hold(self, features: Matrix) -> bool:
        """Return whether features `[n, ..]` are within."""
        if not len(features) or not len(self.which):
            return True
        seen = features.T[self.which]
        least, most = np.minimum.reduce(seen, axis=1), np.maximum.reduce(seen, axis=1)
        return bool((least >= self.low).all() and (most <= self.high).all())


def bounds_of(
    ranges: tuple[tuple[float, float], ...], features: Mapping[str, tuple[float, float]]
) -> Bounds:
    """Return the bounds for ranges: the least and the most of each feature; empty: any number.

    Args:
        ranges: Those of the training.
        features: Those that the features can have.
    """
    whole = np.array([*features.values()], dtype=np.float32)
    made = np.array(ranges or whole, dtype=np.float32)
    low, high = made[:, 0] - SLACK, made[:, 1] + SLACK
    which = ((low > whole[:, 0]) | (high < whole[:, 1])).nonzero()[0]
    return Bounds(which, low[which], high[which])


class Model(NamedTuple):
    """A network and what is known of it."""

    net: SetNet
    header: Header
    name: str
    """SHA-256 of its file."""
    bounds: tuple[Bounds, Bounds, Bounds]
    """Of features of jobs, of clusters, and of candidates."""


def dump(weights: Mapping[str, Matrix], header: Header) -> bytes:
    """Return the bytes of a model's file.

    Args:
        weights: Of the names and shapes of `net.shapes`.
        header: What the model is.

    Raises:
        ModelError: `load` would refuse the file.
    """
    tensors = {
        name: np.ascontiguousarray(weights[name], dtype=np.float32) for name in sorted(weights)
    }
    text = msgspec.json.encode(header, order="sorted").decode()
    data = bytes(safetensors.numpy.save(tensors, {KEY: text}))
    load(data)
    return data


def name_of(data: bytes) -> str:
    """Return the name of a file: the SHA-256 of its bytes, hex."""
    return hashlib.sha256(data).hexdigest()


def load(data: bytes) -> Model:
    """Return the model in a file.

    Raises:
        ModelError: The file is too large, damaged, of another schema, or has other weights.
    """
    header = read_header(data)
    try:
        tensors: dict[str, Any] = safetensors.numpy.load(data)
    except Exception as error:  # The library raises errors of several kinds of its own.
        _refuse(f"no safetensors file: {one_line(error)}")
    wanted = shapes(Sizes(header.job, header.head))
    for what, names in (
        ("lacks", [name for name in wanted if name not in tensors]),
        ("has unknown", [name for name in tensors if name not in wanted]),
    ):
        if names:
            _refuse(f"model {what} weights {', '.join(sorted(names)[:4])}")
    for name, shape in wanted.items():
        tensor = tensors[name]
        if tensor.dtype != np.float32 or tensor.shape != shape:
            _refuse(
                f"weights {name} are {tensor.dtype} {list(tensor.shape)}, not float32 {list(shape)}"
            )
        if not np.isfinite(tensor).all():
            _refuse(f"weights {name} are not all finite numbers")
    bounds = (
        bounds_of(header.ranges.job, JOB_FEATURES),
        bounds_of(header.ranges.cluster, CLUSTER_FEATURES),
        bounds_of(header.ranges.candidate, CANDIDATE_FEATURES),
    )
    return Model(SetNet(tensors), header, name_of(data), bounds)


def read_header(data: bytes) -> Header:
    """Return what a file says of its model, without its weights.

    Raises:
        ModelError: The file is too large, damaged, or of another schema.
    """
    if len(data) > BYTES_MAX:
        _refuse(f"model of {len(data)} bytes is larger than {BYTES_MAX}")
    if len(data) < 8:
        _refuse(f"no safetensors file: it has {len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(len(data) - 8, HEADER_BYTES_MAX):
        _refuse(
            f"no safetensors file, or a truncated one: its header of {length} bytes "
            f"is longer than {min(len(data) - 8, HEADER_BYTES_MAX)}"
        )
    try:
        outer = msgspec.json.decode(data[8 : 8 + length], type=_Outer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(f"no safetensors file: {one_line(error)}")
    text = outer.metadata.get(KEY)
    if text is None:
        _refuse(f"no model of Skep: the file's metadata has no `{KEY}`")
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version != SCHEMA:
            _refuse(f"model has feature schema {version}, this version of Skep {SCHEMA}")
        header = msgspec.json.decode(text, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(f"metadata of the model: {one_line(error)}")
    for ranges, names in (
        (header.ranges.job, JOB_FEATURES),
        (header.ranges.cluster, CLUSTER_FEATURES),
        (header.ranges.candidate, CANDIDATE_FEATURES),
    ):
        if ranges and len(ranges) != len(names):
            _refuse(f"model has ranges of {len(ranges)} features instead of {len(names)}")
    return header


def _refuse(text: str) -> NoReturn:
    raise ModelError(text) from None


class _Outer(msgspec.Struct, frozen=True):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default={})


class _Version(msgspec.Struct, frozen=True):
    schema: int
