"""Evolution of a set network that begins as a rule: CMA-ES on the weights that a rule would set.

A generation draws networks around the present one, plays all of them on the same traces (common
random numbers), and moves towards those with the least loss. That of a family of traces is the
mean logarithm of mean JCT over that under the rule that evolution began with; what is above 0
counts WORSE times more, so that no family is made worse for the sake of another. Nothing is
assigned to single decisions: what a long queue costs later counts by itself.

The weights that evolve are those of `skip`, a score that is linear in the features of a candidate.
Doing nothing more is scored 0. The encoder of jobs passes on one number, by how much a job is
slower on one node more, beyond what may be an error; a hidden unit weighs growing by it.

Source: Hansen, "The CMA evolution strategy: a tutorial" (arXiv 1604.00772), with its constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from skep.learn import modelfile
from skep.learn.candidates import CANDIDATE_FEATURES
from skep.learn.features import JOB_PLACES
from skep.learn.net import Sizes, shapes
from skep_lab.learn import protocol
from skep_lab.learn.progress import Count, Progress, Saved, Tensors, numbers_of, rng_of
from skep_lab.learn.protocol import Floats
from skep_lab.learn.skep_env import (
    jobs_of,
    mean_jct_s,
    net,
    ranges_of,
    training_cases,
    tuning_cases,
)

RULE: Mapping[str, float] = {
    "local": 3.0,
    "spread": 1.0,
    "shortest": 1.0,
    "slowdown": -8.0,
    "spread_waited": 1.5,
    "no_share": -1.5,
    "over_share": -4.0,
    "under_share": -4.0,
    "to_share": 8.0,
    "grows": 0.0,
    "shrinks": 0.0,
    "pause": -10.0,
}
"""Where evolution begins: the shortest first, close together, with the size of its share; that is
`hold` for fixed gangs and `look-ahead` for elastic ones."""
STAYS: tuple[str, ...] = ("local", "no_share")
"""Of these: the weights that do not evolve. On traces of tuning they make no difference."""
EVOLVES: tuple[str, ...] = (
    *(name for name in RULE if name not in STAYS),
    "nodes",
    "remaining",
    "saved",
    "size",
    "gain",
    "worth",
)
"""Features of candidates whose weights evolve; those that are not in RULE begin with 0."""
GROWS_SLOW = -24.0
"""Where evolution begins: how much worse it is to grow a job that bears being spread badly. A sight
does not say what is free on the nodes of a job, so growing may spread it."""
BEYOND = 0.15
"""Where evolution begins: a slowdown (its feature) up to this counts as none: it may be wrong."""
BEYOND_SCALE = 0.05
WORSE = 2.0
"""Being worse than the rule counts so many times more."""
GATE = 2.0
"""Opens the hidden unit of that: it is closed for candidates that do not grow."""
SIZES = Sizes(job=4, head=4)
"""More than what evolves needs: other learners may begin with such a model."""


class Settings(NamedTuple):
    """What a run may choose."""

    generations: Count = 40
    population: Annotated[int, msgspec.Meta(ge=2)] = 12
    traces: Annotated[int, msgspec.Meta(ge=3)] = 24
    """Of each generation; every network plays all of them."""
    sigma: float = 0.3
    tuning: Annotated[int, msgspec.Meta(ge=3, le=len(protocol.TUNING))] = 96
    """Cases of tuning by which the best network is chosen."""
    every: Count = 8
    """Generations between two looks at the tuning cases."""


class Place(NamedTuple):
    """One number that evolves: a weight by its name and its place."""

    name: str
    at: tuple[int, ...]
    start: float
    scale: float
    """How far it goes with a step of 1."""


def places() -> list[Place]:
    """Return the weights that evolve."""
    skip = [*CANDIDATE_FEATURES]

    def place(name: str, at: tuple[int, ...], start: float) -> Place:
        return Place(name, at, start, max(1.0, abs(start) / 3.0))

    return [
        *(place("skip.weight", (0, skip.index(name)), RULE.get(name, 0.0)) for name in EVOLVES),
        place("head.2.weight", (0, 0), GROWS_SLOW),
        Place("job.0.bias", (0,), -BEYOND, BEYOND_SCALE),
    ]


def starts() -> Floats:
    """Return the weights of the rule that evolution begins with."""
    return np.array([place.start for place in places()])


class Best(NamedTuple):
    """The best network so far by the tuning cases."""

    score: float
    mean: Floats


def weights_of(numbers: Floats) -> dict[str, Any]:
    """Return the weights of the network that these numbers stand for."""
    made = {name: np.zeros(shape, np.float32) for name, shape in shapes(SIZES).items()}
    for name in STAYS:
        made["skip.weight"][0, [*CANDIDATE_FEATURES].index(name)] = RULE[name]
    made["job.0.weight"][0, JOB_PLACES["slow_near"]] = made["job.2.weight"][0, 0] = 1.0
    first = made["head.0.weight"]
    grows = 6 * SIZES.job + [*CANDIDATE_FEATURES].index("grows")
    first[0, 0], first[0, grows] = 1.0, GATE
    made["head.0.bias"][0] = -GATE
    for place, number in zip(places(), numbers, strict=True):
        made[place.name][place.at] = number
    return made


class _Cma:
    """The state of CMA-ES."""

    def __init__(self, mean: Floats, sigma: float, population: int) -> None:
        size = len(mean)
        self.mean, self.sigma, self.generation = mean.copy(), sigma, 0
        self.cov = np.eye(size)
        self.path_cov, self.path_sigma = np.zeros(size), np.zeros(size)
        half = population // 2
        raw = math.log(half + 0.5) - np.log(np.arange(1, half + 1))
        self.parts = raw / raw.sum()
        mu = 1.0 / float((self.parts**2).sum())
        self.mu = mu
        self.c_cov = (4 + mu / size) / (size + 4 + 2 * mu / size)
        self.c_sigma = (mu + 2) / (size + mu + 5)
        self.c_one = 2 / ((size + 1.3) ** 2 + mu)
        self.c_mu = min(1 - self.c_one, 2 * (mu - 2 + 1 / mu) / ((size + 2) ** 2 + mu))
        self.damps = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (size + 1)) - 1) + self.c_sigma
        self.norm = math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size * size))

    def ask(self, rng: np.random.Generator, population: int) -> Floats:
        """Return the steps of a generation, `[population, size]`, in pairs of opposite ones."""
        values, axes = np.linalg.eigh(self.cov)
        drawn = rng.standard_normal((population // 2, len(self.mean)))
        steps = (drawn * np.sqrt(np.maximum(values, 1e-12))) @ axes.T
        return np.concatenate([steps, -steps])

    def tell(self, steps: Floats, scores: Floats) -> None:
        """Move towards the steps with the lowest scores."""
        chosen = steps[np.argsort(scores, kind="stable")[: len(self.parts)]]
        step = self.parts @ chosen
        self.mean = self.mean + self.sigma * step
        values, axes = np.linalg.eigh(self.cov)
        white = axes @ ((axes.T @ step) / np.sqrt(np.maximum(values, 1e-12)))
        kept = 1 - self.c_sigma
        self.path_sigma = kept * self.path_sigma + math.sqrt((1 - kept**2) * self.mu) * white
        length = float(np.linalg.norm(self.path_sigma))
        self.generation += 1
        usual = math.sqrt(1 - kept ** (2 * self.generation))
        on = length / usual < (1.4 + 2 / (len(step) + 1)) * self.norm
        kept_cov = 1 - self.c_cov
        self.path_cov = kept_cov * self.path_cov
        if on:
            self.path_cov = self.path_cov + math.sqrt((1 - kept_cov**2) * self.mu) * step
        lost = 0.0 if on else self.c_one * self.c_cov * (2 - self.c_cov)
        self.cov = (
            (1 - self.c_one - self.c_mu + lost) * self.cov
            + self.c_one * np.outer(self.path_cov, self.path_cov)
            + self.c_mu * (chosen.T * self.parts) @ chosen
        )
        self.sigma *= math.exp(min(1.0, self.c_sigma / self.damps * (length / self.norm - 1)))


def train(settings: Settings, seed: int, saved: Saved | None = None) -> Iterator[Progress]:
    """Evolve a network; the best by the tuning cases is `best` in what is saved.

    Args:
        settings: What may be chosen.
        seed: Of networks and of the order of traces.
        saved: What a run goes on from.
    """
    start = starts()
    scale = np.array([place.scale for place in places()])
    begun = [net(weights_of(start))]
    rng = np.random.default_rng([seed, 20])
    cma = _Cma(start / scale, settings.sigma, settings.population)
    tuned = tuning_cases(settings.tuning)
    tuned_jobs = [jobs_of(protocol.draw(*case)) for case in tuned]
    base = np.log(mean_jct_s(begun, tuned, tuned_jobs))
    best = Best(0.0, start)
    if saved is not None:
        rng = rng_of(saved.numbers["rng"])
        best = Best(float(saved.numbers["score"]), saved.tensors["best"])
        cma.sigma, cma.generation = float(saved.numbers["sigma"]), saved.step
        for name in ("mean", "cov", "path_cov", "path_sigma"):
            setattr(cma, name, saved.tensors[name])
    while cma.generation < settings.generations:
        cases = training_cases(rng, settings.traces)
        steps = cma.ask(rng, settings.population)
        nets = [net(weights_of((cma.mean + cma.sigma * step) * scale)) for step in steps]
        logs = np.log(mean_jct_s(begun + nets, cases))
        scores = loss(logs[1:] - logs[:1])
        cma.tell(steps, scores)
        values = {"spread": float(scores.std()), "sigma": cma.sigma}
        if cma.generation % settings.every == 0 or cma.generation == settings.generations:
            now = [net(weights_of(cma.mean * scale))]
            logs = np.log(mean_jct_s(now, tuned, tuned_jobs)) - base
            values["tuning"] = float(loss(logs)[0])
            for at, family in enumerate(protocol.FAMILIES):
                values[family] = float(logs[0, at :: len(protocol.FAMILIES)].mean())
            if values["tuning"] < best.score:
                best = Best(values["tuning"], cma.mean * scale)

        def save(cma: _Cma = cma, best: Best = best) -> Saved:
            tensors: Tensors = {
                "mean": cma.mean.copy(),
                "cov": cma.cov.copy(),
                "path_cov": cma.path_cov.copy(),
                "path_sigma": cma.path_sigma.copy(),
                "best": best.mean.copy(),
            }
            numbers = {"rng": numbers_of(rng), "sigma": cma.sigma, "score": best.score}
            return Saved(cma.generation, tensors, numbers)

        yield Progress(cma.generation, settings.generations, values, save)


def loss(logs: Floats) -> Floats:
    """Return the losses of networks.

    Args:
        logs: Of mean JCT over that under the rule that evolution began with, `[networks, traces]`,
            with families in turn.
    """
    families = len(protocol.FAMILIES)
    means = np.stack([logs[:, at::families].mean(1) for at in range(families)], axis=1)
    made: Floats = (means + WORSE * np.maximum(means, 0.0)).mean(1)
    return made


def model_of(saved: Saved, settings: Settings, seed: int) -> bytes:
    """Return the file of the best network.

    Args:
        saved: What the run ended with.
        settings: Those of the run.
        seed: That of the run.
    """
    report = {"tuning": float(saved.numbers["score"])}
    done = settings._replace(generations=saved.step)
    return published(saved.tensors["best"], done, seed, report)


def published(numbers: Floats, settings: Settings, seed: int, report: Mapping[str, float]) -> bytes:
    """Return the file of a network that was trained, with the ranges of its features.

    Args:
        numbers: The weights that evolved.
        settings: Those of the run, with the generations that there were.
        seed: That of the run.
        report: Figures of the evaluation.
    """
    made = (
        f"evolve: {settings.generations} generations of {settings.population} networks"
        f" on {settings.traces} traces"
    )
    return file_of(numbers, made, (seed,), report, ranges=ranges_of(weights_of(numbers)))


def file_of(
    numbers: Floats,
    learner: str,
    seeds: tuple[int, ...] = (),
    report: Mapping[str, float] = MappingProxyType({}),
    *,
    ranges: modelfile.Ranges | None = None,
) -> bytes:
    """Return the file of a network.

    Args:
        numbers: The weights that evolved.
        learner: How they came to be.
        seeds: Of the learner.
        report: Figures of the evaluation.
        ranges: Of its features; None: any number is in them.
    """
    header = modelfile.Header(
        job=SIZES.job,
        head=SIZES.head,
        trained_on="skep_lab.learn.protocol, training traces",
        learner=learner,
        seeds=seeds,
        report=dict(report),
        ranges=ranges or modelfile.Ranges(),
    )
    return modelfile.dump(weights_of(numbers), header)
