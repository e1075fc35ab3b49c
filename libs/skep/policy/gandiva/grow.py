"""Growing and shrinking (Gandiva, section 4.2.2) of jobs whose spec allows another size.

Idle GPUs of a server go to the job on it that gains the most by them, after some time without new
jobs. A job gives back what it has grown by at once when another job needs it, before any job is
suspended for that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from skep.perf.judge import pays
from skep.policy.gandiva.migrate import PAUSE, SURELY
from skep.policy.gandiva.rules import ACTIONS_MAX, MILLI, Rules, cooling, families, spent
from skep.policy.gandiva.state import UnitIndex, arrived
from skep.policy.plan import Plan, Resize, Suspend
from skep.policy.sizes import offered, offers
from skep.policy.view import JobView, NodeView, VcView
from skep.units import Duration, Instant
from skep.wire.reasons import Reason


class _Step(NamedTuple):
    """More workers for a job.

    `gain` is in thousandths of its rate with the workers of its spec, for each GPU. `more` counts
    GPUs. `needed` is the least ratio of rates that pays for the change.
    """

    gain: float
    workers: int
    more: int
    needed: float


def shrink(view: VcView, known: UnitIndex) -> tuple[list[Resize], dict[str, JobView]]:
    """Return the jobs that give back workers that they have grown by.

    Jobs that have grown the most come first. They give back no more than the waiting jobs need
    beyond what is free.

    Args:
        view: The VC.
        known: Its jobs.

    Returns:
        The actions, and by job the views of the jobs as they will be.
    """
    if not known.grown or not known.waiting:
        return [], {}
    need = {**known.wanted}
    for pin, free in view.free_for().items():
        need[pin] = need.get(pin, 0) - free
    less: dict[str, JobView] = {}
    for job in sorted(
        known.grown.values(),
        key=lambda job: (job.spec.resources.workers - job.workers, job.sequence),
    ):
        if need.get(job.pin, 0) > 0:
            each = _gpus_per_worker(job)
            asked = job.spec.resources.workers
            enough = max(asked, job.workers - -(-need[job.pin] // each))
            smaller = offered(job, asked, enough)
            workers = smaller[-1] if smaller else offered(job, enough, job.workers)[0]
            if workers == job.workers:
                continue
            need[job.pin] -= (job.workers - workers) * each
            less[job.job] = _smaller(job, workers)
    return [Resize(name, Reason.GPUS_NEEDED, job.workers) for name, job in less.items()], less


def asked(known: UnitIndex) -> dict[str, JobView]:
    """Return the jobs that have grown, with the workers of their specs, if a new job waits.

    A new job is one that has no nodes yet. Grown sizes must not influence its place: a node would
    count as full that is soon not full, and a gang would have to be scattered for that.
    """
    if not known.comes:
        return {}
    return {name: _smaller(job, _asked(job)) for name, job in known.grown.items()}


def _asked(job: JobView) -> int:
    """Return the smallest size that a job offers from that of its spec on."""
    return offered(job, job.spec.resources.workers, job.workers)[0]


def give(view: VcView, known: UnitIndex, plan: Plan, smaller: dict[str, JobView]) -> list[Resize]:
    """Return which jobs give back workers that they have grown by, as far as a plan needs it.

    Args:
        view: The VC.
        known: Its jobs.
        plan: The plan, made as if jobs had the sizes in `smaller`.
        smaller: By job: elastic jobs with the workers of their specs.
    """
    gone = {action.job: None for action in plan.actions if isinstance(action, Suspend)}
    capacity = known.capacity(view, stopping=True)
    for name in gone:
        capacity.release(known.jobs[name])
    left = {name: known.jobs[name] for name in smaller if name not in gone}
    for turn in plan.turns:
        job = known.jobs[turn.job]
        place = capacity.fit(job, turn.nodes)
        for name, other in left.items():
            ((node, _),) = other.nodes
            each = _gpus_per_worker(other)
            least = _asked(other)
            while place is None and other.pin == job.pin and left[name].workers > least:
                # Nodes together may have more free than is left to the VC: then any serves.
                if node not in turn.nodes and capacity.left(job.pin) >= job.gpus:
                    break
                had = left[name].workers
                workers = offered(other, least, had - 1)[-1]
                gives = (had - workers) * each
                capacity.release(
                    replace(other, workers=had - workers, gpus=gives, nodes=((node, gives),))
                )
                left[name] = _smaller(left[name], workers)
                place = capacity.fit(job, turn.nodes)
        if place is not None:
            capacity.take(job, place)
    return [
        Resize(name, Reason.GPUS_NEEDED, job.workers)
        for name, job in left.items()
        if job.workers < known.jobs[name].workers
    ]


def grow(
    view: VcView, known: UnitIndex, plan: Plan, rules: Rules
) -> tuple[list[Resize], Instant | None]:
    """Return which jobs try more workers, and when to look again (None: no time is set).

    Args:
        view: The VC.
        known: Its jobs.
        plan: The plan of turns; if it does anything, no job grows.
        rules: Options.
    """
    if not known.growing or plan.turns or plan.actions or known.waiting:
        return [], None
    cold = cooling(view, "grow")
    able = [
        job
        for job in arrived(known.growing)
        if families(job) not in cold and not spent(view, job, "grow")
    ]
    nodes = {node.node: node for node in view.nodes}
    if not any(_free(job, nodes) >= _gpus_per_worker(job) for job in able):
        return [], None
    calm = Instant(view.quiet_since + rules.grow_after)
    if view.now < calm:
        return [], calm
    left = {node.node: node for node in view.nodes}
    tried: dict[str, Resize] = {}
    while len(tried) < ACTIONS_MAX:
        steps = (
            (step, job) for job in able if job.job not in tried for step in _steps(job, left, view)
        )
        best = max(
            steps, key=lambda each: (each[0].gain, -each[1].sequence, each[0].workers), default=None
        )
        if best is None:
            break
        step, job = best
        tried[job.job] = Resize(
            job.job,
            Reason.MOST_GAIN,
            step.workers,
            trial=True,
            needed_milli=round(MILLI * step.needed),
        )
        node = left[job.nodes[0][0]]
        left[node.node] = _less(node, job.pin, step.more)
    return list(tried.values()), None


def _steps(job: JobView, nodes: dict[str, NodeView], view: VcView) -> Iterator[_Step]:
    """Yield the sizes that a job could try on its server and that are predicted to pay."""
    rates, each = dict(job.rates), _gpus_per_worker(job)
    now, alone = rates.get(job.workers, 0), rates.get(job.spec.resources.workers, 0)
    needed = pays(Duration(job.pause or PAUSE), job.remaining(view.now))
    if needed == float("inf"):
        return  # It ends before a change of its size would pay.
    capacity = _free(job, nodes) // each
    for workers, rate in job.rates:
        more = workers - job.workers
        pays_off = 0 < more <= capacity and now and rate > now * needed * SURELY
        if pays_off and offers(job, workers):
            yield _Step(
                MILLI * (rate - now) / (alone or now) / (more * each), workers, more * each, needed
            )
    elastic = job.spec.elastic
    most = min(elastic.max if elastic is not None else 0, job.workers + capacity)
    if most > job.workers and not any(workers > job.workers for workers in rates):
        # No rates are predicted: a trial with twice as many workers shows the most.
        most = min(most, 2 * job.workers)
        while most > job.workers and not offers(job, most):
            most -= 1
        if most == job.workers:
            return
        yield _Step(0.0, most, (most - job.workers) * each, needed)


def _gpus_per_worker(job: JobView) -> int:
    """Return the GPUs of a worker."""
    return max(job.gpus // max(job.workers, 1), 1)


def _free(job: JobView, nodes: dict[str, NodeView]) -> int:
    node = nodes.get(job.nodes[0][0])
    return node.free_for(job.pin) if node is not None else 0


def _less(node: NodeView, pin: str, gpus: int) -> NodeView:
    """Return a node with fewer free GPUs, or (a negative number) more."""
    if not pin:
        return replace(node, free=node.free - gpus)
    pins = tuple((name, free - gpus if name == pin else free) for name, free in node.pins)
    return replace(node, pins=pins)


def _smaller(job: JobView, workers: int) -> JobView:
    gpus = workers * _gpus_per_worker(job)
    ((node, _),) = job.nodes
    devices = tuple((name, had[:gpus]) for name, had in job.devices)
    return replace(job, workers=workers, gpus=gpus, nodes=((node, gpus),), devices=devices)


def freed(view: VcView, known: UnitIndex, less: dict[str, JobView]) -> VcView:
    """Return a view with the GPUs free that some jobs give back.

    Args:
        view: The VC.
        known: Its jobs as they are.
        less: By job, the view of the job as it will be.
    """
    nodes = {node.node: node for node in view.nodes}
    pins = {pin.pin: pin for pin in view.pins}
    free = view.free
    for name, smaller in less.items():
        job = known.jobs[name]
        gave = job.gpus - smaller.gpus
        free += gave
        if job.pin in pins:
            pins[job.pin] = replace(pins[job.pin], free=pins[job.pin].free + gave)
        ((node, _),) = job.nodes
        if node in nodes:
            nodes[node] = _less(nodes[node], job.pin, -gave)
    return replace(view, nodes=tuple(nodes.values()), free=free, pins=tuple(pins.values()))
