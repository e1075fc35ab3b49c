"""Which size of a gang to measure next: the one that tells most about its family.

    places that a gang can have --order--> those worth measuring, the first one next

A prediction is promised once so many places were measured, and across nodes only if one of these
was (`perf.model.predict`). So that is all that probes are for. The fewest GPUs come first: they
cost the least, and how a family scales from 1 to 2 and 4 GPUs says most of what is beyond. Gangs on
several nodes come last, as they cost the most, unless nothing else is missing.

Source: GENIE, section 5.1.5, measures every number of GPUs and of nodes; what few of them are worth
is in `docs/explanation/prediction.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from skep.perf.model.predict import POINTS_PROMISED


class Place(NamedTuple):
    """A size of a gang, and on how many nodes that would be."""

    workers: int
    gpus: int
    nodes: int


Measured = Collection[tuple[int, int]]
"""GPUs and nodes."""


def sizes(least: int, most: int) -> list[int]:
    """Return the numbers of workers that are worth measuring, fewest first.

    Args:
        least: The fewest that a gang may have.
        most: The most.

    Returns:
        Powers of two, and both ends.
    """
    found = {least, most}
    size = 1
    while size <= most:
        if size >= least:
            found.add(size)
        size *= 2
    return sorted(found)


def order(places: Sequence[Place], measured: Measured, tried: Measured = ()) -> list[Place]:
    """Return the places to be measured, the one that tells most first.

    Args:
        places: Those that the gang can have.
        measured: What was measured of its family on that type of GPU.
        tried: What is not to be tried again yet.

    Returns:
        None where enough was measured.
    """
    across = any(nodes > 1 for _, nodes in measured)
    lacks_nodes = not across and any(each.nodes > 1 for each in places)
    enough = len(measured) >= POINTS_PROMISED
    wanted = [
        each
        for each in places
        if (each.gpus, each.nodes) not in measured
        and (each.gpus, each.nodes) not in tried
        and not (enough and (each.nodes == 1 or not lacks_nodes))
    ]
    return sorted(wanted, key=lambda each: (each.nodes, each.gpus))
