"""A run in numbers: for all jobs, for each tenant and each size of job. Times are in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from skep.units import Duration, in_seconds
from skep_lab.measures.fairness import finish_time_fairness
from skep_lab.measures.job import (
    LARGEST,
    SIZES,
    Alone,
    completion,
    effectiveness,
    hundred,
    in_time,
    linear,
    normalised_latency,
    size_class,
)
from skep_lab.measures.series import busy_of, gpu_time, series, span_of
from skep_lab.measures.stat import Curve, Stat, distribution, stat
from skep_lab.outcome import JobOutcome, RunResult

HOUR_S = 3600


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of some of the jobs. Averages are over jobs that have ended, unless noted."""

    jobs: int = 0
    ended: int = 0
    refused: int = 0
    """The cluster refused them."""
    unfinished: int = 0
    """The run ended before they did: they are in no average but `qos`."""
    gpu_hours: float = 0.0
    """Held by all jobs."""
    jct_s: Stat = Stat()
    queue_s: Stat = Stat()
    """All time in the queue, before the first run and after every preemption."""
    first_wait_s: Stat = Stat()
    """From submission to the first run, for jobs that ever ran."""
    effectiveness: Stat = Stat()
    """SCHED2, eq. 2: ideal time over waiting and actual time."""
    normalised: Stat = Stat()
    """GENIE, eq. 16: wall time over the time on one GPU; the mean is eq. 15."""
    rho: Stat = Stat()
    """Themis' finish-time fairness on the tenant's fair share (`fairness`), estimated."""
    qos: float | None = None
    """GENIE, eq. 14: the part of jobs that ended when they were expected to, of those decided."""
    hundred_s: Stat = Stat()
    """Gandiva, section 6.3: time to 100 mini-batches, if known."""
    preempted: int = 0
    suspended: int = 0
    migrated: int = 0
    resized: int = 0
    packed: int = 0
    lost_s: float = 0.0
    """Work done twice, in all."""
    overhead_s: float = 0.0
    """Spent on starting, suspending and moving, in all."""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers. Parts are 0 to 1; None if the run does not contain them."""

    trace: str
    cluster: str
    policy: str
    seed: int
    gpus: int
    cut: bool
    """The run ended before the trace did."""
    makespan_s: float
    """From the first submission to the last end."""
    allocated: float
    """The part of GPU time in which a job had the GPU."""
    busy: float | None
    """The part in which it computed: of the allocated time, the part that samples say was busy."""
    useful: float
    """The part that was not lost: work at speed 1 on the GPUs of the trace, not done twice."""
    fragmentation: float | None
    """SCHED2, eq. 1, the mean over nodes and time."""
    no_affinity: float | None
    """HiveD's level (section 5.2): nodes that cannot give a guaranteed job all GPUs, over time."""
    events: int
    decisions: str
    all: Group
    by_vc: dict[str, Group]
    by_size: dict[str, Group]


def measure(result: RunResult, alone: Alone = linear) -> Measures:
    """Return a run in numbers.

    Args:
        result: The run.
        alone: The time that a job takes on one GPU.
    """
    begin, end = span_of(result)
    rho = finish_time_fairness(result)
    over_time = series(result)
    space = max(1, result.gpus * (end - begin))

    def group(outcomes: Iterable[JobOutcome]) -> Group:
        return _group(list(outcomes), rho, end, alone)

    vcs = sorted(dict.fromkeys(outcome.job.vc for outcome in result.jobs))
    sizes = [name for _, name in SIZES] + [LARGEST]
    by_size = {
        name: [each for each in result.jobs if size_class(each.job.gpus) == name] for name in sizes
    }
    held = gpu_time(result.jobs, begin, end) / space
    sampled = _over_samples(result, begin, end)
    busy = None if sampled is None else held * _part(sampled[1], sampled[0])
    if sampled is not None and any(span.packed for each in result.jobs for span in each.spans):
        held, busy = sampled  # Shared GPUs are held once, which only samples show.
    return Measures(
        trace=result.trace,
        cluster=result.cluster,
        policy=result.policy,
        seed=result.seed,
        gpus=result.gpus,
        cut=result.cut,
        makespan_s=in_seconds(end - begin),
        allocated=held,
        busy=busy,
        useful=_useful(result) / space,
        fragmentation=_mean(over_time.fragmentation, 1),
        no_affinity=_mean(over_time.no_affinity, 1),
        events=result.events,
        decisions=result.decisions,
        all=group(result.jobs),
        by_vc={vc: group(each for each in result.jobs if each.job.vc == vc) for vc in vcs},
        by_size={name: group(each) for name, each in by_size.items() if each},
    )


