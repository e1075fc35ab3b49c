"""What a model that advises a VC costs the allocator's decisions: sights made, and advice followed.

    python -m benchmarks sights [--jobs 200 1000] [--steps 100] [--rule look-ahead]

One VC with so many jobs: its GPUs are full, and about a third of the jobs wait. In each step a job
ends, what is bound starts, and a job arrives, a tenth of a second apart. The same steps are taken
by four allocators in turn:

    rule    the policy is the rule
    untold  the policy is `learned`, and no sight is made: its model is silent
    shadow  sights are made and answered; the rule is in force
    on      sights are made and answered, and a model's moves are followed: the first to arrive

`step_us` is the CPU time of a step without that of hearing advice, which is `advice_us` for each.
`sight_us` is what the stage of sights takes where one is sent; `sights_percent` is all of that
stage, also where nothing is due, in the CPU time of all steps. `ratio` is the median of steps over
that of `rule`.

What `untold` and `rule` have of `sights_percent` is what measuring it takes.

`within_limit`: where the rule is in force, the stage of sights has at most LIMIT_PERCENT of steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks._allocator import TimedAllocator
from benchmarks._sample import percentiles, say
from skep.machines.allocator.policies import advising
from skep.machines.base import Send
from skep.units import after, seconds
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import Admitted
from skep.wire.learned import MOVES_MAX, SCHEMA, AdvisedMove, JobSight, LearnedAdvice, Sight
from skep.wire.spec import Elastic, JobSpec, Resources, SizeHint
from skep_services.collection import short_pauses

VC, MODEL = "a", "a" * 64
LIMIT_PERCENT = 10.0
WARM = 10
"""Steps before those that are counted."""
TOGETHER = 50
"""Jobs that arrive at once before the steps."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--jobs", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rule", default="look-ahead")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure; return figures."""
    figures: dict[str, Any] = {}
    limits = []
    for jobs in given.jobs:
        found = figures[f"{jobs} jobs"] = compared(jobs, given.steps, given.rule)
        for name, each in found.items():
            say(f"{jobs} jobs, {name}: {each}")
        limits.append(found["shadow"]["sights_percent"] <= LIMIT_PERCENT)
    return {**figures, "within_limit": all(limits)}


def compared(jobs: int, steps: int, rule: str) -> dict[str, dict[str, Any]]:
    """Return what steps cost each of the allocators."""
    gpus = jobs * 4 // 5 // 8 * 8  # Two thirds of the jobs fill them.
    plain = VirtualCluster(gpus=gpus, policy=rule)
    learned = VirtualCluster(gpus=gpus, policy="learned", options={"model": MODEL, "rule": rule})
    benches = {
        "rule": Advised(plain, jobs),
        "untold": Advised(learned, jobs, untold=True),
        "shadow": Advised(learned, jobs),
        "on": Advised(learned, jobs, acts=True),
    }
    names = list(benches)
    with short_pauses():  # As the service has them, once it has read its log.
        for step in range(WARM + steps):
            for place in range(len(names)):
                benches[names[(step + place) % len(names)]].step(jobs + step)
            if step + 1 == WARM:
                for bench in benches.values():
                    bench.forget()
    return {name: bench.said(benches["rule"]) for name, bench in benches.items()}


