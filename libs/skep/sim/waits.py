"""What the allocator's log says about jobs that wait for others or a time, or are held (I22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.sim.modelled import ModelJob
from skep.sim.violation import require
from skep.units import Instant
from skep.wire import deadline
from skep.wire.changes import AskHold, AskOver, AskRelease, Result
from skep.wire.facts import (
    CellsReserved,
    End,
    JobBound,
    JobDeferred,
    JobEligible,
    JobEnded,
    JobQueued,
)
from skep.wire.reasons import Reason

BROKEN_BY: dict[str, tuple[End, ...]] = {
    "ok": (End.FAILED, End.CANCELLED),
    "any": (),
    "fail": (End.SUCCEEDED,),
}
"""By kind of dependency: the ends after which it cannot be fulfilled."""


class Waits:
    """The jobs that wait outside of their queues, those that are held, and how jobs ended."""

    def __init__(self, jobs: Mapping[str, ModelJob], ended: Mapping[str, JobEnded]) -> None:
        """Start without any; `jobs` are the unfinished ones, `ended` the others."""
        self.deferred: dict[str, JobDeferred] = {}
        self.held: dict[str, None] = {}
        """By what was asked, not by what the allocator says of them."""
        self._jobs, self._ended = jobs, ended
        self._submitted: dict[str, Instant] = {}

    def take(self, fact: Any) -> None:
        """Take a fact that the rest of the model has not taken yet."""
        match fact:
            case JobQueued():
                self._submitted[fact.job] = fact.submitted_at
                if fact.spec.hold:
                    self.held[fact.job] = None
            case AskOver(ask=AskHold(), result=Result.DONE) if fact.job in self._jobs:
                self.held[fact.job] = None
                require(fact.job in self.deferred, "I22", f"{fact.job} is held in its queue")
            case AskOver(ask=AskRelease(), result=Result.DONE):
                self.held.pop(fact.job, None)
            case JobDeferred():
                self._deferred(fact)
            case JobEligible():
                require(fact.job in self.deferred, "I22", f"{fact.job} was not deferred")
                del self.deferred[fact.job]
            case JobBound() | CellsReserved():
                self._starts(fact)
            case JobEnded():
                self._over(fact)
            case _:
                pass

    def _deferred(self, fact: JobDeferred) -> None:
        job = self._jobs[fact.job]
        require(job.queued, "I22", f"{fact.job} is deferred and has GPUs")
        after = job.spec.after
        unfinished = [name for _, _, name in after.named() if name in self._jobs] if after else []
        require(list(fact.awaits) == unfinished, "I22", f"{fact.job} awaits {unfinished}: {fact}")
        self.deferred[fact.job] = fact

    def _starts(self, fact: JobBound | CellsReserved) -> None:
        """Require that a job that gets GPUs, or claims some, waits for nothing else."""
        name, job = fact.job, self._jobs[fact.job]
        require(name not in self.deferred, "I22", f"{name} starts and is deferred")
        require(name not in self.held, "I22", f"{name} starts and is held")
        begin = deadline.begin(job.spec, self._submitted[name])
        require(begin is None or fact.at >= begin, "I22", f"{name} starts before {begin}")
        for kind, _, other in job.spec.after.named() if job.spec.after is not None else ():
            met = other in self._ended and self._ended[other].end not in BROKEN_BY[kind]
            require(met, "I22", f"{name} starts before {kind} of {other}")

    def _over(self, fact: JobEnded) -> None:
        if fact.why is Reason.DEPENDENCY_NEVER_SATISFIED:
            after = self._jobs[fact.job].spec.after
            broken = [
                other
                for kind, _, other in (after.named() if after is not None else ())
                if other in self._ended and self._ended[other].end in BROKEN_BY[kind]
            ]
            require(bool(broken), "I22", f"{fact.job} could have started: {fact.detail}")
            require(fact.end is End.CANCELLED, "I22", f"{fact.job} is not cancelled")
        self.deferred.pop(fact.job, None)
        self.held.pop(fact.job, None)
