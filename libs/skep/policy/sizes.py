"""What elastic jobs make of other numbers of workers, for the policies that change them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from skep.policy.view import JobView, Phase
from skep.units import NS_PER_SECOND, Instant
from skep.wire.spec import Elastic

EXPLORED = 2
"""A job has at most this multiple of the largest size at which its speed is known (Pollux, section
4.1)."""
LEAST_SPEED = 1e-3
"""No speed is taken to be less: they are divided by one another."""


OVERDUE = 0.1
"""A job that should have ended is taken to need this part of its time still."""
UNKNOWN = 3600 * NS_PER_SECOND
"""A job of unknown length is taken to need as long as it has run, and this at least."""


def resizable(job: JobView) -> bool:
    """Return whether the size of a job can be changed now: it runs on GPUs of its own.

    One with parameter servers has to be on one node.
    """
    alone = not job.borrows and not job.partners
    together = job.spec.ps is None or len(job.nodes) <= 1
    return job.phase is Phase.RUNNING and alone and together and "resize" in job.can


def offers(job: JobView, workers: int) -> bool:
    """Return whether a job can have a number of workers, by what its ranks have said."""
    return not job.sizes or workers == job.workers or workers in job.sizes


def offered(job: JobView, least: int, most: int) -> Sequence[int]:
    """Return the numbers of workers within bounds that a job can have (`offers`), fewest first."""
    if not job.sizes:
        return range(least, most + 1)
    return sorted({each for each in (*job.sizes, job.workers) if least <= each <= most})


def snapped(job: JobView, workers: int) -> int:
    """Return the largest size up to `workers` that a job can have, or else its smallest one.

    It needs no more GPUs than were asked for, unless the job can have no size that needs so few.
    """
    if job.spec.elastic is None or offers(job, workers):
        return workers
    smaller = offered(job, job.spec.elastic.min, workers)
    return smaller[-1] if smaller else _least(job, job.spec.elastic)


def _least(job: JobView, elastic: Elastic) -> int:
    """Return the smallest size that a job can have."""
    found = offered(job, elastic.min, elastic.max)
    return found[0] if found else elastic.min


def changeable(job: JobView) -> bool:
    """Return whether the size of a job can be changed, and its speed is known.

    One that has just changed is left alone until it was measured: what is told of it is of before,
    and by that it might change back and forth.
    """
    known = job.workers in dict(job.rates) and job.rate_workers in (0, job.workers)
    return job.spec.elastic is not None and resizable(job) and known


def fewest_workers(job: JobView) -> int:
    """Return with how many workers a waiting job can begin at least; 0: those of its spec only."""
    if job.spec.elastic is None or job.phase is not Phase.WAITING:
        return 0
    return _least(job, job.spec.elastic)


def gpus_per_worker(job: JobView) -> int:
    """Return the GPUs of one worker of a job."""
    return max(job.spec.resources.gpus, 1)


def known_speeds(job: JobView) -> dict[int, float]:
    """Return the speed of a job for each number of workers that it may have, fewest first.

    An unknown speed between or beyond known ones is in proportion to the workers from the next
    known smaller size, up to EXPLORED times the largest known size (Pollux, section 4.1). A job of
    which no speed is known has only its fewest workers. The unit is of no matter.

    Args:
        job: If it is not elastic, or is suspended, it has only the workers that it asks for.
            One that has said which sizes it can have has these only.
    """
    elastic = job.spec.elastic
    if elastic is None or job.phase is Phase.AWAY:
        return {job.workers: 1.0}
    speeds = dict(_speeds(job.rates, elastic.min, elastic.max, _least(job, elastic)))
    return {each: rate for each, rate in speeds.items() if offers(job, each)} or speeds


@lru_cache(maxsize=4096)
def _speeds(
    rates: tuple[tuple[int, int], ...], fewest: int, most: int, begins: int
) -> tuple[tuple[int, float], ...]:
    """Return the speeds of `known_speeds` for what is known of them, at `begins` at least."""
    known = {workers: rate for workers, rate in rates if rate > 0}
    most = min(most, max([*(EXPLORED * workers for workers in known), begins]))
    found: list[tuple[int, float]] = []
    base = min(known, default=1)
    for workers in range(fewest, most + 1):
        base = workers if workers in known else base
        found.append((workers, max(known.get(base, 1) * workers / base, LEAST_SPEED)))
    return tuple(found)


def times(job: JobView, now: Instant, *, cautious: bool = False) -> dict[int, float]:
    """Return how long a job still runs with each number of workers that it may have, fewest first.

    Args:
        job: Its length is predicted at its present size, or said for the workers of its spec.
        now: The time of the view.
        cautious: Whether, for a job that runs, sizes that are predicted and were not measured count
            at their P90: then it changes for no gain that is within the error of a prediction.

    Returns:
        Nanoseconds, above 0, by the speeds of `known_speeds`.
    """
    speeds, ran, left = known_speeds(job), job.ran(now), job.remaining(now) or 0
    own, usual = (_speed(speeds, size) for size in (job.workers, job.spec.resources.workers))
    if job.left is not None:
        work = max(left * own, NS_PER_SECOND * usual)
    elif job.expected is not None:  # With which sizes it has run until now is not known.
        work = max(left, OVERDUE * job.expected + 1) * usual
    else:
        work = max(ran, UNKNOWN) * usual
    found = {workers: work / speed for workers, speed in speeds.items()}
    if not cautious or job.phase is not Phase.RUNNING:
        return found
    known, low = dict(job.rates), dict(job.rates_low)
    for workers in found:
        if workers != job.workers and 0 < low.get(workers, 0) < known.get(workers, 0):
            found[workers] *= known[workers] / low[workers]
    return found


def _speed(speeds: dict[int, float], workers: int) -> float:
    """Return the speed of a size, in proportion from the next smaller known one."""
    known = max((each for each in speeds if each <= workers), default=min(speeds))
    return speeds[known] * workers / known
