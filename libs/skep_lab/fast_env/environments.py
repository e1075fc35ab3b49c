"""SCHED²'s and DL²'s environments for Gymnasium: one environment each, with a mask of actions.

A learner that plays many environments at once uses `sched2.Batch` and `dl2.Batch`, which step all
of them in one call; these classes are for libraries that know Gymnasium's interface only.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from skep_lab.fast_env import dl2, sched2
from skep_lab.fast_env.arrays import Floats

Observation = NDArray[np.float32]
Mask = NDArray[np.bool_]
SEED_MAX = 2**31 - 1


class _Env(gymnasium.Env[Observation, np.int64]):
    """One environment of a batch.

    `info["action_mask"]` says which actions are possible, as does `action_masks()`, the method that
    Stable-Baselines3's masked PPO calls. One that is not possible is to hold, or to stop. With the
    step that ends an episode the observation is that before it.
    """

    def __init__(self, batch: sched2.Batch | dl2.Batch) -> None:
        self.batch = batch
        self.metadata = {"render_modes": []}
        seen, mask = batch.sight.observation, batch.sight.mask
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, seen.shape[1:], np.float32)
        self.action_space = gymnasium.spaces.Discrete(mask.shape[1])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Equal seeds give equal jobs, in this episode and those after it.
            options: Not used.
        """
        super().reset(seed=seed, options=options)
        drawn = int(self.np_random.integers(SEED_MAX))
        self.batch.reset(np.array([drawn]))
        return self.batch.sight.observation[0].copy(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one decision; an episode is never truncated."""
        before = self.batch.sight.observation[0].copy()
        sight = self.batch.step(np.array([action]))
        info, done = self._info(), bool(sight.done[0])
        if done:
            info["finished"] = sight.finished[0].copy()
        seen = before if done else sight.observation[0].copy()
        return seen, float(sight.reward[0]), done, False, info

    def action_masks(self) -> Mask:
        """Return which actions are possible."""
        mask: Mask = self.batch.sight.mask[0].copy()
        return mask

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks()}


class Sched2Env(_Env):
    """Choose one of the first J waiting jobs, or hold: see `sched2`.

    `info["finished"]` of an episode's last step: mean completion time in seconds, mean execution
    effectiveness, and seconds until all jobs had ended.
    """

    def __init__(self, options: sched2.Options = sched2.PAPER) -> None:
        """Make an environment with a setting."""
        super().__init__(sched2.Batch(1, options))


class Dl2Env(_Env):
    """Give workers and servers to jobs, slot by slot: see `dl2`.

    `info["slot_ended"]` says whether the slot ended with the step: the reward is that of all its
    decisions. `info["finished"]` of an episode's last step: mean completion time in slots.
    """

    def __init__(self, options: dl2.Options = dl2.PAPER, speed: Floats | None = None) -> None:
        """Make an environment with a setting, and with a table of speeds (`dl2.Batch`)."""
        super().__init__(dl2.Batch(1, options, speed))

    def _info(self) -> dict[str, Any]:
        assert isinstance(self.batch, dl2.Batch)
        return {**super()._info(), "slot_ended": bool(self.batch.sight.slot_ended[0])}
