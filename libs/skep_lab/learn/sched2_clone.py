"""Clone a rule into SCHED²'s network: can the network be as good as the rule at all?

The network plays, the teacher says what it would do in the states that come of it, and all states
so far are learned from again (DAgger, Ross et al. 2011). In the first round the teacher plays. The
network's values are fitted to the returns of what was played, and their order to the teacher's
choices, so that a deep Q network can go on from them (`dqn.train`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skep_lab.fast_env.arrays import NUM, Floats, Ints
from skep_lab.fast_env.sched2 import Batch, Options
from skep_lab.learn.dqn import UNKNOWN_VALUE, network, weights_of
from skep_lab.learn.progress import Tensors
from skep_lab.learn.sched2_play import Act, greedy
from skep_lab.learn.sched2_protocol import REALISTIC, TRAINING
from skep_lab.learn.sched2_teachers import choose


class Cloning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a clone is made by."""

    teacher: Literal["hold", "saf"] = "hold"
    environment: Options = REALISTIC
    traces: tuple[int, ...] = TRAINING
    rounds: int = 5
    updates: int = 800
    """In each round; in the last one twice as many, at a falling rate."""
    batch: int = 256
    rate: float = 1e-3
    chance: float = 0.03
    """How often an action of the first round is random."""
    sorts: bool = False
    """See `dqn.Settings`, as of the next two."""
    horizon_s: float = 7200.0
    scale: float = 0.1
    sharp: float = 20.0
    """Values times this are the logarithms of the odds of actions."""
    values: float = 0.1
    """What the error of values counts, beside that of choices."""


class Shown(NamedTuple):
    """Decisions with more than one possible action."""

    seen: NDArray[np.float16]
    may: NDArray[np.bool_]
    taught: Ints
    """What the teacher does."""
    action: Ints
    """What was done."""
    returned: Floats
    """The return of what was done, and of all that came after."""


def clone(cloning: Cloning, seed: int) -> Iterator[Tensors]:
    """Clone a rule; equal arguments give equal weights.

    Args:
        cloning: What it goes by.
        seed: Of weights, and of what is drawn.

    Yields:
        The weights of the network after each round.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng, options = np.random.default_rng(seed), cloning.environment
    model = network(options, sorts=cloning.sorts)
    optimiser = torch.optim.Adam(model.parameters(), lr=cloning.rate)

    def by_teacher(seen: NDArray[np.float32], may: NDArray[np.bool_]) -> Ints:
        chance = np.where(may, rng.random(may.shape), -1.0).argmax(1)
        chosen = choose(cloning.teacher, seen, options)
        random: Ints = np.where(rng.random(len(seen)) < cloning.chance, chance, chosen)
        return random

    shown = _play(cloning, by_teacher)
    for number in range(cloning.rounds):
        last = number == cloning.rounds - 1
        updates = cloning.updates * (2 if last else 1)
        for update in range(updates):
            for group in optimiser.param_groups:
                group["lr"] = cloning.rate * ((1.0 - update / updates) if last else 1.0)
            at = rng.integers(len(shown.taught), size=cloning.batch)
            optimiser.zero_grad()
            loss = _loss(model, Shown._make(each[at] for each in shown), cloning)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        weights = weights_of(model)
        yield weights
        if not last:
            more = _play(cloning, greedy(options, weights))
            shown = _joined([shown, more])


def _loss(model: nn.Module, shown: Shown, cloning: Cloning) -> torch.Tensor:
    values = model(torch.from_numpy(shown.seen.astype(np.float32)))
    odds = (cloning.sharp * values).masked_fill(torch.from_numpy(~shown.may), UNKNOWN_VALUE)
    choices = nn.functional.cross_entropy(odds, torch.from_numpy(shown.taught))
    value = values.gather(1, torch.from_numpy(shown.action)[:, None]).squeeze(1)
    returned = torch.from_numpy(shown.returned.astype(np.float32))
    loss: torch.Tensor = choices + cloning.values * nn.functional.smooth_l1_loss(value, returned)
    return loss


def _play(cloning: Cloning, act: Act) -> Shown:
    """Return the decisions of an episode of each trace."""
    options = cloning.environment
    batch = Batch(len(cloning.traces), options)
    sight, over = batch.reset(np.array(cloning.traces)), np.zeros(len(cloning.traces), np.bool_)
    rows = []
    while not over.all():
        seen, may, before = (
            sight.observation.astype(np.float16),
            sight.mask.copy(),
            batch.state.num[:, NUM.now].copy(),
        )
        taught = choose(cloning.teacher, sight.observation, options)
        action = act(sight.observation, sight.mask)
        batch.step(action)
        passed = np.where(sight.done, 0, batch.state.num[:, NUM.now] - before)
        keeps = np.where(sight.done, 0.0, np.exp(-passed / (cloning.horizon_s * 1e9)))
        counts = ~over & (may.sum(1) > 1)
        rows.append((seen, may, taught, action, sight.reward * cloning.scale, keeps, counts))
        over |= sight.done
    returned, made = np.zeros(len(over)), list[Shown]()
    for seen, may, taught, action, reward, keeps, counts in reversed(rows):
        returned = reward + keeps * returned
        all_of = (seen, may, taught, action, returned)
        made.append(Shown._make(each[counts] for each in all_of))
    return _joined(made)


def _joined(parts: list[Shown]) -> Shown:
    return Shown._make(np.concatenate(each) for each in zip(*parts, strict=True))
