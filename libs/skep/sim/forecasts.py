"""What an advisor says in histories with deadlines: fits and paces that are drawn, some bad.

The simulated introspector times nothing, so nothing would be fitted. A service that hears this is
to take what predicts, to pass over what does not, and to lose it all in a crash.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec

from skep.units import Duration, Instant
from skep.wire.advice import FamilyFit, FitError, FittedForm, JobPace, Outlook

SECOND = 10**9
PACED_MAX = 6
"""Jobs of which one message says how they go."""
BAD = (-1.0, 1e300, 1e-300)
"""What stands in one number of ten fits."""


def drawn(
    rng: random.Random, now: int, vcs: Sequence[str], families: Sequence[str], jobs: Iterable[str]
) -> Outlook:
    """Return what is said now.

    Args:
        rng: Decides.
        now: The time, in nanoseconds.
        vcs: The tenants.
        families: Names of models.
        jobs: Jobs that run.
    """
    named = list(jobs)[-PACED_MAX:]
    fits = tuple(
        _fit(rng, rng.choice(vcs), rng.choice(families)) for _ in range(rng.choice((1, 4)))
    )
    return Outlook(at=Instant(now), jobs=tuple(_pace(rng, job) for job in named), fits=fits)


def _fit(rng: random.Random, vc: str, family: str) -> FamilyFit:
    step = rng.choice((0.2, 1.0, 3.0)) * SECOND
    numbers = [step, 0.0, step / 4, 0.0, step / 2, 0.0, 0.0, 1.0, 1.0]
    if rng.random() < 0.1:
        numbers[rng.randrange(len(numbers))] = rng.choice(BAD)
    known = rng.choice((0, 1, 3, 6, 6, 6))
    form = FittedForm(kind="theta", numbers=tuple(numbers), near=1.0, far=1.0)
    fit = FamilyFit(
        vc=vc,
        family=family,
        gpu_type=rng.choice(("cpu", "cpu", "cpu", "a100", "v100")),
        forms=(form,),
        errors=(FitError(low=-0.2, high=0.3, known=known),) * 3,
        points=known,
        gpus=min(known, 4),
        nodes=min(known, rng.choice((1, 2))),
    )
    return msgspec.structs.replace(fit, forms=()) if rng.random() < 0.1 else fit


def _pace(rng: random.Random, job: str) -> JobPace:
    return JobPace(
        job=job,
        attempt=rng.choice((1, 1, 2)),
        steps=1,
        rate_milli=1000,
        remaining=Duration(rng.choice((1, 10, 40, 1000)) * SECOND),
        workers=rng.choice((0, 1, 2)),
    )
