"""Finds what counts the batches of a pass from outside, such as `enumerate(run.batches(loader))`.

Such a counter cannot be told where a pass goes on, so that the user has to be. It is looked for
once in a process, among all objects: that takes about 20 ms.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType
from typing import Any

COUNTERS = (enumerate, zip, itertools.islice)
FRAMES_MAX = 8
"""Generators within generators that are looked through: a progress bar may be in between."""


def counter_around() -> str:
    """Return the name of what counts around the running generator that calls this.

    Returns:
        The name of a type, such as "enumerate"; empty if nothing counts.
    """
    frames = set(_generators_below(sys._getframe(1)))
    for each in gc.get_objects():
        if type(each) in COUNTERS and any(_runs_in(one, frames) for one in _iterators(each)):
            return type(each).__name__
    return ""


def _generators_below(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the generators that run, from the innermost on."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return
        if frame.f_code.co_flags & CO_GENERATOR:
            yield frame
        frame = frame.f_back


def _iterators(counter: Any) -> Iterator[Any]:
    for each in gc.get_referents(counter):
        if type(each) is tuple:  # Those of `zip`.
            yield from each
        else:
            yield each


def _runs_in(iterator: Any, frames: set[FrameType]) -> bool:
    return isinstance(iterator, GeneratorType) and iterator.gi_frame in frames
