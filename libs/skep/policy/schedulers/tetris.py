"""Tetris: the short job that best uses what is free comes first, at the size that pays best.

Source: Tetris (SIGCOMM 2014), sections 3.2 and 3.3; GENIE, section 7.1 and equations 10 and 11
(sizes).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from skep.policy.api import Policy
from skep.policy.parts import queued, sort_jobs
from skep.policy.plan import Plan, Resize, Turn
from skep.policy.powers import Powers
from skep.policy.schedulers.drf import amounts
from skep.policy.sizes import offers
from skep.policy.view import JobView, NodeView, Phase, VcView
from skep.wire.reasons import Reason


class Tetris(Policy, frozen=True):
    """The highest alignment of a job's demand with a node's free resources, less its length.

    Demands and free resources are parts of the node, and are multiplied resource by resource. The
    remaining work is subtracted, scaled to the same mean and by `shortness`. Jobs of unknown length
    come after the others. No job is preempted.

    With `size`, an elastic job is given the number of workers with the highest predicted rate
    (`performance`), or with the highest ratio of rate to cost (`cost`, GENIE's equations 10 and 11
    with weight `theta`), once it runs: an attempt begins with the workers of its spec. Rates are
    predicted for families that were measured at two sizes or more (`JobView.rates`); for all others
    every `size` is `spec`.
    """

    name: ClassVar[str] = "tetris"
    source: ClassVar[str] = "Tetris (SIGCOMM 2014), sections 3.2 and 3.3; GENIE, section 7.1"
    shortness: float = 1
    size: Literal["spec", "performance", "cost"] = "spec"
    theta: float = 0.5
    strict: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: A weight is negative.
        """
        if self.shortness < 0 or self.theta < 0:
            reason = "shortness and theta are weights, 0 or more"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    @property
    def sees_rates(self) -> bool:
        """Return whether it chooses sizes."""
        return self.size != "spec"

    @property
    def powers(self) -> Powers:
        """Return that it goes by lengths, and resizes if it chooses sizes."""
        sizes = self.size != "spec"
        return Powers(resizes=sizes, passes=not self.strict, run_times=True, rates=sizes)

    def plan(self, view: VcView) -> Plan:
        """Return turns by score (Tetris, section 3.3), and elastic jobs at their best size."""
        waiting = queued(view)
        fits = {job.job: alignment(job, view.nodes) for job in waiting}
        lengths = {job.job: job.remaining(view.now) for job in waiting}
        work = {
            job.job: length * job.gpus
            for job in waiting
            if (length := lengths[job.job]) is not None
        }
        mean_fit = sum(fits.values()) / len(fits) if fits else 0.0
        mean_work = sum(work.values()) / len(work) if work else 0.0
        scale = self.shortness * mean_fit / mean_work if mean_work else 0.0
        ordered = sort_jobs(
            waiting, lambda job: (job.job not in work, scale * work.get(job.job, 0) - fits[job.job])
        )
        return Plan(
            turns=tuple(Turn(job.job, Reason.BEST_PACKING) for job in ordered),
            strict=self.strict,
            actions=tuple(self._resizes(view)) if self.size != "spec" else (),
        )

    def _resizes(self, view: VcView) -> list[Resize]:
        left = view.free_for()
        for job in queued(view):
            left[job.pin] = left.get(job.pin, 0) - job.gpus
        resizes = []
        for job in view.jobs:
            if job.phase is not Phase.RUNNING or "resize" not in job.can or not job.rates:
                continue
            each = job.gpus // max(job.workers, 1)
            may = [
                (count, rate)
                for count, rate in job.rates
                if (count - job.workers) * each <= max(left.get(job.pin, 0), 0)
                and offers(job, count)
            ]
            best = max(
                may, key=lambda pair: (self._value(pair, each, view), -pair[0]), default=None
            )
            if best is not None and best[0] != job.workers:
                more = max(best[0] - job.workers, 0) * each
                left[job.pin] = left.get(job.pin, 0) - more
                resizes.append(Resize(job.job, Reason.BEST_RATIO, best[0]))
        return resizes

    def _value(self, pair: tuple[int, int], each: int, view: VcView) -> float:
        count, rate = pair
        if self.size == "performance":
            return rate
        nodes = -(-count * each // view.node_gpus)
        most = max(len(view.nodes), 1)
        cost = count * each / (most * view.node_gpus) + self.theta * nodes / most
        return rate / cost


def alignment(job: JobView, nodes: tuple[NodeView, ...]) -> float:
    """Return the best alignment of one worker's demand with a node (Tetris, section 3.2).

    Args:
        job: The job.
        nodes: The nodes of the view.

    Returns:
        The largest sum, over GPUs, processors and memory, of demand times what is free, both as
        parts of the node; 0.0: no node has enough free GPUs.
    """
    workers = max(job.workers, 1)
    gpus, cpus, memory = (amount / workers for amount in amounts(job))
    return max(
        (
            _part(gpus, node.free_for(job.pin), node.gpus)
            + _part(cpus, node.cpus_free, node.cpus)
            + _part(memory, node.memory_free, node.memory)
            for node in nodes
            if node.free_for(job.pin) >= gpus
        ),
        default=0.0,
    )


def _part(demand: float, free: int, whole: int) -> float:
    return demand / whole * free / whole if whole else 0.0
