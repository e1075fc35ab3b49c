"""Models without any sense, for histories: what they say is drawn, and some of it is nonsense.

A VC with the policy `learned` is to come through whatever a model says, and whatever else comes as
its advice: late, twice, not at all, of another model, of sizes that no job may have.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from skep.units import Instant
from skep.wire import codec
from skep.wire.learned import SCHEMA, SEEN_MAX, AdvisedMove, JobSight, LearnedAdvice, Sight

SECOND = 10**9
MODELS = ("0a" * 32, "0b" * 32)
"""The models that VCs name."""
ABSURD = (0, 1, 99, 100_000)
FAILS, UNRELIABLE = 0.03, 0.05
"""How often a model raises an error, and how often it says that it is out of its depth."""
ALTERED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("stage", ("off", "rest", "shadow", "on", "nonsense")),
    ("model", (MODELS[0], MODELS[1], "f" * 64, "", 7)),
    ("schema", (0, 2, -1, None)),
    ("expires_at", (0, 2**61, -5)),
    ("reliable", (False, None)),
    ("moves", ([], [{"job": "j1", "workers": -1}], [{"job": "nobody"}], {"a": 1})),
    ("score", (float("nan"),)),
    ("vc", ("nobody", "")),
)
"""What is put in place of one field of a message."""


class Guess(NamedTuple):
    """What such a model would do."""

    moves: Sequence[AdvisedMove]
    holds: Sequence[str]
    reliable: bool
    choices: Sequence[AdvisedMove] = ()


class Onlooker:
    """The jobs of a VC as sights show them: a seat, but for what it would do."""

    schema = SCHEMA

    def __init__(self) -> None:
        """Begin without a sight."""
        self._number = -1
        self._jobs: dict[str, JobSight] = {}

    def follow(self, sight: Sight) -> bool:
        """Take over a sight; return False if a whole one is needed."""
        if not sight.whole and sight.number != self._number + 1:
            return False
        if sight.whole:
            self._jobs.clear()
        for name in sight.gone:
            self._jobs.pop(name, None)
        self._jobs.update({job.job: job for job in sight.jobs})
        self._number = sight.number
        return True

    def check(self) -> None:
        """Assert that it knows no more jobs than sights show.

        Raises:
            AssertionError: It knows more.
        """
        assert len(self._jobs) <= SEEN_MAX


class Guesser(Onlooker):
    """A seat of such a model."""

    def __init__(self, rng: random.Random) -> None:
        """Begin without a sight; `rng` decides."""
        super().__init__()
        self._rng = rng

    def decide(self, _now: Instant) -> Guess:
        """Return what comes to its mind.

        Raises:
            ArithmeticError: Now and then.
        """
        rng = self._rng
        if rng.random() < FAILS:
            text = "not finite"
            raise ArithmeticError(text)
        names = list(self._jobs)
        rng.shuffle(names)
        moves = [self._move(self._jobs[name]) for name in names[: rng.randrange(6)]]
        return Guess(moves, names[8:12], rng.random() > UNRELIABLE)

    def explore(self, now: Instant, margin_milli: int) -> Guess:
        """Return the same with some choices, of which the first is mostly the first move.

        Raises:
            ArithmeticError: Now and then.
        """
        made, rng = self.decide(now), self._rng
        others = [self._move(job) for job in list(self._jobs.values())[:6]]
        first = made.moves[:1] if rng.random() > UNRELIABLE else []
        choices = sorted([*first, *others], key=lambda move: -move.score_milli)
        if rng.random() > UNRELIABLE and choices:
            best = choices[0].score_milli + rng.randrange(margin_milli)
            choices = [*(replace(move, score_milli=best) for move in first), *choices]
        return made._replace(choices=choices)

    def _move(self, job: JobSight) -> AdvisedMove:
        rng = self._rng
        workers = rng.choice((0, job.workers, rng.randint(job.least, job.most)))
        if rng.random() < 0.02:
            workers = rng.choice(ABSURD)
        return AdvisedMove(
            job=job.job,
            workers=workers,
            spread=rng.random() < 0.4,
            score_milli=rng.randrange(-50, 1000),
            margin_milli=rng.randrange(1000),
        )


class Guesses:
    """As many of them as VCs name: but one, which is missing."""

    def __init__(self, seed: int) -> None:
        """Draw from a seed."""
        self._rng = random.Random(seed)

    def seat(self, model: str) -> Guesser | None:
        """Return a new seat; None: there is no such model."""
        known = self.offers(model) and self._rng.random() > 0.1
        return Guesser(random.Random(self._rng.random())) if known else None

    def offers(self, model: str) -> bool:
        """Return whether there is such a model."""
        return model in MODELS


def options(rng: random.Random, rules: Sequence[str], *, explores: bool) -> dict[str, Any]:
    """Return options of the policy `learned`.

    Args:
        rng: Decides.
        rules: The policies that may be its rule.
        explores: Whether it may explore.
    """
    found: dict[str, Any] = {
        "model": rng.choice((*MODELS, "0c" * 32)),
        "rule": rng.choice(rules),
        "wait_bound_s": rng.choice((0, 1, 10, 60)),
        "margin_milli": rng.choice((0, 0, 100)),
        "cool_s": rng.choice((0, 1, 10)),
    }
    if explores:
        found["explore_share_milli"] = rng.choice((0, 100, 1000))
        found["explore_gpu_hours"] = rng.choice((0, 0.05, 1, 100))
    return found


def altered(rng: random.Random, now: int, vcs: Sequence[str], jobs: Sequence[str]) -> bytes:
    """Return advice of which something may be wrong, as bytes.

    Args:
        rng: Decides.
        now: The time, in nanoseconds.
        vcs: The VCs.
        jobs: Jobs that there are, or were.
    """
    names = (*jobs, "j999999999")
    moves = tuple(
        AdvisedMove(job=rng.choice(names), workers=rng.choice((0, 1, 2, *ABSURD)))
        for _ in range(rng.randrange(4))
    )
    advice = LearnedAdvice(
        vc=rng.choice(vcs),
        model=rng.choice(MODELS),
        schema=SCHEMA,
        number=rng.randrange(100),
        at=Instant(max(now - rng.randrange(20) * SECOND, 0)),
        expires_at=Instant(now + rng.randrange(-5, 20) * SECOND),
        stage="on",
        moves=moves,
    )
    if rng.random() < 0.5:
        return codec.encode(advice)
    tree = msgspec.to_builtins(advice)
    name, values = rng.choice(ALTERED)
    tree[name] = rng.choice(values)
    return codec.encode(tree)
