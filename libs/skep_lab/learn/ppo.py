"""Proximal policy optimisation of a set network in the environment of Skep's own learner.

An iteration plays random traces of training, each several times. A move is drawn from the softmax
of the scores of all candidates and of doing nothing more. Of a random part of the decisions the
network sees again what it saw; it makes those likelier after which jobs lost less time than in the
other episodes of the same trace at the same time. Those have the same jobs coming, so most of what
a queue costs anyway is in both (common random numbers).

What a decision costs is the time that jobs lose after it, less what is far ahead. `delay` counts
what a placement or a size changes of its job's completion in the decision itself; `jct` counts it
as the job runs (`fast_env.tape`).

The network begins as the rule of `evolve`, as that rule with further hidden units that do nothing
yet, or at random; it may first learn to do what the rule does. The best network by the tuning cases
is kept.

Sources: Schulman et al., "Proximal policy optimization algorithms" (arXiv 1707.06347); Mao et al.,
"Variance reduction for reinforcement learning in input-driven environments" (ICLR 2019), for the
baseline; Ng et al., "Policy invariance under reward transformations" (ICML 1999), for `delay`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skep.learn import modelfile
from skep.learn.candidates import A
from skep.learn.net import POOLS, random_weights
from skep_lab.fast_env import queue
from skep_lab.fast_env import tape as tapes
from skep_lab.fast_env.arrays import NUM
from skep_lab.fast_env.tape import Tape
from skep_lab.learn import evolve, imitate, protocol, skep_env
from skep_lab.learn.evolve import SIZES
from skep_lab.learn.imitate import ADAM
from skep_lab.learn.progress import Count, Progress, Saved, Tensors, numbers_of, rng_of
from skep_lab.learn.protocol import Floats, Ints
from skep_lab.learn.skep_env import Weights

NOISE = 1 << 20
"""Numbers of noise of an iteration: an episode of 240 jobs uses about a tenth."""
DECISIONS_MAX = 1 << 14
"""Of an iteration: what is beyond them is not learned from."""
NEVER_ENDS_S = 86_400.0
"""What a job costs that has not ended when its episode is over."""
GRADIENT_MAX = 1.0
CONTEXT = (POOLS + 1) * SIZES.job
VALUE = 32
"""Width of the hidden layer by which a value is predicted."""
VALUE_WEIGHT = 0.5
RULE_TEMPERATURE = 1e-6
"""The rule does what it finds best."""

Positive = Annotated[float, msgspec.Meta(gt=0)]
Part = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Settings(NamedTuple):
    """What a run may choose."""

    iterations: Count = 60
    traces: Count = 6
    """Of each iteration."""
    episodes: Annotated[int, msgspec.Meta(ge=2)] = 4
    """Of each trace."""
    keeps: Part = 0.1
    """The part of the decisions that is learned from."""
    epochs: Count = 3
    """How often each of them is learned from."""
    batch: Count = 256
    rate: Positive = 0.0003
    clip: Positive = 0.2
    """How much likelier, or less likely, a move may become in an iteration."""
    leap: Positive = 0.3
    """How far logarithms of probabilities may have moved, on average: an iteration ends there."""
    entropy: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The weight of an even choice."""
    temperature: Positive = 0.03
    """By what scores are divided before the softmax."""
    horizon_s: Positive = 3600.0
    """What comes so many seconds later counts 1/e."""
    cost: Literal["delay", "jct"] = "delay"
    baseline: Literal["episodes", "value"] = "episodes"
    """Other episodes of the same trace, or a second head of the network."""
    start: Literal["rule", "wide", "random"] = "rule"
    warm: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Iterations, of all, that first teach it what the rule does."""
    tuning: Annotated[int, msgspec.Meta(ge=1, le=len(protocol.TUNING))] = 48
    """Cases of tuning by which the best network is chosen."""
    every: Count = 4
    """Iterations between two looks at the tuning cases."""


class Batch(NamedTuple):
    """D decisions as the network takes them, with R jobs and P possible candidates in all."""

    jobs: torch.Tensor
    """[R, F]"""
    waits: torch.Tensor
    """[R]"""
    decision: torch.Tensor
    """[R] of each job."""
    cluster: torch.Tensor
    """[D, G]"""
    options: torch.Tensor
    """[P, A]"""
    job: torch.Tensor
    """[P] of each candidate."""
    place: torch.Tensor
    """[P] of each candidate among those of its decision."""
    done: torch.Tensor
    """[D, 1] the place of what was done; the last one is to do nothing more."""
    cost: torch.Tensor
    """[D] what followed; with the baseline `episodes` less what did so in others."""


class Network(imitate.Network):
    """The set network, with a head that predicts what follows."""

    def __init__(self, weights: Weights, seed: int) -> None:
        """Begin with weights, by the names of `skep.learn.net`."""
        super().__init__(SIZES)
        self.load_state_dict({name: torch.tensor(each) for name, each in weights.items()})
        torch.manual_seed(seed)  # The layers above draw as well, and are overwritten.
        self.value = nn.Sequential(nn.Linear(CONTEXT, VALUE), nn.ReLU(), nn.Linear(VALUE, 1))

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return those of the set network, as its file has them."""
        return {
            name: each.numpy().copy()
            for name, each in self.state_dict().items()
            if not name.startswith("value.")
        }

    def decide(self, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logarithms of probabilities [D, places + 1], and what is predicted to follow."""
        embedded, count = self.job(batch.jobs), len(batch.cluster)
        parts = []
        for flags in (batch.waits, ~batch.waits):
            of, only = batch.decision[flags], embedded[flags]
            number = torch.bincount(of, minlength=count).clamp(min=1)[:, None]
            parts += [only.new_zeros(count, SIZES.job).index_add(0, of, only) / number]
            index = of[:, None].expand_as(only)
            parts += [only.new_zeros(count, SIZES.job).scatter_reduce(0, index, only, "amax")]
        context = torch.cat([*parts, self.cluster(batch.cluster)], 1)
        first = self.head[0]
        assert isinstance(first, nn.Linear)
        of_job, of_context, of_option = torch.split(first.weight, [SIZES.job, CONTEXT, A], 1)
        decision = batch.decision[batch.job]
        hidden = batch.options @ of_option.T + (embedded @ of_job.T)[batch.job]
        hidden = (hidden + (context @ of_context.T + first.bias)[decision]).relu()
        scores = self.head[2](hidden)[:, 0] + self.skip(batch.options)[:, 0]
        table = scores.new_full((count, int(batch.place.max()) + 1), imitate.IMPOSSIBLE)
        table = table.index_put((decision, batch.place), scores / temperature)
        logs = torch.cat([table, self.hold(context) / temperature], 1).log_softmax(1)
        return logs, self.value(context.detach())[:, 0]


def wide(weights: Weights, seed: int) -> dict[str, NDArray[Any]]:
    """Return a network that says the same, in which hidden units without use have random inputs.

    Args:
        weights: Those of the network.
        seed: Of the random numbers.
    """
    made = {name: each.copy() for name, each in weights.items()}
    drawn = random_weights(seed, SIZES)
    for layer in ("job.0", "job.2", "cluster.0", "head.0", "hold.0"):
        weight, bias = made[f"{layer}.weight"], made[f"{layer}.bias"]
        unused = ~weight.any(1) & (bias == 0)
        weight[unused] = drawn[f"{layer}.weight"][unused]
    return made


def start_of(settings: Settings, seed: int) -> dict[str, NDArray[Any]]:
    """Return the weights of the network that a run begins with."""
    if settings.start == "random":
        return random_weights(seed, SIZES)
    rule = evolve.weights_of(evolve.starts())
    return wide(rule, seed) if settings.start == "wide" else rule


# --- episodes ------------------------------------------------------------------------------------


class Played(NamedTuple):
    """The episodes of an iteration."""

    tape: Tape
    cost: Floats
    """[D] by decision that was kept."""
    jct_s: Floats
    """Mean of each episode."""


def play(
    settings: Settings, weights: Weights, rng: np.random.Generator, temperature: float
) -> Played:
    """Play random traces of training, each several times.

    Args:
        settings: Those of the run.
        weights: Of the network that plays.
        rng: Of traces and moves.
        temperature: By what scores are divided.
    """
    traces = skep_env.training_cases(rng, settings.traces)
    cases = [case for case in traces for _ in range(settings.episodes)]
    jobs = [skep_env.jobs_of(protocol.draw(*case)) for case in traces]
    batch = skep_env.batch_of(cases, [each for each in jobs for _ in range(settings.episodes)])
    steps = len(cases) * (queue.DECISIONS_MAX * batch.state.jobs.shape[1] + 2)
    above = tapes.threshold(settings.keeps, temperature)
    tape = tapes.tape_of(len(cases), DECISIONS_MAX, steps, above)
    noise = tapes.noise_of(rng, NOISE, temperature)
    batch.play(skep_env.net(weights), noise=noise, tape=tape)
    jct_s = np.array([float(each.mean()) for each in batch.jct_s()])
    return Played(tape, costs(settings, tape, batch.state.num[:, NUM.open]), jct_s)


def costs(settings: Settings, tape: Tape, left: Ints) -> Floats:
    """Return what followed each decision that was kept, over what all jobs of its trace took.

    With the baseline `episodes`: less what followed at the same time in the others of its trace.

    Args:
        settings: Those of the run.
        tape: Its episodes.
        left: Jobs of each episode that have not ended.
    """
    which = tapes.DELAY if settings.cost == "delay" else tapes.JCT
    runs = [tape.steps[a:b] for a, b in zip(tape.begins[:-1], tape.begins[1:], strict=True)]
    follows = [
        discounted(steps[:, tapes.AT], steps[:, which], settings.horizon_s, NEVER_ENDS_S * count)
        for steps, count in zip(runs, left, strict=True)
    ]
    # Of the decisions of one instant the first has the cost of all of them.
    firsts = [np.unique(steps[:, tapes.AT], return_index=True) for steps in runs]
    decisions = tape.decisions[: tape.counts[tapes.DECISIONS]]
    made = np.zeros(len(decisions))
    for b, steps in enumerate(runs):
        first = b - b % settings.episodes
        group = range(first, first + settings.episodes)
        mine = decisions[:, tapes.ENVIRONMENT] == b
        at = decisions[mine, tapes.STEP_AT] - tape.begins[b]
        cost = follows[b][at]
        if settings.baseline == "episodes":
            when = steps[at, tapes.AT]
            then = {k: np.interp(when, firsts[k][0], follows[k][firsts[k][1]]) for k in group}
            cost = then.pop(b) - np.mean([*then.values()], axis=0)
        made[mine] = cost / max(np.mean([runs[k][:, tapes.JCT].sum() for k in group]), 1.0)
    return made


def discounted(at: Floats, cost: Floats, horizon_s: float, last: float) -> Floats:
    """Return what follows each step, where later costs count less.

    Args:
        at: Seconds of each step.
        cost: Of each step.
        horizon_s: See `Settings`.
        last: The cost after all steps.
    """
    made, total, kept = np.zeros(len(at)), last, np.exp(-np.diff(at, append=at[-1:]) / horizon_s)
    for k in range(len(at) - 1, -1, -1):
        total = cost[k] + kept[k] * total
        made[k] = total
    return made


# --- learning ------------------------------------------------------------------------------------


def batch_of(played: Played, chosen: Ints) -> Batch:
    """Return some decisions as the network takes them.

    Args:
        played: Episodes.
        chosen: Places of the decisions.
    """
    tape = played.tape
    first, ends = tape.decisions[chosen], tape.decisions[chosen + 1]
    jobs, decision, _ = _ranges(first[:, tapes.JOBS_AT], ends[:, tapes.JOBS_AT])
    options, of, place = _ranges(first[:, tapes.OPTIONS_AT], ends[:, tapes.OPTIONS_AT])
    counts = np.bincount(decision, minlength=len(chosen))
    done = first[:, tapes.CHOSEN]
    return Batch(
        jobs=torch.from_numpy(tape.jobs[jobs]),
        waits=torch.from_numpy(tape.waits[jobs]),
        decision=torch.from_numpy(decision),
        cluster=torch.from_numpy(tape.clusters[chosen]),
        options=torch.from_numpy(tape.options[options]),
        job=torch.from_numpy((np.cumsum(counts) - counts)[of] + tape.row[options]),
        place=torch.from_numpy(place),
        done=torch.from_numpy(np.where(done < 0, place.max() + 1, done))[:, None],
        cost=torch.from_numpy(played.cost[chosen].astype(np.float32)),
    )


def _ranges(first: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Return all numbers of ranges, of which range each is, and its place there."""
    counts = ends - first
    of = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first[of] + place, of, place


class Learner:
    """A network that plays and learns."""

    def __init__(self, settings: Settings, seed: int) -> None:
        """Begin a run."""
        self.settings, self.rng = settings, np.random.default_rng([seed, 21])
        self.net = Network(start_of(settings, seed), seed)
        self.adam = torch.optim.Adam(self.net.parameters(), settings.rate)
        self.rule = evolve.weights_of(evolve.starts())
        self.step = self.updates = 0
        self.tuned = skep_env.tuning_cases(settings.tuning)
        self.tuned_jobs = [skep_env.jobs_of(protocol.draw(*case)) for case in self.tuned]
        self.base = 0.0
        self.base = self.tuning(self.rule)
        self.best = self.net.weights()
        self.score = self.tuning(self.best) if settings.start == "random" else 0.0

    def tuning(self, weights: Weights) -> float:
        """Return the mean logarithm of the mean JCT of the tuning cases, less that of the rule."""
        found = skep_env.mean_jct_s([skep_env.net(weights)], self.tuned, self.tuned_jobs)
        return float(np.log(found).mean()) - self.base

    def iterate(self) -> dict[str, float]:
        """Play, and learn from it; return the point of the curves."""
        settings, warm = self.settings, self.step < self.settings.warm
        weights, temperature = self.net.weights(), settings.temperature
        if warm:
            weights, temperature = self.rule, RULE_TEMPERATURE
        played = play(settings, weights, self.rng, temperature)
        count, steps = (int(played.tape.counts[at]) for at in (tapes.DECISIONS, tapes.STEPS))
        values = {"jct_log": float(np.log(played.jct_s).mean()), "steps": steps, "kept": count}
        order = self.rng.permutation(count)
        cut = range(0, count, settings.batch)
        given = [batch_of(played, order[at : at + settings.batch]) for at in cut]
        if count > 1:
            values |= self.learn(given, warm=warm)
        self.step += 1
        if self.step % settings.every == 0 or self.step == settings.iterations:
            values["tuning"] = self.tuning(self.net.weights())
            if values["tuning"] < self.score:
                self.best, self.score = self.net.weights(), values["tuning"]
        return values

    def learn(self, given: list[Batch], *, warm: bool) -> dict[str, float]:
        """Learn from decisions: to do the same, or to make those likelier that cost less."""
        settings = self.settings
        spread = float(torch.cat([batch.cost for batch in given]).std()) or 1.0
        with torch.no_grad():
            before = [self.net.decide(batch, settings.temperature) for batch in given]
        sums = list[tuple[float, float, float]]()
        for at in np.concatenate(
            [self.rng.permutation(len(given)) for _ in range(settings.epochs)]
        ):
            batch, (old, expected) = given[at], before[at]
            logs, value = self.net.decide(batch, settings.temperature)
            change = (logs - old).gather(1, batch.done)[:, 0]
            moved = float(change.detach().abs().mean())
            if moved > settings.leap and not warm:
                break
            cost = batch.cost / spread
            if warm:
                loss = -logs.gather(1, batch.done).mean()
            else:
                gain = -cost if settings.baseline == "episodes" else expected - cost
                ratio = change.exp()
                near = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
                loss = -torch.minimum(ratio * gain, near * gain).mean()
            entropy = -(logs.exp() * logs).sum(1).mean()
            whole = loss - settings.entropy * entropy
            if settings.baseline == "value":
                whole = whole + VALUE_WEIGHT * (value - cost).square().mean()
            self.adam.zero_grad()
            whole.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.net.parameters(), GRADIENT_MAX)
            self.adam.step()
            self.updates += 1
            sums.append((float(loss.detach()), float(entropy.detach()), moved))
        loss_mean, entropy_mean, moved = np.mean(sums, axis=0)
        return {
            "loss": float(loss_mean),
            "entropy": float(entropy_mean),
            "moved": float(moved),
            "updates": len(sums),
        }

    def save(self) -> Saved:
        """Return all that training goes on from."""
        tensors = {
            f"net.{name}": each.numpy().copy() for name, each in self.net.state_dict().items()
        }
        for name, each in self.net.named_parameters():
            state = self.adam.state[each]
            tensors |= {f"{part}.{name}": state[part].numpy().copy() for part in ADAM if state}
        tensors |= {f"best.{name}": each.copy() for name, each in self.best.items()}
        numbers = {"rng": numbers_of(self.rng), "updates": self.updates, "score": self.score}
        return Saved(self.step, tensors, numbers)

    def load(self, saved: Saved) -> None:
        """Go on from there."""
        self.step, self.rng = saved.step, rng_of(saved.numbers["rng"])
        self.updates = int(saved.numbers["updates"])
        self.best, self.score = best_of(saved.tensors), float(saved.numbers["score"])
        self.net.load_state_dict(
            {name: torch.tensor(each) for name, each in _named(saved.tensors, "net.").items()}
        )
        states = [_named(saved.tensors, f"{part}.") for part in ADAM]
        for name, each in self.net.named_parameters():
            if name in states[0]:
                parts = {
                    part: torch.tensor(of[name]) for part, of in zip(ADAM, states, strict=True)
                }
                self.adam.state[each] = {"step": torch.tensor(float(self.updates)), **parts}


