"""How a model compares with what a scheduler did, by pairs of its log."""

from __future__ import annotations

import numpy as np

from skep.learn import offpolicy
from skep.learn.candidates import CHOICES, candidates
from skep.learn.features import cluster_features, holding, job_features, queued
from skep.learn.modelfile import Model
from skep_lab.learn.pairs import Pair, Pairs

BLOCK_S = 3600.0
"""Decisions of the same hour share their queue: intervals count hours."""


def decisions(pairs: Pairs, model: Model) -> offpolicy.Decisions:
    """Return what a scheduler did as decisions, and whether the model would have done it too.

    A model agrees if its best move is one of those that followed, or if neither did anything.
    Nothing in a pair says what a decision was worth: rewards are 0.

    Args:
        pairs: What the scheduler saw and did.
        model: The model.
    """
    clean = np.zeros(pairs.size, dtype=bool)
    clean[pairs.clean()] = True
    wanted = np.array([_agrees(pairs.pair(place), model) for place in range(pairs.size)])
    hours = np.floor(pairs.at / BLOCK_S).astype(np.int64) * len(pairs.about["vcs"])
    return offpolicy.Decisions(
        reward=np.zeros(pairs.size),
        propensity=pairs.propensity.astype(np.float64),
        wanted=wanted.astype(np.float64),
        block=hours + pairs.vc,
        overwritten=~clean,
    )


def _agrees(pair: Pair, model: Model) -> bool:
    raw, cluster = pair.raw, pair.cluster
    there = candidates(raw, cluster, pair.at)
    scores, hold = model.net.forward(
        job_features(raw, cluster, pair.at),
        cluster_features(cluster),
        there.features,
        queued(raw),
        holding(raw),
    )
    scores = np.where(there.possible, scores, -np.inf)
    best = divmod(int(scores.argmax()), CHOICES)
    if not scores[best] > hold:
        return not pair.moves
    return any((move.job, move.choice) == best for move in pair.moves)


def by_vc(pairs: Pairs, model: Model) -> dict[str, list[offpolicy.Estimate]]:
    """Return what can be said of a model in each VC, and in all of them ("").

    Args:
        pairs: What the scheduler saw and did.
        model: The model.
    """
    whole = decisions(pairs, model)
    names = pairs.about["vcs"]
    found = {"": offpolicy.estimates(whole)}
    if len(names) > 1:
        found |= {
            name: offpolicy.estimates(whole.only(pairs.vc == place))
            for place, name in enumerate(names)
        }
    return found
