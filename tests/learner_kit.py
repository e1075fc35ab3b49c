"""A learner that needs nothing but numpy: it walks towards a point by random steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from skep_lab.learn.progress import Progress, Saved, numbers_of, rng_of
from skep_services.engines.deal import Ear, Engine
from skep_services.engines.stop import Stop
from skep_services.learning import rollouts

PLAY = f"{__name__}:play"


class World(NamedTuple):
    """Settings within settings."""

    scale: float = 1.0
    name: str = ""


class Settings(NamedTuple):
    """What it takes."""

    steps: int = 6
    rate: float = 0.5
    goal: Literal["near", "far"] = "near"
    sizes: tuple[int, ...] = (2, 3)
    fails_at: int = 0
    world: World = World()


def train(settings: Settings, seed: int, saved: Saved | None = None) -> Iterator[Progress]:
    """Yield a point a step."""
    rng, at, first = np.random.default_rng(seed), np.zeros(settings.sizes), 0
    if saved is not None:
        rng, at, first = rng_of(saved.numbers["rng"]), saved.tensors["at"].copy(), saved.step
    for step in range(first + 1, settings.steps + 1):
        at = at + settings.rate * (settings.world.scale * rng.normal(size=at.shape) - at)
        saved = Saved(step, {"at": at.copy()}, {"rng": numbers_of(rng)})
        worst = float("nan") if step == settings.fails_at else float(np.abs(at).max())
        yield Progress(step, settings.steps, {"worst": worst}, partial(_same, saved))


def rollouts_on(engine: Engine) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return what rollouts come to on an engine, and in this process."""
    asked = [
        rollouts.Rollout(PLAY, {"scale": scale}, {"at": np.full((2, 3), 1 / 3)}, range(5))
        for scale in (1.0, 1.5)
    ]
    ear = Ear(lambda _place, _data: None, lambda _parts: None, lambda _text: None)
    return rollouts.spread(engine, ear, Stop())(asked), rollouts.here(asked)


def _same(saved: Saved) -> Saved:
    return saved


def episode(settings: Settings, weights: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return what an episode comes to under what was learned."""
    return play({"scale": settings.world.scale}, weights, seed)


def play(options: Mapping[str, Any], weights: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return what an episode comes to."""
    rng = np.random.default_rng(seed)
    total = float((weights["at"] * rng.normal(size=weights["at"].shape)).sum())
    return {"seed": seed, "return": total * options["scale"]}


def main(words: list[str]) -> int:
    """Print as a command for figures does; return an exit status."""
    print("walked", *words)
    return 3
