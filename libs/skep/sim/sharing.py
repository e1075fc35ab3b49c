"""What the allocator's log may say of jobs that share GPUs (I16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skep.sim.modelled import AllocatorLog, ModelJob
from skep.sim.violation import require
from skep.wire.changes import AskOver, AskUnpack, Result
from skep.wire.packs import GpusShared
from skep.wire.trials import Kind


def share(model: AllocatorLog, fact: GpusShared) -> None:
    """Require that a job is packed with attempts of its VC that run, and has no GPUs yet."""
    job, name = model.jobs.get(fact.job), (fact.job, fact.attempt)
    waits = job is not None and (job.queued or name in model.released)
    require(waits, "I16", f"{fact.job} is packed and has GPUs of its own")
    model.gpus.decide(fact)
    model.tried.changed = Kind.PACK, fact.job, fact.attempt
    for beside, attempt in fact.beside:
        other = model.jobs.get(beside)
        runs = other is not None and other.attempt == attempt and not other.queued
        runs = runs and other is not None and other.stopping is None and not other.suspended
        require(runs, "I16", f"{fact.job} beside {beside}, which does not run")
        same = job is not None and other is not None and job.spec.vc == other.spec.vc
        require(same, "I16", f"{fact.job} beside {beside}, which is another tenant's")


def left(model: AllocatorLog, facts: Sequence[Any]) -> None:
    """Require of a record that a job which is said to be unpacked shares nothing, or ends.

    Unless it was asked to share again meanwhile, and does so in the same record.

    Args:
        model: What the log says so far.
        facts: The facts of the record.
    """
    for place, fact in enumerate(facts):
        if isinstance(fact, AskOver) and isinstance(fact.ask, AskUnpack):
            job = model.jobs.get(fact.job)
            again = any(
                isinstance(each, GpusShared) and each.job == fact.job for each in facts[place:]
            )
            if fact.result is not Result.DONE or job is None or job.queued or again:
                continue
            stays = job.stopping is None and model.gpus.partners((fact.job, job.attempt))
            require(not stays, "I16", f"{fact.job} is said to have left, and shares with {stays}")


def inherits(model: AllocatorLog, name: str, attempt: int) -> bool:
    """Return whether a guest is guaranteed by the jobs there: what they hold passes to it."""
    fact = model.gpus.decisions.get((name, attempt))
    if fact is None or model.jobs[name].spec.opportunistic:
        return False
    return any(model.jobs[other].guaranteed for other, _ in fact.beside)


def set_of(model: AllocatorLog, name: str, attempt: int) -> list[ModelJob]:
    """Return the jobs of an attempt and of all that share GPUs with it."""
    keys = [(name, attempt), *model.gpus.partners((name, attempt))]
    return [
        model.jobs[job]
        for job, number in keys
        if job in model.jobs and model.jobs[job].attempt == number
    ]
