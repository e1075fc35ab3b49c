"""Folds facts about promises into rows of jobs, and counts them by VC."""

from __future__ import annotations

from skep.wire.promises import (
    Judged,
    PromiseBroken,
    PromiseJudged,
    PromiseKept,
    PromiseMade,
    PromiseMoved,
)
from skep_services.gateway.rows import Job, Pledged

Told = PromiseJudged | PromiseMade | PromiseMoved | PromiseBroken | PromiseKept
MADE, KEPT, BROKEN = range(3)


def pledge(job: Job, fact: Told) -> None:
    """Take over one fact about a job's promise."""
    match fact:
        case PromiseJudged(judged=judged):
            job.pledged = _pledged(judged)
        case PromiseMade(judged=judged, place=place):
            job.pledged = _pledged(judged)
            job.pledged.outcome = "open"
            job.pledged.begin, job.pledged.end = place.begin, place.end
            job.pledged.gpus = sum(gpus for _, gpus in place.nodes)
        case PromiseMoved(place=place):
            if job.pledged is not None:
                job.pledged.begin, job.pledged.end = place.begin, place.end
        case PromiseBroken(why=why, detail=detail):
            if job.pledged is not None:
                job.pledged.outcome, job.pledged.cause, job.pledged.detail = "broken", why, detail
        case PromiseKept():
            if job.pledged is not None:
                job.pledged.outcome = "kept"


def count(promises: dict[str, list[int]], broken: dict[str, dict[str, int]], fact: Told) -> None:
    """Count a fact by its VC.

    Args:
        promises: By VC: promises made, kept and broken; changed.
        broken: By VC and cause: those that were broken; changed.
        fact: The fact.
    """
    if isinstance(fact, PromiseBroken):
        causes = broken.setdefault(fact.vc, {})
        causes[fact.why] = causes.get(fact.why, 0) + 1
    which = {PromiseMade: MADE, PromiseKept: KEPT, PromiseBroken: BROKEN}.get(type(fact))
    if which is not None and not isinstance(fact, PromiseMoved):
        promises.setdefault(fact.vc, [0, 0, 0])[which] += 1


def _pledged(judged: Judged) -> Pledged:
    return Pledged(
        answer=judged.answer,
        why=judged.why,
        text=judged.text,
        due=judged.due,
        p50=judged.p50,
        p90=judged.p90,
        helps=tuple((each.why.value, each.key, each.value) for each in judged.helps),
        note=judged.note,
    )
