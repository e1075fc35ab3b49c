"""Fair share over a month: do people of one VC get the parts of it that their weights say?

Everybody always has jobs that wait. `ada` (weight 2) has many small ones, `bob` long gangs, `cem`
comes in bursts, and `dee` comes on the tenth day. Now and then a job is suspended without its GPUs,
and goes on. The VC borrows what others leave idle. Production machines play all of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from skep.access.person import person_of
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.changes import AskResume, AskSuspend
from skep.wire.cluster import Cluster, FairShare
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import EVERYTHING, Settings
from skep_lab.simulator.world import News, World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

VC = "lab"
HOUR_S, DAY_S = 3600, 86_400
WEIGHTS = {"ada": 2.0, "bob": 1.0, "cem": 1.0, "dee": 1.0}
COMES_DAY = {"dee": 10}
"""When a newcomer comes."""
SIZES = {"ada": (1, 1, 2), "bob": (4, 8), "cem": (2, 4), "dee": (1, 4, 8)}
LENGTHS_H = {"ada": (4, 8), "bob": (6, 12), "cem": (2, 6), "dee": (2, 8)}
BURST_DAYS = 3
DEMAND = 1.1
"""What each asks for, as a multiple of what its weight gives it."""
SUSPENDED_EACH_DAY = 30


class Setting(NamedTuple):
    """How large a run is."""

    days: int = 30
    nodes: int = 2
    lent_nodes: int = 1
    """Nodes of another VC, which has little to do: they are borrowed."""
    node_gpus: int = 8
    half_life_days: float = 7.0


USUAL = Setting()


class Part(NamedTuple):
    """One person at the end: its weight as a part of all, and what it has of what was used."""

    person: str
    weight: float
    decayed: float
    """Of the decayed usage at the end, as the ledger has it."""
    late: float
    """Of the GPU time of the last third of the run, counted from what ran and not by the ledger."""
    gpu_hours: float
    """Of the last third."""


class Outcome(NamedTuple):
    """What came of one run."""

    seed: int
    parts: tuple[Part, ...]
    jobs: int
    ended: int
    suspended: int

    @property
    def decayed_error(self) -> float:
        """Return how far the worst part of the decayed usage is from its weight, of the whole."""
        return max(abs(part.decayed - part.weight) for part in self.parts)

    @property
    def late_error(self) -> float:
        """Return the same of the GPU time of the last third."""
        return max(abs(part.late - part.weight) for part in self.parts)


def cluster_of(setting: Setting) -> Cluster:
    """Return the cluster: the VC with fair shares, and another that lends."""
    owners = {VC: setting.nodes, "others": setting.lent_nodes}
    whole = uniform(setting.nodes + setting.lent_nodes, setting.node_gpus, vcs=owners)
    fair = FairShare(half_life=round(setting.half_life_days * DAY_S), weights=WEIGHTS)
    return replace(whole, vcs={**whole.vcs, VC: replace(whole.vcs[VC], fair_share=fair)})


def trace_of(setting: Setting, seed: int) -> Trace:
    """Return the jobs of a run: of each person more than its weight gives it, at any time."""
    rng = random.Random(seed)
    gpus = (setting.nodes + setting.lent_nodes) * setting.node_gpus
    span, whole = setting.days * DAY_S, sum(WEIGHTS.values())
    jobs = []
    for person, weight in WEIGHTS.items():
        comes = COMES_DAY.get(person, 0) * setting.days / 30 * DAY_S
        wanted = DEMAND * gpus * weight / whole * (span - comes)
        if not comes:
            # Those who were there have what the newcomer does not use.
            wanted *= 1 + 0.1 * sum(COMES_DAY.values())
        else:
            wanted *= 2.0  # It has been idle: at first it gets more than its part.
        while wanted > 0:
            size = min(rng.choice(SIZES[person]), setting.nodes * setting.node_gpus)
            lasts = rng.choice(LENGTHS_H[person]) * HOUR_S * rng.uniform(0.7, 1.3)
            at = comes + rng.random() * (span - comes) * 0.9
            if person == "cem":
                at -= at % (BURST_DAYS * DAY_S)
            elif rng.random() < 0.1:
                at = comes
            jobs.append((at, person, size, lasts))
            wanted -= size * lasts
    for _ in range(setting.days):
        at = rng.random() * span
        jobs.append((at, "", rng.choice((1, 8)), HOUR_S * rng.uniform(1, 6)))
    jobs.sort()
    return Trace(
        name=f"fair-{seed}",
        jobs=tuple(
            TraceJob(
                id=f"f{number}",
                at=seconds(round(at)),
                gpus=size,
                vc=VC if person else "others",
                user=person,
                run_time=seconds(round(lasts)),
            )
            for number, (at, person, size, lasts) in enumerate(jobs)
        ),
    )


def news_of(setting: Setting, trace: Trace, seed: int) -> list[tuple[Duration, News]]:
    """Return which jobs are suspended without GPUs, and go on hours later."""
    rng, news = random.Random(seed + 1), list[tuple[Duration, News]]()
    for _ in range(SUSPENDED_EACH_DAY * setting.days):
        number = rng.randrange(len(trace.jobs))
        at = trace.jobs[number].at + seconds(rng.uniform(0, 8) * DAY_S)
        name = f"j{number + 1}"
        news.append((Duration(at), AskSuspend(job=name, release=True)))
        news.append((Duration(at + seconds(rng.uniform(1, 12) * HOUR_S)), AskResume(job=name)))
    return sorted(news, key=lambda each: each[0])


class Meter:
    """Counts GPU time of each person from an instant on, from the jobs that hold GPUs."""

    def __init__(self, begins: Instant) -> None:
        """Start with nothing used."""
        self.used: dict[str, int] = {}
        self.suspended = 0
        self._begins, self._last = begins, begins
        self._gpus: dict[str, int] = {}

    def judge(self, world: World, facts: Sequence[object]) -> None:
        """Take what a decision changed; the last ones held until now."""
        del facts
        now = world.now
        if now > self._last:
            for person, gpus in self._gpus.items():
                self.used[person] = self.used.get(person, 0) + gpus * (now - self._last)
            self._last = now
        self._gpus = {}
        for job in world.allocator.state.placed.values():
            if job.spec.vc == VC and not job.released:
                person = person_of(job.owner, job.spec.labels)
                gpus = job.size * job.spec.resources.gpus
                self._gpus[person] = self._gpus.get(person, 0) + gpus
        self.suspended = max(self.suspended, len(world.allocator.state.away))


def play(seed: int, setting: Setting = USUAL) -> Outcome:
    """Return what a month came to.

    Args:
        seed: Of the jobs.
        setting: How large it is.
    """
    trace = trace_of(setting, seed)
    until = seconds(setting.days * DAY_S * 0.9)
    settings = Settings(seed=seed, can=EVERYTHING, over_quota="auto", hints="none", until=until)
    meter: list[Meter] = []

    def judge(world: World, facts: Sequence[object]) -> None:
        if not meter:
            meter.append(Meter(Instant(world.now + until * 2 // 3)))
        meter[0].judge(world, facts)

    news = news_of(setting, trace, seed)
    world = World(trace, cluster_of(setting), settings, Steady(), news, judge)
    world.run()
    state, whole = world.allocator.state, sum(WEIGHTS.values())
    of_vc = state.people.of_vc[VC]
    decayed = {who: of_vc.used(who, world.now) for who in WEIGHTS}
    all_decayed, used = sum(decayed.values()), meter[0].used
    all_used = sum(used.values())
    parts = tuple(
        Part(
            person=who,
            weight=weight / whole,
            decayed=decayed[who] / all_decayed,
            late=used.get(who, 0) / all_used,
            gpu_hours=used.get(who, 0) / NS_PER_SECOND / HOUR_S,
        )
        for who, weight in WEIGHTS.items()
    )
    ended = len(trace.jobs) - len(state.jobs)
    return Outcome(seed, parts, len(trace.jobs), ended, meter[0].suspended)
