"""What mini-batches took, as measured: facts of the advisor, by model, type of GPU and place.

A model is a family, or where a job names none, the digest of the shapes of its parameters. A
measurement is worth a fact if its place was not measured yet, or was measured otherwise; each
attempt gives one for each place, so that a job whose speed wavers does not fill the log.

Each VC has profiles of its own (`Tenants`): what one says of a model hides nothing that another
one measures, and one that says much makes only its own forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from skep.perf.model.placement import Placement, Point
from skep.perf.progress import median
from skep.perf.scaling import FAMILIES_MAX, POINTS_MAX, Key
from skep.perf.similarity import Borrowed, Looks, borrow
from skep.units import Duration
from skep.wire.profile import Fingerprint, ProfileMeasured

JOBS_MAX = 16
"""Measurements of one place that are kept, the latest: their median follows new hardware."""
FACTS_MAX = 50_000
"""Kept in all, at about 1 KiB each; the models that were measured least recently are forgotten, of
the VC that has the most."""
VCS_MAX = 1_000
"""VCs of which something is kept: those that measured last."""
OTHER_DIVISOR = 20
"""A measurement is another one if it differs by more than this part of what is kept."""


class Place(NamedTuple):
    """Where a mini-batch was timed: `batch` are samples per GPU, `shared`: beside other jobs."""

    gpus: int
    nodes: int
    batch: int
    shared: bool


class Measured(NamedTuple):
    """What is known of a model at a place: medians over jobs, and from what.

    `spread` is the standard deviation of medians of jobs, as thousandths of their mean; of a single
    job that of its mini-batches.
    """

    place: Place
    p10_ns: int
    p50_ns: int
    p90_ns: int
    jobs: int
    samples: int
    spread_milli: int


class Curve(NamedTuple):
    """A model on a type of GPU: what was measured, and what the most similar model adds to that."""

    key: Key
    own: tuple[Measured, ...]
    borrowed: tuple[tuple[Place, int], ...] = ()
    """Nanoseconds at places that were not measured: a prior's mean, no prediction."""
    source: Borrowed | None = None


Jobs = dict[str, ProfileMeasured]


