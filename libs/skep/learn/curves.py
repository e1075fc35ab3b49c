"""What jobs make of other sizes: their rates over that now, and what is gained by growing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats, Integers

EDGE = 2
"""Places without a size at both ends of a table: so many sizes up or down may be asked for."""
PLACES = c.SIZES + 2 * EDGE
SIZE, SPEED, GAIN, AHEAD = range(4)
"""What a table has of a size: its workers; its rate over that now; what it adds to the rate, per
size that it adds, both as parts of now; and the most of that for this size and all beyond (one that
does not pay may be followed by one that does). 0: unknown, or there is no such size."""


class Curves(NamedTuple):
    """The sizes of jobs, `[.., n]`; what is not known of a job is neutral."""

    table: Floats
    """`[.., n, PLACES, 4]`, fewest workers first."""
    here: Integers
    """The place of its present size."""
    known: Flags
    """Its rate now and another one are known."""
    best_speed: Floats
    """The highest rate over that now."""
    best_size: Floats
    """The size with it over that now."""
    next_gain: Floats
    """GAIN of the next larger size."""
    ahead_gain: Floats
    """AHEAD of the next larger size."""
    efficiency: Floats
    """Its rate per worker, over that at the fewest workers with a known rate."""

    def at(self, places: Integers) -> Floats:
        """Return parts of the table, `[.., n, m, 4]`, by places `[.., n, m]`."""
        return self.table.reshape(-1, 4).take(self._base()[..., None] + places, axis=0)

    def some(self, which: Integers) -> Curves:
        """Return those of some jobs; there is one axis of jobs."""
        return Curves(
            self.table[which],
            self.here[which],
            self.known[which],
            self.best_speed[which],
            self.best_size[which],
            self.next_gain[which],
            self.ahead_gain[which],
            self.efficiency[which],
        )

    def _base(self) -> Integers:
        return np.arange(self.here.size).reshape(self.here.shape) * PLACES


def curves_of(raw: Floats) -> Curves:
    """Return what jobs make of other sizes, by their rows."""
    sizes = raw[..., c.SIZE : c.SIZE + c.SIZES]
    rates = raw[..., c.RATE : c.RATE + c.SIZES]
    workers = np.maximum(raw[..., c.WORKERS], 1.0)[..., None]
    table = np.zeros((*raw.shape[:-1], PLACES, 4))
    inner = table[..., EDGE:-EDGE, :]
    inner[..., SIZE] = sizes
    is_here = sizes == workers
    here = is_here.argmax(-1) + EDGE
    there = rates > 0
    one, nothing = np.ones(here.shape), np.zeros(here.shape)
    if not there.any():
        return Curves(table, here, nothing > 0, one, one, nothing, nothing, one)
    rate = (rates * is_here).max(-1)
    known = (rate > 0) & (there.sum(-1) > 1)
    inner[..., SPEED] = speeds = rates * (known / np.where(known, rate, 1.0))[..., None]
    change = sizes / workers - 1.0
    some = (speeds > 0) & (change != 0)
    inner[..., GAIN] = gains = (speeds - 1.0) * some / np.where(some, change, 1.0)
    ahead = np.where(speeds > 0, gains, -np.inf)[..., ::-1]
    ahead = np.maximum.accumulate(ahead, axis=-1)[..., ::-1]
    inner[..., AHEAD] = np.where(ahead > -np.inf, ahead, 0.0)
    made = Curves(table, here, known, one, one, nothing, nothing, one)
    best, fewest = speeds.argmax(-1) + EDGE, there.argmax(-1) + EDGE
    places = np.empty((*here.shape, 3), dtype=np.int64)
    places[..., 0], places[..., 1], places[..., 2] = best, fewest, here + 1
    found = made.at(places)
    least = found[..., 1, :]
    return made._replace(
        best_speed=np.where(known, found[..., 0, SPEED], 1.0),
        best_size=np.where(known, found[..., 0, SIZE] / workers[..., 0], 1.0),
        next_gain=found[..., 2, GAIN],
        ahead_gain=found[..., 2, AHEAD],
        efficiency=np.where(known, least[..., SIZE], 1.0)
        / np.where(known, least[..., SPEED] * workers[..., 0], 1.0),
    )
