"""What the allocator's log says of jobs and arrays that wait outside of a queue (I22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.sim.modelled import ModelJob
from skep.sim.violation import require
from skep.units import Instant
from skep.wire import deadline
from skep.wire.array_gate import ArrayBroken, ArrayDeferred, ArrayEligible, ArrayEnded, ArraySeen
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
from skep.wire.spec import After

BROKEN_BY: dict[str, tuple[End, ...]] = {
    "ok": (End.FAILED, End.CANCELLED),
    "any": (),
    "fail": (End.SUCCEEDED,),
}
"""By kind of dependency: the ends after which it cannot be fulfilled."""


class ModelGate:
    """An unfinished array, and whether its tasks may begin."""

    def __init__(self, fact: ArraySeen) -> None:
        """Start as the fact says."""
        self.vc, self.after, self.open = fact.vc, fact.after, not fact.gated
        self.begin = Instant(0)


class Waits:
    """The jobs that wait outside of their queues, those that are held, and how jobs ended."""

    def __init__(self, jobs: Mapping[str, ModelJob], ended: Mapping[str, JobEnded]) -> None:
        """Start without any; `jobs` are the unfinished ones, `ended` the others."""
        self.deferred: dict[str, JobDeferred] = {}
        self.held: dict[str, None] = {}
        """By what was asked, not by what the allocator says of them."""
        self._jobs, self._ended = jobs, ended
        self._submitted: dict[str, Instant] = {}
        self.arrays: dict[str, ModelGate] = {}
        self.opened: dict[str, None] = {}
        """Arrays that waited for something, which has come."""
        self._array_ends: dict[str, list[End]] = {}
        """How each array ended, each time."""

    def take(self, fact: Any) -> None:
        """Take a fact that the rest of the model has not taken yet."""
        match fact:
            case JobQueued():
                self._submitted[fact.job] = fact.submitted_at
                if fact.spec.hold:
                    self.held[fact.job] = None
            case ArraySeen() | ArrayDeferred() | ArrayEligible() | ArrayBroken() | ArrayEnded():
                self._array(fact)
            case AskOver(ask=AskHold(), result=Result.DONE) if fact.job in self.arrays:
                require(not self.arrays[fact.job].open, "I22", f"{fact.job} is held and open")
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
                self._room(fact.job)
            case JobBound() | CellsReserved():
                self._starts(fact)
            case JobEnded():
                self._over(fact)
            case _:
                pass

    def _room(self, name: str) -> None:
        """Require that fewer jobs of its pipeline are let in than a job may begin beside."""
        bound = self._jobs[name].spec.pipeline
        if bound is None:
            return
        let_in = [other for other in self._of_pipeline(name) if other not in self.deferred]
        require(len(let_in) <= bound.max_parallel, "I22", f"{name} starts, with {let_in}")

    def _of_pipeline(self, name: str) -> list[str]:
        """Return the unfinished jobs of a job's pipeline."""
        key = self._key(name)
        return [other for other in self._jobs if self._key(other) == key]

    def _key(self, name: str) -> tuple[str, str, str] | None:
        spec = self._jobs[name].spec
        return (spec.vc, self._jobs[name].owner, spec.pipeline.name) if spec.pipeline else None

    def _deferred(self, fact: JobDeferred) -> None:
        job = self._jobs[fact.job]
        require(job.queued, "I22", f"{fact.job} is deferred and has GPUs")
        self._awaits(fact.job, job.spec.after, fact.awaits)
        self.deferred[fact.job] = fact

    def _awaits(self, name: str, after: After | None, awaits: tuple[str, ...]) -> None:
        """Require that what is awaited is what has not ended."""
        named = [other for _, _, other in after.named()] if after is not None else []
        left = [other for other in named if other in self._jobs or other in self.arrays]
        require(list(awaits) == left, "I22", f"{name} awaits {left}, and not {awaits}")

    def _ends(self, name: str) -> list[End]:
        """Return how a job ended, or how an array did each time; nothing: it has not."""
        job = self._ended.get(name)
        return [job.end] if job is not None else self._array_ends.get(name, [])

    def _met(self, name: str, after: After | None) -> None:
        """Require that everything has ended as it was to."""
        for kind, _, other in after.named() if after is not None else ():
            met = any(end not in BROKEN_BY[kind] for end in self._ends(other))
            require(met, "I22", f"{name} starts before {kind} of {other}")

    def _broken(self, name: str, after: After | None, detail: str) -> None:
        """Require that something has ended as it was not to."""
        broken = any(
            end in BROKEN_BY[kind]
            for kind, _, other in (after.named() if after is not None else ())
            for end in self._ends(other)
        )
        require(broken, "I22", f"{name} could have started: {detail}")

    def _array(
        self, fact: ArraySeen | ArrayDeferred | ArrayEligible | ArrayBroken | ArrayEnded
    ) -> None:
        name = fact.array
        if isinstance(fact, ArraySeen):
            require(name not in self.arrays, "I22", f"{name} is seen twice")
            self.arrays[name] = ModelGate(fact)
            return
        require(name in self.arrays, "I22", f"{name} is no unfinished array: {fact}")
        array = self.arrays[name]
        match fact:
            case ArrayDeferred():
                require(not array.open, "I22", f"{name} waits and was open")
                self._awaits(name, array.after, fact.awaits)
                array.begin = fact.begin
                if fact.held:
                    self.held[name] = None
            case ArrayEligible():
                require(not array.open, "I22", f"{name} is opened twice")
                require(fact.at >= array.begin, "I22", f"{name} starts before {array.begin}")
                self._met(name, array.after)
                array.open = True
                self.opened[name] = None
            case ArrayBroken():
                self._broken(name, array.after, fact.detail)
            case ArrayEnded():
                del self.arrays[name]
                self.held.pop(name, None)
                self._array_ends.setdefault(name, []).append(End(fact.end))

    def _starts(self, fact: JobBound | CellsReserved) -> None:
        """Require that a job that gets GPUs, or claims some, waits for nothing else."""
        name, job = fact.job, self._jobs[fact.job]
        require(name not in self.deferred, "I22", f"{name} starts and is deferred")
        require(name not in self.held, "I22", f"{name} starts and is held")
        self._room(name)
        begin = deadline.begin(job.spec, self._submitted[name])
        require(begin is None or fact.at >= begin, "I22", f"{name} starts before {begin}")
        self._met(name, job.spec.after)

    def _over(self, fact: JobEnded) -> None:
        if fact.why is Reason.DEPENDENCY_NEVER_SATISFIED:
            self._broken(fact.job, self._jobs[fact.job].spec.after, fact.detail)
            require(fact.end is End.CANCELLED, "I22", f"{fact.job} is not cancelled")
        self.deferred.pop(fact.job, None)
        self.held.pop(fact.job, None)
