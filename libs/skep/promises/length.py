"""How long a job takes at each size that it may have: by predicted speeds, or by its spec.

A *way* is one way to run a job: a type of GPU, a size, and its length as P10, P50 and P90.
Predicted speeds give a way for each type and size; without them the run time of the spec gives one,
at the size of the spec. How wrong owners are is learned: `Spread` widens by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from skep.promises.cells import Kind
from skep.units import Duration, Instant, seconds
from skep.wire.deadline import finish_by, gpus_range
from skep.wire.promises import Lasts
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, suits

WAYS_MAX = 12
"""Ways that are looked at for one job: types times sizes; each costs up to a millisecond."""
START = seconds(30)
"""What is added to a length: processes start, and other jobs leave the GPUs first."""
SEEN_MAX = 200
"""Ended jobs of a VC whose lengths say how far off its owners are: more than a day's worth."""
SEEN_MIN = 10
"""So many are needed before they say it."""
TOLD = (900, 1000, 1300)
"""Thousandths of what an owner says that are its P10, P50 and P90 until something is known."""
FACTOR_MAX = 10_000
"""At most so many thousandths of a said length count: one wrong owner makes no length endless."""
LENGTH_MAX = 10 * 365 * 24 * 3600 * 10**9
"""Ten years, in nanoseconds, stand for every longer run."""
LEAST = (500, 1000, 1050)
"""What they are at least: an owner that was right is not right to the second."""
FACTOR = {"prior": 1, "normal": 2}
"""How many run times on one GPU a class may take (GENIE, equation 9)."""
URGENT_MILLI = 1250
"""What an urgent job may take, in thousandths of its run time at its best placement."""


class Span(NamedTuple):
    """What a mini-batch takes, in nanoseconds: one, five and nine times in ten it is less."""

    p10: float
    p50: float
    p90: float


class Speeds(Protocol):
    """What is predicted of the speed of jobs."""

    def step(self, spec: JobSpec, gpu_type: str, gpus: int, nodes: int) -> Span | None:
        """Return what a mini-batch of a job takes on GPUs of nodes; None: it is not known."""
        ...

    def lack(self, spec: JobSpec, gpu_types: Iterable[str]) -> Reason:
        """Return why nothing is predicted of a job on some types of GPUs."""
        ...


class Unknown:
    """Nothing is predicted."""

    def step(self, spec: JobSpec, gpu_type: str, gpus: int, nodes: int) -> Span | None:
        """Return None."""
        del spec, gpu_type, gpus, nodes
        return None

    def lack(self, spec: JobSpec, gpu_types: Iterable[str]) -> Reason:
        """Return that it was not measured."""
        del spec, gpu_types
        return Reason.NOT_PROFILED


class Way(NamedTuple):
    """One way to run a job: `workers` pieces of `gpus` GPUs of a type."""

    kind: Kind
    gpus: int
    workers: int
    lasts: Lasts
    declared: bool
    willing: bool = True
    """Its owner allows it; else it is only something to offer."""

    @property
    def total(self) -> int:
        """Return the GPUs of the whole gang."""
        return self.gpus * self.workers

    @property
    def cost(self) -> int:
        """Return the GPU time that is promised to it."""
        return self.total * self.lasts.p90


Spread = tuple[int, int, int]
"""Thousandths of a said length: P10, P50 and P90."""


