"""What a training run tells while it goes on, and what it goes on from after a stop.

A learner is a generator function `train(settings, seed, saved=None)` that yields `Progress`. It
reads no clock and writes no file. Equal settings and seeds give equal weights on one machine,
whether the run was stopped and resumed between or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]
Count = Annotated[int, msgspec.Meta(ge=1)]
"""Of a setting: 1 or more. Settings that a person gives are checked by their types."""


class UnfitError(Exception):
    """What a run is given is of no use to its learner: one line for a person."""


class Saved(NamedTuple):
    """All that a training run goes on from: files of it hold no code."""

    step: int
    tensors: Tensors
    """Weights, the state of the optimiser, replay memory; stored as safetensors."""
    numbers: Mapping[str, Any]
    """Counters and states of random numbers; stored as JSON."""


class Progress(NamedTuple):
    """A point of the curves of a training run."""

    step: int
    """Below 0 during a phase before the first step."""
    of: int
    """Steps in all."""
    values: Mapping[str, float]
    """One point of each curve, by its name."""
    save: Callable[[], Saved]
    """Makes what the run goes on from here; valid until the run is asked for its next progress."""


def numbers_of(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of random numbers as JSON has it."""
    return dict(rng.bit_generator.state)


def rng_of(numbers: Mapping[str, Any]) -> np.random.Generator:
    """Return random numbers that go on from a state."""
    rng = np.random.default_rng()
    rng.bit_generator.state = dict(numbers)
    return rng
