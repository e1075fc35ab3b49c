"""How long a job runs, or still runs: by its own rate, its speed, its family's runs or its owner.

    its rate is measured      what is left of its mini-batches, by that rate
    a fit of its model        its mini-batches, by the predicted speed
    runs of its family        its mini-batches, by what one took in these runs, start included
    its owner's `run_time`    that, as far off as owners in its VC are

The first that is known is taken. Where none is, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from skep.estimates.spans import around, left, more, span
from skep.perf.fitted import FitsKept
from skep.perf.model.placement import Basis, Placement, Span, Stratum
from skep.perf.model.predict import predict
from skep.promises.length import spread
from skep.promises.speeds import batch_of
from skep.units import NS_PER_SECOND, seconds
from skep.wire.estimates import Ran
from skep.wire.promises import Lasts
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec

WINDOW_NS = 10 * NS_PER_SECOND
"""How long the windows are whose rates a spread is of."""
DRIFT = 0.03
"""By how much rates move that were steady: the standard deviation of their logarithm."""
UNSTEADY = 0.15
"""Likewise for a rate of which it is not known how steady it is."""
RUNS_SIGMA, RUNS_KNOWN = 0.25, 4
"""How far runs of a family are apart, as if so many had shown it: few runs look too alike."""
OTHER_GPUS_SIGMA = 0.5
"""What is added where runs had other GPUs."""
ENDS_NS = seconds(5.0)
"""What a job does after its last mini-batch is not seen: it stores, and its processes end."""
STARTS_NS = seconds(15.0)
"""Likewise before its first one: processes start, and other jobs leave the GPUs first."""
EARLY = "early"
"""A rate of which it is not known yet how steady it is: it counts by itself."""
MILLI_NS = 1000 * NS_PER_SECOND
RATE_MAX = 2**62


class Work(NamedTuple):
    """What a job has to do, as its spec says it."""

    vc: str
    family: str
    total: int | None
    """Mini-batches."""
    declared: int
    """Its run time, in nanoseconds; 0: its owner says none."""
    gpus: int
    gpu_type: str
    spec: JobSpec


class Pace(NamedTuple):
    """How an attempt goes: mini-batches done, and thousandths of one a second.

    `mean` and `spread` are those of `samples` windows (0: not known yet).
    """

    steps: int
    rate_milli: int
    mean: int = 0
    spread: int = 0
    samples: int = 0


class Known(NamedTuple):
    """An estimate of a length, and what it rests on. `what` is by which its outcomes count."""

    lasts: Lasts
    basis: Reason
    what: str


def work_of(spec: JobSpec) -> Work:
    """Return what a job has to do."""
    run_time = spec.size.run_time
    declared = run_time if isinstance(run_time, float | int) else 0.0
    return Work(
        spec.vc,
        spec.size.family or "",
        spec.size.total(),
        round(min(declared, 1e9) * NS_PER_SECOND) if declared > 0 else 0,
        spec.gpus,
        spec.resources.only_type,
        spec,
    )


def by_rate(total: int | None, pace: Pace | None) -> Known | None:
    """Return how long a job still runs at its own rate; None: it has none, or no size.

    Windows vary, so their mean is off, and so is the mean of the windows to come.

    Args:
        total: Its mini-batches.
        pace: How it goes.
    """
    if total is None or pace is None or pace.rate_milli <= 0:
        return None
    steady = pace.samples > 0 and pace.mean > 0
    rate = min(pace.mean if steady else pace.rate_milli, RATE_MAX)
    middle = max(total - max(pace.steps, 0), 0) * MILLI_NS / rate
    sigma = UNSTEADY
    if steady:
        windows = max(min(middle, 1e18) / WINDOW_NS, 1.0)
        vary = min(pace.spread / pace.mean, 1.0)
        sigma = math.sqrt(vary**2 * (1 / pace.samples + 1 / windows) + DRIFT**2)
    lasts = more(around(middle, sigma), 0, ENDS_NS // 5, ENDS_NS)
    basis = Reason.MEASURED_RATE
    return Known(lasts, basis, basis.value if steady else f"{basis.value} {EARLY}")


def by_runs(total: int | None, runs: Sequence[Ran], gpus: int, gpu_type: str) -> Known | None:
    """Return how long a job runs if it goes like earlier runs of its family; None: there are none.

    Args:
        total: Its mini-batches.
        runs: The runs.
        gpus: What it runs on, in all.
        gpu_type: Their type; empty: not known.
    """
    if total is None or not runs:
        return None
    same = [run for run in runs if run.gpus == gpus]
    alike = [run for run in same if run.gpu_type == gpu_type] or same
    known = [math.log(max(run.step_ns, 1)) for run in alike or runs]
    mean, count = sum(known) / len(known), len(known)
    apart = sum((each - mean) ** 2 for each in known)
    variance = (RUNS_KNOWN * RUNS_SIGMA**2 + apart) / (RUNS_KNOWN + count - 1)
    variance *= 1 + 1 / count
    if not alike:
        variance += OTHER_GPUS_SIGMA**2
    lasts = around(max(total, 0) * math.exp(mean), math.sqrt(variance))
    return Known(lasts, Reason.EARLIER_RUNS, Reason.EARLIER_RUNS.value)


def by_speed(total: int | None, step: Span | None) -> Known | None:
    """Return how long a job runs at a predicted speed; None: it has no size, or there is none.

    Args:
        total: Its mini-batches.
        step: What a mini-batch is predicted to take.
    """
    if total is None or step is None or step.p50 <= 0:
        return None
    count = max(total, 0)
    lasts = span(float(count) * step.p10, float(count) * step.p50, float(count) * step.p90)
    basis = Reason.PREDICTED_SPEED
    what = basis.value if step.stratum is Stratum.NEAR else f"{basis.value} {step.stratum.value}"
    return Known(more(lasts, 0, STARTS_NS, 2 * STARTS_NS), basis, what)


def step_of(work: Work, gpu_type: str, nodes: int, fits: FitsKept) -> Span | None:
    """Return what a mini-batch of a job takes; None: nothing that it does was measured.

    How much outcomes have widened what is predicted is left out: it is added to all estimates.

    Args:
        work: What it has to do.
        gpu_type: The type of its GPUs.
        nodes: On how many nodes it is.
        fits: What is predicted.
    """
    fitted = fits.get(work.vc, work.family, gpu_type) if work.family else None
    if fitted is None:
        return None
    batch = batch_of(fitted, work.spec, work.gpus)
    found = predict(fitted.parameters, Placement(gpu_type, work.gpus, nodes, batch or 0.0))
    return None if found.basis in {Basis.NOTHING, Basis.OTHERS} else found


def by_owner(declared: int, seen: Sequence[int]) -> Known | None:
    """Return how long a job runs by its owner's word; None: there is none.

    Args:
        declared: What the spec says, in nanoseconds; 0: nothing.
        seen: Thousandths of what specs said that the latest jobs of its VC took.
    """
    if declared <= 0:
        return None
    low, middle, high = (declared * part / 1000 for part in spread(seen))
    lasts = more(span(low, middle, high), 0, ENDS_NS // 5, STARTS_NS)
    return Known(lasts, Reason.OWNER_SAID, Reason.OWNER_SAID.value)


def why_unknown(work: Work) -> Reason:
    """Return why nothing is known of a job's length."""
    return Reason.LENGTH_UNKNOWN if work.total is None else Reason.NOT_PROFILED


