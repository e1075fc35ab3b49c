"""A training run as files, from which it goes on bit for bit.

    DIR/run.json                 which learner, with which settings and seed
    DIR/curve.jsonl              a line for each progress
    DIR/checkpoint.safetensors   all that the run goes on from; what is no tensor is in its metadata
    DIR/<sha256>.safetensors     the model, once the run is done
    DIR/result.json              the model's name and the last values
    DIR/curves.svg
    DIR/lock                     held by the process that trains

Every file but the curve is replaced as a whole. The curve is cut back to the checkpoint when a run
goes on, so it is the same whether the run was stopped between or not.
"""

from __future__ import annotations

import fcntl
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from skep_lab.learn.progress import Progress, Saved, UnfitError
from skep_services import durable
from skep_services.learning import learners
from skep_services.learning.problems import LearningError, Why, writing
from skep_services.learning.registry import SUFFIX, name_of

VERSION = 1
RUN, CURVE, CHECKPOINT, RESULT = "run.json", "curve.jsonl", f"checkpoint{SUFFIX}", "result.json"
LOCK = "lock"
KEY = "skep"
"""Of the only entry of a file's metadata: safetensors writes several in no fixed order."""
SAVE_EVERY_S = 30.0
"""Between two checkpoints: what a stop may lose, against the time that a replay memory takes."""


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run is of."""

    learner: str
    settings: dict[str, Any]
    seed: int
    pairs: str = ""
    """SHA-256 of the pairs that it learns from."""
    version: int = VERSION


class Result(msgspec.Struct, frozen=True):
    """What came of a run that is done."""

    model: str
    step: int
    values: dict[str, float | None]


class Point(msgspec.Struct, frozen=True):
    """A point of the curves; a value that is no finite number is None."""

    step: int
    of: int
    values: dict[str, float | None]


class Trained(NamedTuple):
    """How a run ended. `result`: None if it was stopped before."""

    result: Result | None
    step: int
    of: int


def train(
    learner: learners.Learner,
    head: Head,
    folder: Path,
    *,
    clock: Callable[[], float],
    tell: Callable[[Point], bool],
    given: Mapping[str, Any] = {},
) -> Trained:
    """Run a learner, from its checkpoint if the folder has one, and keep what comes of it.

    Args:
        learner: What is run.
        head: With what.
        folder: Where its files are; see `begin`.
        clock: Returns seconds.
        tell: Is told each point; returns whether to go on.
        given: What the learner takes beside settings and seed (`learners.Learner.takes`).

    Raises:
        LearningError: A file is damaged or cannot be written, or what is given is of no use.
    """
    settings = learners.made(learner.settings, head.settings)
    saved = load_checkpoint(folder, head)
    last, final, done = Point(saved.step if saved else 0, 0, {}), saved, saved is not None
    _cut_curve(folder, saved.step if saved else None)
    saved_at = clock()
    with writing(folder), _of_use(learner.name):
        with (folder / CURVE).open("ab", buffering=0) as curve:
            for progress in learner.train(settings, head.seed, saved, **given):
                last = _point(progress)
                curve.write(msgspec.json.encode(last) + b"\n")
                goes_on, done = tell(last), progress.step >= progress.of
                if done or not goes_on or clock() - saved_at >= SAVE_EVERY_S:
                    final = progress.save()
                    _write(folder / CHECKPOINT, checkpoint(head, final))
                    saved_at = clock()
                if done or not goes_on:
                    break
        if not done or final is None:  # It was stopped, or the learner itself ended early.
            return Trained(None, last.step, last.of)
        return Trained(_finish(learner, head, folder, final), final.step, last.of or final.step)


@contextmanager
def _of_use(name: str) -> Iterator[None]:
    """Say that what a learner is given is of no use to it.

    Raises:
        LearningError: It is not.
    """
    try:
        yield
    except UnfitError as error:
        raise LearningError(Why.UNFIT, f"{name}: {error}") from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """See that no other process trains in a folder meanwhile; the folder is made.

    Args:
        folder: Where the files of a run are.

    Raises:
        LearningError: Another process trains there, or the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process trains in {folder}: wait for its end"
            raise LearningError(Why.OTHER_RUN, f"{text}, or --out names another folder") from None
        yield


def begin(folder: Path, head: Head, *, resume: bool) -> None:
    """Make the folder of a run, or see that a run in it can go on.

    Args:
        folder: Where its files are.
        head: What is to be run.
        resume: It goes on; else the folder has no run.

    Raises:
        LearningError: There is a run and it is not to go on, or another one; or the folder cannot
            be written.
    """
    path = folder / RUN
    found = read_head(folder) if path.exists() else None
    if found is None and resume and (folder / CHECKPOINT).exists():
        text = f"{path} is missing: what the checkpoint beside it is of is not known"
        raise LearningError(Why.DAMAGED_RUN, text)
    if found is not None and not resume:
        text = f"{folder} has a run of {found.learner}, seed {found.seed}: --resume goes on with it"
        raise LearningError(Why.OTHER_RUN, f"{text}, --out names another folder")
    if found is not None and found != head:
        raise LearningError(Why.OTHER_RUN, f"{folder} has another run: {_differs(found, head)}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, msgspec.json.format(msgspec.json.encode(head), indent=1) + b"\n")


def read_head(folder: Path) -> Head:
    """Return what the run in a folder is of.

    Raises:
        LearningError: There is none, or its file is damaged or of another version.
    """
    path = folder / RUN
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Head)
    except (FileNotFoundError, NotADirectoryError):
        text = f"{folder} has no run: there is no {RUN} in it"
        raise LearningError(Why.NO_RUN, text) from None
    except msgspec.DecodeError as error:
        raise LearningError(Why.DAMAGED_RUN, f"{path} is damaged: {error}") from None
    if found.version != VERSION:
        text = f"{path} is of version {found.version}, and this Skep reads {VERSION}"
        raise LearningError(Why.DAMAGED_RUN, text)
    return found


