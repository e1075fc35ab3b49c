"""Why SCHED²'s learner does not find `hold`: what states and single decisions are worth.

    python -m skep_lab.learn.sched2_why

prints, on tuning traces, what becomes of `hold` if some of its actions are random; and from states
of `hold` and of a random choice, the returns of both by horizon, and by how much they change if a
job is started spread where `hold` holds. All jobs of an episode are known at its beginning, so a
state can be copied and played to its end in several ways.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from skep_lab.fast_env.arrays import JOB, NEVER, NUM, Floats, Ints
from skep_lab.fast_env.sched2 import Batch
from skep_lab.fast_env.sched2_rules import NAMES, Rule, play_all
from skep_lab.learn import sched2_play
from skep_lab.learn.sched2_protocol import REALISTIC, TUNING
from skep_lab.learn.sched2_teachers import choose

TRACES = np.array(TUNING[:20])
CHANCES = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2)
HORIZONS_H = (2.0, 8.0, 24.0, 72.0)
DECISIONS = {0.0: 1300, 1.0: 1800}
"""How many come before states are looked at, by the part of random actions: episodes are half over
then."""
ROUNDS, EVERY = 30, 25
"""How often all states are looked at, each after so many further decisions."""


def noisy(chance: float, rng: np.random.Generator, batch: Batch) -> sched2_play.Act:
    """Return `hold` with a part of random possible actions."""

    def act(seen: NDArray[np.float32], may: NDArray[np.bool_]) -> Ints:
        chosen = choose("hold", seen, batch.options)
        random = np.where(may, rng.random(may.shape), -1.0).argmax(1)
        made: Ints = np.where(rng.random(len(seen)) < chance, random, chosen)
        return made

    return act


def returns(batch: Batch, rule: Rule, first: Ints | None = None) -> Floats:
    """Return the discounted effectiveness of all later starts [B, horizons]; nothing is changed.

    Args:
        batch: The states.
        rule: What is followed from now on.
        first: Actions that are taken before; None: none are.
    """
    copy = Batch(len(batch.state.num), batch.options)
    for to, there in zip(copy.state, batch.state, strict=True):
        to[...] = there
    now, waits = copy.state.num[:, NUM.now].copy(), copy.state.jobs[:, :, JOB.first] == NEVER
    if first is not None:
        copy.step(first)
    play_all(copy.state, rule)
    jobs = copy.state.jobs
    effect = jobs[:, :, JOB.run] / (jobs[:, :, JOB.ended] - jobs[:, :, JOB.at])
    hours = np.where(waits, jobs[:, :, JOB.first] - now[:, None], 0) / 3600e9
    return np.stack(
        [(waits * effect * np.exp(-hours / each)).sum(1) for each in HORIZONS_H], axis=1
    )


def spread_instead(batch: Batch, act: sched2_play.Act, rounds: int, every: int) -> list[Floats]:
    """Return what starting a job spread adds to returns where `hold` holds, and then goes on.

    Args:
        batch: The states; they go on.
        act: What is done between.
        rounds: How often all of them are looked at.
        every: After so many decisions of `act`.
    """
    window, rule, found = batch.options.window, NAMES["hold"], list[Floats]()
    rule = rule._replace(window=window)
    for _ in range(rounds):
        for _ in range(every):
            batch.step(act(batch.sight.observation, batch.sight.mask))
        may = batch.sight.mask[:, :window]
        holds = choose("hold", batch.sight.observation, batch.options) == window
        open_jobs = batch.state.num[:, NUM.open] > batch.options.jobs // 10
        these = holds & may.any(1) & open_jobs
        if these.any():
            held = returns(batch, rule, np.full(len(may), window))
            found += list((returns(batch, rule, may.argmax(1)) - held)[these])
    return found


def main(say: Callable[[str], object] = sys.stdout.write) -> int:
    """Run the command."""
    rng = np.random.default_rng(0)
    batch = Batch(len(TRACES), REALISTIC)
    for chance in CHANCES:
        played = sched2_play.play(noisy(chance, rng, batch), TRACES, REALISTIC)
        say(
            f"{json.dumps({'random': chance, 'jct_s': float((played.ended - played.at).mean())})}\n"
        )
    for chance, decisions in DECISIONS.items():
        batch.reset(TRACES)
        act = noisy(chance, rng, batch)
        for _ in range(decisions):
            batch.step(act(batch.sight.observation, batch.sight.mask))
        for name in ("hold", "random"):
            value = returns(batch, NAMES[name])
            row = {"random before": chance, "then": name, "horizons_h": HORIZONS_H}
            row |= {"mean": value.mean(0).tolist(), "deviation": value.std(0).tolist()}
            say(f"{json.dumps(row)}\n")
        batch.reset(TRACES)
        added = np.array(spread_instead(batch, act, ROUNDS, EVERY))
        row = {"random before": chance, "spread instead": len(added), "horizons_h": HORIZONS_H}
        row |= {"mean": added.mean(0).tolist(), "deviation": added.std(0).tolist()}
        say(f"{json.dumps(row)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