def _named(tensors: Tensors, prefix: str) -> dict[str, NDArray[Any]]:
    """Return the tensors whose names begin like this, without that."""
    return {
        name.removeprefix(prefix): each.copy()
        for name, each in tensors.items()
        if name.startswith(prefix)
    }


def train(settings: Settings, seed: int, saved: Saved | None = None) -> Iterator[Progress]:
    """Train a network; the best by the tuning cases is `best` in what is saved.

    Args:
        settings: What may be chosen.
        seed: Of weights, traces and moves.
        saved: What a run goes on from.
    """
    torch.set_num_threads(1)
    learner = Learner(settings, seed)
    if saved is not None:
        learner.load(saved)
    while learner.step < settings.iterations:
        values = learner.iterate()
        yield Progress(learner.step, settings.iterations, values, learner.save)


def best_of(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """Return the weights of the best network of a run, from what it saved."""
    return _named(tensors, "best.")


def model_of(saved: Saved, settings: Settings, seed: int) -> bytes:
    """Return the file of the best network.

    Args:
        saved: What the run ended with.
        settings: Those of the run.
        seed: That of the run.
    """
    weights = best_of(saved.tensors)
    header = modelfile.Header(
        job=SIZES.job,
        head=SIZES.head,
        trained_on="skep_lab.learn.protocol, training traces",
        learner=f"ppo: {saved.step} iterations of {settings.traces * settings.episodes} episodes",
        seeds=(seed,),
        report={"tuning": float(saved.numbers["score"])},
        ranges=skep_env.ranges_of(weights),
    )
    return modelfile.dump(weights, header)