class Advised(TimedAllocator):
    """An allocator of one VC, and a model that answers its sights at once."""

    def __init__(
        self, vc: VirtualCluster, jobs: int, *, acts: bool = False, untold: bool = False
    ) -> None:
        """Let jobs arrive, and run where there is room."""
        self._acts, self._untold = acts, untold
        self._seen: dict[str, JobSight] = {}
        self._to_answer: list[Sight] = []
        self.forget()
        super().__init__({VC: vc}, vc.gpus // 8, cpus=64)
        for first in range(0, jobs, TOGETHER):
            facts = tuple(
                Admitted(job=f"j{number + 1}", spec=job_of(number), submitted_at=self.now)
                for number in range(first, min(first + TOGETHER, jobs))
            )
            self._number += len(facts)
            self.decide(Facts(service="admission", at=self.now, facts=facts))
            self.start_bound()
            self.answer()

    def forget(self) -> None:
        """Count anew."""
        self.steps, self.advice = list[float](), list[float]()
        self.sights, self.stage_us = list[float](), 0.0

    def decide(self, event: Any) -> None:
        """Let it decide; note what that took, and what of it the stage of sights."""
        if self._untold and VC in self.machine.tx.soft.planned:
            self.machine.tx.soft.planned[VC].sights = None
        took, sent = 0.0, len(self._to_answer)

        def timed(stage: Any) -> Any:
            def call(*given: Any) -> Any:
                nonlocal took
                began = time.thread_time()
                made = stage(*given)
                took += (time.thread_time() - began) * 1e6
                return made

            return call

        whole = advising.is_due, advising.tell
        advising.is_due, advising.tell = map(timed, whole)
        try:
            super().decide(event)
        finally:
            advising.is_due, advising.tell = whole
        for effect in self.machine.tx.effects:
            if isinstance(effect, Send) and isinstance(effect.message, Sight):
                self._to_answer.append(effect.message)
        self.stage_us += took
        if len(self._to_answer) > sent:
            self.sights.append(took)

    def step(self, number: int) -> None:
        """Let a job end, and one arrive."""
        self.spent.clear()
        placed = self.machine.state.placed
        self.end(next(job for job, each in placed.items() if each.ran_at))
        self.start_bound()
        self.submit(job_of(number))
        self.start_bound()
        self.steps.append(sum(self.spent))
        self.answer()

    def answer(self) -> None:
        """Have advice come for the sights that were sent, and start what is bound by it."""
        while self._to_answer:
            sight = self._to_answer.pop(0)
            if sight.whole:
                self._seen.clear()
            for name in sight.gone:
                self._seen.pop(name, None)
            self._seen.update({job.job: job for job in sight.jobs})
            advice = LearnedAdvice(
                vc=VC,
                model=MODEL,
                schema=SCHEMA,
                number=sight.number,
                at=self.now,
                expires_at=after(self.now, seconds(60)),
                stage="on" if self._acts else "shadow",
                moves=self._moves() if self._acts else (),
            )
            self.decide(advice)
            self.advice.append(self.spent[-1])
            self.start_bound()

    def _moves(self) -> tuple[AdvisedMove, ...]:
        """Return that the first to arrive be started."""
        waiting = (job for job in self._seen.values() if job.phase == "waiting")
        chosen = sorted(waiting, key=lambda job: job.sequence)[:MOVES_MAX]
        return tuple(AdvisedMove(job=each.job, spread=True, margin_milli=9) for each in chosen)

    def said(self, plain: Advised) -> dict[str, Any]:
        """Return figures; `plain` is the allocator to compare with."""
        state = self.machine.state
        return {
            "step_us": {"min": round(min(self.steps), 1), **percentiles(self.steps, 1)},
            "ratio": round(statistics.median(self.steps) / statistics.median(plain.steps), 3),
            "sight_us": percentiles(self.sights, 1),
            "sights_percent": round(100 * self.stage_us / sum(self.steps), 2),
            "advice_us": percentiles(self.advice, 1),
            "waiting": len(state.jobs) - len(state.placed),
            "running": len(state.placed),
        }


def job_of(number: int) -> JobSpec:
    """Return a job that says how long it runs; every fourth one is elastic."""
    gpus = (1, 2, 1, 4)[number % 4]
    return JobSpec(
        name="x",
        vc=VC,
        command=("true",),
        resources=Resources(gpus=1 if number % 4 == 3 else gpus),
        elastic=Elastic(min=1, max=4) if number % 4 == 3 else None,
        size=SizeHint(run_time=50_000.0 + number * 7919 % 10_000),
    )
