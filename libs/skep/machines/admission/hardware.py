"""What hardware there is, and what can never run on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from skep.cells.levels import level_names
from skep.wire.cluster import Cluster
from skep.wire.facts import NodeSeen
from skep.wire.parse import nearest
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_NODES_MAX, TYPES_APART, JobSpec, Problem, Resources

POSSIBLE_MAX = 1000
"""Shapes of jobs of which it is kept that some node could run them: more than a cluster sees."""


class Build(NamedTuple):
    """What there is in a node: GPUs by type (sorted), CPUs, bytes of memory."""

    gpus: tuple[tuple[str, int], ...]
    cpus: int
    memory: int


class Hardware:
    """All nodes that were ever seen, counted by build: thousands of nodes have a few builds."""

    def __init__(self, nodes: Iterable[NodeSeen]) -> None:
        """Count them."""
        self._builds = Counter(map(_build, nodes))
        self._types = sorted({kind for build in self._builds for kind, _ in build.gpus})
        self._possible: dict[Resources, Cluster] = {}
        """What some node could run, and with which cells that was found out."""

    def problem(self, spec: JobSpec, cells: Cluster) -> Problem | None:
        """Return why no node could run the job, naming what exists; None if one could.

        Args:
            spec: What was submitted.
            cells: The cluster; its chains say which topologies tie a gang to one node.
        """
        if not self._builds:
            return None  # No hardware has joined yet: nothing is known to be impossible.
        wanted, types = spec.resources, self._types
        if self._possible.get(wanted) is cells:
            return None
        asked = types if wanted.gpu_type is None else wanted.gpu_type.split(TYPES_APART)
        for kind in (kind for kind in asked if kind not in types):
            text = f"no node has GPUs of type `{kind}`; there are: {', '.join(types)}"
            return Problem(
                path="$.resources.gpu_type",
                reason=Reason.NO_SUCH_GPU_TYPE,
                text=text,
                suggestion=nearest(kind, types),
            )
        kinds = [kind for kind in types if kind in asked]
        one_node = _one_node(spec, cells)
        choices = [[kind] for kind in kinds]
        if wanted.mixed:
            choices.append(kinds)
        if any(self._holds(each, spec, 1 if one_node else GANG_NODES_MAX) for each in choices):
            if len(self._possible) >= POSSIBLE_MAX:
                self._possible.clear()
            self._possible[wanted] = cells
            return None
        return self._too_big(spec, kinds, one_node=one_node)

    def _holds(self, kinds: list[str], spec: JobSpec, nodes: int) -> bool:
        """Return whether so many nodes could hold the gang, all empty, each on one of the types."""
        left = spec.resources.workers
        at_once = [
            (max(_workers(build, kind, spec) for kind in kinds), count)
            for build, count in self._builds.items()
        ]
        for workers, count in sorted(at_once, reverse=True):
            left -= workers * min(count, nodes)
            nodes -= min(count, nodes)
        return left <= 0

    def _too_big(self, spec: JobSpec, kinds: list[str], *, one_node: bool) -> Problem:
        builds = self._builds
        together = sum if spec.resources.mixed else _most
        total = together(
            sum(dict(build.gpus).get(kind, 0) * count for build, count in builds.items())
            for kind in kinds
        )
        if spec.gpus > total:
            of = "mixed" if spec.resources.mixed else "of one type"
            text = f"it needs {spec.gpus} GPUs {of} and the cluster has {total}"
            return Problem(
                path="$.resources",
                reason=Reason.TOO_MANY_GPUS,
                text=text,
                suggestion=f"ask for at most {total}",
            )
        wanted = spec.resources.workers
        if not one_node and any(
            sum(_workers(build, kind, spec) * count for build, count in builds.items()) >= wanted
            for kind in kinds
        ):
            text = f"it would span more than {GANG_NODES_MAX} nodes, the most one gang may have"
            return Problem(
                path="$.resources.workers",
                reason=Reason.NODE_TOO_SMALL,
                text=text,
                suggestion="use fewer workers with more GPUs each",
            )
        most = max(dict(build.gpus).get(kind, 0) for build in builds for kind in kinds)
        cpus = max(build.cpus for build in builds)
        memory = max(build.memory for build in builds)
        text = (
            f"no placement exists: the largest node has {most} GPUs, {cpus} CPUs and "
            f"{memory} bytes of memory"
        )
        return Problem(
            path="$.resources",
            reason=Reason.NODE_TOO_SMALL,
            text=text,
            suggestion="make the workers smaller or the topology wish soft",
        )


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)


def _build(node: NodeSeen) -> Build:
    return Build(tuple(sorted(node.gpus.items())), node.cpus, node.memory)


def _one_node(spec: JobSpec, cells: Cluster) -> bool:
    """Return whether the gang is tied to one node, or to a part of one."""
    topology = spec.resources.topology
    if topology is None or not topology.hard:
        return False
    for chain in cells.chains.values():
        names = level_names(chain)
        if topology.within in names:
            return names.index(topology.within) <= names.index(chain.node_level)
    return True


def _workers(node: Build, kind: str, spec: JobSpec) -> int:
    """Return how many workers of the gang an empty node of a build could hold."""
    wanted = spec.resources
    workers = dict(node.gpus).get(kind, 0) // wanted.gpus
    if wanted.cpus:
        workers = min(workers, node.cpus // wanted.cpus)
    if wanted.memory:
        workers = min(workers, node.memory // int(wanted.memory))
    return workers
