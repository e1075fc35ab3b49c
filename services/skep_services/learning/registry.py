"""Learned models as files that are named by their content, and which of them may advise.

    HOME/models/<sha256 of the content>.safetensors     never changed, never written twice
    HOME/models/states.jsonl                            one line for each change of state

Lines are only ever added, under a lock, each by one write. The last line about a model is its
state. A line that a power failure cut short is passed over. A file of which no line tells is a
candidate. So are the models that come with Skep, whose files are among its code.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from skep.learn.shipped import shipped
from skep.wire.bounds import UNDECODABLE
from skep_services import durable
from skep_services.learning.problems import LearningError, Why, writing

FOLDER = "models"
SUFFIX = ".safetensors"
STATES = "states.jsonl"
NAME = re.compile(r"[0-9a-f]{64}")
PREFIX = re.compile(r"[0-9a-f]{4,64}")
"""A part of a name that a person writes: four digits are as easy to copy as fewer."""
WHY_MAX = 500
"""Characters of a reason: a line about a report, not the report."""
SHIPPED = "comes with Skep"
BYTES_MAX = 8 * 1024 * 1024
"""Of a model's file, as `skep.learn.modelfile` has it; this module needs no numpy."""


class State(StrEnum):
    """Whether a model may be named by a VC's policy."""

    CANDIDATE = "candidate"
    PROMOTED = "promoted"
    RETIRED = "retired"


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of state. `at`: nanoseconds since 1970."""

    model: str
    state: State
    at: int
    why: str = ""


class Entry(msgspec.Struct, frozen=True):
    """A model of the registry, and how it came to its state.

    `size`: bytes of its file; -1: the file is missing.
    """

    model: str
    size: int
    state: State
    at: int
    why: str
    history: tuple[Line, ...]


def folder_of(home: str) -> Path:
    """Return where the models of a cluster are: the folder of SKEP_MODELS, else in its own.

    Args:
        home: The cluster's folder.
    """
    named = os.environ.get("SKEP_MODELS", "")
    return Path(named) if named else Path(home) / FOLDER


def name_of(data: bytes) -> str:
    """Return the name of a model: the SHA-256 of its file."""
    return hashlib.sha256(data).hexdigest()


def read_registry(folder: Path) -> dict[str, Entry]:
    """Return the models of a folder by name, in the order in which they came, and those of Skep.

    No model's file is opened. A folder that is not there has none of its own.

    Args:
        folder: The folder of the models.

    Raises:
        OSError: The folder cannot be read.
    """
    ours = {name: file.stat().st_size for name, file in shipped().items()}
    files = dict(ours)
    with suppress(FileNotFoundError):
        for each in folder.iterdir():
            if each.suffix == SUFFIX and NAME.fullmatch(each.stem):
                with suppress(FileNotFoundError):  # It has just been removed.
                    files[each.stem] = each.stat().st_size
    told: dict[str, list[Line]] = {}
    for line in _lines(folder):
        told.setdefault(line.model, []).append(line)
    found = {}
    for name in [*told, *sorted(set(files) - set(told))]:
        history = tuple(told.get(name, ()))
        begins = Line(name, State.CANDIDATE, 0, SHIPPED if name in ours else "")
        last = history[-1] if history else begins
        size = files.get(name, -1)
        found[name] = Entry(name, size, last.state, last.at, last.why, history)
    return found


def _lines(folder: Path) -> list[Line]:
    try:
        data = (folder / STATES).read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for text in data.split(b"\n"):
        try:
            line = msgspec.json.decode(text, type=Line)
        except UNDECODABLE:
            continue  # It was cut short, or is empty.
        if NAME.fullmatch(line.model):
            found.append(line)
    return found


def file_of(folder: Path, model: str) -> Path:
    """Return the file of a model: that in a folder, else that which comes with Skep.

    Args:
        folder: The folder of the models.
        model: Its whole name.
    """
    own = folder / f"{model}{SUFFIX}"
    return own if own.exists() else shipped().get(model, own)


def read_file(name: str) -> bytes:
    """Return the content of a file that a person names as a model.

    Args:
        name: The file.

    Raises:
        LearningError: It cannot be read, or is too large.
    """
    try:
        with open(name, "rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise LearningError(Why.NO_MODEL, f"{name}: {error.strerror or error}") from None
    return _bounded(data, name)


def _bounded(data: bytes, what: str) -> bytes:
    """Return what was read of a model's file, one byte more than it may have at most.

    Raises:
        LearningError: It is too large.
    """
    if len(data) > BYTES_MAX:
        text = f"{what} has more than {BYTES_MAX >> 20} MiB, and is no model of Skep's"
        raise LearningError(Why.DAMAGED_MODEL, text)
    return data


def read_model(folder: Path, model: str) -> bytes:
    """Return the content of a model's file, which is what its name says.

    Args:
        folder: The folder of the models.
        model: Its whole name.

    Raises:
        LearningError: The file is missing, too large, or has other content.
    """
    path = file_of(folder, model)
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        text = f"the file of model {model[:12]} is missing: {path}"
        raise LearningError(Why.NO_MODEL, text) from None
    if name_of(_bounded(data, str(path))) != model:
        text = f"{path} is damaged: its content is not what its name says; add it again, or retire"
        raise LearningError(Why.DAMAGED_MODEL, f"{text} it")
    return data


def find(registry: dict[str, Entry], prefix: str) -> Entry:
    """Return the only model whose name begins with some digits.

    Args:
        registry: The models.
        prefix: At least four digits of its name.

    Raises:
        LearningError: There is none, or more than one.
    """
    if not PREFIX.fullmatch(prefix):
        text = f"{prefix!r} is no model: write at least four of the digits that `skep models ls`"
        raise LearningError(Why.NO_MODEL, f"{text} shows")
    found = [each for name, each in registry.items() if name.startswith(prefix)]
    if not found:
        text = f"no model begins with {prefix}: `skep models ls` lists those that there are"
        raise LearningError(Why.NO_MODEL, text)
    if len(found) > 1:
        names = ", ".join(each.model[: len(prefix) + 4] for each in found[:4])
        text = f"{len(found)} models begin with {prefix}: {names}; write more digits"
        raise LearningError(Why.AMBIGUOUS, text)
    return found[0]


def add(folder: Path, data: bytes, at: int, why: str = "") -> str:
    """Put a model into the registry as a candidate; one that is there stays as it is.

    Args:
        folder: The folder of the models; it is made if there is none.
        data: The content of the model's file.
        at: Nanoseconds since 1970.
        why: Where it is from.

    Returns:
        The model's name.

    Raises:
        LearningError: The folder cannot be written.
    """
    name = name_of(data)
    with writing(folder):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        known = read_registry(folder).get(name)
        if known is None or not _has(folder, name, data):
            durable.write(str(folder / f"{name}{SUFFIX}"), data, 0o644)
        if known is None or not known.history:
            _append(folder, Line(name, State.CANDIDATE, at, why[:WHY_MAX]))
    return name


def _has(folder: Path, name: str, data: bytes) -> bool:
    """Return whether the file of a model is there and whole."""
    try:
        with (folder / f"{name}{SUFFIX}").open("rb") as file:
            return file.read(len(data) + 1) == data
    except FileNotFoundError:
        return False


def change(folder: Path, model: str, state: State, at: int, why: str = "") -> None:
    """Note that a model has another state.

    Args:
        folder: The folder of the models.
        model: Its whole name.
        state: Its new state.
        at: Nanoseconds since 1970.
        why: The reason that a person gives.

    Raises:
        LearningError: The folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # A model of Skep needs none before.
        _append(folder, Line(model, state, at, why[:WHY_MAX]))


def _append(folder: Path, line: Line) -> None:
    descriptor = os.open(folder / STATES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    with open(descriptor, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        length = file.seek(0, os.SEEK_END)
        whole = length == 0 or os.pread(file.fileno(), 1, length - 1) == b"\n"
        file.write((b"" if whole else b"\n") + msgspec.json.encode(line) + b"\n")
        os.fsync(file.fileno())
    durable.sync_folder(str(folder))