class Profiles:
    """All that was measured. Only `apply` changes it."""

    def __init__(self) -> None:
        """Begin without measurements."""
        self._known: dict[Key, dict[Place, Jobs]] = {}
        self.count = 0
        """Measurements that are kept."""
        self._looks: dict[Key, Looks] = {}
        """What was worked out of them: an unknown model is compared with every one."""

    def is_news(self, fact: ProfileMeasured) -> bool:
        """Return whether a measurement says something that is not kept yet.

        Args:
            fact: What would be recorded of it.
        """
        if not name_of(fact):
            return False
        jobs = self._known.get(_key(fact), {}).get(place_of(fact))
        if not jobs:
            return True
        own = jobs.get(fact.job)
        if own is not None and own.attempt == fact.attempt:
            return False
        kept = median([each.p50_ns for each in jobs.values()])
        return abs(fact.p50_ns - kept) * OTHER_DIVISOR > kept

    def apply(self, fact: ProfileMeasured) -> None:
        """Take over a measurement; what is beyond a bound is forgotten, the oldest first."""
        key, place = _key(fact), place_of(fact)
        self._looks.pop(key, None)
        places = self._known.pop(key, None) or {}
        self._known[key] = places
        jobs = places.pop(place, None) or {}
        places[place] = jobs
        self.count += fact.job not in jobs
        jobs.pop(fact.job, None)
        jobs[fact.job] = fact
        if len(jobs) > JOBS_MAX:
            del jobs[next(iter(jobs))]
            self.count -= 1
        if len(places) > POINTS_MAX:
            self.count -= len(places.pop(next(iter(places))))
        while len(self._known) > FAMILIES_MAX or (self.count > FACTS_MAX and len(self._known) > 1):
            self.forget()

    def forget(self) -> None:
        """Forget the model that was measured least recently; there is at least one."""
        key = next(iter(self._known))
        self._looks.pop(key, None)
        gone = self._known.pop(key)
        self.count -= sum(len(each) for each in gone.values())

    def facts(self) -> Iterator[ProfileMeasured]:
        """Yield what is kept; applied in this order, it leads to the same state."""
        for places in self._known.values():
            for jobs in places.values():
                yield from jobs.values()

    def models(self) -> list[Key]:
        """Return every model and type of GPU, sorted."""
        return sorted(self._known)

    def has(self, key: Key) -> bool:
        """Return whether anything was measured of a model."""
        return key in self._known

    def measured(self, key: Key) -> tuple[Measured, ...]:
        """Return what was measured of a model, fewest GPUs first."""
        known = self._known.get(key, {})
        return tuple(_measured(place, known[place]) for place in sorted(known))

    def largest(self, gpu_type: str, count: int) -> list[Key]:
        """Return the models on a type of GPU that were measured alone at the most places.

        Args:
            gpu_type: The type.
            count: How many models at most. One place alone teaches nothing.
        """
        found = []
        for key in self._known:
            if key[1] == gpu_type:
                alone = sum(not place.shared for place in self._known[key])
                if alone > 1:
                    found.append((-alone, key))
        return [key for _, key in sorted(found)[:count]]

    def points(self, key: Key) -> list[Point]:
        """Return what was measured of a model, as predictions are learned from.

        What was measured beside other jobs says nothing of a job alone, and is left out.

        Args:
            key: Its name and the type of GPU.
        """
        points = [_point(key[1], each) for each in self.measured(key)]
        return [each for each in points if each is not None]

    def families(self, gpu_type: str) -> dict[str, list[Point]]:
        """Return the points of every model on a type of GPU, by its name.

        Args:
            gpu_type: The type.
        """
        found = {key[0]: self.points(key) for key in self.models() if key[1] == gpu_type}
        return {name: points for name, points in found.items() if points}

    def looks(self, key: Key) -> Looks:
        """Return what a model is compared by."""
        if key in self._looks:
            return self._looks[key]
        places = self._known.get(key, {})
        prints = [each.fingerprint for jobs in places.values() for each in jobs.values()]
        alone = [each for each in self.measured(key) if not each.place.shared]
        first = min(alone, key=lambda each: each.place, default=None)
        shown = next((each for each in reversed(prints) if each is not None), None)
        found = Looks(*key, shown, 0 if first is None else first.p50_ns)
        if places:
            self._looks[key] = found
        return found

    def curve(
        self, key: Key, fingerprint: Fingerprint | None = None, lender: Profiles | None = None
    ) -> Curve:
        """Return what is known of a model, and what it borrows.

        Args:
            key: Its name and the type of GPU; it need not have been measured.
            fingerprint: What it shows, if it was not measured.
            lender: The profiles that it borrows from, of another VC; None: these.
        """
        own = self.measured(key)
        looks = self.looks(key)
        if looks.fingerprint is None:
            looks = looks._replace(fingerprint=fingerprint)
        lender = lender or self
        others = [
            lender.looks(each) for each in lender.models() if each != key or lender is not self
        ]
        source = borrow(looks, others)
        if source is None:
            return Curve(key, own)
        theirs = {
            each.place: each.p50_ns
            for each in lender.measured((source.name, source.gpu_type))
            if not each.place.shared
        }
        return Curve(key, own, _scaled(own, theirs), source)

    def check(self) -> None:
        """Assert the bounds.

        Raises:
            AssertionError: One of them is broken.
        """
        assert len(self._known) <= FAMILIES_MAX
        assert self.count == sum(1 for _ in self.facts())
        assert self.count <= FACTS_MAX + POINTS_MAX * JOBS_MAX
        for places in self._known.values():
            assert 0 < len(places) <= POINTS_MAX
            assert all(0 < len(jobs) <= JOBS_MAX for jobs in places.values())


