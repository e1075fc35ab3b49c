"""Gandiva's reactive mode: every job gets nodes at once, if need be in turns with others.

A node's affinity is the size of the jobs on it. Jobs of one size share nodes, and where more of
them have come than the nodes hold, they take turns by being suspended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from skep.policies.parts import by, queued, span
from skep.policies.policy import Policy
from skep.policies.room import Place, Room
from skep.units import NS_PER_SECOND, Instant
from skep.view.plan import Plan, Suspend, Turn
from skep.view.view import HOLDING, JobView, Phase, VcView
from skep.wire.reasons import Reason


class Gandiva(Policy, frozen=True):
    """Algorithm 1, and round robin in slices of `slice_s` seconds where nodes are over-subscribed.

    Only jobs that can give their GPUs back while they are suspended take turns: the others keep
    them to their end. Packing, migration and growing are the introspective mode, and not here.
    """

    name: ClassVar[str] = "gandiva"
    source: ClassVar[str] = (
        "Gandiva, section 4.2.1 (algorithm 1) and section 3 (time slices of 60 s)"
    )
    slice_s: float = 60

    def __post_init__(self) -> None:
        """Refuse a slice that is too short."""
        span("slice_s", self.slice_s, "seconds")

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return a turn for each job with nodes, and who is suspended for those without."""
        nodes = _Nodes(view)
        turns, without = [], []
        coming = Counter(_kind(job) for job in view.jobs if _leaves(job))
        for job in by(queued(view), lambda job: job.waiting_since):
            kind = _kind(job)
            waits = coming[kind] > 0 and self._is_due(job, view.now)
            coming[kind] -= waits  # Somebody of its size leaves for it.
            place = None if waits else nodes.get(job)
            if place is None:
                without.append(job)
                continue
            nodes.put(job, place)
            turns.append(Turn(job.job, Reason.ARRIVAL, tuple(node for node, _ in place)))
        return self._in_turns(view, without, turns)

    def _in_turns(self, view: VcView, without: Sequence[JobView], turns: list[Turn]) -> Plan:
        """Swap jobs whose slice is over with others of their size, the longest waiting first."""
        slice_ns = self._slice
        actions: list[Suspend] = []
        looks: list[Instant] = []
        for kind in sorted({_kind(job) for job in without}):
            equals = [job for job in without if _kind(job) == kind]
            waiting = [job for job in equals if self._is_due(job, view.now)]
            looks.extend(
                Instant(job.waiting_since + slice_ns)
                for job in equals
                if not self._is_due(job, view.now)
            )
            coming = [job for job in view.jobs if _kind(job) == kind and _leaves(job)]
            there = [job for job in view.jobs if _kind(job) == kind and _may_yield(job)]
            there.sort(key=lambda job: (job.since, job.sequence))
            for job in waiting[len(coming) :]:
                # Who has a higher priority would come back at once.
                victim = next((e for e in there if e.spec.priority <= job.spec.priority), None)
                if victim is None:
                    break
                if view.now - victim.since < slice_ns:
                    looks.append(Instant(victim.since + slice_ns))
                    break
                there.remove(victim)
                coming.append(victim)
                actions.append(Suspend(victim.job, Reason.SLICE_OVER))
            looks.extend(
                Instant(job.since + slice_ns)
                for job in there[:1]
                if job.since + slice_ns > view.now
            )
            for job, leaving in zip(waiting, coming, strict=False):
                turns.append(
                    Turn(job.job, Reason.ARRIVAL, tuple(node for node, _ in leaving.nodes))
                )
            if actions and waiting:
                looks.append(Instant(view.now + slice_ns))
        return Plan(
            turns=tuple(turns),
            strict=False,
            actions=tuple(actions),
            look_at=min(looks, default=None),
        )

    @property
    def _slice(self) -> int:
        return round(self.slice_s * NS_PER_SECOND)

    def _is_due(self, job: JobView, now: Instant) -> bool:
        """Return whether it is a job's turn: it is new, or it has stood back for a slice."""
        return not job.served or now - job.waiting_since >= self._slice


def _kind(job: JobView) -> tuple[int, str]:
    """Return by what jobs take turns: their size, and the pinned cell that they are tied to."""
    return job.gpus, job.pin


def _leaves(job: JobView) -> bool:
    return job.phase is Phase.STOPPING and not job.borrows


def _may_yield(job: JobView) -> bool:
    return job.phase is Phase.RUNNING and not job.borrows and "release" in job.can


class _Nodes:
    """What algorithm 1 asks: free GPUs, affinity and load of each node."""

    def __init__(self, view: VcView) -> None:
        self._view = view
        holding = [job for job in view.jobs if job.phase in HOLDING and not job.borrows]
        self._room = Room(view, holding)
        self._sizes: dict[str, dict[int, None]] = {node.node: {} for node in view.nodes}
        for job in holding:
            for node, _ in job.nodes:
                if node in self._sizes:  # A view has no nodes where its VC can have nothing now.
                    self._sizes[node][job.gpus] = None

    def get(self, job: JobView) -> Place | None:
        """Return nodes1, nodes2 or nodes3 of the algorithm, as far as GPUs there are free."""
        same = [node for node, sizes in self._sizes.items() if list(sizes) == [job.gpus]]
        return (
            self._least_loaded(job, same)
            or self._room.fit(job, [node for node, sizes in self._sizes.items() if not sizes])
            or self._room.fit(job)
        )

    def put(self, job: JobView, place: Place) -> None:
        """Count a job as placed."""
        self._room.take(job, place)
        for node, _ in place:
            self._sizes[node][job.gpus] = None

    def _least_loaded(self, job: JobView, nodes: Sequence[str]) -> Place | None:
        for node in sorted(nodes, key=lambda node: -self._room.free(node, job.pin)):
            place = self._room.fit(job, (node,))
            if place is not None:
                return place
        return None
