"""Dominant resource fairness: the owner with the lowest dominant share gets the next turn.

Source: Dominant Resource Fairness (NSDI 2011), algorithm 1; DL², section 6.1.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heapreplace
from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.parts import by_arrival, queued
from skep.policy.plan import Plan, Turn
from skep.policy.powers import Powers
from skep.policy.view import HOLDING, JobView, VcView
from skep.wire.reasons import Reason

Amounts = tuple[int, int, int]
"""GPUs, processors, bytes of memory."""


class Drf(Policy, frozen=True):
    """Serve the owner with the lowest dominant share next; no job is preempted.

    A dominant share is the largest of the parts that an owner has of the VC's GPUs, processors and
    memory. Jobs with the same value of the label `by` have one owner; a job without the label has
    an owner of its own. The label `user` of a job that a person submitted is that person.
    """

    name: ClassVar[str] = "drf"
    source: ClassVar[str] = "Dominant Resource Fairness (NSDI 2011), algorithm 1; DL², section 6.1"
    by: str = "user"
    strict: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `by` is empty.
        """
        if not self.by:
            reason = "by names the label that tells whose a job is: it is empty"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True: processors and memory belong to nodes."""
        return True

    @property
    def powers(self) -> Powers:
        """Return that priorities order the jobs of one owner, and not owners."""
        return Powers(passes=not self.strict, priority="ignored")

    def plan(self, view: VcView) -> Plan:
        """Return the turns by progressive filling (Dominant Resource Fairness, algorithm 1)."""
        totals = _totals(view)
        has: dict[str, Amounts] = {}
        for job in view.jobs:
            if job.phase in HOLDING and not job.borrows:
                _add(has, self._owner(job), job)
        lines: dict[str, deque[JobView]] = {}
        for job in by_arrival(queued(view)):
            lines.setdefault(self._owner(job), deque()).append(job)
        least = [
            (_share(has, owner, totals), line[0].sequence, owner) for owner, line in lines.items()
        ]
        heapify(least)
        turns = []
        while least:
            owner = least[0][2]
            job = lines[owner].popleft()
            _add(has, owner, job)
            turns.append(Turn(job.job, Reason.LOWEST_SHARE))
            if lines[owner]:
                following = lines[owner][0].sequence
                heapreplace(least, (_share(has, owner, totals), following, owner))
            else:
                heappop(least)
        return Plan(turns=tuple(turns), strict=self.strict)

    def _owner(self, job: JobView) -> str:
        found = job.label(self.by)
        return f"job {job.job}" if found is None else found


def amounts(job: JobView) -> Amounts:
    """Return what a whole gang uses: GPUs, processors, and bytes of memory."""
    wants = job.spec.resources
    memory = wants.memory if isinstance(wants.memory, int) else 0
    return job.gpus, wants.cpus * job.workers, memory * job.workers


def _totals(view: VcView) -> Amounts:
    return (
        view.gpus,
        sum(node.cpus for node in view.nodes),
        sum(node.memory for node in view.nodes),
    )


def _add(has: dict[str, Amounts], owner: str, job: JobView) -> None:
    gpus, cpus, memory = has.get(owner, (0, 0, 0))
    more = amounts(job)
    has[owner] = (gpus + more[0], cpus + more[1], memory + more[2])


def _share(has: dict[str, Amounts], owner: str, totals: Amounts) -> float:
    had = has.get(owner, (0, 0, 0))
    return max(part / whole if whole else 0.0 for part, whole in zip(had, totals, strict=True))
