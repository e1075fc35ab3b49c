"""What elastic jobs make of other numbers of workers, for the policies that change them."""

from __future__ import annotations

from skep.policy.view import JobView, Phase

EXPLORED = 2
"""A job has at most this multiple of the largest size at which its speed is known (Pollux, section
4.1)."""
LEAST_SPEED = 1e-3
"""No speed is taken to be less: they are divided by one another."""


def resizable(job: JobView) -> bool:
    """Return whether the size of a job can be changed now: it runs on GPUs of its own."""
    alone = not job.borrows and not job.partners
    return job.phase is Phase.RUNNING and alone and "resize" in job.can


def changeable(job: JobView) -> bool:
    """Return whether the size of a job can be changed, and its speed is known."""
    return job.spec.elastic is not None and resizable(job) and job.workers in dict(job.rates)


def fewest_workers(job: JobView) -> int:
    """Return with how many workers a waiting job can begin at least; 0: those of its spec only."""
    if job.spec.elastic is None or job.phase is not Phase.WAITING:
        return 0
    return job.spec.elastic.min


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
    """
    elastic = job.spec.elastic
    if elastic is None or job.phase is Phase.AWAY:
        return {job.workers: 1.0}
    rates = {workers: rate for workers, rate in job.rates if rate > 0}
    most = max([*(EXPLORED * workers for workers in rates), elastic.min])
    found: dict[int, float] = {}
    base = min(rates, default=1)
    for workers in range(elastic.min, min(elastic.max, most) + 1):
        base = workers if workers in rates else base
        found[workers] = max(rates.get(base, 1) * workers / base, LEAST_SPEED)
    return found
