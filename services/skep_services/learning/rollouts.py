"""Episodes of environments as tasks of an engine: the same results here, on Ray and as jobs.

A rollout names a function of some module, `(options, weights, seed) -> results`, all of them as
JSON has it but the weights, which are arrays. What comes of it depends on these alone, and a sum of
floats is never taken over tasks in the order in which they end. So the engine changes the time and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from skep_services.engines.deal import Ear, Engine
from skep_services.engines.stop import Stop
from skep_services.engines.task import Task, Watch
from skep_services.learning import learners
from skep_services.learning.problems import LearningError, Why
from skep_services.learning.runs import opened, stored

WORK = f"{__name__}:work"
SEEDS_MAX = 32
"""Episodes of one task: enough that sending weights costs nothing, few enough to share out."""

Play = Callable[[Mapping[str, Any], Mapping[str, Any], int], Mapping[str, Any]]
"""What a rollout calls: options, weights and a seed to results."""
Spread = Callable[[Sequence["Rollout"]], list[list[Any]]]
"""Plays rollouts somewhere: for each the results of its seeds, in their order."""


class Rollout(NamedTuple):
    """Episodes with the same weights: one for each seed."""

    play: str
    """The function, a `Play`, as MODULE:NAME. Every worker has to be able to import it."""
    options: Mapping[str, Any]
    weights: Mapping[str, Any]
    seeds: Sequence[int]
    label: str = "rollout"


def of_run(
    name: str, settings: Mapping[str, Any], weights: Mapping[str, Any], seeds: Sequence[int]
) -> Rollout:
    """Return the episodes of what a training run has learned.

    Args:
        name: The learner.
        settings: The run's, as JSON has them.
        weights: The tensors of its checkpoint.
        seeds: One episode for each.

    Raises:
        LearningError: There is no such learner, or it has no episodes, or none for a seed.
    """
    learners.find(name)
    about = learners.LEARNERS[name]
    if not about.plays:
        text = f"{name} has no episodes to be played; `skep learn judge` judges models by pairs"
        raise LearningError(Why.NOT_OFFERED, text)
    if about.seeds and max(seeds, default=0) >= about.seeds:
        text = (
            f"{name} has episodes for the seeds 0 to {about.seeds - 1}, and none for {max(seeds)}"
        )
        raise LearningError(Why.WRONG_SETTING, text)
    options = {"module": about.module, "plays": about.plays, "settings": settings}
    return Rollout(f"{__name__}:episode", options, weights, seeds, name)


def episode(options: Mapping[str, Any], weights: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Play one episode of what a training run has learned: a `Play`."""
    module, _, function = options["plays"].partition(":")
    kind = learners.imported(options["module"], "the learner").Settings
    play = getattr(learners.imported(module, "the learner"), function)
    found: Mapping[str, Any] = play(learners.made(kind, options["settings"]), weights, seed)
    return found


class StoppedError(Exception):
    """A person wanted the end before all rollouts were played."""


def spread(engine: Engine, ear: Ear, stop: Stop) -> Spread:
    """Return what plays rollouts on an engine.

    Args:
        engine: Where they are played.
        ear: Is told how far they are, and what to say.
        stop: Once it is asked for, what is played raises `StoppedError`.
    """

    def play_all(rollouts: Sequence[Rollout]) -> list[list[Any]]:
        todo = [task for each in rollouts for task in tasks(each)]
        done: dict[int, bytes] = {}
        engine.run(todo, Ear(done.__setitem__, ear.tell, ear.say), stop)
        if stop.asked or len(done) < len(todo):
            raise StoppedError
        results = [msgspec.msgpack.decode(done[place]) for place in range(len(todo))]
        rows = iter(results)
        return [
            [each for _ in range(_pieces(rollout)) for each in next(rows)] for rollout in rollouts
        ]

    return play_all


def here(rollouts: Sequence[Rollout]) -> list[list[Any]]:
    """Play rollouts in this very process; the results are those of any engine."""
    return [
        [
            each
            for task in tasks(rollout)
            for each in msgspec.msgpack.decode(work(task.inputs, lambda _part: True))
        ]
        for rollout in rollouts
    ]


def _pieces(rollout: Rollout) -> int:
    return -(-len(rollout.seeds) // SEEDS_MAX)


def tasks(rollout: Rollout) -> Iterator[Task]:
    """Yield the tasks of an engine that play a rollout."""
    weights = stored(rollout.weights, {})
    options = msgspec.msgpack.encode(dict(rollout.options))
    for first in range(0, len(rollout.seeds), SEEDS_MAX):
        seeds = list(rollout.seeds[first : first + SEEDS_MAX])
        inputs = (rollout.play.encode(), options, weights, msgspec.msgpack.encode(seeds))
        yield Task(f"{rollout.label} · seed {seeds[0]}", WORK, inputs)


def work(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """Play one task: what an engine's worker calls; ended early it has the episodes until then."""
    name, options, weights, seeds = inputs
    module, _, function = name.decode().partition(":")
    play: Play = getattr(import_module(module), function)
    tensors, _ = opened(weights)
    given = msgspec.msgpack.decode(options)
    wanted = msgspec.msgpack.decode(seeds, type=list[int])
    found = []
    for seed in wanted:
        found.append(play(given, tensors, seed))
        if not watch(len(found) / len(wanted)):
            break
    return msgspec.msgpack.encode(found)
