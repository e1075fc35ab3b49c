"""Which placements of a family are measured, when not all are: profiles of one to twenty runs.

- k1: one run, on one GPU (or the fewest that were measured), with the middle batch size.
- k2: and on 2 GPUs of a node. k3: and on 2 nodes. k4: and with another batch size on one GPU.
- k6: and the largest gang on one node and the largest at all.
- bng: GENIE's own profile (section 5.1.5): every batch size on one GPU, and for one batch size of
  the gang every number of GPUs on one node and every number of nodes.

Where such a placement was not measured, the nearest to it takes its place: first in nodes, then in
GPUs, then in batch size. A placement that the profile has already is not measured twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from skep.perf.model.placement import Point

PROFILES = ("k1", "k2", "k3", "k4", "k6", "bng")


def profile(points: Sequence[Point], name: str) -> list[int]:
    """Return which points a profile measures, in the order in which it does.

    Args:
        points: All points of a family.
        name: One of PROFILES.

    Raises:
        ValueError: There is no such profile.
    """
    if name not in PROFILES:
        raise ValueError(f"no profile is called {name!r}")  # noqa: EM102
    if name == "bng":
        return _genie(points)
    chosen = [_first(points)]
    first = points[chosen[0]].placement
    fewest = first.gpus
    wanted: list[tuple[int, float, float]] = [
        (first.nodes, 2 * fewest, first.batch),
        (first.nodes + 1, 2 * fewest, first.batch),
    ]
    for nodes, gpus, batch in wanted[: {"k1": 0, "k2": 1}.get(name, 2)]:
        _add(chosen, points, nodes, gpus, batch)
    if name in ("k4", "k6"):
        others = [
            at
            for at, each in enumerate(points)
            if (each.placement.gpus, each.placement.nodes) == (fewest, first.nodes)
            and each.placement.batch != first.batch
            and at not in chosen
        ]
        if others:
            # The one that differs the most tells the most of what a sample takes.
            chosen.append(
                max(others, key=lambda at: abs(math.log(points[at].placement.batch / first.batch)))
            )
        else:
            _add(chosen, points, first.nodes, 4 * fewest, first.batch)
    if name == "k6":
        least = min(each.placement.nodes for each in points)
        within = [each.placement.gpus for each in points if each.placement.nodes == least]
        most = max(each.placement.gpus for each in points)
        widest = max(each.placement.nodes for each in points if each.placement.gpus == most)
        _add(chosen, points, least, max(within), first.batch)
        _add(chosen, points, widest, most, first.batch)
    return chosen


def _first(points: Sequence[Point]) -> int:
    fewest = min((each.placement.gpus, each.placement.nodes) for each in points)
    single = [
        at
        for at, each in enumerate(points)
        if (each.placement.gpus, each.placement.nodes) == fewest
    ]
    single.sort(key=lambda at: points[at].placement.batch)
    return single[len(single) // 2]


def _add(chosen: list[int], points: Sequence[Point], nodes: int, gpus: float, batch: float) -> None:
    """Add the nearest point that is not chosen yet, if there is one."""
    left = [at for at in range(len(points)) if at not in chosen]
    if left:
        chosen.append(min(left, key=_distance(points, nodes, gpus, batch)))


def _distance(
    points: Sequence[Point], nodes: int, gpus: float, batch: float
) -> Callable[[int], tuple[float, float, float, int]]:
    def key(at: int) -> tuple[float, float, float, int]:
        place = points[at].placement
        return (
            abs(math.log(place.nodes / nodes)),
            abs(math.log(place.gpus / gpus)),
            abs(math.log(place.batch / batch)),
            at,
        )

    return key


def _genie(points: Sequence[Point]) -> list[int]:
    fewest = min((each.placement.gpus, each.placement.nodes) for each in points)
    single = [
        at
        for at, each in enumerate(points)
        if (each.placement.gpus, each.placement.nodes) == fewest
    ]
    first = _first(points)
    chosen = [first, *(at for at in single if at != first)]
    whole = max(points[at].placement.batch for at in single) * fewest[0]
    within = sorted(
        {
            each.placement.gpus
            for each in points
            if each.placement.nodes == fewest[1] and each.placement.gpus > fewest[0]
        }
    )
    for gpus in within:
        _add(chosen, points, fewest[1], gpus, whole / gpus)
    for nodes in sorted({each.placement.nodes for each in points} - {fewest[1]}):
        gpus = min(each.placement.gpus for each in points if each.placement.nodes == nodes)
        _add(chosen, points, nodes, gpus, whole / gpus)
    return chosen
