"""The judge's compiled network: it decides what the network decides that Skep has in production."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
import pytest

from skep.learn import modelfile
from skep.learn.net import Sizes, random_weights
from skep.policy.api import Planner, Policy
from skep.policy.plan import Plan
from skep.policy.view import VcView
from tests import fast_env_kit  # noqa: F401  before the fast environment

from skep_lab.learn import beat_main, evolve, judge, protocol  # isort: skip
from skep_lab.learn.protocol import Setting  # isort: skip


EVERY = 25
"""Views are compared: the network is not compiled here, and slow."""


class Both(Policy, frozen=True, kw_only=True):
    """Some models in both ways; the first of them is followed."""

    name: ClassVar[str] = "both"
    source: ClassVar[str] = "Skep"
    models: tuple[modelfile.Model, ...]
    counts: list[int]

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def planner(self) -> Planner:
        """Return a function that compares what they say."""
        pairs = [
            [judge.Network(model=each, compiled=way).planner() for way in (False, True)]
            for each in self.models
        ]

        views = itertools.count()

        def plan(view: VcView) -> Plan:
            if next(views) % EVERY:
                return pairs[0][0](view)
            plans = [[way(view) for way in pair] for pair in pairs]
            for number, (slow, quick) in enumerate(plans):
                assert slow == quick, (view.now, number)
                self.counts[number] += len(slow.turns) + len(slow.actions)
            return plans[0][0]

        return plan


@pytest.mark.parametrize("family", protocol.FAMILIES)
def test_the_compiled_network_decides_as_that_of_production(family: str) -> None:
    start = beat_main.model_of(evolve.starts())
    header = modelfile.Header(job=5, head=7)
    weights = random_weights(3, Sizes(5, 7))
    weights["hold.2.bias"] = np.full_like(weights["hold.2.bias"], -9.0)
    other = modelfile.load(modelfile.dump(weights, header))
    counts = [0, 0]
    policy = Both(models=(start, other), counts=counts)
    setting = Setting(family, bursts=True, error=0.3, nodes=3)
    made = judge.play(setting, protocol.TUNING.start, policy)
    assert made.unfinished == 0
    assert min(counts) > 3, counts
