"""The runs behind DL²'s figures: which learners are trained, and under what they are judged.

A run is one learner, trained with one seed in one of the settings of `dl2_protocol`. It yields the
points of its curve, judged on the tuning episodes, and at last its scores on the held-out ones; the
first run of each setting is judged under other conditions as well (Figures 12, 15 and 16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from skep_lab.fast_env import dl2, dl2_rules
from skep_lab.fast_env.arrays import Floats
from skep_lab.learn import dl2_agent, dl2_protocol
from skep_lab.learn.dl2_agent import Policy, Settings
from skep_lab.learn.dl2_protocol import World
from skep_lab.learn.progress import Saved, Tensors

Scores = dict[str, list[list[float]]]
"""`Sight.finished` of each episode, by how it was judged."""


class Run(NamedTuple):
    """A learner of a figure."""

    world: str
    """`large` or `small`."""
    settings: Settings
    figure: str
    fitted: bool = False
    """Trained on the fitted form of Optimus instead of the measured speeds (OfflineRL)."""


def _small(figure: str, **changed: Any) -> Run:
    return Run("small", dl2_agent.PAPER._replace(**changed), figure)


def _large(figure: str, **changed: Any) -> Run:
    return Run("large", dl2_agent.PAPER._replace(**{"steps": 1000} | changed), figure)


SHAPED: dict[str, Any] = {
    "reward": "epochs",
    "value": "slot",
    "entropy": 0.01,
    "correction": "ratio",
    "prioritised": False,
    "teacher": "",
    "critic_first": 0,
    "rate": 5e-4,
    "steps": 1500,
    "report_every": 250,
}
"""Tuned beyond the paper: a reward for each action, and what goes with it. The ablations of Table 2
are taken of this learner, because it learns; 3,000 steps give somewhat more, and several seeds of
each ablation less time."""


def _shaped(figure: str, **changed: Any) -> Run:
    return _small(figure, **SHAPED | changed)


def _federated(clusters: int) -> Run:
    """Return a run with as many updates and episodes as one cluster has, in fewer steps."""
    changed = {"steps": SHAPED["steps"] // clusters, "report_every": -(-250 // clusters)}
    return _shaped("19, federated", clusters=clusters, envs=8 // clusters, **changed)


RUNS: dict[str, Run] = {
    "small": _small("9, 10"),
    "small-shaped": _shaped("9, 12, 15, 16, Table 2"),
    "large": _large("9, 10, 11"),
    "small-bandit": _small("10", value="slot", correction="ratio", prioritised=False),
    "small-online-only": _small("10", teacher=""),
    "small-shaped-no-bundle": _shaped("Table 2", bundle_action=False),
    "small-shaped-no-critic": _shaped("Table 2", critic=False),
    "small-shaped-no-exploration": _shaped("Table 2", explore=0.0),
    "small-shaped-no-replay": _shaped("Table 2", replay=0),
    "small-shaped-offline": _shaped("9")._replace(fitted=True),
    "large-shaped": _large("9, 11", **SHAPED | {"steps": 1000}),
    "small-look-ahead": _small("18, with the best rule as teacher", teacher="look-ahead"),
    "small-code": Run("small", dl2_agent.CODE._replace(steps=1500), "the public code"),
    "small-fifo": _small("18", teacher="fifo"),
    "small-srtf": _small("18", teacher="srtf"),
    "small-shaped-types": _shaped("17", models_at=((0, 4), (500, 6), (1000, 8))),
    "small-job-reward": _small("6.5.2", reward="job"),
    "small-shaped-two-clusters": _federated(2),
    "small-shaped-four-clusters": _federated(4),
    "small-shaped-window-10": _shaped("19a"),
    "small-shaped-window-30": _shaped("19a"),
    "small-shaped-neurons-64": _shaped("19b", layers=1, neurons=64),
    "small-shaped-neurons-128": _shaped("19b, 19c", layers=1, neurons=128),
    "small-shaped-neurons-512": _shaped("19b", layers=1, neurons=512),
    "small-shaped-layers-2": _shaped("19c", layers=2, neurons=128),
    "small-shaped-layers-3": _shaped("19c", layers=3, neurons=128),
    "small-square": _small("19e", loss="square"),
    "small-absolute": _small("19e", loss="absolute"),
    "large-code": Run("large", dl2_agent.CODE._replace(steps=1000), "the public code"),
}
FIRST = 9
"""All seeds train so many runs first, in this order; then each begins elsewhere in the rest, so
that where time is short different seeds reach different ones."""


def order(seed: int) -> list[str]:
    """Return the runs in the order in which a seed trains them."""
    names = list(RUNS)
    first, rest = names[:FIRST], names[FIRST:]
    begin = seed * len(rest) // len(dl2_protocol.SEEDS) % max(len(rest), 1)
    return [*first, *rest[begin:], *rest[:begin]]


def worlds_for(name: str, worlds: Mapping[str, World]) -> tuple[World, Settings]:
    """Return where a run is judged, and the settings with which it is trained.

    Args:
        name: One of `RUNS`.
        worlds: By `large` and `small`.
    """
    run = RUNS[name]
    world, settings = worlds[run.world], run.settings
    options = world.options._replace(bundle=settings.world.bundle)
    for window in _window_of(name):
        options = options._replace(window=window)
    speed = dl2_protocol.fitted(world.speed) if run.fitted else world.speed
    return world._replace(options=options), settings._replace(
        world=options, speed=dl2_agent.table_of(speed)
    )


def _window_of(name: str) -> tuple[int, ...]:
    """Return J as the name of a run says it, if it does."""
    return (int(name.rpartition("-")[2]),) if "-window-" in name else ()


CONDITIONS = (
    "uniform",
    "poisson",
    *(f"{kind}-{percent}" for kind in ("speed", "told") for percent in (10, 20, 30, 40)),
)
"""Arrivals of Figure 12, and errors in percent of Figures 15 (speeds) and 16 (epochs)."""
LOST_SLOTS = 12.0
"""A policy whose jobs take longer is not judged under other conditions."""
UNIFORM_SLOTS = 1000
SEQ2SEQ = dl2.MODELS.index("seq2seq")


def under(world: World, condition: str) -> World:
    """Return a setting under one of `CONDITIONS`."""
    options = world.options
    if not options.arrivals:
        mean = options.slot_s / options.interval_s
    else:
        mean = sum(options.arrivals) / len(options.arrivals)
    kind, _, percent = condition.partition("-")
    match kind:
        case "uniform":
            counts = np.random.default_rng(12).integers(0, round(2 * mean) + 1, UNIFORM_SLOTS)
            options = options._replace(arrivals=tuple(int(count) for count in counts))
        case "poisson":
            options = options._replace(arrivals=(), interval_s=options.slot_s / mean)
        case "speed":
            options = options._replace(speed_error=int(percent) / 100)
        case _:
            options = options._replace(told_error=int(percent) / 100)
    return world._replace(options=options)


def judged(policy: Policy, world: World, seeds: Any, ways: tuple[str, ...]) -> Scores:
    """Return the scores of a policy, by sampled and by most likely actions as asked."""
    found = {}
    for way in ways:
        sampled = 1 if way == "sampled" else None
        scores = dl2_agent.judge(policy, world.options, world.speed, np.array(seeds), sampled)
        found[way] = scores.tolist()
    return found


def ruled(name: str, world: World, seeds: Any, speed: Floats | None = None) -> list[list[float]]:
    """Return the scores of a rule that believes some speeds (None: the true ones)."""
    batch = dl2.Batch(len(seeds), world.options, world.speed)
    rule = dl2_rules.rule_of(name, batch, speed)
    found: list[list[float]] = dl2_rules.play(batch, rule, np.array(seeds)).tolist()
    return found


class Point(NamedTuple):
    """A point of the curve of a run, or (`scores`) its end."""

    step: int
    values: dict[str, float]
    saved: Saved
    scores: Scores


WARM_UP = ("neurons", "layers", "norm", "type_number", "teacher", "samples", "passes", "loss")


def warm_up_of(name: str) -> str:
    """Return what tells runs with different warm-ups apart; empty: there is none."""
    run = RUNS[name]
    if not run.settings.teacher:
        return ""
    told = [getattr(run.settings, field) for field in WARM_UP]
    return repr([run.world, run.fitted, *told, run.settings.models_at, *_window_of(name)])


def play(
    name: str,
    seed: int,
    worlds: Mapping[str, World],
    steps: int = 0,
    warmed: dict[str, Tensors] | None = None,
) -> Iterator[Point]:
    """Train a run and judge each point on the tuning episodes, by sampled actions.

    Args:
        name: One of `RUNS`.
        seed: Of the training.
        worlds: By `large` and `small`.
        steps: Instead of the run's own, if above 0.
        warmed: Policies after their warm-up, by what it was; new ones are added.
    """
    known, key = {} if warmed is None else warmed, warm_up_of(name)
    world, settings = worlds_for(name, worlds)
    settings = settings._replace(steps=steps or settings.steps)
    seeds = dl2_protocol.VALIDATION if RUNS[name].world == "large" else dl2_protocol.TUNING[:10]
    for progress in dl2_agent.train(settings, seed, warmed=known.get(key)):
        if progress.step < 0:  # The warm-up goes on.
            continue
        saved = progress.save()
        if progress.step == 0 and key:
            known[key] = saved.tensors
        policy = dl2_agent.policy_of(settings, saved)
        scores = judged(policy, world, seeds, ("sampled",))
        values = {way: float(np.mean(np.array(rows)[:, 0])) for way, rows in scores.items()}
        yield Point(progress.step, {**progress.values, **values}, saved, {})


def ended(name: str, worlds: Mapping[str, World], saved: Saved) -> Scores:
    """Return the scores of what a run ended with, on the held-out episodes."""
    world, settings = worlds_for(name, worlds)
    policy = dl2_agent.policy_of(settings, saved)
    found = judged(policy, world, dl2_protocol.HELD_OUT, ("sampled", "likeliest"))
    mean = float(np.mean(np.array(found["sampled"])[:, 0]))
    if name in {"small", "small-shaped"} and mean < LOST_SLOTS:
        for condition in CONDITIONS:
            there = under(world, condition)
            scores = judged(policy, there, dl2_protocol.HELD_OUT, ("sampled",))
            found[condition] = scores["sampled"]
    if name in {"large", "large-shaped"}:
        seen = dl2_agent.sizes(policy, world.options, world.speed, dl2_protocol.TUNING[0], SEQ2SEQ)
        found["sizes"] = seen.tolist()
    return found
