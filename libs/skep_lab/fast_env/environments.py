"""The learners' environments for Gymnasium: one environment each, with a mask of actions.

A learner that plays many environments at once uses `sched2.Batch`, `dl2.Batch` or `queue.Batch`,
which step all of them in one call; these classes are for libraries that know Gymnasium's interface
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from skep.learn.candidates import CANDIDATE_FEATURES, CHOICES, SPREAD, look
from skep.learn.features import CLUSTER_FEATURES, JOB_FEATURES
from skep_lab.fast_env import dl2, queue, sched2
from skep_lab.fast_env.arrays import Floats

Observation = NDArray[np.float32]
Mask = NDArray[np.bool_]
Views = dict[str, Observation]
SEED_MAX = 2**31 - 1
HOUR_S = 3600.0


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


class SkepEnv(gymnasium.Env[Any, np.int64]):
    """What Skep's own models see and may do: see `queue`.

    The observation has the features of `skep.learn`: `jobs` by row, `cluster`, and `candidates` by
    row and choice; rows without a job are 0. An action is a row and a choice, as row x CHOICES +
    choice, or the last one: to do nothing more until something happens. The reward is minus the
    hours that unfinished jobs spent until the next decision.
    """

    def __init__(self, draw: Callable[[int], queue.Batch], rows: int = 64) -> None:
        """Make an environment.

        Args:
            draw: Makes a batch of one environment of a seed.
            rows: Jobs that are shown, those with GPUs first; others wait.
        """
        self.metadata = {"render_modes": []}
        self._draw, self._rows = draw, rows
        self.observation_space = gymnasium.spaces.Dict(
            {
                "jobs": _box(JOB_FEATURES, rows),
                "cluster": _box(CLUSTER_FEATURES),
                "candidates": _box(CANDIDATE_FEATURES, rows, CHOICES),
            }
        )
        self.action_space = gymnasium.spaces.Discrete(rows * CHOICES + 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Views, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Equal seeds give equal jobs, in this episode and those after it.
            options: Not used.
        """
        super().reset(seed=seed, options=options)
        self.batch = self._draw(int(self.np_random.integers(SEED_MAX)))
        return self._look(), {"action_mask": self.action_masks()}

    def step(self, action: np.int64) -> tuple[Views, float, bool, bool, dict[str, Any]]:
        """Take one decision; one that is not possible is to do nothing more."""
        row, choice = divmod(int(action), CHOICES)
        moves = np.full((1, 1, 3), -1, np.int64)
        if self._mask[action] and row < self._rows:
            found = self._found
            moves[0, 0] = row, found.workers[row, choice], found.kind[row, choice] == SPREAD
        before, open_jobs = float(self.batch.shown.now[0]), self.batch.unfinished
        shown = self.batch.step(moves)
        reward = -(float(shown.now[0]) - before) * open_jobs / HOUR_S
        return (
            self._look(),
            reward,
            bool(shown.done[0]),
            False,
            {"action_mask": self.action_masks()},
        )

    def action_masks(self) -> Mask:
        """Return which actions are possible."""
        return self._mask.copy()

    def _look(self) -> Views:
        shown = self.batch.shown
        raw = np.zeros((self._rows, shown.raw.shape[2]))
        count = min(self._rows, int(shown.counts[0]))
        raw[:count] = shown.raw[0, :count]
        seen = look(raw, shown.cluster[0].copy(), float(shown.now[0]))
        there = np.arange(self._rows) < count
        self._found = seen.candidates
        possible = self._found.possible & there[:, None]
        self._mask = np.append(possible.ravel(), True)
        return {
            "jobs": np.ascontiguousarray(seen.jobs * there[:, None]),
            "cluster": seen.cluster,
            "candidates": np.ascontiguousarray(self._found.features * possible[..., None]),
        }


def _box(features: Mapping[str, tuple[float, float]], *axes: int) -> gymnasium.spaces.Box:
    """Return a space of features with leading axes; 0 is in it."""
    low, high = np.array([*features.values()], dtype=np.float32).T
    shape = (*axes, len(features))
    return gymnasium.spaces.Box(
        np.broadcast_to(np.minimum(low, 0.0), shape), np.broadcast_to(np.maximum(high, 0.0), shape)
    )