def _differs(found: Head, head: Head) -> str:
    if found.learner != head.learner:
        return f"of {found.learner}, and not of {head.learner}"
    if found.seed != head.seed:
        return f"with seed {found.seed}, and not {head.seed}"
    if found.pairs != head.pairs:
        return "from other pairs"
    keys = sorted(set(found.settings) | set(head.settings))
    other = [key for key in keys if found.settings.get(key) != head.settings.get(key)]
    key = other[0] if other else "version"
    return f"with {key}={found.settings.get(key)}, and not {head.settings.get(key)}"


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(head: Head, saved: Saved) -> bytes:
    """Return the file of what a run goes on from.

    Args:
        head: What the run is of.
        saved: What the learner gave.
    """
    about = {"head": head, "step": saved.step, "numbers": saved.numbers}
    return stored(saved.tensors, about)


def stored(tensors: Mapping[str, Any], about: Any) -> bytes:
    """Return a file of tensors, the same bytes for the same content.

    Args:
        tensors: Arrays by name.
        about: What is no tensor, as JSON has it.
    """
    text = msgspec.json.encode(about, order="sorted").decode()
    plain = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    found: bytes = save(plain, {KEY: text})
    return found


def finished(folder: Path) -> tuple[Head, Saved]:
    """Return what a run is of, and the latest that it has learned.

    Raises:
        LearningError: There is no run, or nothing is learned yet.
    """
    head = read_head(folder)
    saved = load_checkpoint(folder, head)
    if saved is None:
        text = f"{folder} has no checkpoint yet: nothing is learned"
        raise LearningError(Why.NO_RUN, text)
    return head, saved


def load_checkpoint(folder: Path, head: Head) -> Saved | None:
    """Return what a run goes on from; None: it has no checkpoint.

    Args:
        folder: Where its files are.
        head: What the run is of.

    Raises:
        LearningError: The file is damaged, or of another run.
    """
    path = folder / CHECKPOINT
    try:
        tensors, about = opened(path.read_bytes())
        found = msgspec.convert(about["head"], Head)
        saved = Saved(int(about["step"]), tensors, about["numbers"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        text = f"{path} is damaged ({error}): remove it and the run begins again"
        raise LearningError(Why.DAMAGED_RUN, text) from None
    if found != head:
        raise LearningError(Why.OTHER_RUN, f"{path} is of another run: {_differs(found, head)}")
    return saved


def opened(data: bytes) -> tuple[dict[str, Any], Any]:
    """Return the tensors of a file, and what is no tensor.

    Args:
        data: The file that `stored` made.

    Raises:
        ValueError: It is damaged.
    """
    try:
        tensors: dict[str, Any] = load(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(str(error)) from None
    return tensors, about_of(data)


def about_of(data: bytes) -> Any:
    """Return what is no tensor in a file of tensors.

    Args:
        data: The file that `stored` made.

    Raises:
        ValueError: It is damaged.
    """
    length = int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8 : 8 + length])
    text = header.get("__metadata__", {}).get(KEY)
    if text is None:
        reason = "it says nothing of where it is from"
        raise ValueError(reason)
    return msgspec.json.decode(text)


# --- curves and results ---------------------------------------------------------------------------


def _point(progress: Progress) -> Point:
    values = {
        name: float(value) if math.isfinite(value) else None
        for name, value in progress.values.items()
    }
    return Point(progress.step, progress.of, values)


def read_curve(folder: Path) -> list[Point]:
    """Return the points of a run's curves; a last line that was cut short is passed over."""
    return list(_points(folder))


def _points(folder: Path) -> Iterator[Point]:
    try:
        data = (folder / CURVE).read_bytes()
    except FileNotFoundError:
        return
    for text in data.split(b"\n"):
        try:
            yield msgspec.json.decode(text, type=Point)
        except msgspec.DecodeError:
            continue


def _cut_curve(folder: Path, step: int | None) -> None:
    """Leave the points up to a checkpoint; None: there is none."""
    kept = [each for each in _points(folder) if step is not None and each.step <= step]
    with writing(folder):
        _write(folder / CURVE, b"".join(msgspec.json.encode(each) + b"\n" for each in kept))


def _finish(learner: learners.Learner, head: Head, folder: Path, saved: Saved) -> Result:
    if learner.model_of is not None:
        settings = learners.made(learner.settings, head.settings)
        data = learner.model_of(saved, settings, head.seed)
    else:
        data = stored(saved.tensors, {"learner": head.learner, "seed": head.seed})
    model = name_of(data)
    points = read_curve(folder)
    result = Result(model, saved.step, points[-1].values if points else {})
    _write(folder / f"{model}{SUFFIX}", data)
    _write(folder / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return result


def read_result(folder: Path) -> Result | None:
    """Return what came of a run; None: it is not done."""
    try:
        return msgspec.json.decode((folder / RESULT).read_bytes(), type=Result)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, data: bytes) -> None:
    durable.write(str(path), data, 0o644)
