"""What a run meant for one job. Times are in nanoseconds, ratios have no unit."""

from __future__ import annotations

from collections.abc import Callable

from skep.units import Duration
from skep_lab.outcome import JobOutcome
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation, Speeds

Alone = Callable[[TraceJob], Duration]
"""Returns how long a job takes on one GPU (GENIE's Lat(t, <1, 1>))."""

NORMAL_LATENCIES = 2
"""A normal task's expected completion time, in latencies on one GPU (GENIE, eq. 9)."""

SIZES = ((1, "1 GPU"), (2, "2 GPUs"), (4, "3-4 GPUs"), (8, "5-8 GPUs"))
"""Size classes: those of HiveD's Table 1, and those in between."""
LARGEST = "9 GPUs and more"


def size_class(gpus: int) -> str:
    """Return the size class of a job with so many GPUs."""
    return next((name for most, name in SIZES if gpus <= most), LARGEST)


def completion(outcome: JobOutcome) -> Duration | None:
    """Return the job completion time (JCT): from submission to end; None if it has not ended."""
    return None if outcome.ended is None else Duration(outcome.ended - outcome.job.at)


def effectiveness(outcome: JobOutcome) -> float | None:
    """Return the execution effectiveness (SCHED2, eq. 2): T_ideal / (T_wait + T_actual).

    T_ideal is the run time in the trace, the denominator all time from submission to end.

    Returns:
        More than 1 only if the job ran faster than in the trace; None if it has not ended.
    """
    took = completion(outcome)
    if took is None:
        return None
    return outcome.job.run_time / took if took > 0 else 1.0


def linear(job: TraceJob) -> Duration:
    """Return its time on one GPU without communication costs: run time times GPUs.

    This is used if no workload model knows the job; it is an upper bound of the speed-up.
    """
    return Duration(job.run_time * job.gpus)


def alone_by(speeds: Speeds) -> Alone:
    """Return a function that computes a job's time on one GPU by a workload model.

    For a model that it does not know, the function is `linear`.
    """

    def alone(job: TraceJob) -> Duration:
        where = Situation(job.gpu_type, (1,), 1)
        if job.gpus == 1 or not job.model or speeds.mini_batch_s(job, where) <= 0:
            return linear(job)
        speed = speeds.speed(job, where)
        return Duration(round(job.run_time / speed)) if speed > 0 else linear(job)

    return alone


def normalised_latency(outcome: JobOutcome, alone: Alone = linear) -> float | None:
    """Return its wall time over its latency on one GPU (GENIE, eq. 16).

    The wall time is the user's: from submission to end, with the queue.

    Args:
        outcome: What became of the job.
        alone: Its time on one GPU.

    Returns:
        The ratio; None if it has not ended, or takes no time.
    """
    took, base = completion(outcome), alone(outcome.job)
    return None if took is None or base <= 0 else took / base


def expected_by(job: TraceJob, alone: Alone = linear) -> Duration:
    """Return when a user expects it to have ended, counted as `at` is.

    That is the job's own deadline. Without one it is that of a normal task (GENIE, eq. 9): twice
    its latency on one GPU after its submission. An urgent task's deadline is its submission, a
    prior one's the latency after that: such traces contain these as deadlines.

    Args:
        job: The job.
        alone: Its time on one GPU.
    """
    if job.deadline is not None:
        return job.deadline
    return Duration(job.at + NORMAL_LATENCIES * alone(job))


def in_time(outcome: JobOutcome, now: Duration, alone: Alone = linear) -> bool | None:
    """Return whether it had ended when it was expected to (GENIE, eq. 14).

    Args:
        outcome: What became of the job; a refused one is late.
        now: The end of the run.
        alone: Its time on one GPU.

    Returns:
        None if that is not decided at the end of a run that was cut.
    """
    by = expected_by(outcome.job, alone)
    if outcome.ended is not None:
        return outcome.ended <= by
    return False if outcome.refused or now > by else None


def hundred(outcome: JobOutcome) -> Duration | None:
    """Return the time from submission to its 100th mini-batch (Gandiva, section 6.3).

    Returns:
        None if it did not come so far, or its mini-batches are not known.
    """
    return None if outcome.hundred is None else Duration(outcome.hundred - outcome.job.at)


def preemptible(outcome: JobOutcome, *, borrowed: bool) -> bool:
    """Return whether a guaranteed job could take its GPUs.

    Args:
        outcome: What became of the job.
        borrowed: Whether its GPUs were lent to it.
    """
    return borrowed or outcome.job.opportunistic
