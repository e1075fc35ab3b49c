"""DL²'s network in the production simulator: the same sizes as in the fast environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import fast_env_kit, needs  # noqa: F401  before the fast environment

needs.require("torch")

import torch  # isort: skip  # noqa: E402
from skep.policy.registry import make  # isort: skip  # noqa: E402
from skep_lab.fast_env import dl2  # isort: skip  # noqa: E402
from skep_lab.learn import dl2_agent, dl2_policy  # isort: skip  # noqa: E402

ONE_NODE = dl2.Options(
    jobs=8,
    window=4,
    nodes=(1,),
    node_gpus=12,
    node_cpus=44,
    most=4,
    median_s=3000.0,
    sigma=0.5,
    interval_s=900.0,
    bundle=True,
)
"""There are at times more jobs than the window has, and GPUs are short, but each job has one."""
NODES = ONE_NODE._replace(nodes=(3,), node_gpus=4, node_cpus=16)
SPEED = dl2.optimus_speeds(ONE_NODE.most)


class Seen(dl2_agent.Policy):
    """A random network that seldom stops, and what it decided."""

    def __init__(self, seed: int) -> None:
        settings = dl2_agent.PAPER._replace(world=ONE_NODE, neurons=16)
        made = dl2_agent.Learner(settings, seed).policy
        super().__init__(made.net, made.inputs)
        with torch.no_grad():
            [each for each in self.net if isinstance(each, torch.nn.Linear)][-1].bias[-1] -= 2.0
        self.seen: list[Any] = []
        self.actions: list[int] = []

    def choose(self, seen: Any, mask: Any, rng: Any) -> Any:
        actions, logs = super().choose(seen, mask, rng)
        if mask.sum() > 1:  # Else there is nothing to choose.
            self.seen.append(seen[0].copy())
            self.actions.append(int(actions[0]))
        return actions, logs


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_jobs_get_the_same_sizes_in_production(seed: int) -> None:
    fast, production = Seen(seed), Seen(seed)
    batch = dl2.Batch(1, ONE_NODE, SPEED)
    sight = batch.reset(np.array([seed]))
    while not sight.done[0]:
        sight = batch.step(fast.choose(sight.observation, sight.mask, None)[0])
    policy = dl2_policy.Dl2Policy(network=production, world=ONE_NODE, sampled=None)
    result = dl2_policy.play(ONE_NODE, SPEED, seed, policy)
    assert not result.cut
    assert production.actions == fast.actions
    assert len(set(fast.actions)) > 4
    # What a job has left is counted in whole mini-batches there.
    np.testing.assert_allclose(production.seen, fast.seen, atol=2e-3)
    took = dl2_policy.completion_slots(result, ONE_NODE.slot_s)
    assert took.mean() == pytest.approx(sight.finished[0, 0], rel=1e-6)


def test_a_job_grows_on_its_node_and_random_actions_are_of_a_seed() -> None:
    digests, sizes = set(), set[int]()
    for sampled in (0, 0, 1):
        policy = dl2_policy.Dl2Policy(network=Seen(3), world=NODES, sampled=sampled)
        result = dl2_policy.play(NODES, SPEED, 5, policy)
        assert not result.cut
        assert all(job.ended is not None for job in result.jobs)
        spans = [span for job in result.jobs for span in job.spans]
        assert all(len(span.spread) == 1 for span in spans)
        sizes |= {span.gpus for span in spans}
        digests.add(result.decisions)
    assert len(digests) == 2
    assert sizes > {1, NODES.node_gpus}


@pytest.mark.parametrize("name", ["drf", "look-ahead"])
def test_skeps_policies_play_the_same_episode(name: str) -> None:
    result = dl2_policy.play(NODES, SPEED, 5, make(name, {}))
    assert not result.cut
    trace = dl2_policy.trace_of(NODES, 5, SPEED)
    assert [job.job for job in result.jobs] == list(trace.jobs)
    assert (dl2_policy.completion_slots(result, NODES.slot_s) > 0).all()
