"""One run that was ordered, and what is kept of it."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence

import msgspec

from skep.units import in_seconds
from skep.wire.cluster import Cluster
from skep_lab.measures.job import alone_by, completion
from skep_lab.measures.series import Series, series
from skep_lab.measures.stat import Curve
from skep_lab.measures.summary import Measures, curves, measure
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings
from skep_lab.studies.audit import Audit, audit
from skep_lab.studies.private import own_jobs, private_cluster
from skep_lab.studies.replay import STOP_S
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Speeds

Watch = Callable[[int, int], bool]
"""Told every so often how many jobs are over, of how many; says whether to go on."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `label` tells it from the others, `policy` and `shape` are as they were asked for.

    `pooled`: all jobs share the one VC that there is, whatever VC the trace gives them; measures
    are still told for each of the trace's. `audited`: each VC also runs on its own cells alone.
    """

    label: str
    policy: str
    shape: str
    cluster: Cluster
    settings: Settings = Settings()
    models: str = "steady"
    pooled: bool = False
    audited: bool = False
    jobs_to: str = ""
    """A file for `Played.job_lines`; empty: none."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run: the same for the same order and trace, but for `cpu_s`."""

    label: str
    policy: str
    shape: str
    seed: int
    measures: Measures
    series: Series
    curves: dict[str, Curve]
    audit: Audit | None = None
    vc_gpus: dict[str, int] = {}
    cut: str = ""
    """Why it ended before the trace did: `interrupted`, `until`, `stuck`; empty: it did not."""
    completion_s: tuple[float | None, ...] = ()
    """By job of the trace: from its submission to its end; None if it has not ended."""
    cpu_s: float = 0.0
    job_lines: str = ""
    """A line for each job, if the order names a file for them."""


def play(order: Order, trace: Trace, speeds: Speeds, watch: Watch) -> Played:
    """Simulate, and return what comes of it.

    Args:
        order: The run.
        trace: The jobs.
        speeds: How fast they go.
        watch: Told how many jobs are over, of how many; once it returns false the run is cut.
    """
    goes_on, before = True, 0
    all_jobs = len(trace.jobs) * (2 if order.audited else 1)

    def told(over: int, jobs: int) -> bool:
        nonlocal goes_on
        goes_on = goes_on and watch(before + over, all_jobs)
        return goes_on

    result = _run(order, order.cluster, trace, speeds, told)
    before = len(trace.jobs)
    private: list[RunResult] = []
    if order.audited and goes_on:
        for vc in order.cluster.vcs:
            own = own_jobs(trace, vc)
            if own.jobs and goes_on:
                private.append(_run(order, private_cluster(order.cluster, vc), own, speeds, told))
                before += len(own.jobs)
    slack_s = max(STOP_S, order.settings.costs.stop_s)  # Who borrowed is stopped first.
    return Played(
        label=order.label,
        policy=order.policy,
        shape=order.shape,
        seed=order.settings.seed,
        measures=measure(result, alone_by(speeds)),
        series=series(result),
        curves=curves(result),
        audit=audit(result, private, slack_s) if order.audited and goes_on else None,
        vc_gpus=result.vc_gpus,
        cut=_cut(result, goes_on=goes_on),
        cpu_s=result.cpu_s,
        completion_s=tuple(map(_completion_s, result.jobs)),
        job_lines=_lines(result.jobs) if order.jobs_to else "",
    )


def _cut(result: RunResult, *, goes_on: bool) -> str:
    """Return why a run ended before its trace did, as `Played.cut` has it."""
    if not goes_on:
        return "interrupted"
    if not result.cut:
        return ""
    return "stuck" if result.stuck else "until"


def _completion_s(outcome: JobOutcome) -> float | None:
    length = completion(outcome) if outcome.ended is not None else None
    return None if length is None else in_seconds(length)


def _run(order: Order, cluster: Cluster, trace: Trace, speeds: Speeds, watch: Watch) -> RunResult:

    played = pooled(trace) if order.pooled else trace
    there = {vc: choice for vc, choice in order.settings.policies.items() if vc in cluster.vcs}
    settings = msgspec.structs.replace(order.settings, policies=there)
    result = run(played, cluster, settings, speeds, clock=time.process_time, watch=watch)
    if order.pooled:
        result = msgspec.structs.replace(result, jobs=_as_in(trace.jobs, result.jobs), vc_gpus={})
    policy = order.policy or result.policy
    return msgspec.structs.replace(result, policy=policy, cluster=order.shape or result.cluster)


def pooled(trace: Trace) -> Trace:
    """Return a trace whose jobs name no VC: they go to the only one there is."""
    jobs = tuple(msgspec.structs.replace(job, vc="") for job in trace.jobs)
    return msgspec.structs.replace(trace, jobs=jobs)


def _as_in(jobs: Sequence[TraceJob], outcomes: Sequence[JobOutcome]) -> tuple[JobOutcome, ...]:
    return tuple(
        msgspec.structs.replace(outcome, job=job)
        for job, outcome in zip(jobs, outcomes, strict=True)
    )


FIELDS = (
    "id",
    "vc",
    "gpus",
    "submitted_s",
    "began_s",
    "ended_s",
    "waited_s",
    "run_time_s",
    "preempted",
    "migrated",
    "refused",
)


def _lines(outcomes: Sequence[JobOutcome]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(FIELDS)
    for each in outcomes:
        job = each.job
        writer.writerow(
            [
                job.id,
                job.vc,
                job.gpus,
                _s(job.at),
                _s(each.began),
                _s(each.ended),
                _s(each.waited),
                _s(job.run_time),
                each.preempted,
                each.migrated,
                each.refused,
            ]
        )
    return buffer.getvalue()


def _s(length: int | None) -> str:
    """Return nanoseconds as seconds, exactly; nothing for None."""
    if length is None:
        return ""
    whole, part = divmod(length, 1_000_000_000)
    return f"{whole}.{part:09d}".rstrip("0").rstrip(".")
