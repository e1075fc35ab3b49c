"""An episode under what a training run has learned, by learner: for rollouts on any engine.

Each function takes the run's settings, the tensors of what it saved, and the seed of the episode,
and returns what the episode came to. It depends on nothing else.
"""

from __future__ import annotations

import numpy as np

from skep_lab.learn import dl2_agent, dqn, evolve, ppo, sched2_play, skep_env
from skep_lab.learn.progress import Saved, Tensors

Measures = dict[str, float]


def sched2(settings: dqn.Settings, tensors: Tensors, seed: int) -> Measures:
    """Return what an episode of SCHED²'s environment comes to, by the best actions."""
    act = sched2_play.greedy(settings.environment, sched2_play.weights_in(tensors))
    found = sched2_play.play(act, np.array([seed]), settings.environment)
    took = found.ended - found.at
    return {
        "jct_s": float(took.mean()),
        "makespan_s": float(found.ended.max()),
        "effectiveness": float((found.run / took).mean()),
    }


def dl2(settings: dl2_agent.Settings, tensors: Tensors, seed: int) -> Measures:
    """Return what an episode of DL²'s environment comes to, by the likeliest actions."""
    policy = dl2_agent.policy_of(settings, Saved(0, tensors, {}))
    speed = np.array(settings.speed) if settings.speed else None
    found = dl2_agent.judge(policy, settings.world, speed, np.array([seed]), None)
    names = ("jct_slots", "makespan_slots", "gpus_given")
    return dict(zip(names, map(float, found[0]), strict=True))


def evolved(settings: evolve.Settings, tensors: Tensors, seed: int) -> Measures:
    """Return what an episode comes to under an evolved network: see `tuning`."""
    del settings
    return tuning(evolve.weights_of(tensors["best"]), seed)


def improved(settings: ppo.Settings, tensors: Tensors, seed: int) -> Measures:
    """Return what an episode comes to under a network that PPO has trained: see `tuning`."""
    del settings
    return tuning(ppo.best_of(tensors), seed)


def tuning(weights: skep_env.Weights, seed: int) -> Measures:
    """Return the mean JCT of the protocol's tuning trace of this number under a network.

    The run has chosen its best network by such traces: they tell runs apart, and judge none.
    """
    case = skep_env.tuning_cases(seed + 1)[seed]
    found = skep_env.mean_jct_s([skep_env.net(weights)], [case])
    return {"tuning_jct_s": float(found[0, 0])}
