"""How long jobs waited for GPUs that were free: for a model's advice, and under its rule."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skep.wire.facts import JobBound, JobEnded, JobQueued
from skep.wire.learned import LearnedAdvice, Sight
from skep.wire.reasons import Reason


def waits(facts: Iterable[tuple[int, Any]], vc: str, gpus: int) -> Mapping[str, list[int]]:
    """Return how long each job of a VC waited while a GPU was free, by what placed it.

    All jobs have one GPU. A job takes the GPU that was free for the longest.

    Args:
        facts: Those of the allocator, each with its time (ns).
        vc: The VC.
        gpus: How many GPUs it has.
    """
    free = [0] * gpus
    queued, bound = dict[str, int](), dict[str, None]()
    found: dict[str, list[int]] = {"model": [], "rule": []}
    for at, fact in facts:
        match fact:
            case JobQueued(job=job) if fact.spec.vc == vc:
                assert fact.spec.gpus == 1, job
                queued[job] = at
            case JobBound(job=job) if job in queued and free:
                bound[job] = None
                planner = "model" if fact.ranked is Reason.ADVISED else "rule"
                found[planner].append(fact.at - max(queued.pop(job), free.pop(0)))
            case JobEnded(job=job) if job in bound:
                insort(free, fact.at)
    return found


def answers(heard: Iterable[Sight | LearnedAdvice], vc: str) -> list[int]:
    """Return how long after each sight of a VC its advice was made, in nanoseconds."""
    sent, found = dict[int, int](), list[int]()
    for message in heard:
        if message.vc != vc:
            continue
        if isinstance(message, Sight):
            sent[message.number] = message.at
        elif message.number in sent:
            found.append(message.at - sent.pop(message.number))
    return found


def summary(times: Sequence[int]) -> dict[str, float | int]:
    """Return how many there are, and quantiles in milliseconds."""
    known = sorted(times)
    if not known:
        return {"count": 0}

    def quantile(part: float) -> float:
        return round(known[min(int(part * len(known)), len(known) - 1)] / 1e6, 1)

    return {
        "count": len(known),
        "p50_ms": quantile(0.5),
        "p90_ms": quantile(0.9),
        "p99_ms": quantile(0.99),
        "max_ms": quantile(1.0),
    }
