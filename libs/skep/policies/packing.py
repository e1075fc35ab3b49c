"""SCHED²'s placement by packing: as few servers as possible, with as few free GPUs as possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from skep.policies.fifo import in_order
from skep.policies.policy import Policy
from skep.policies.room import Place
from skep.view.plan import Plan, Turn
from skep.view.view import JobView, VcView


class Packing(Policy, frozen=True):
    """In order of arrival, each job on the servers that the figure's algorithm chooses.

    The server with the fewest free GPUs that holds the job; if none does, the one with the most
    free GPUs, and the rest of the job by the same rule.
    """

    name: ClassVar[str] = "packing"
    source: ClassVar[str] = "SCHED², section II-B and figure 2"
    strict: bool = True

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return a turn on its servers for each job that fits; those after it get what is left."""
        free = {node.node: node.free for node in view.nodes}
        types = {node.node: node.gpu_type for node in view.nodes}
        jobs = {job.job: job for job in view.jobs}
        turns = []
        for turn in in_order(view):
            job = jobs[turn.job]
            wanted = job.spec.resources.gpu_type
            place = pack(job, {n: g for n, g in free.items() if wanted in (None, types[n])})
            if place is None:
                turns.append(turn)
                if self.strict:
                    break
                continue
            for node, gpus in place:
                free[node] -= gpus
            turns.append(Turn(turn.job, turn.why, tuple(node for node, _ in place)))
        return Plan(turns=tuple(turns), strict=self.strict)


def pack(job: JobView, free: Mapping[str, int]) -> Place | None:
    """Return the servers of a job, and its GPUs on each; None: there are not enough."""
    worker = max(job.gpus // max(job.workers, 1), 1)
    whole = {node: gpus // worker * worker for node, gpus in free.items()}
    place: list[tuple[str, int]] = []
    left = job.gpus
    while left:
        enough = [(gpus, node) for node, gpus in whole.items() if gpus >= left]
        if enough:
            place.append((min(enough)[1], left))
            return tuple(place)
        most = max(whole.values(), default=0)
        if not most:
            return None
        node = min(node for node, gpus in whole.items() if gpus == most)
        place.append((node, most))
        left -= most
        del whole[node]
    return tuple(place)
