"""Traces of the protocol in the environment of Skep's own learner (`fast_env.queue`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skep.learn import modelfile
from skep.learn.candidates import CANDIDATE_FEATURES, A
from skep.learn.features import CLUSTER_FEATURES, JOB_FEATURES, F, G
from skep_lab.fast_env.queue import Batch, Jobs, costs_of
from skep_lab.fast_env.scores import Net, net_of
from skep_lab.learn import protocol
from skep_lab.learn.protocol import Drawn, Floats, Setting

Weights = Mapping[str, NDArray[Any]]
Case = tuple[Setting, int]
"""A setting and the number of a trace."""
RANGES_FROM = 24
"""Tuning cases on which the ranges of features are seen."""
NODES = 12
"""Of cases of training. Those of tuning have up to 20."""


def jobs_of(drawn: Drawn) -> Jobs:
    """Return the jobs of a trace as the environment has them."""
    return Jobs(
        drawn.at,
        drawn.run,
        drawn.workers,
        drawn.most,
        drawn.least,
        drawn.model,
        drawn.told_run,
        drawn.told_growth,
        drawn.told_spread,
        drawn.pool.growth,
        drawn.pool.spread,
        0.0,
    )


def batch_of(cases: Sequence[Case], jobs: Sequence[Jobs] | None = None) -> Batch:
    """Return the environments of some cases, at their beginning.

    Args:
        cases: The cases.
        jobs: Their jobs, if these are drawn already.
    """
    drawn = jobs or [jobs_of(protocol.draw(*case)) for case in cases]
    costs = protocol.COSTS
    nodes = [setting.nodes for setting, _ in cases]
    return Batch(drawn, nodes, costs_of(costs.start_s, costs.resize_s, costs.stop_s))


def mean_jct_s(
    nets: Sequence[Net], cases: Sequence[Case], jobs: Sequence[Jobs] | None = None
) -> Floats:
    """Return the mean JCT of every case under every network, `[nets, cases]`."""
    drawn = jobs or [jobs_of(protocol.draw(*case)) for case in cases]
    made = np.zeros((len(nets), len(cases)))
    for row, net in zip(made, nets, strict=True):
        batch = batch_of(cases, drawn)
        batch.play(net)
        row[:] = [float(each.mean()) for each in batch.jct_s()]
    return made


def net(weights: Weights) -> Net:
    """Return weights as the environment has them."""
    return net_of(weights)


def training_cases(rng: np.random.Generator, count: int, most: int = NODES) -> list[Case]:
    """Return random cases of training: as many of each family as possible.

    Args:
        rng: Draws them.
        count: How many.
        most: On so many nodes at most: half as many take a fourth of the time.
    """
    made = list[Case]()
    while len(made) < count:
        family = protocol.FAMILIES[len(made) % len(protocol.FAMILIES)]
        setting = protocol.training_setting(rng)._replace(family=family)
        if setting.nodes <= most:
            made.append((setting, int(rng.integers(len(protocol.TRAINING)))))
    return made


def tuning_cases(count: int) -> list[Case]:
    """Return the first cases of tuning, always the same."""
    rng = np.random.default_rng(protocol.TUNING.start)
    cases = training_cases(rng, count, max(protocol.TRAIN_NODES))
    return [(setting, protocol.TUNING[number]) for number, (setting, _) in enumerate(cases)]


def ranges_of(weights: Weights) -> modelfile.Ranges:
    """Return the ranges that features have on tuning cases under a network.

    What the network does not look at may have any value that the feature can have.

    Args:
        weights: Of the network.
    """
    seen = np.stack([np.full(F + G + A, np.inf), np.full(F + G + A, -np.inf)])
    batch = batch_of(tuning_cases(RANGES_FROM))
    batch.play(net(weights), seen)
    options = np.concatenate([weights["head.0.weight"][:, -A:], weights["skip.weight"]])
    ranges, at = {}, 0
    for part, features, reads in (
        ("job", JOB_FEATURES, weights["job.0.weight"]),
        ("cluster", CLUSTER_FEATURES, weights["cluster.0.weight"]),
        ("candidate", CANDIDATE_FEATURES, options),
    ):
        looks = reads.any(0) & np.isfinite(seen[0, at : at + len(features)])
        ranges[part] = tuple(
            (float(seen[0, at + place]), float(seen[1, at + place])) if looks[place] else whole
            for place, whole in enumerate(features.values())
        )
        at += len(features)
    return modelfile.Ranges(**ranges)