def whole(
    work: Work,
    nodes: int,
    on: tuple[int, str],
    known: tuple[Sequence[Ran], Sequence[int]],
    fits: FitsKept,
) -> Known | None:
    """Return how long a job runs in all, before its own rate is known; None: nothing is known.

    Args:
        work: What it has to do.
        nodes: On how many nodes it is, or is likely to be.
        on: How many GPUs it has or wants, and their type.
        known: Runs of its family, and how far off owners of its VC are.
        fits: What is predicted.
    """
    gpus, gpu_type = on
    runs, seen = known
    step = None if work.total is None else step_of(work, gpu_type, nodes, fits)
    return (
        by_speed(work.total, step)
        or by_runs(work.total, runs, gpus, gpu_type)
        or by_owner(work.declared, seen)
    )


def slowest(found: Iterable[Known | None]) -> Known | None:
    """Return how long a mixed gang runs: as long as if all its GPUs were of its slowest type.

    Args:
        found: How long it would run on each of its types alone.

    Returns:
        The longest; None if it is not known of each type, as the unknown one may be the slowest.
    """
    longest: Known | None = None
    for each in found:
        if each is None:
            return None
        if longest is None or each.lasts.p50 > longest.lasts.p50:
            longest = each
    return longest


def remaining(
    work: Work, pace: Pace | None, ran: int, otherwise: Callable[[], Known | None]
) -> Known | None:
    """Return how long a running job still runs: by its rate, or what is left of the whole.

    Args:
        work: What it has to do.
        pace: How it goes.
        ran: For how long it ran, in nanoseconds.
        otherwise: Returns how long it runs in all.
    """
    found = by_rate(work.total, pace)
    if found is not None:
        return found
    known = otherwise()
    return None if known is None else known._replace(lasts=left(known.lasts, ran))
