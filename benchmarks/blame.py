"""Where the time of 100,000 jobs went: what the fold costs a fact, a question, and in memory.

A made-up log: VCs of jobs that come faster than they end for a while, so that thousands wait at a
time; some are preempted, some suspended, and attempts fail. The state's own fold is not measured.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from skep.ledger.blame import fold
from skep.ledger.blame.kept import keep
from skep.ledger.blame.state import Blame
from skep.units import Instant, seconds
from skep.wire.changes import AskSuspend, AskTaken, Goal, JobChanged, JobChanging, Result
from skep.wire.commands import Resume, Suspend
from skep.wire.facts import End, JobBound, JobEnded, JobQueued, JobRan, JobRequeued, Member
from skep.wire.facts import JobStopping as Stopping
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Resources
from skep_services.collection import short_pauses

BEGIN = 1_700_000_000 * 10**9
SIZES = (1, 1, 1, 1, 2, 2, 4, 8)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--gpus", type=int, default=1024, help="of the whole cluster")
    parser.add_argument("--vcs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)


class Story:
    """A made-up log: first come, first served in each VC, without any policy."""

    def __init__(self, jobs: int, gpus: int, vcs: int, seed: int) -> None:
        """Begin with an idle cluster."""
        self.rng = random.Random(seed)
        self.free = {f"vc{number}": gpus // vcs for number in range(vcs)}
        self.idle = {vc: [f"{vc}-{one}" for one in range(free)] for vc, free in self.free.items()}
        self.queues: dict[str, list[tuple[int, str, int, int]]] = {vc: [] for vc in self.free}
        self.jobs, self.attempts = jobs, dict[str, int]()
        self.events: list[tuple[int, int, str, Any]] = []
        self.number = self.waiting_most = 0

    def push(self, at: int, kind: str, what: Any) -> None:
        """Have something happen."""
        self.number += 1
        heapq.heappush(self.events, (at, self.number, kind, what))

    def facts(self) -> Iterator[tuple[Any, Instant]]:
        """Yield every fact with its instant."""
        at = BEGIN
        rng = self.rng
        every = seconds(0.9 * 1800 * statistics.mean(SIZES) / sum(self.free.values()))
        for number in range(1, self.jobs + 1):
            self.push(at, "come", number)
            at += round(rng.expovariate(1 / every))
        while self.events:
            now, _, kind, what = heapq.heappop(self.events)
            stamp = Instant(now)
            for fact in getattr(self, kind)(stamp, what):
                yield fact, stamp
            waiting = sum(map(len, self.queues.values()))
            self.waiting_most = max(self.waiting_most, waiting)

    def come(self, now: Instant, number: int) -> Iterator[Any]:
        """A job is submitted."""
        vc, gpus = self.rng.choice(list(self.free)), self.rng.choice(SIZES)
        spec = JobSpec(name="train", vc=vc, command=("true",), resources=Resources(gpus=gpus))
        yield JobQueued(job=f"j{number}", spec=spec, submitted_at=now)
        self.queues[vc].append((number, vc, gpus, round(self.rng.expovariate(1 / 1.8e12))))
        yield from self.serve(now, vc)

    def serve(self, now: Instant, vc: str) -> Iterator[Any]:
        """Bind what comes first, as long as it fits."""
        queue = self.queues[vc]
        while queue and queue[0][2] <= len(self.idle[vc]):
            job = queue.pop(0)
            number, _, gpus, length = job
            name = f"j{number}"
            attempt = self.attempts[name] = self.attempts.get(name, 0) + 1
            taken = [self.idle[vc].pop() for _ in range(gpus)]
            yield JobBound(
                job=name,
                attempt=attempt,
                order=1,
                master_port=1,
                members=tuple(
                    Member(node=node, identity="", first_rank=at, devices=((0,),), levels=(1,))
                    for at, node in enumerate(taken)
                ),
                why=Reason.BEST_FIT_ONE_NODE,
                at=now,
                chain="main",
            )
            yield JobRan(job=name, attempt=attempt, at=now)
            chance = self.rng.random()
            if chance < 0.05:
                self.push(now + length // 3, "suspend", (job, attempt, taken))
            elif chance < 0.15:
                self.push(now + length // 2, "requeue", (job, attempt, taken))
            else:
                self.push(now + length, "end", (job, attempt, taken))

    def suspend(self, now: Instant, what: Any) -> Iterator[Any]:
        """A tenant has a job stand still for a while."""
        (number, _, _, length), attempt, _ = what
        named = {"job": f"j{number}", "attempt": attempt, "at": now}
        ask = AskSuspend(job=f"j{number}")
        yield AskTaken(job=f"j{number}", number=number, ask=ask)
        for goal, change in ((Goal.SUSPEND, Suspend()), (Goal.RESUME, Resume())):
            yield JobChanging(
                **named, order=1, goal=goal, change=change, nodes=(), why=Reason.REQUESTED
            )
            yield JobChanged(**named, goal=goal, result=Result.DONE, why=Reason.REQUESTED)
        self.push(now + length, "end", what)

    def requeue(self, now: Instant, what: Any) -> Iterator[Any]:
        """An attempt is stopped, and another one follows."""
        job, attempt, taken = what
        named = {"job": f"j{job[0]}", "attempt": attempt, "at": now, "why": Reason.PREEMPTED}
        yield Stopping(**named, order=1)
        yield JobRequeued(**named, counted=False)
        self.idle[job[1]] += taken
        self.queues[job[1]].append(job)
        yield from self.serve(now, job[1])

    def end(self, now: Instant, what: Any) -> Iterator[Any]:
        """A job succeeds."""
        job, attempt, taken = what
        yield JobEnded(
            job=f"j{job[0]}", end=End.SUCCEEDED, why=Reason.SUCCEEDED, attempts=attempt, at=now
        )
        self.idle[job[1]] += taken
        yield from self.serve(now, job[1])


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    story = Story(given.jobs, given.gpus, given.vcs, given.seed)
    facts = list(story.facts())
    with short_pauses():  # As the gateway has them.
        return _measured(given, story, facts)


def _measured(given: argparse.Namespace, story: Story, facts: list[Any]) -> dict[str, Any]:
    folds, asks, wrong, told_jobs = [], [], 0, 0
    kept_bytes = 0
    for _ in range(given.runs):
        blame = Blame()
        wrong = told_jobs = 0
        began, paused = time.process_time(), 0.0
        for number, (fact, at) in enumerate(facts):
            told = fold.apply(blame, fact, at)
            if told is not None:
                told_jobs += 1
                wrong += sum(share.ns for share in told.shares) != told.elapsed_ns
            if number == len(facts) // 2:
                stopped = time.process_time()
                for job in list(blame.lives)[:1000]:
                    asked = time.process_time()
                    fold.told_of(blame, job, at)
                    asks.append(1e6 * (time.process_time() - asked))
                kept_bytes = sum(len(msgspec.json.encode(piece)) for piece in keep(blame))
                paused = time.process_time() - stopped
        folds.append(time.process_time() - began - paused)
    return {
        "facts": len(facts),
        "told_jobs": told_jobs,
        "waiting_most": story.waiting_most,
        "sums_over": wrong,
        "fold_s": {"min": round(min(folds), 3), "median": round(statistics.median(folds), 3)},
        "fold_us_per_fact": round(1e6 * statistics.median(folds) / len(facts), 2),
        "fold_us_per_job": round(1e6 * statistics.median(folds) / given.jobs, 2),
        "ask_us": {"median": round(statistics.median(asks), 1), "max": round(max(asks), 1)},
        "kept_bytes": kept_bytes,
    }
