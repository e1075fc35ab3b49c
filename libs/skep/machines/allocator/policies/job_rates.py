"""How jobs go, as the advisor tells it: what a policy is shown of rates and predictions.

    Outlook --> paces of jobs, scales of families --> JobView.steps, rates, slowdown, left ...
            --> fits of families by VC, for sizes that were not measured

Soft: after a restart it is told again. Only what the jobs of VCs with a policy do is kept, and what
is told of a job that stands is not: it would say how fast it is to stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skep.ledger.job_state import JobState, State
from skep.machines.allocator import caches
from skep.machines.allocator.transaction import Transaction
from skep.perf import scaling
from skep.perf.fitted import Fitted
from skep.perf.model.placement import Placement
from skep.promises.speeds import batch_of
from skep.units import Instant
from skep.wire.advice import JobPace, Outlook, ScalePoint

SCALES_MAX = scaling.FAMILIES_MAX
NO_POINTS: tuple[ScalePoint, ...] = ()
SIZES_MAX = 24
"""Sizes of a gang that are predicted, at 20 us each; those in between are interpolated."""
NODES = (1, 2, 4, 8, 16)
"""Numbers of nodes at which a gang is predicted."""
PREDICTED_MAX = 2_000
"""Predictions that are kept: for each family and kind of job. All are made anew beyond it."""


def heard(tx: Transaction, event: Outlook, now: Instant) -> None:
    """Take over what is told of jobs and families.

    Args:
        tx: What is soft in it is changed, for jobs of VCs with a policy only; paces also of jobs
            that ask for a share of a GPU.
        event: What the advisor tells.
        now: The time of the decision.
    """
    soft = tx.soft
    if not soft.planned:
        _paces(tx, event, now)
        return
    for scale in event.families:
        soft.scales.pop((scale.family, scale.gpu_type), None)
        soft.scales[scale.family, scale.gpu_type] = scale.points
        if len(soft.scales) > SCALES_MAX:
            del soft.scales[next(iter(soft.scales))]
    families = {scale.family for scale in event.families}
    for fit in event.fits:
        if fit.vc in soft.planned and soft.fits.hear(fit):
            families.add(fit.family)
            soft.predicted.clear()
    for planned in soft.planned.values() if families else ():
        for name, view in planned.views.items():
            if view is not None and view.spec.size.family in families:
                soft.touched[name] = None
    _paces(tx, event, now)


def _paces(tx: Transaction, event: Outlook, now: Instant) -> None:
    """Take over the paces of jobs in whose changes rates have a say."""
    soft = tx.soft
    for pace in event.jobs if soft.planned or tx.state.sharers else ():
        job = tx.state.jobs.get(pace.job)
        if job is None or job.attempt != pace.attempt:
            continue
        if job.spec.vc in soft.planned or job.spec.resources.share:
            _goes(tx, job, pace, now)


def _goes(tx: Transaction, job: JobState, pace: JobPace, now: Instant) -> None:
    """Take over the pace of a job that runs."""
    if job.state is not State.RUNNING or job.change is not None:
        return
    soft = tx.soft
    soft.paces[job.job] = pace, now
    if pace.remaining is not None:
        soft.left[job.job] = pace.remaining, job.served + max(0, now - job.since)
    if soft.planned:
        soft.touched[job.job] = None


def forget(tx: Transaction, name: str) -> None:
    """Forget how an attempt went that is over."""
    soft = tx.soft
    for known in (soft.paces, soft.telling.settled, soft.telling.alone, soft.unsettled_packs):
        known.pop(name, None)


def shown(tx: Transaction, job: JobState) -> dict[str, Any]:
    """Return what of a job's view is known of its pace, and of how it would go otherwise.

    Returns:
        Fields of `JobView` by name; those of which nothing is known are left out.
    """
    found: dict[str, Any] = {}
    if not (tx.soft.paces or tx.soft.scales or job.mixed or len(tx.soft.fits)):
        return found
    told = tx.soft.paces.get(job.job)
    own = (0, 0)
    if told is not None and job.state not in (State.QUEUED, State.DEFERRED, State.RESERVED):
        pace, at = told
        found.update(
            steps=pace.steps,
            steps_at=at,
            rate_milli=pace.rate_milli,
            rate_workers=pace.workers,
            utilisation=pace.utilisation,
            memory=pace.memory,
        )
        if pace.attempt == job.attempt:
            own = job.size, _alone(tx, job) if job.mixed else pace.rate_milli
    points, predicted = _points(tx, job)
    usual = (*points, *(each.usual for each in predicted))
    each, sizes = job.spec.resources.gpus, _sizes(job)
    if usual:
        found["slowdown"] = scaling.slowdown(usual)
    if usual or (job.mixed and own[1]):
        found["rates"] = scaling.rates(usual, each, sizes, own)
    if predicted:
        late = (*points, *(each.late for each in predicted))
        found["rates_low"] = scaling.rates(late, each, sizes, own)
        apart = (*points, *(each.late if each.spread else each.usual for each in predicted))
        found["slowdown_high"] = scaling.slowdown(apart)
    return found


def solo(tx: Transaction, job: JobState, view: dict[str, Any] | None = None) -> int:
    """Return a job's rate on GPUs of its own.

    It was measured where the attempt shares none, or before it was first packed on trial: an
    earlier attempt may have had other GPUs, so what this one makes alone comes first.

    Args:
        tx: What was told of rates is read.
        job: The job.
        view: What `shown` returns for it; None: that is worked out here.

    Returns:
        Thousandths of a mini-batch per second; 0: unknown.
    """
    known = _alone(tx, job)
    if known:
        return known
    view = shown(tx, job) if view is None else view
    rates: tuple[tuple[int, int], ...] = view.get("rates", ())
    return dict(rates).get(job.size, 0)


def _alone(tx: Transaction, job: JobState) -> int:
    """Return a job's rate on GPUs of its own, as far as that was measured; 0: it was not."""
    soft = tx.soft
    told, settled = soft.paces.get(job.job), soft.telling.settled.get(job.job) == job.attempt
    if told is not None and told[0].attempt == job.attempt and (settled or not job.mixed):
        rate = caches.best(told[0])
        if rate:
            return rate
    attempt, rate = soft.telling.alone.get(job.job, (0, 0))
    return rate if attempt == job.attempt else tx.state.tries.solo.get(job.job, 0)


