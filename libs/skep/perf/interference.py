"""How jobs that share a GPU slow one another down: the fake accelerator's and simulations' model.

No code that decides may read this. Gandiva found packing hard to predict (section 6.1) and judges
it by measured rates; services see what agents report and nothing else. This is the model of the
world: each job on a GPU has a load, and a job's mini-batches take

    1 + sum over its partners of (demand_A x demand_B + sensitivity_A x pressure_B)

times as long as alone. The first term covers two jobs that want the same cores at once. The second
covers what one job does to the other beyond that, through caches, memory bandwidth and context
switches. `python -m tools.fit_interference` fits the loads and says how far off they are on pairs
of models that they were not fitted on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec

OWN_FLOOR = 0.071
OWN_RISE = 1.391
"""The load of a job packed with another of its own kind, by its GPU utilisation alone (Gandiva,
Table 1): the value for the idlest, and how it grows with the square of utilisation. Fitted on every
other row."""
COPIES_MAX = 8
"""The most copies of one job in a pack. The paper does not say; its gains for the idlest jobs need
at least six."""


class Load(msgspec.Struct, frozen=True):
    """What a job does to a GPU, without units.

    `utilisation` (0 to 1) is the part of the time for which kernels run when it is alone. Two of a
    kind take 1 + demand^2 + sensitivity x pressure times as long as one.
    """

    utilisation: float
    demand: float
    sensitivity: float = 0.0
    pressure: float = 0.0


def contention(job: Load, partner: Load) -> float:
    """Return what a partner adds to a job's mini-batches, as a multiple of one alone.

    Args:
        job: The load of the job.
        partner: The load of the partner.
    """
    return job.demand * partner.demand + job.sensitivity * partner.pressure


def slowdowns(loads: Sequence[Load]) -> tuple[float, ...]:
    """Return by job how many times as long its mini-batches take as alone.

    Args:
        loads: All jobs on one GPU.
    """
    beside: list[float] = [1.0] * len(loads)
    for a, b in itertools.permutations(range(len(loads)), 2):
        beside[a] += contention(loads[a], loads[b])
    return tuple(beside)


def normalised(loads: Sequence[Load]) -> float:
    """Return the sum of rates relative to running alone.

    Args:
        loads: All jobs on one GPU.

    Returns:
        A number; above 1, packing beats time-slicing.
    """
    return sum(1 / slowdown for slowdown in slowdowns(loads))


def by_utilisation(utilisation: float) -> Load:
    """Return the load of a job for which only the utilisation (0 to 1) is known."""
    return Load(utilisation, demand=math.sqrt(OWN_FLOOR + OWN_RISE * utilisation**2))


def packing_max(load: Load) -> float:
    """Return the most that copies of a job reach together (Gandiva, table 1).

    Returns:
        The sum of their rates, as a multiple of the rate of one alone.
    """
    return max(normalised([load] * copies) for copies in range(2, COPIES_MAX + 1))


TABLE_1: Mapping[str, tuple[float, float, float]] = {
    "VAE": (0.087, 81.8, 419.3),
    "SuperResolution": (0.141, 40.3, 145.2),
    "RHN": (0.616, 10.1, 14.8),
    "SCRNN": (0.668, 16.7, 23.3),
    "MI-LSTM": (0.762, 22.2, 25.9),
    "LSTM": (0.872, 63.8, 53.0),
    "ResNet-50": (0.940, 10.3, 9.0),
    "ResNext-50": (0.989, 83.6, 74.4),
}
"""Gandiva, Table 1, on a P40: utilisation, mini-batches/s time-sliced, and packed at best."""
