"""Symmetric placements, as GENIE has them: so many nodes, and on each as many GPUs.

    models, measured, rates of views --> Speeds --> Options of a task: by cost-effective ratio
    view.nodes ------------------------> Room ----> nodes for one of them

A task is a job whose spec says its kind (`size.family`), the batch size of the whole gang
(`size.batch_size`) and its mini-batches. What its placements are worth depends only on the kind and
the batch size, so it is worked out once. How long it runs follows from that and its mini-batches.

Source: GENIE, sections 5.1 to 5.3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any, Literal, NamedTuple

from skep.perf.model.genie import Genie, Split, cost, cost_effective, rate
from skep.policy.capacity import FreeCapacity, NodeCapacity, Place
from skep.policy.plan import Turn
from skep.policy.sizes import offers
from skep.policy.view import JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Duration
from skep.wire.reasons import Reason
from skep.wire.spec import Resources

KINDS_MAX = 1000
"""Kinds of tasks, with their batch sizes, of which the placements are kept: more than a VC has."""
SPLITS_MAX = 4096
"""Placements of a kind of task that are compared: 512 nodes of 8 GPUs, or as many fewer nodes."""

ModelRow = tuple[str, float, float, float, float, float]
"""A kind of task, and what a profile of it found: k0, k1 and k2, gamma and lambda (equations 7 and
8)."""
LEARNED: Literal["learned"] = "learned"
Models = Sequence[ModelRow] | Literal["learned"]
"""What is known of kinds of tasks: rows, or LEARNED, what the advisor measured and predicts."""
MeasuredRow = tuple[str, int, int, int, float]
"""A kind of task, its batch size, nodes, GPUs of each, and samples per second there."""


class Option(NamedTuple):
    """A placement of a task, its samples per second, and the ratio of these to its cost."""

    split: Split
    rate: float
    ratio: float


class Options:
    """What the placements of a kind of task are worth."""

    def __init__(self, found: Sequence[Option]) -> None:
        """Order them.

        Args:
            found: At least one, with a rate above 0.
        """
        self.by_ratio = sorted(
            found, key=lambda each: (-each.ratio, -each.rate, each.split.gpus, each.split.nodes)
        )
        """The highest ratio first."""
        self.best: list[Option] = []
        """Those that none with a higher ratio is as fast as, the highest ratio first."""
        for each in self.by_ratio:
            if not self.best or each.rate > self.best[-1].rate:
                self.best.append(each)
        least = min(found, key=lambda each: each.split.gpus)
        self.alone = least.rate / least.split.gpus
        """Samples per second on one GPU; if there is no such option, a part of the smallest one's,
        as if it scaled in proportion."""

    @property
    def fastest(self) -> Option:
        """Return the option with the highest rate, and of equal ones that with the best ratio."""
        return self.best[-1]


class Task(NamedTuple):
    """What a job that waits has to do, and where it can do that."""

    options: Options
    samples: int

    def time(self, option: Option, start_ns: int) -> Duration:
        """Return how long it takes in nanoseconds (equation 4).

        Args:
            option: Its placement.
            start_ns: What it takes to begin.
        """
        return Duration(ceil(self.samples / option.rate * NS_PER_SECOND) + start_ns)

    def choose(self, within: int, start_ns: int) -> tuple[Option, bool]:
        """Return the option with the highest ratio with which it ends in time (algorithm 1).

        Args:
            within: Nanoseconds that it has.
            start_ns: What it takes to begin.

        Returns:
            The option, and whether it ends in time; if none does, the one with the highest ratio.
        """
        best = self.options.best
        at = bisect_left(best, -within, key=lambda each: -self.time(each, start_ns))
        return (best[at], True) if at < len(best) else (best[0], False)


class Speeds:
    """Rates of tasks by kind, and the options that follow from them on a platform."""

    def __init__(self, models: Models, measured: Sequence[MeasuredRow], theta: float) -> None:
        """Take over what is known.

        Args:
            models: By kind, the coefficients of its model; LEARNED: what views say of each job.
            measured: Rates that count more than those of models.
            theta: The weight of nodes in the cost (equation 10).
        """
        self._learned = models == LEARNED
        rows = () if isinstance(models, str) else models
        self._models = {row[0]: Genie(*row[1:6]) for row in rows}
        self._measured: dict[tuple[str, int], dict[Split, float]] = {}
        for kind, batch, nodes, each, there in measured:
            self._measured.setdefault((kind, batch), {})[Split(nodes, each)] = there
        self._theta = theta
        self._kept: dict[Any, Options | None] = {}

    def task(self, job: JobView, view: VcView) -> Task | None:
        """Return what a job has to do and where it can; None: that is not known, or not free.

        Args:
            job: It waits. A job with a fixed number of workers has the placements with as many.
            view: Its VC, for the nodes that there are.
        """
        size, elastic = job.spec.size, job.spec.elastic
        batches = size.total()
        if job.phase is not Phase.WAITING or not (size.family and size.batch_size and batches):
            return None
        wants = job.spec.resources
        least, most = (elastic.min, elastic.max) if elastic else (job.workers, job.workers)
        each = max(wants.gpus, 1)
        # A gang that is to be close together is on one node here.
        nodes = 1 if wants.topology is not None and wants.topology.hard else len(view.nodes)
        learned = (job.rates, job.slowdown) if self._learned else ((), ())
        key = (
            learned,
            size.family,
            size.batch_size,
            each,
            least,
            most,
            job.sizes and (job.workers, *job.sizes),
            nodes,
            len(view.nodes),
            view.node_gpus,
        )
        if key not in self._kept:
            if len(self._kept) >= KINDS_MAX:
                self._kept.clear()
            splits = [
                split
                for split in _splits(nodes, view.node_gpus, each)
                # No GPU has less than one sample of a mini-batch.
                if least <= split.gpus // each <= most
                and split.gpus <= size.batch_size
                and offers(job, split.gpus // each)
            ]
            rates = None
            if self._learned:
                rates = _learned(job, size.batch_size, view.node_gpus)
            found = self._options((size.family, size.batch_size), splits, view, rates)
            self._kept[key] = Options(found) if found else None
        options = self._kept[key]
        return None if options is None else Task(options, size.batch_size * batches)

    def _options(
        self,
        task: tuple[str, int],
        splits: Sequence[Split],
        view: VcView,
        learned: Callable[[Split], float] | None,
    ) -> list[Option]:
        found = []
        for split in splits:
            here = self.rate(*task, split)
            if not here and learned is not None:
                here = learned(split)
            if here > 0:
                price = cost(split, len(view.nodes), view.node_gpus, self._theta)
                found.append(Option(split, here, cost_effective(here, price)))
        return found

    def rate(self, kind: str, batch: int, split: Split) -> float:
        """Return the samples per second of a kind of task; 0.0: unknown, or it makes none."""
        known = self._measured.get((kind, batch), {}).get(split)
        if known is not None:
            return known
        model = self._models.get(kind)
        return 0.0 if model is None else rate(model, batch, split.nodes, split.each)


def _learned(job: JobView, batch: int, inside: int) -> Callable[[Split], float]:
    """Return the samples per second at a placement by what a view says of a job; 0.0: unknown.

    Args:
        job: Its rates are those on as few nodes as possible, and its slowdown is by nodes.
        batch: Samples of a mini-batch.
        inside: GPUs of a node.
    """
    rates, slowdown = dict(job.rates), sorted(job.slowdown)
    each = max(job.spec.resources.gpus, 1)

    def slow(nodes: int) -> int:
        known = [milli for count, milli in slowdown if count <= nodes]
        return max(known[-1], 1) if known else 1000

    def there(split: Split) -> float:
        fewest = -(-split.gpus // max(inside, 1))
        rate_milli = rates.get(split.gpus // each, 0)
        return rate_milli / 1000 * batch * slow(fewest) / slow(split.nodes)

    return there


def _splits(nodes: int, inside: int, each: int) -> Iterator[Split]:
    """Yield all placements of workers with so many GPUs, SPLITS_MAX at most, fewest nodes first."""
    per_node = inside // each
    for count in range(1, min(nodes, SPLITS_MAX // max(per_node, 1)) + 1):
        for workers in range(1, per_node + 1):
            yield Split(count, workers * each)


class Room:
    """What is free while a plan is made, and the turns that take it."""

    def __init__(self, view: VcView, nodes: NodeCapacity) -> None:
        """Begin with what is free.

        Args:
            view: The VC.
            nodes: What its nodes have free.
        """
        self.capacity = FreeCapacity.after(view, (), {}, nodes)
        self._view = view
        self._chains = {node.node: node.chain for node in view.nodes}
        self._failed: dict[tuple[Split | int, str, Resources], None] = {}
        self.turns: list[Turn] = []

    @property
    def left(self) -> int:
        """Return the free GPUs of the pin that has the most of them."""
        return max((self.capacity.left(pin) for pin in self.capacity.pins), default=0)

    def place(self, job: JobView, split: Split | None, why: Reason) -> bool:
        """Give a job its turn, if its placement is free; return whether it is.

        Args:
            job: It waits.
            split: Its placement; None: what its spec asks for, or where it is suspended, as few
                nodes as possible.
            why: Why it comes now.
        """
        place = self.find(job, split) if split is not None else self._as_asked(job)
        if place is None:
            return False
        nodes = tuple(node for node, _ in place)
        if split is None:
            self.capacity.take(job, place)
            self.turns.append(Turn(job.job, why, nodes))
            return True
        self.capacity.take_gpus(job, split.gpus, place)
        each = max(job.spec.resources.gpus, 1)
        turn = Turn(job.job, why, nodes, split.gpus // each, split.each // each)
        self.turns.append(turn)
        return True

    def find(self, job: JobView, split: Split) -> Place | None:
        """Return nodes that have room for a placement, those with the fewest free GPUs first."""
        if split.gpus > self.capacity.left(job.pin):
            return None
        wants = job.spec.resources
        key = split, job.pin, wants
        if key in self._failed:
            return None
        each = max(wants.gpus, 1)
        found: dict[str, list[str]] = {}
        for node, fit in self.capacity.workers_that_fit(job, each).items():
            if fit >= split.each // each:
                found.setdefault(self._chains[node], []).append(node)
        for nodes in found.values():
            if len(nodes) >= split.nodes:
                nodes.sort(key=lambda node: self.capacity.free(node, job.pin))
                return tuple((node, split.each) for node in nodes[: split.nodes])
        self._failed[key] = None
        return None

    def possible(self, task: Task, option: Option, job: JobView) -> Option | None:
        """Return a placement that would have room if all jobs of the VC left; None: none would.

        Hardware may be bad, or other VCs' jobs be on a node: to wait for that may be for ever.

        Args:
            task: What it has to do.
            option: The placement that it is to have; returned if it is possible.
            job: It waits.
        """
        holds = {
            node.node: node.free_for(job.pin) + sum(gpus for _, gpus in node.jobs)
            for node in self._view.nodes
        }
        most = self._view.gpus_for().get(job.pin, 0)
        for each in (option, *task.options.by_ratio):
            split = each.split
            enough = sum(gpus >= split.each for gpus in holds.values()) >= split.nodes
            if split.gpus <= most and enough:
                return each
        return None

    def _as_asked(self, job: JobView) -> Place | None:
        key = job.gpus, job.pin, job.spec.resources
        if not job.at_home and key in self._failed:
            return None
        place = self.capacity.fit(job)
        if place is None and not job.at_home:
            self._failed[key] = None
        return place