def spread(seen: Sequence[int]) -> Spread:
    """Return how far the lengths of jobs are from what their specs say.

    The quantiles are those of split conformal prediction: the rank is rounded away from the middle,
    so that a small sample gives a wide interval. Few samples are mixed with what is taken without
    any.

    Args:
        seen: Thousandths of what the latest jobs' specs said, in any order.
    """
    if len(seen) < SEEN_MIN:
        return TOLD
    ordered, count = sorted(min(each, FACTOR_MAX) for each in seen), len(seen)
    high = ordered[min((9 * (count + 1) + 9) // 10, count) - 1]
    low = ordered[max((count + 1) // 10, 1) - 1]
    middle = ordered[count // 2]
    return (min(low, LEAST[0], middle), max(middle, LEAST[1]), max(high, LEAST[2], middle))


def ways(
    spec: JobSpec, kinds: Iterable[Kind], largest: dict[Kind, int], speeds: Speeds, said: Spread
) -> tuple[list[Way], Reason]:
    """Return the ways to run a job, the cheapest first, and why there are none.

    Args:
        spec: The job.
        kinds: The types of GPUs that its VC owns.
        largest: The GPUs of the VC's largest part of a node, by type.
        speeds: What is predicted.
        said: How far off owners' run times are.
    """
    pin = spec.resources.pinned
    own = [kind for kind in sorted(kinds) if kind.pin == pin]
    mini_batches, run_time = spec.size.total(), spec.size.run_time
    found: list[Way] = []
    if mini_batches is not None:
        for kind in own:
            for total, allowed in _sizes(spec):
                found += _predicted(
                    spec, kind, total, allowed, (largest[kind], mini_batches), speeds
                )
    if not any(way.willing for way in found) and run_time is not None:
        declared = float(run_time)
        lasts = Lasts(
            p10=length(declared * said[0] / 1000),
            p50=length(declared * said[1] / 1000),
            p90=length(declared * said[2] / 1000),
        )
        for kind in own:
            gpus, workers = _pieces(spec, spec.gpus, largest[kind])
            found.append(
                Way(kind, gpus, workers, lasts, True, suits(types_of(spec), kind.gpu_type))
            )
    if any(way.willing for way in found):
        found.sort(key=lambda way: (not way.willing, way.cost, way.kind, way.total))
        return found[:WAYS_MAX], Reason.IN_TIME
    if mini_batches is None:
        return [], Reason.LENGTH_UNKNOWN
    lack = speeds.lack(spec, [kind[0] for kind in own if suits(types_of(spec), kind[0])])
    if lack is Reason.NOT_PROFILED and spec.willing.profile != "allowed":
        return [], Reason.PROFILE_REFUSED
    return [], lack


def types_of(spec: JobSpec) -> str | None:
    """Return the types of GPUs that a job may have, of its spec and of what it is willing to."""
    wanted, willing = spec.resources.gpu_type, spec.willing.types
    if not wanted or not willing:
        return willing or wanted
    return f"{wanted}|{willing}"


def _sizes(spec: JobSpec) -> list[tuple[int, bool]]:
    """Return the numbers of GPUs that a job may have, and larger ones that could be offered."""
    each, elastic = spec.resources.gpus, spec.elastic
    least, most = (spec.gpus, spec.gpus)
    if elastic is not None:
        least, most = elastic.min * each, elastic.max * each
    asked = spec.willing.gpus
    limits = None if asked is None or elastic is None else gpus_range(asked)
    if limits is not None:
        least, most = max(least, limits[0]), min(most, limits[1])
    sizes = {spec.gpus} if least <= spec.gpus <= most else set()
    size = each
    while size <= most * 4:
        if size >= least:
            sizes.add(size)
        size *= 2
    if elastic is not None and most % each == 0:
        sizes.add(most)
    return [(total, least <= total <= most) for total in sorted(sizes) if total >= least]


def _predicted(
    spec: JobSpec, kind: Kind, total: int, allowed: bool, limits: tuple[int, int], speeds: Speeds
) -> list[Way]:
    largest, mini_batches = limits
    gpus, workers = _pieces(spec, total, largest)
    step = speeds.step(spec, kind.gpu_type, total, workers)
    if step is None:
        return []
    second = mini_batches / 1e9
    lasts = Lasts(
        p10=length(step.p10 * second), p50=length(step.p50 * second), p90=length(step.p90 * second)
    )
    return [
        Way(kind, gpus, workers, lasts, False, allowed and suits(types_of(spec), kind.gpu_type))
    ]


def _pieces(spec: JobSpec, total: int, largest: int) -> tuple[int, int]:
    """Return how a gang is divided: as one piece, as whole nodes, or by its workers."""
    each = spec.resources.gpus
    topology = spec.resources.topology
    if topology is not None and topology.hard and topology.within == "node":
        return total, 1
    if total <= largest and spec.size.run_time is None:
        return total, 1
    if total > largest and largest % each == 0 and total % largest == 0:
        return largest, total // largest
    return each, max(total // each, 1)


def length(of_s: float) -> Duration:
    """Return how long a job holds its GPUs that computes for so many seconds."""
    return Duration(round(min(of_s * 1e9, LENGTH_MAX)) + START)


def due(spec: JobSpec, found: Sequence[Way], submitted_at: Instant) -> Instant | None:
    """Return when a job is to have ended: by its `finish_by`, or by its class; None: never.

    The class is GENIE's: run times on one GPU, or on the fewest that hold the job where one
    cannot. Urgent is measured against the best placement.

    Args:
        spec: The job.
        found: The ways to run it.
        submitted_at: When it was submitted.
    """
    if spec.finish_by is not None:
        return finish_by(spec, submitted_at)
    if spec.qos is None:
        return None
    allowed = [way for way in found if way.willing]
    if not allowed:
        return None
    if spec.qos == "urgent":
        best = min(way.lasts.p50 for way in allowed)
        return Instant(submitted_at + best * URGENT_MILLI // 1000)
    smallest = min(allowed, key=lambda way: (way.total, way.lasts.p50))
    return Instant(submitted_at + FACTOR[spec.qos] * smallest.lasts.p50)


def left(lasts: Lasts, ran: int) -> Lasts:
    """Return how long a job still runs that has run for so long.

    One that outran its P90 is taken to need a tenth of it more: it is judged again then.
    """
    more = max(lasts.p90 // 10, 1)
    return Lasts(
        p10=Duration(max(lasts.p10 - ran, 0)),
        p50=Duration(max(lasts.p50 - ran, more // 2)),
        p90=Duration(max(lasts.p90 - ran, more)),
    )
