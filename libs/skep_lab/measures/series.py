"""The cluster over time: GPUs, queue, fragmentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from skep.units import Duration, in_seconds
from skep_lab.measures.job import preemptible
from skep_lab.measures.stat import Steps
from skep_lab.outcome import JobOutcome, RunResult, Sample, Span

POINTS = 240
"""The default number of instants at which a run is looked at: what a plot can show."""


class Series(msgspec.Struct, frozen=True):
    """A run at equal steps of time, from the first submission to the end. GPUs are whole ones.

    Each list is as long as `at` (seconds), or empty if the run does not contain it.
    """

    at: tuple[float, ...] = ()
    allocated: tuple[float, ...] = ()
    busy: tuple[float, ...] = ()
    useful: tuple[float, ...] = ()
    waiting: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    fragmentation: tuple[float, ...] = ()
    """SCHED2, eq. 1: the mean over nodes, 0 to 1."""
    no_affinity: tuple[float, ...] = ()
    """HiveD, section 5.2: the part of nodes that cannot give a guaranteed job all their GPUs."""


def span_of(result: RunResult) -> tuple[Duration, Duration]:
    """Return the first submission and the last event of a run, as far as it is known.

    Jobs that were refused do not count; nor do, in a run that was cut, jobs that were not submitted
    yet.
    """
    begin = min((each.job.at for each in result.jobs if not each.refused), default=Duration(0))
    end = begin
    for outcome in result.jobs:
        end = max(end, outcome.ended or end, outcome.spans[-1].ended if outcome.spans else end)
        if not result.cut and not outcome.refused:
            end = max(end, outcome.job.at)
    if result.cut and result.samples:
        end = max(end, result.samples[-1].at)
    return begin, end


def series(result: RunResult, points: int = POINTS) -> Series:
    """Return a run over time.

    Args:
        result: The run. `busy` and `useful` are taken from its samples.
        points: The number of instants.
    """
    begin, end = span_of(result)
    times = [begin + (end - begin) * point // max(points - 1, 1) for point in range(points)]
    times = list(dict.fromkeys(times))
    allocated, waiting, running = _steps(result)
    sampled = list(_sampled(result.samples, times)) if result.samples else []
    known = any(span.nodes for outcome in result.jobs for span in outcome.spans)
    levels = list(_levels(result, times)) if known else []
    return Series(
        at=tuple(in_seconds(time - begin) for time in times),
        allocated=tuple(float(each.allocated) for each in sampled)
        or tuple(allocated.at(time) for time in times),
        busy=tuple(map(busy_of, sampled)),
        useful=tuple(each.useful for each in sampled),
        waiting=tuple(round(waiting.at(time)) for time in times),
        running=tuple(round(running.at(time)) for time in times),
        fragmentation=tuple(each[0] for each in levels),
        no_affinity=tuple(each[1] for each in levels),
    )


def busy_of(sample: Sample) -> float:
    """Return the GPUs that were busy, never more than were allocated."""
    busy = sample.busy if sample.busy_gpus is None else sample.busy_gpus
    return min(busy, float(sample.allocated))


def _steps(result: RunResult) -> tuple[Steps, Steps, Steps]:
    """Return GPUs with a job, waiting jobs, and running jobs over time; packed jobs count each."""
    gpus: list[tuple[int, float]] = []
    waiting: list[tuple[int, float]] = []
    running: list[tuple[int, float]] = []
    for outcome in result.jobs:
        if outcome.refused:
            continue
        since: int = outcome.job.at
        for span in outcome.spans:
            gpus += ((span.began, span.gpus), (span.ended, -span.gpus))
            running += ((span.began, 1), (span.ended, -1))
            waiting += ((since, 1), (span.began, -1))
            since = span.ended
        if outcome.ended is None:
            waiting.append((since, 1))
    return Steps(gpus), Steps(waiting), Steps(running)


def _sampled(samples: Sequence[Sample], times: Sequence[int]) -> Iterator[Sample]:
    place = 0
    for time in times:
        while place + 1 < len(samples) and samples[place + 1].at <= time:
            place += 1
        yield samples[place]


ONE_SIZE: Mapping[str, int] = {}
Held = tuple[Span, bool]
"""A span of a job, and whether a guaranteed job could end it."""


def _levels(result: RunResult, times: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield both levels of fragmentation at each time."""
    spans = sorted(
        (
            (span, preemptible(outcome, borrowed=span.borrowed))
            for outcome in result.jobs
            for span in outcome.spans
        ),
        key=_began,
    )
    nodes = len(result.nodes) or max(1, result.gpus // max(1, result.node_gpus))
    held: list[Held] = []
    place = 0
    for time in times:
        while place < len(spans) and spans[place][0].began <= time:
            held.append(spans[place])
            place += 1
        held = [each for each in held if each[0].ended > time]
        taken = len(dict.fromkeys(node for span, soft in held if not soft for node in span.nodes))
        level = fragmentation(held, time, nodes, result.node_gpus, result.nodes)
        yield level, taken / nodes


def _began(held: Held) -> Duration:
    return held[0].began


def fragmentation(
    held: Sequence[Held], time: int, nodes: int, node_gpus: int, sizes: Mapping[str, int] = ONE_SIZE
) -> float:
    """Return the fragmentation of a cluster (SCHED2, eq. 1), the mean over its nodes.

    For one node it is 1 - (sum x_i)^2 / (n sum x_i^2), where x_i is how long GPU i will still be
    held (0: it is free) and n the GPUs of a node: 0 if all become free at once, 1 - 1/n if one is
    held and the others are free. The paper does not define it for a node with all GPUs free: 0
    here. GPUs that jobs share count as long as the host holds them. After the run the ends of spans
    are known, so nothing is predicted.

    Args:
        held: The spans that hold GPUs at that time.
        time: Nanoseconds from the beginning of the trace.
        nodes: How many nodes there are.
        node_gpus: The GPUs of a node that is not in `sizes`.
        sizes: By node, its GPUs.
    """
    sums: dict[str, tuple[float, float]] = {}
    for span, _ in held:
        if span.guest:
            continue
        left = float(span.ended - time)
        for node, gpus in zip(span.nodes, span.spread, strict=False):
            one, two = sums.get(node, (0.0, 0.0))
            sums[node] = (one + gpus * left, two + gpus * left * left)
    levels = sum(
        max(0.0, 1 - one * one / (sizes.get(node, node_gpus) * two))
        for node, (one, two) in sums.items()
        if two
    )
    return levels / nodes


def gpu_time(outcomes: Sequence[JobOutcome], begin: int, end: int) -> float:
    """Return the GPU-nanoseconds that jobs held between two times, counted for each job.

    Args:
        outcomes: The jobs.
        begin: Nanoseconds from the beginning of the trace.
        end: The same, not before `begin`.
    """
    return float(
        sum(
            span.gpus * max(0, min(span.ended, end) - max(span.began, begin))
            for outcome in outcomes
            for span in outcome.spans
        )
    )
