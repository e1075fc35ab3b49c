"""A model is tuned on the jobs that a cluster had: an evolution strategy on its linear path.

    Window, first part --> remade traces --> generations of networks around the present model
    Window, all of it  --> the best one, the present one and the rule, by the jobs of the held part

Nothing is explored: the observed jobs are played again in the fast environment, which knows how
long each ran. A remade trace is blocks of jobs that came one after the other, drawn with
replacement, with the times between them; so bursts stay bursts. All networks of a generation play
the same traces. The weights that evolve are those by which any set network's score is linear in
features of a candidate (`skip`), and how good it is to do nothing more.

Source: an evolution strategy with intermediate recombination (Hansen, arXiv 1604.00772, section 2)
without adapting a covariance: there are few generations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from skep.learn import modelfile
from skep.learn.candidates import CANDIDATE_FEATURES, A
from skep.learn.features import F, G
from skep.learn.guard import T_975, Interval, interval
from skep_lab.fast_env.queue import Batch, Jobs, costs_of
from skep_lab.learn import evolve, protocol
from skep_lab.learn.observed import Window
from skep_lab.learn.progress import Count, Progress, Saved, UnfitError, numbers_of, rng_of
from skep_lab.learn.protocol import Floats
from skep_lab.learn.skep_env import net

Weights = Mapping[str, Any]

SKIP, HOLD = "skip.weight", "hold.2.bias"
COLUMNS = tuple([*CANDIDATE_FEATURES].index(name) for name in evolve.EVOLVES)
HELD_PART = 3
"""The latest third of the jobs is held back: nothing is trained on it."""
JUDGED_MIN = 2
"""Jobs of a block by which networks are judged, at least."""
COOLS = 0.97
"""By how much steps become shorter with each generation."""
BETTER = ("present", "rule")
"""What a new model has to be better than."""


class Settings(NamedTuple):
    """What a run may choose."""

    generations: Count = 40
    population: Annotated[int, msgspec.Meta(ge=2, multiple_of=2)] = 12
    """Networks of a generation: pairs of opposite steps, so it is even."""
    traces: Count = 6
    """Of each generation; every network plays all of them."""
    block: Count = 16
    """Jobs of a block."""
    sigma: float = 0.1
    """Of the first steps, in weights: of larger ones, in thirds of a weight."""
    tuning: Count = 6
    """Remade traces by which the best network is chosen, always the same."""
    every: Count = 4
    """Generations between two looks at them."""
    blocks: Annotated[int, msgspec.Meta(ge=3)] = 10
    """Of the jobs that are held back: each gives one difference."""

    @property
    def jobs_min(self) -> int:
        """Return how many jobs are needed."""
        return HELD_PART * JUDGED_MIN * self.blocks


class Start(NamedTuple):
    """The model that is tuned."""

    weights: Weights
    ranges: modelfile.Ranges
    name: str
    """Its hash; empty: it is the rule that evolution begins with."""


def start_of(model: modelfile.Model | None) -> Start:
    """Return what is tuned.

    Args:
        model: The present model; None: there is none, so it is the rule.
    """
    if model is None:
        return Start(evolve.weights_of(evolve.starts()), modelfile.Ranges(), "")
    return Start(model.net.weights, model.header.ranges, model.name)


def train(
    settings: Settings, seed: int, saved: Saved | None = None, *, window: Window, start: Start
) -> Iterator[Progress]:
    """Evolve a network; the best by the tuning traces is `best` in what is saved.

    Args:
        settings: What may be chosen.
        seed: Of networks and traces.
        saved: What a run goes on from.
        window: The observed jobs.
        start: The present model.

    Raises:
        UnfitError: There are too few jobs.
    """
    if len(window.at) < settings.jobs_min:
        text = f"{len(window.at)} jobs are too few to train on and to hold back:"
        text += f" {settings.jobs_min} at least"
        raise UnfitError(text)
    jobs = np.arange(held_from(window))
    first = numbers_in(start.weights)
    scale = np.maximum(1.0, np.abs(first) / 3.0)
    rng, fixed = np.random.default_rng([seed, 21]), np.random.default_rng([seed, 22])
    tuned = [remade(window, jobs, settings.block, fixed) for _ in range(settings.tuning)]
    base = _score(window, tuned, [start.weights])[0]
    mean, best, score, done = first.copy(), first.copy(), 0.0, 0
    if saved is not None:
        rng, done = rng_of(saved.numbers["rng"]), saved.step
        mean, best = saved.tensors["mean"], saved.tensors["best"]
        score = float(saved.numbers["score"])
    while done < settings.generations:
        traces = [remade(window, jobs, settings.block, rng) for _ in range(settings.traces)]
        half = rng.standard_normal((settings.population // 2, len(first)))
        steps = np.concatenate([half, -half]) * scale * settings.sigma * COOLS**done
        found = _score(window, traces, [weights_of(start.weights, mean + each) for each in steps])
        mean = mean + steps[np.argsort(found, kind="stable")[: len(half)]].mean(0)
        done += 1
        values = {"spread": float(found.std())}
        if done % settings.every == 0 or done == settings.generations:
            gained = float(_score(window, tuned, [weights_of(start.weights, mean)])[0] - base)
            values["tuning"] = gained
            if gained < score:
                score, best = gained, mean

        def save(
            done: int = done, mean: Floats = mean, best: Floats = best, score: float = score
        ) -> Saved:
            numbers = {"rng": numbers_of(rng), "score": score}
            return Saved(done, {"mean": mean.copy(), "best": best.copy()}, numbers)

        yield Progress(done, settings.generations, values, save)


def held_from(window: Window) -> int:
    """Return the first job that is held back."""
    return len(window.at) - len(window.at) // HELD_PART


def numbers_in(weights: Weights) -> Floats:
    """Return the weights of a network that evolve."""
    return np.array([*weights[SKIP][0, [*COLUMNS]], weights[HOLD][0]], dtype=np.float64)


def weights_of(weights: Weights, numbers: Floats) -> dict[str, Any]:
    """Return the weights of a network with others in place of those that evolve."""
    made = {name: np.array(each) for name, each in weights.items()}
    made[SKIP][0, [*COLUMNS]], made[HOLD][0] = numbers[:-1], numbers[-1]
    return made


# --- traces --------------------------------------------------------------------------------------


def remade(window: Window, jobs: Any, block: int, rng: np.random.Generator) -> Jobs:
    """Return as many jobs as were observed, made of blocks of them (block bootstrap).

    Args:
        window: The observed jobs.
        jobs: Those that may be drawn.
        block: How many follow one another as they did.
        rng: Which blocks.
    """
    gaps = np.diff(window.at[jobs], prepend=window.at[jobs[0]])
    firsts = rng.integers(max(len(jobs) - block, 0) + 1, size=-(-len(jobs) // block))
    drawn = (firsts[:, None] + np.arange(min(block, len(jobs)))).ravel()[: len(jobs)]
    return _jobs(window, jobs[drawn], np.cumsum(gaps[drawn]))


def _jobs(window: Window, chosen: Any, at: Any) -> Jobs:
    """Return some jobs as the environment has them; what is stated of speeds is true."""
    growth, spread = window.told_growth[chosen], window.told_spread[chosen]
    return Jobs(
        at=at - at[0],
        run=window.run[chosen],
        workers=window.workers[chosen],
        most=window.most[chosen],
        least=window.least[chosen],
        model=np.arange(len(chosen)),
        told_run=window.told_run[chosen],
        told_growth=growth,
        told_spread=spread,
        growth=growth,
        spread=spread,
        doubt=window.doubt,
    )


def _play(
    window: Window, traces: Sequence[Jobs], weights: Weights, seen: Floats | None = None
) -> list[Floats]:
    """Return the completion times of all jobs under a network, by trace."""
    costs = protocol.COSTS
    nodes = window.gpus // window.node_gpus
    batch = Batch(
        traces,
        [nodes] * len(traces),
        costs_of(costs.start_s, costs.resize_s, costs.stop_s),
        node_gpus=window.node_gpus,
    )
    batch.play(net(weights), seen)
    return batch.jct_s()


def _score(window: Window, traces: Sequence[Jobs], networks: Sequence[Weights]) -> Floats:
    """Return for each network the mean logarithm of mean completion times."""
    return np.array(
        [
            np.mean([np.log(each.mean()) for each in _play(window, traces, weights)])
            for weights in networks
        ]
    )


# --- the judgement -------------------------------------------------------------------------------


def judged(
    window: Window, weights: Weights, others: Sequence[Weights], blocks: int
) -> list[Interval]:
    """Return how much lower completion times are under a network than under each of others.

    All play all jobs that were observed. What counts are those that were held back, in blocks of
    their order: of each, the difference of logarithms of mean completion times. Blocks of one trace
    are not independent, as a queue outlives a block, so the interval is narrower than it should be.

    Args:
        window: The observed jobs.
        weights: The network.
        others: The others.
        blocks: How many.

    Returns:
        Thousandths of logarithms, with an interval of 95 % by Student's t.
    """
    whole = [_jobs(window, np.arange(len(window.at)), window.at)]

    def logs(network: Weights) -> Floats:
        took = _play(window, whole, network)[0][held_from(window) :]
        return np.log([each.mean() for each in np.array_split(took, blocks)])

    mine, made = logs(weights), list[Interval]()
    for other in others:
        found = interval((1000 * (logs(other) - mine)).tolist(), T_975)
        assert found is not None
        made.append(found)
    return made


def model_of(
    saved: Saved, settings: Settings, seed: int, *, window: Window, start: Start, trained_on: str
) -> bytes:
    """Return the file of the best network, with what it comes to on the jobs that were held back.

    Args:
        saved: What the run ended with.
        settings: Those of the run.
        seed: That of the run.
        window: The observed jobs.
        start: The model that it began with.
        trained_on: Which log, and which part of it.
    """
    weights = weights_of(start.weights, saved.tensors["best"])
    rule = evolve.weights_of(evolve.starts())
    report = {
        "jobs": float(len(window.at)),
        "untold": float(window.untold),
        "tuning": float(saved.numbers["score"]),
    }
    founds = judged(window, weights, (start.weights, rule), settings.blocks)
    for name, found in zip(BETTER, founds, strict=True):
        report |= {f"{name}_gain_milli": float(found.mean), f"{name}_low_milli": float(found.low)}
    header = modelfile.Header(
        job=len(weights["job.0.bias"]),
        head=len(weights["head.0.bias"]),
        trained_on=trained_on,
        learner=f"tune: {saved.step} generations of {settings.population} networks",
        seeds=(seed,),
        parent=start.name,
        report=report,
        ranges=_widened(start.ranges, window, weights),
    )
    return modelfile.dump(weights, header)


def is_better(report: Mapping[str, float]) -> bool:
    """Return whether a model is better than the present one and the rule, by both intervals."""
    return all(report[f"{name}_low_milli"] > 0 for name in BETTER)


def _widened(ranges: modelfile.Ranges, window: Window, weights: Weights) -> modelfile.Ranges:
    """Return ranges with what the features of the observed jobs are under a network."""
    if not (ranges.job and ranges.cluster and ranges.candidate):
        return ranges  # Any number is in them.
    seen = np.stack([np.full(F + G + A, np.inf), np.full(F + G + A, -np.inf)])
    _play(window, [_jobs(window, np.arange(len(window.at)), window.at)], weights, seen)
    parts, at = list[tuple[tuple[float, float], ...]](), 0
    for known in (ranges.job, ranges.cluster, ranges.candidate):
        found = seen[:, at : at + len(known)].T
        parts.append(
            tuple(
                (min(low, float(least)), max(high, float(most)))
                for (low, high), (least, most) in zip(known, found, strict=True)
            )
        )
        at += len(known)
    return modelfile.Ranges(job=parts[0], cluster=parts[1], candidate=parts[2])
