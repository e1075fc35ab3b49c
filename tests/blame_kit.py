"""What the tests of blame share: a live-like run of many jobs, and what holds of every answer."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from skep.ledger.blame import fold
from skep.ledger.blame.kept import Kept, keep, restore
from skep.ledger.blame.state import Blame
from skep.ledger.blame.told import Told
from skep.units import Duration, Instant, seconds
from skep.wire.admin import DrainNode, QuarantineGpu
from skep.wire.changes import AskCheckpoint, AskMigrate, AskResume, AskSuspend
from skep.wire.facts import JobEnded, JobQueued
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Steady

KEPT = msgspec.json.Decoder(Kept)
VCS = {"nlp": 2, "vision": 2, "lab": 1}
SIZES = (1, 1, 1, 1, 2, 2, 4, 8)
START_S = 3
"""What it costs to begin an attempt: it runs meanwhile, and makes nothing."""


class At(NamedTuple):
    """The facts of one record, and when it was stored (0: that is not known)."""

    at: Instant
    facts: tuple[Any, ...]


class Pace(Steady):
    """Jobs that share GPUs, or are spread over nodes, are slower."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return the speed relative to the best."""
        return 0.6 if where.partners else 0.8 if len(where.spread) > 1 else 1.0


@cache
def live_like(jobs: int = 200, seed: int = 1) -> tuple[list[At], RunResult]:
    """Return the facts of a run with three tenants, one of them with Gandiva's policy, and costs.

    Tenants suspend, resume, move and store jobs; GPUs break and nodes are drained.
    """
    rng = random.Random(seed)
    names, at, traced = list(VCS), 0.0, []
    for number in range(jobs):
        at += rng.expovariate(1 / 20)
        gpus = rng.choice(SIZES)
        traced.append(
            TraceJob(
                id=f"t{number}",
                at=seconds(at),
                run_time=seconds(rng.choice((60, 300, 900, 2400))),
                gpus=gpus,
                vc=rng.choice(names),
                opportunistic=rng.random() < 0.2,
                priority=rng.choice((0, 0, 0, 5)),
                mini_batches=rng.choice((0, 2000)),
                model="m",
            )
        )
    news: list[tuple[Duration, Any]] = []
    for _ in range(jobs // 2):
        when, job = seconds(rng.uniform(60, 2 * at)), f"j{rng.randrange(1, jobs + 1)}"
        suspend = AskSuspend(job=job, release=rng.random() < 0.5)
        ask = rng.choice([suspend, AskCheckpoint(job=job), AskMigrate(job=job)])
        news.append((when, ask))
        if ask is suspend:
            news.append((Duration(when + seconds(rng.uniform(10, 600))), AskResume(job=job)))
    for _ in range(6):
        when, node = seconds(rng.uniform(0, at)), f"node-{rng.randrange(sum(VCS.values()))}"
        later = Duration(when + seconds(900))
        if rng.random() < 0.5:
            news += [(when, DrainNode(node=node)), (later, DrainNode(node=node, drain=False))]
        else:
            broken = QuarantineGpu(node=node, device=rng.randrange(8))
            news += [(when, broken), (later, msgspec.structs.replace(broken, quarantine=False))]
    news.sort(key=lambda each: each[0])
    costs = Costs(start_s=START_S, stop_s=1, suspend_s=1, resume_s=2, migrate_s=5)
    settings = Settings(
        seed=seed,
        costs=costs,
        noise=0.05,
        can=("suspend", "release", "migrate", "rebind"),  # What is stopped loses its work.
        reports="on-change",
        policies={"vision": ("gandiva", {})},
        over_quota="auto",
    )
    told: list[At] = []
    result = run(
        Trace(name="live-like", jobs=tuple(traced)),
        uniform(sum(VCS.values()), 8, vcs=VCS),
        settings,
        Pace(),
        news=news,
        judge=lambda world, facts: told.append(At(world.now, tuple(facts))),
    )
    return told, result


def check(told: Told) -> None:
    """Assert what must hold of every answer: no part is negative, and all of them add up."""
    assert sum(share.ns for share in told.shares) == told.elapsed_ns, told
    assert told.earlier_ns + sum(span.end - span.begin for span in told.spans) == told.elapsed_ns
    assert sum(share.gpu_ns for share in told.shares) == told.held_gpu_ns
    assert 0 <= told.slowed_gpu_ns <= told.useful_gpu_ns <= told.held_gpu_ns - told.lost_gpu_ns
    begin = told.submitted_at + told.earlier_ns
    for span in told.spans:
        assert span.begin == begin <= span.end, told
        begin = span.end
    for share in told.shares:
        assert share.ns >= 0, told
        assert share.gpu_ns >= 0, told
        assert all(party.ns > 0 for party in share.parties), share
        assert sum(party.ns for party in share.parties) <= share.ns, share
    for span in told.spans:
        assert sum(party.ns for party in span.parties) in {0, span.end - span.begin}, span


class Folded:
    """Facts folded one by one; after each, whatever is asked for is checked."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.blame = Blame()
        self.told: dict[str, Told] = {}
        self.elapsed: dict[str, int] = {}
        """By ended job: from its submission to its end, as the facts say."""
        self._begun: dict[str, int] = {}

    def take(self, records: Iterable[At], *, ask_every: int = 0) -> Folded:
        """Take over records; with `ask_every`, ask about all jobs after every so many of them."""
        for number, record in enumerate(records):
            for fact in record.facts:
                if isinstance(fact, JobQueued):
                    self._begun[fact.job] = fact.submitted_at
                if isinstance(fact, JobEnded):
                    self.elapsed[fact.job] = fact.at - self._begun[fact.job]
                told = fold.apply(self.blame, fact, record.at)
                if told is not None:
                    check(told)
                    self.told[told.job] = told
            if ask_every and number % ask_every == 0:
                self.ask()
        return self

    def ask(self) -> None:
        """Ask about every job that has not ended, a while from now too."""
        for job in self.blame.lives:
            for later in (0, 1, 10**12):
                told = fold.told_of(self.blame, job, Instant(self.blame.clock + later))
                assert told is not None
                check(told)

    def again(self) -> Folded:
        """Go on from what is kept of this."""
        other = Folded()
        for piece in keep(self.blame):
            restore(other.blame, KEPT.decode(msgspec.json.encode(piece)))
        assert other.blame == self.blame
        other.told, other.elapsed, other._begun = self.told, self.elapsed, self._begun
        return other
