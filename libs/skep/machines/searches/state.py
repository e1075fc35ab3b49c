"""What is known of searches and their trials: changed by facts alone."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import msgspec

from skep.perf.learning import promise
from skep.units import Duration, Instant, seconds
from skep.wire.reasons import Reason
from skep.wire.search import VALUE_MAX, Parameter, SearchSpec, Value, levels
from skep.wire.search_facts import Stand, TrialEnd
from skep.wire.spec import SEARCH_KEYS, JobSpec

CURVE_MAX = 64
"""Points kept of a curve: then every other one is dropped, and only half as many are taken."""

HORIZON = 2
"""Where the number of mini-batches is not said, a curve is followed to this many times its length:
trials of one age are compared as they would be by their halves."""


class Trial(msgspec.Struct, kw_only=True):
    """One trial. `run`: its search wants it to run. Times in ns."""

    number: int
    params: dict[str, Value]
    stand: Stand
    since: Instant
    """When it came to stand as it does."""
    bracket: int = 0
    key: str = ""
    job: str = ""
    run: bool = True
    why: Reason = Reason.FIRST_FEEDBACK
    order: int = 1
    """Counts what changed of the trial: what is asked for its job is numbered by it."""
    tries: int = 1
    """Submissions with keys of their own: one that was refused is never judged again."""
    retry_at: Instant = Instant(0)
    heard: str = ""
    heard_number: int = 0
    answered: int = 0
    """The latest request for its job that is over: admission may tell of it only afterwards."""
    fixed: bool = False
    """Its job cannot be suspended: it keeps its GPUs until it ends."""
    given_up: bool = False
    demoted: bool = False
    """A client's pruner would have stopped it: it runs where no other wants the place."""
    demoted_number: int = 0
    """The latest request that demoted or promoted it."""
    ran_ns: int = 0
    """How long it ran before the time that it runs now."""
    rung: int = 0
    """The rung it may run to, counted from 0."""
    reached: list[float] = []
    """The value at each rung that it came to, more is better."""
    steps: list[int] = []
    values: list[float] = []
    spacing: int = 1
    best: float | None = None
    best_step: int = 0
    last_step: int = 0
    scored: tuple[float, float, float] | None = None
    """What its curve promises: the chance of reaching the target, the value, its deviation."""
    end: TrialEnd | None = None
    ended_why: Reason | None = None

    @property
    def over(self) -> bool:
        """Return whether it has come to its end."""
        return self.stand is Stand.OVER

    @property
    def holds(self) -> bool:
        """Return whether it takes one of its search's places."""
        if self.stand in (Stand.OVER, Stand.OUTSIDE):
            return False
        if self.stand is Stand.NEW:
            return self.run
        return self.run or self.stand is not Stand.SUSPENDED

    def ran(self, now: Instant) -> int:
        """Return how long it has run in all (ns)."""
        running = self.stand is Stand.RUNNING
        return self.ran_ns + (max(0, now - self.since) if running else 0)

    def changes(self, stand: Stand, at: Instant) -> None:
        """Stand otherwise from `at` on.

        Args:
            stand: How it stands from then on.
            at: When; no earlier than the latest change.
        """
        at = max(at, self.since)
        self.ran_ns = self.ran(at)
        self.stand, self.since = stand, at
        self.order += 1
        self.unheard()

    def unheard(self) -> None:
        """Forget that admission passed something on; a cancellation is for good."""
        if self.heard != "cancel":
            self.heard, self.heard_number = "", 0

    def measured(self, step: int, signed: float, rungs: tuple[int, ...]) -> None:
        """Take over a point of the curve.

        Args:
            step: The mini-batch, later than that of any point before.
            signed: The value there, with a sign by which more is better.
            rungs: The levels of its bracket, in mini-batches.
        """
        self.last_step = step
        self.steps.append(step)
        self.values.append(signed)
        if self.best is None or signed > self.best:
            self.best, self.best_step = signed, step
        while len(self.reached) < len(rungs) and step >= rungs[len(self.reached)]:
            self.reached.append(signed)
        if len(self.steps) >= CURVE_MAX:
            # The first and the latest points are the ones that fits hang on.
            self.steps = self.steps[:1] + self.steps[3::2]
            self.values = self.values[:1] + self.values[3::2]
            self.spacing = max(self.spacing * 2, (step - self.steps[0]) // (CURVE_MAX // 2))


class Search(msgspec.Struct, kw_only=True):
    """One search that is not over."""

    search: str
    spec: SearchSpec
    began_at: Instant
    key: str = ""
    trials: dict[int, Trial] = {}
    ending: Reason | None = None
    spared: int = 0
    failures: int = 0
    """Trials that failed since one of them told a value."""
    owner: str = ""
    """The person that began it; empty: its VC as a whole did."""

    @property
    def live(self) -> list[Trial]:
        """Return the trials that are not over, by number."""
        return [trial for trial in self.trials.values() if not trial.over]

    @property
    def gpus(self) -> int:
        """Return the GPUs of one trial."""
        return self.spec.job.gpus

    @property
    def exclusive(self) -> int:
        """Return how many trials keep their GPUs; with one place none can."""
        return min(self.spec.exclusive, self.spec.parallel)

    def gpu_ns(self, now: Instant) -> int:
        """Return the GPU time of all trials so far (GPUs multiplied by ns)."""
        return self.gpus * sum(trial.ran(now) for trial in self.trials.values())

    def spent_at(self, now: Instant) -> Instant | None:
        """Return when the GPU time is used up if nothing changes, or None."""
        if self.spec.budget.gpu_time is None:
            return None
        left = seconds(int(self.spec.budget.gpu_time)) - self.gpu_ns(now)
        running = sum(trial.stand is Stand.RUNNING for trial in self.trials.values())
        if left <= 0:
            return now
        return Instant(now + -(-left // (running * self.gpus))) if running else None

    def rungs(self, trial: Trial) -> tuple[int, ...]:
        """Return the levels at which a trial is compared, in mini-batches; empty: none."""
        return levels(self.spec.rungs, trial.bracket) if self.spec.rungs is not None else ()

    def score(self, trial: Trial) -> None:
        """Reckon what a trial's curve promises, after another point of it."""
        last, target = trial.last_step, self.spec.target
        found = promise(trial.steps, trial.values, self.spec.steps or last * HORIZON)
        if found is not None:
            chance = found.chance(self.spec.signed(target)) if target is not None else 0.0
            trial.scored = chance, found.value, found.spread

    def best(self) -> Trial | None:
        """Return the trial with the best value so far, the first of equals; None: no value yet."""
        shown = [trial for trial in self.trials.values() if trial.best is not None]
        return max(shown, key=lambda trial: (trial.best or 0.0, -trial.number), default=None)

    def told(self, trial: Trial, step: int, value: float) -> bool:
        """Return whether a point of a trial's curve is one, and behind those there are.

        Args:
            trial: The trial.
            step: The mini-batch of the point.
            value: The value there, as the job told it.
        """
        return not trial.over and step > trial.last_step and abs(value) <= VALUE_MAX

    def counts(self, trial: Trial, step: int, value: float) -> bool:
        """Return whether a point of a trial's curve is worth a fact: enough further on, or news.

        Args:
            trial: The trial.
            step: The mini-batch of the point.
            value: The value there, as the job told it.
        """
        if not self.told(trial, step, value):
            return False
        if not trial.steps or step >= trial.last_step + trial.spacing:
            return True
        rungs = self.rungs(trial)
        reached = len(trial.reached)
        if reached < len(rungs) and step >= rungs[reached]:
            return True
        return self.qualifies(value) and self.spared == 0

    def qualifies(self, value: float) -> bool:
        """Return whether a value reaches the target.

        Args:
            value: A value as a job tells it.
        """
        target = self.spec.target
        return target is not None and self.spec.signed(value) >= self.spec.signed(target)


def drawn(spec: SearchSpec, trial: int) -> dict[str, Value]:
    """Return the parameters of a trial: by seed, number and names alone.

    So they are the same on every replay, and in another search with this seed.

    Args:
        spec: The search; its seed and its space are read.
        trial: The number of the trial.
    """
    return {
        name: _drawn(each, _chance(f"{spec.seed}/{trial}/{name}"))
        for name, each in spec.space.items()
    }


def _chance(of: str) -> float:
    """Return a number of [0, 1) that depends on a text only."""
    return int.from_bytes(hashlib.sha256(of.encode()).digest()[:7], "big") / 2**56


def _drawn(parameter: Parameter, chance: float) -> Value:
    if parameter.choice is not None:
        return parameter.choice[int(chance * len(parameter.choice))]
    if parameter.integer is not None:
        least, most = parameter.integer
        return least + int(chance * (most - least + 1))
    if parameter.log is not None:
        low, high = parameter.log
        found = math.exp(math.log(low) + chance * (math.log(high) - math.log(low)))
    else:
        assert parameter.uniform is not None, parameter
        low, high = parameter.uniform
        found = low + chance * (high - low)
    return min(max(found, low), high)


def job_of(search: Search, trial: Trial) -> JobSpec:
    """Return what a trial is submitted as."""
    spec = search.spec.job
    values = {name: str(value) for name, value in trial.params.items()}
    places = re.compile("|".join(re.escape(f"{{{name}}}") for name in values) or r"(?!)")

    def filled(text: str) -> str:
        return places.sub(lambda found: values[found[0][1:-1]], text)

    command: Any = spec.command
    if command is not None:
        command = filled(command) if isinstance(command, str) else tuple(map(filled, command))
    env = {
        **spec.env,
        "SKEP_PARAMETERS": msgspec.json.encode(trial.params).decode(),
        "SKEP_SEARCH": search.search,
        "SKEP_TRIAL": str(trial.number),
    }
    labels = {**spec.labels, "search": search.search, "trial": str(trial.number)}
    name = f"{search.spec.name}-{trial.number}"
    return msgspec.structs.replace(
        spec,
        name=name,
        command=command,
        env=env,
        labels=labels,
        args=tuple(map(filled, spec.args)),
        search=search.search,
    )


def key_of(search: str, trial: Trial) -> str:
    """Return the key of a trial's submission."""
    return f"{SEARCH_KEYS}{search}/{trial.number}/{trial.tries}"


def turn_of(spec: SearchSpec) -> Duration:
    """Return the length of a turn."""
    return seconds(spec.turn_s)
