"""Finds the numbers that a script counts in local variables, which no state has.

A process that goes on begins them anew: a sum of losses, or the steps by which a script knows when
it is done. Nothing can put them back, so that the user is told. They are looked for in the frame
that iterates over a loop of the run. Those that loops assign are right again with the next batch.
"""

from __future__ import annotations

import dis
import functools
import math
import sys
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import Any

NUMBERS_MAX = 200
NAME_MAX = 64
EXACT = 2**53
"""Above it a number in JSON may be another."""
FRAMES_MAX = 64

AROUND = {"EXTENDED_ARG", "CACHE", "NOP", "COPY", "SWAP"}

Numbers = dict[str, int | float]


def numbers_around(loops: frozenset[CodeType]) -> Numbers:
    """Return the numbers of the frame that iterates over a loop of the run, by their names.

    Args:
        loops: The code of the generators that are such loops; one of them runs.

    Returns:
        At most NUMBERS_MAX; none if no such loop runs.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None or frame.f_code in loops:
            break
        frame = frame.f_back
    while frame is not None and frame.f_code.co_flags & CO_GENERATOR:
        frame = frame.f_back  # A progress bar may be in between.
    if frame is None:
        return {}
    assigned = _of_loops(frame.f_code)
    found = (
        (name, value)
        for name, value in frame.f_locals.items()
        if name not in assigned and _counts(name, value)
    )
    return {name: value for (name, value), _ in zip(found, range(NUMBERS_MAX), strict=False)}


def begun_anew(were: Any, now: Numbers) -> list[str]:
    """Say which numbers are other ones than they were.

    Args:
        were: What `numbers_around` returned in an earlier process, as a file has it.
        now: What it returns where the process goes on.
    """
    if not isinstance(were, dict):
        return []
    return [
        f"{name} was {were[name]:.6g} and is {value:.6g}"
        for name, value in now.items()
        if isinstance(were.get(name), int | float) and were[name] != value
    ]


@functools.lru_cache(maxsize=8)
def _of_loops(code: CodeType) -> frozenset[str]:
    """Return the variables that a `for` of the code assigns."""
    found: set[str] = set()
    follows = False
    for each in dis.get_instructions(code):
        if each.opname.startswith("STORE_") and follows:
            found.update(each.argval if isinstance(each.argval, tuple) else [each.argval])
        elif not each.opname.startswith("UNPACK_") and each.opname not in AROUND:
            follows = each.opname == "FOR_ITER"
    return frozenset(found)


def _counts(name: str, value: object) -> bool:
    if type(value) is float:
        return len(name) <= NAME_MAX and math.isfinite(value)
    return type(value) is int and len(name) <= NAME_MAX and abs(value) < EXACT