def _group(
    outcomes: Sequence[JobOutcome], rho: Mapping[str, float], end: Duration, alone: Alone
) -> Group:
    ended = [each for each in outcomes if each.ended is not None]
    refused = sum(bool(each.refused) for each in outcomes)
    decided = [each for each in (in_time(one, end, alone) for one in outcomes) if each is not None]
    return Group(
        jobs=len(outcomes),
        ended=len(ended),
        refused=refused,
        unfinished=len(outcomes) - len(ended) - refused,
        gpu_hours=sum(
            span.gpus * in_seconds(span.ended - span.began)
            for each in outcomes
            for span in each.spans
        )
        / HOUR_S,
        jct_s=_seconds(completion(each) for each in ended),
        queue_s=_seconds(each.waited for each in ended),
        first_wait_s=_seconds(first_wait(each) for each in outcomes),
        effectiveness=_stat(effectiveness(each) for each in ended),
        normalised=_stat(normalised_latency(each, alone) for each in ended),
        rho=_stat(rho.get(each.job.id) for each in ended),
        qos=sum(decided) / len(decided) if decided else None,
        hundred_s=_seconds(hundred(each) for each in outcomes),
        preempted=sum(each.preempted for each in outcomes),
        suspended=sum(each.suspended for each in outcomes),
        migrated=sum(each.migrated for each in outcomes),
        resized=sum(each.resized for each in outcomes),
        packed=sum(each.packed for each in outcomes),
        lost_s=in_seconds(sum(each.lost for each in outcomes)),
        overhead_s=in_seconds(sum(each.overhead for each in outcomes)),
    )


def first_wait(outcome: JobOutcome) -> Duration | None:
    """Return the time from submission to the first run; None if it never ran."""
    return None if outcome.began is None else Duration(outcome.began - outcome.job.at)


def curves(result: RunResult) -> dict[str, Curve]:
    """Return the distributions that papers plot: completion and queueing times, in seconds."""
    ended = [each for each in result.jobs if each.ended is not None]
    return {
        "jct": distribution(
            in_seconds(took) for each in ended if (took := completion(each)) is not None
        ),
        "queue": distribution(in_seconds(each.waited) for each in ended),
    }


def _useful(result: RunResult) -> float:
    """Return GPU-nanoseconds of work that was done and not lost."""
    done = 0
    for outcome in result.jobs:
        got = sum(
            span.ended - span.began if span.useful is None else span.useful
            for span in outcome.spans
        )
        done += max(0, got - outcome.lost) * outcome.job.gpus
    return float(done)


def _over_samples(result: RunResult, begin: int, end: int) -> tuple[float, float] | None:
    """Return the parts of GPU time that were allocated and busy, as far as samples reach."""
    samples = result.samples
    if not samples or end <= max(begin, samples[0].at):
        return None
    allocated = busy = 0.0
    for place, each in enumerate(samples):
        until = min(end, samples[place + 1].at) if place + 1 < len(samples) else end
        span = max(0, until - max(begin, each.at))
        allocated += each.allocated * span
        busy += busy_of(each) * span
    space = max(1, result.gpus * (end - max(begin, samples[0].at)))
    return allocated / space, busy / space


def _part(some: float, whole: float) -> float:
    return min(1.0, some / whole) if whole > 0 else 0.0


def _seconds(lengths: Iterable[Duration | None]) -> Stat:
    return stat(in_seconds(each) for each in lengths if each is not None)


def _stat(values: Iterable[float | None]) -> Stat:
    return stat(each for each in values if each is not None)


def _mean(values: Sequence[float], of: int) -> float | None:
    """Return the mean of values at equal steps of time, divided by `of`."""
    return sum(values) / len(values) / max(of, 1) if values else None