class Tenants:
    """The profiles of each VC. Only `apply` changes them."""

    def __init__(self) -> None:
        """Begin without measurements."""
        self.vcs: dict[str, Profiles] = {}
        self._count = 0

    def of(self, vc: str) -> Profiles:
        """Return the profiles of a VC, which may be empty."""
        return self.vcs.get(vc) or Profiles()

    def is_news(self, fact: ProfileMeasured) -> bool:
        """Return whether a measurement says something that its VC has not measured yet."""
        return self.of(fact.vc).is_news(fact)

    def apply(self, fact: ProfileMeasured) -> None:
        """Take over a measurement; where a bound is exceeded, the VC with the most forgets."""
        profiles = self.vcs.pop(fact.vc, None) or Profiles()
        self.vcs[fact.vc] = profiles
        before = profiles.count
        profiles.apply(fact)
        self._count += profiles.count - before
        while self._count > FACTS_MAX:
            most = max(self.vcs, key=lambda vc: (self.vcs[vc].count, vc))
            before = self.vcs[most].count
            self.vcs[most].forget()
            self._count += self.vcs[most].count - before
            if not self.vcs[most].count:
                del self.vcs[most]
        if len(self.vcs) > VCS_MAX:
            self._count -= self.vcs.pop(next(iter(self.vcs))).count

    def facts(self) -> Iterator[ProfileMeasured]:
        """Yield what is kept; applied in this order, it leads to the same state."""
        for profiles in self.vcs.values():
            yield from profiles.facts()

    def check(self) -> None:
        """Assert the bounds.

        Raises:
            AssertionError: One of them is broken.
        """
        assert len(self.vcs) <= VCS_MAX
        for profiles in self.vcs.values():
            profiles.check()
        assert self._count == sum(each.count for each in self.vcs.values())
        assert self._count <= FACTS_MAX


def name_of(fact: ProfileMeasured) -> str:
    """Return the name of a model; "" if it has none and shows nothing."""
    if fact.family or fact.fingerprint is None:
        return fact.family
    return f"~{fact.fingerprint.shapes}"


def place_of(fact: ProfileMeasured) -> Place:
    """Return where a mini-batch was timed."""
    return Place(fact.gpus, fact.nodes, fact.batch, fact.shared)


def _key(fact: ProfileMeasured) -> Key:
    return name_of(fact), fact.gpu_type


def _measured(place: Place, jobs: Jobs) -> Measured:
    facts = list(jobs.values())
    middles = [each.p50_ns for each in facts]
    spread = facts[0].spread_milli
    if len(facts) > 1:
        mean = sum(middles) / len(middles)
        variance = sum((each - mean) ** 2 for each in middles) / (len(middles) - 1)
        spread = round(1000 * math.sqrt(variance) / mean)
    return Measured(
        place,
        median([each.p10_ns for each in facts]),
        median(middles),
        median([each.p90_ns for each in facts]),
        len(facts),
        sum(each.samples for each in facts),
        spread,
    )


def _point(gpu_type: str, each: Measured) -> Point | None:
    place = each.place
    if place.shared:
        return None
    return Point(
        Placement(gpu_type, place.gpus, place.nodes, float(place.batch)),
        Duration(each.p50_ns),
        each.samples,
        each.spread_milli / 1000,
    )


def _scaled(own: tuple[Measured, ...], theirs: dict[Place, int]) -> tuple[tuple[Place, int], ...]:
    """Return another model's times where there are no own ones, scaled to those that both have.

    Without a common place they are scaled by the nearest two; without own ones not at all.
    """
    measured = {each.place: each.p50_ns for each in own if not each.place.shared}
    common = [place for place in measured if place in theirs]
    factor = 1.0
    if common:
        logs = sorted(math.log(measured[place] / theirs[place]) for place in common)
        factor = math.exp(logs[len(logs) // 2])
    elif measured and theirs:
        pairs = [(_apart(mine, other), mine, other) for mine in measured for other in theirs]
        _, mine, other = min(pairs)
        factor = measured[mine] / theirs[other]
    return tuple(
        (place, max(1, round(theirs[place] * factor)))
        for place in sorted(theirs)
        if place not in measured
    )


def _apart(one: Place, other: Place) -> float:
    """Return how different two places are: nodes count before GPUs, and those before samples."""
    batches = math.log((one.batch or 1) / (other.batch or 1)) if one.batch and other.batch else 0.0
    gpus, nodes = math.log(one.gpus / other.gpus), math.log(one.nodes / other.nodes)
    return 4 * abs(nodes) + 2 * abs(gpus) + abs(batches)