def _sizes(job: JobState) -> range:
    """Return the sizes that a gang may have."""
    elastic = job.spec.elastic
    if elastic is None:
        return range(job.size, job.size + 1)
    return range(min(elastic.min, job.size), max(elastic.max, job.size) + 1)


def _points(
    tx: Transaction, job: JobState
) -> tuple[tuple[ScalePoint, ...], tuple[scaling.Predicted, ...]]:
    """Return what is known of a job's family where it is, or may be: the type known best.

    Returns:
        What was measured, and what is predicted at sizes that were not.
    """
    family, scales = job.spec.size.family or "", tx.soft.scales
    if not family or not (scales or len(tx.soft.fits)):
        return NO_POINTS, ()
    chain = tx.state.cells.chains.get(job.chain) if job.members else None
    kind = chain.topology.gpu if chain is not None else job.spec.resources.gpu_type or ""
    if not kind:
        kinds = dict.fromkeys(each.topology.gpu for each in tx.state.cells.chains.values())
        known = {each: scales.get((family, each), NO_POINTS) for each in sorted(kinds)}
        kind = max(known, key=lambda each: len(known[each]), default="")
    points = scales.get((family, kind), NO_POINTS)
    return points, _unmeasured(tx, job, kind, points) if len(tx.soft.fits) else ()


def _unmeasured(
    tx: Transaction, job: JobState, kind: str, points: tuple[ScalePoint, ...]
) -> tuple[scaling.Predicted, ...]:
    """Return what is predicted of sizes and spreads that were not measured."""
    fitted = tx.soft.fits.get(job.spec.vc, job.spec.size.family or "", kind)
    if fitted is None:
        return ()
    sizes, each = _sizes(job), job.spec.resources.gpus
    batch = job.spec.size.batch_size or 0
    key = job.spec.vc, job.spec.size.family or "", kind, each, job.size, sizes, batch
    known = tx.soft.predicted.get(key)
    if known is None:
        if len(tx.soft.predicted) >= PREDICTED_MAX:
            tx.soft.predicted.clear()
        known = tx.soft.predicted[key] = tuple(_predicted(tx, job, kind, fitted))
    # On how many nodes a size was measured says what it takes there, and no prediction does.
    measured = {point.gpus for point in points}
    return tuple(one for one in known if one.usual.gpus not in measured)


def _predicted(
    tx: Transaction, job: JobState, kind: str, fitted: Fitted
) -> Iterator[scaling.Predicted]:
    """Yield what a gang's mini-batches take: each size on as few nodes as hold it, and on more.

    Where too little was measured for a promise nothing is yielded: by one measured size a gang
    would not become faster, so no policy would try another one, and no other would be measured.
    """
    each, sizes = job.spec.resources.gpus, _sizes(job)
    chains = (chain.topology for chain in tx.state.cells.chains.values())
    inside = max((shape.node_size for shape in chains if shape.gpu == kind), default=1)
    step = -(-len(sizes) // SIZES_MAX)
    for workers in dict.fromkeys((*sizes[::step], job.size, sizes[-1])):
        gpus = workers * each
        batch = batch_of(fitted, job.spec, gpus)
        least = -(-gpus // inside)
        spread = NODES if workers == job.size else ()
        wanted = (least, *(nodes for nodes in spread if least < nodes <= workers))
        for nodes in wanted if batch is not None else ():
            span = fitted.at(Placement(kind, gpus, nodes, batch or 0.0))
            if span.promised:
                usual, late = (
                    ScalePoint(gpus=gpus, nodes=nodes, step_ns=step_ns)
                    for step_ns in (span.p50, span.p90)
                )
                yield scaling.Predicted(usual, late, nodes > least)
