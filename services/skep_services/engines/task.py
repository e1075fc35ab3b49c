"""A task, what comes of it as bytes, and which program a worker runs."""

from __future__ import annotations

import hashlib
import platform
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec

import skep
import skep_lab
import skep_services

DIGEST_BYTES = 32

Watch = Callable[[float], bool]
"""Told every so often which part of a task is done, 0 to 1; says whether to go on."""
Work = Callable[[Sequence[bytes], Watch], bytes]
"""What a task calls: its inputs to what comes of them, the same on every machine."""


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One call of a pure function. `label` names it, with its seed, in all that is said of it."""

    label: str
    work: str
    """The function, a `Work`, as MODULE:NAME. Every worker has to be able to import it."""
    inputs: tuple[bytes, ...]
    watches: bool = True
    """It ends early when its `Watch` says so; else it is killed."""


class About(msgspec.Struct, frozen=True):
    """The program that a worker runs. Floating point sums differ between minor Pythons."""

    python: str
    skep: str
    program: str
    """A digest of the text of what simulates."""


class EngineError(Exception):
    """Tasks cannot be run: one line that says what, where, and what to do."""


class UnusableError(EngineError):
    """What the command line names cannot be used as an engine."""


class UnreachableError(EngineError):
    """Nothing answers at an engine's address."""


class DiffersError(EngineError):
    """A worker has another program than the command."""


class DiedError(EngineError):
    """A worker ended, and took the result of a task with it."""


class FailedError(EngineError):
    """A task raised an exception; `trace` is its traceback."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


class AloneError(Exception):
    """The command that a worker works for is gone."""


class _Raised(msgspec.Struct, array_like=True):
    text: str
    trace: str


def outcome(task: Task, watch: Watch) -> bytes:
    """Return what comes of a task: a letter, then its result with a digest, or what it raised.

    Args:
        task: The task.
        watch: Told which part is done.

    Raises:
        AloneError: `watch` found that the command is gone.
    """
    try:
        result = _work(task.work)(task.inputs, watch)
    except AloneError:
        raise
    except Exception as error:  # whatever it is, the command says which task it was
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        return b"e" + msgspec.msgpack.encode(_Raised(text, traceback.format_exc()))
    return b"r" + hashlib.sha256(result).digest() + result


def result_of(task: Task, data: bytes, worker: str) -> bytes:
    """Return the result of a task out of what `outcome` returned.

    Args:
        task: The task.
        data: What came from the worker.
        worker: The worker's name.

    Raises:
        FailedError: The task raised an exception.
        EngineError: What came is not what was sent.
    """
    kind, body = data[:1], data[1:]
    if kind == b"e":
        raised = msgspec.msgpack.decode(body, type=_Raised)
        text = f"the run {task.label!r} failed on {worker}: {raised.text}"
        raise FailedError(text, raised.trace)
    digest, result = body[:DIGEST_BYTES], body[DIGEST_BYTES:]
    if kind != b"r" or hashlib.sha256(result).digest() != digest:
        text = f"the run {task.label!r}: its result came damaged from {worker}; run it again"
        raise EngineError(text)
    return result


def _work(name: str) -> Work:
    module, _, function = name.partition(":")
    found: Work = getattr(import_module(module), function)
    return found


@cache
def about() -> About:
    """Return which program this process runs."""
    digest = hashlib.sha256()
    for package in (skep, skep_lab, skep_services):
        folder = Path(package.__file__ or "").parent
        for file in sorted(folder.rglob("*.py")):
            path = f"{package.__name__}/{file.relative_to(folder).as_posix()}"
            digest.update(path.encode() + b"\0" + file.read_bytes())
    return About(platform.python_version(), skep.__version__, digest.hexdigest()[:16])


def difference(here: About, there: About) -> str:
    """Return how the program of a worker differs, in words; empty: in nothing that matters.

    Args:
        here: The program of the command.
        there: The worker's.
    """
    if _minor(here.python) != _minor(there.python):
        return f"it has Python {there.python}, and this command {here.python}: results may differ"
    if not there.skep:
        return f"it has no Skep: install skep {here.skep} there, for its Python {there.python}"
    if here.skep != there.skep:
        return f"it has Skep {there.skep}, and this command {here.skep}: install the same there"
    if here.program != there.program:
        return f"its Skep {there.skep} has other code than the one here: install the same there"
    return ""


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]
