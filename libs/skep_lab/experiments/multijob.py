"""Gandiva's multi-jobs (sections 6.2 and 6.4): the production searches on trials with given curves.

The machine that serves searches (`machines.searches`) runs as in production: it is asked for
trials, submits, suspends, resumes and cancels them, receives their metrics, and decides by the
prediction of their curves. This module simulates its jobs, each with as many GPUs as it wants once
it has a place.

The baseline is the same machine with turns that never end and no trial above the others: a queue,
first come, first served, with the same early stopping.

The paper's curves are not public. A trial's accuracy after the part x of its training is

    chance + (final - chance) * (1 + tau) * x / (x + tau)    and noise,

with `tau` drawn for each (log-normal), `final` uniform between `worst` and `best`, or at chance for
the part `hopeless` of them. Exactly one trial, the `position`th, reaches more than `target`.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.machines.searches import SearchesMachine
from skep.units import Duration, Instant, after, in_seconds, seconds
from skep.wire import subjects
from skep.wire.changes import AskOver, AskSuspend, ChangeAsked, Goal, JobChanged, Result
from skep.wire.codec import Facts
from skep.wire.facts import Admitted, End, JobEnded, JobRan
from skep.wire.findings import Measured
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchEnding, SearchRequest, SearchTrialStood, Stand
from skep.wire.spec import JobSpec

BEGIN = Instant(1_700_000_000_000_000_000)
NEVER_S = 360 * 86400
"""The length of a turn that does not end."""
POINTS = 3
"""Values that a trial reports between two evaluations of the paper: a prediction needs as many."""
METRIC = "accuracy"


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """How trials learn: a substitute for the paper's models."""

    chance: float = 0.10
    hopeless: float = 0.25
    """The part of the trials that never learn. It is fitted to the time that a configuration takes
    the baseline on 4 GPUs: 29 minutes of a GPU by the differences in the paper's Table 3, of 38 to
    the end."""
    worst: float = 0.40
    best: float = 0.838
    tau: float = 0.03
    """The median part of its training after which a trial has learnt half."""
    spread: float = 0.5
    """The deviation of the logarithm of tau."""
    noise: float = 0.005
    slow: float = 1.0
    """The tau of the trial that qualifies, as a multiple of the median."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """One multi-job. A whole training takes `trial_s`, and is evaluated `evaluations` times."""

    trials: int
    places: int
    exclusive: int
    position: int
    target: float
    final: float
    """The final value of the trial that qualifies."""
    trial_s: float
    evaluations: int = 33
    added: int = 0
    """Trials that are asked for at every evaluation (0: all at once)."""
    curves: Curves = Curves()
    turn_s: int = 60
    switch_s: float = 0.5
    """To suspend a trial, and again to resume it (section 6.1: under a second)."""
    scattered: float = 1.0
    """How many times as long a mini-batch takes in the baseline, which never gathers a gang."""
    give_up: float | None = 0.30


class Found(msgspec.Struct, frozen=True):
    """The outcome of one multi-job: minutes, and trials that had run by then."""

    minutes: float
    """Until a trial qualified; 0: none did."""
    explored: list[tuple[float, float]]
    """Minutes, and trials that have trained by then."""
    suspended: int = 0


class _Trial(msgspec.Struct):
    spec: JobSpec
    job: str
    tau: float
    final: float
    qualifies: bool
    done_s: float = 0.0
    """Seconds of training that are done."""
    reported: int = 0
    """Values that it has reported."""
    since: Instant | None = None
    """When its training began; None: it is suspended."""
    version: int = 0
    over: bool = False


def play(study: Study, seed: int, *, ours: bool) -> Found:
    """Return the outcome of a multi-job.

    Args:
        study: The multi-job.
        seed: The seed of its curves.
        ours: Whether trials take turns, else they run in a queue.
    """
    return _World(study, seed, ours=ours).run()


class _World:
    """The jobs of one search, and the client that asks for its trials."""

    def __init__(self, study: Study, seed: int, *, ours: bool) -> None:
        self._study, self._ours, self._seed = study, ours, seed
        self._machine = SearchesMachine()
        self._now = BEGIN
        self._heap: list[tuple[Instant, int, Any]] = []
        self._number = 0
        self._jobs: dict[str, _Trial] = {}
        self._inbox: list[Any] = []
        self._explored: list[tuple[float, float]] = []
        self._suspended = 0
        self._found = 0.0
        self._step_s = study.trial_s / (study.evaluations * POINTS)
        if not ours:
            self._step_s *= study.scattered

    def run(self) -> Found:
        """Continue until a trial qualifies, or all have ended."""
        study = self._study
        self._decide(Restarted(1))
        self._ask(do="begin", spec=self._spec())
        at_once = not study.added
        for number in range(study.trials):
            rounds = 0 if at_once else number // study.added
            self._later(seconds(rounds * study.trial_s / study.evaluations), ("add",))
        self._settle()
        while not self._found and (at := self._soonest()) is not None:
            self._now = at
            while self._heap and self._heap[0][0] <= at:
                self._happens(heapq.heappop(self._heap)[2])
            wake = self._machine.wake_at()
            if wake is not None and wake <= at:
                self._decide(Tick())
            self._settle()
            if not self._machine.searches:
                break
        return Found(self._found, self._explored, self._suspended)

    def _spec(self) -> dict[str, Any]:
        study = self._study
        return {
            "name": "study",
            "vc": "search",
            "metric": METRIC,
            "direction": "maximize",
            "sampler": "client",
            "job": {"command": ["train"]},
            "target": study.target,
            "budget": {"trials": study.trials},
            "live": study.trials,
            "parallel": study.places,
            "exclusive": study.exclusive if self._ours else 0,
            "turn": study.turn_s if self._ours else NEVER_S,
            "steps": study.evaluations * POINTS,
            "give_up": study.give_up,
        }

    def _soonest(self) -> Instant | None:
        wake = self._machine.wake_at()
        times = [self._heap[0][0]] if self._heap else []
        times += [max(wake, self._now)] if wake is not None else []
        return min(times, default=None)

    def _later(self, wait: Duration, event: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (after(self._now, wait), self._number, event))

    # --- the machine -----------------------------------------------------------------------------

    def _ask(self, **request: Any) -> None:
        self._number += 1
        self._decide(
            SearchRequest(
                vc="search", raw=json.dumps(request).encode(), at=self._now, number=self._number
            )
        )

    def _decide(self, event: Any) -> None:
        self._carry_out(self._machine.decide(event, self._now))

    def _settle(self) -> None:
        while self._inbox:
            fact = self._inbox.pop(0)
            service = "admission" if isinstance(fact, Admitted | ChangeAsked) else "allocator"
            self._decide(Facts(service=service, at=self._now, facts=(fact,)))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Record):
                self._note(effect.fact)
            elif isinstance(effect, Send):
                kind = effect.subject.split(".")[2]
                if kind == "submit":
                    self._submit(effect.message, effect.headers[subjects.KEY_HEADER])
                elif kind == "cancel":
                    self._end(self._jobs[effect.message["job"]], End.CANCELLED, Reason.CANCELLED)
                elif kind == "ask":
                    self._change(effect.message)

    def _note(self, fact: Any) -> None:
        minutes = in_seconds(Duration(self._now - BEGIN)) / 60
        if isinstance(fact, SearchEnding) and fact.why is Reason.TARGET_REACHED:
            self._found = minutes
        elif isinstance(fact, SearchTrialStood) and fact.stand is Stand.SUSPENDED:
            self._suspended += 1

    # --- jobs ------------------------------------------------------------------------------------

    def _submit(self, spec: JobSpec, key: str) -> None:
        number = int(spec.labels["trial"])
        job = f"j{number}"
        curves, study = self._study.curves, self._study
        rng = random.Random(f"multi-job {self._seed} {number}")
        tau = curves.tau * rng.lognormvariate(0.0, curves.spread)
        final = rng.uniform(curves.worst, curves.best)
        if rng.random() < curves.hopeless:
            final = curves.chance
        if number == study.position:
            tau, final = curves.tau * curves.slow, study.final
        trial = _Trial(spec, job, tau, final, number == study.position)
        self._jobs[job] = trial
        self._inbox.append(Admitted(job=job, spec=spec, submitted_at=self._now, key=key))
        self._inbox.append(JobRan(job=job, attempt=1, at=self._now))
        minutes = in_seconds(Duration(self._now - BEGIN)) / 60
        self._explored.append((minutes, len(self._explored) + 1.0))
        self._train(trial)

    def _train(self, trial: _Trial) -> None:
        trial.since = self._now
        trial.version += 1
        due = (trial.reported + 1) * self._step_s - trial.done_s
        self._later(seconds(max(due, 0.0)), ("point", trial, trial.version))

    def _stand(self, trial: _Trial) -> None:
        if trial.since is not None:
            trial.done_s += in_seconds(Duration(self._now - trial.since))
        trial.since = None
        trial.version += 1

    def _change(self, ask: Any) -> None:
        self._number += 1
        asked = ChangeAsked(number=self._number, ask=ask, at=self._now)
        self._inbox.append(asked)
        trial = self._jobs[ask.job]
        goal = Goal.SUSPEND if isinstance(ask, AskSuspend) else Goal.RESUME
        if goal is Goal.SUSPEND:
            self._stand(trial)
        self._later(seconds(self._study.switch_s), ("changed", trial, asked, goal))

    def _end(self, trial: _Trial, end: End, why: Reason) -> None:
        if trial.over:
            return
        self._stand(trial)
        trial.over = True
        self._inbox.append(JobEnded(job=trial.job, end=end, why=why, attempts=1, at=self._now))

    def _happens(self, event: Any) -> None:
        match event:
            case ("add",):
                self._ask(do="ask", search=next(iter(self._machine.searches), ""), params={})
            case ("point", trial, version):
                if trial.version == version:
                    self._point(trial)
            case ("changed", trial, asked, goal):
                if not trial.over:
                    self._changed(trial, asked, goal)
            case _:
                raise AssertionError(event)
        self._settle()

    def _changed(self, trial: _Trial, asked: ChangeAsked, goal: Goal) -> None:
        self._inbox.append(
            JobChanged(
                job=trial.job,
                attempt=1,
                goal=goal,
                result=Result.DONE,
                why=Reason.REQUESTED,
                at=self._now,
            )
        )
        self._inbox.append(
            AskOver(
                job=trial.job, number=asked.number, ask=asked.ask, result=Result.DONE, at=self._now
            )
        )
        if goal is Goal.RESUME:
            self._train(trial)

    def _point(self, trial: _Trial) -> None:
        self._stand(trial)
        trial.reported += 1
        trial.done_s = trial.reported * self._step_s
        self._train(trial)
        value = self._value(trial)
        self._decide(
            Measured(
                at=self._now, job=trial.job, attempt=1, step=trial.reported, values={METRIC: value}
            )
        )
        if trial.reported >= self._study.evaluations * POINTS:
            self._end(trial, End.SUCCEEDED, Reason.SUCCEEDED)

    def _value(self, trial: _Trial) -> float:
        study, curves = self._study, self._study.curves
        part = trial.reported / (study.evaluations * POINTS)
        learnt = (1 + trial.tau) * part / (part + trial.tau)
        value = curves.chance + (trial.final - curves.chance) * learnt
        if trial.qualifies and value >= study.target:
            return value
        noise = random.Random(f"{self._seed} {trial.job} {trial.reported}").gauss(0.0, curves.noise)
        return min(value + noise, study.target - 1e-6)


def seen(explored: list[tuple[float, float]], minutes: float) -> Iterator[float]:
    """Yield one number: how many trials had trained by a time.

    Args:
        explored: Minutes, and trials that have trained by then.
        minutes: The time.
    """
    yield max((count for at, count in explored if at <= minutes), default=0.0)
