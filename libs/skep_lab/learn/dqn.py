"""SCHED²'s learner: a deep Q network with shared weights, a target network and prioritised replay.

Sources: SCHED², sections III-B to III-F; Mnih et al. 2015 (target network, epsilon-greedy); Schaul
et al. 2016 (proportional prioritised replay on a sum tree); van Hasselt et al. 2016 (double DQN).

The paper gives the state, the actions, the reward, the form of the network (figure 6, equations 3
to 5), 30 traces of 1,000 jobs, and 2,400 episodes. It leaves open, and `Settings` chooses:

    discount            by decision, or by the time that passes (`horizon_s`)
    scale of the state  a GPU that is taken has 1 more than its scaled remaining time
    layers              64 and 32 for each server, 128 for jobs and statistics, then 256
    learning rate       Adam; the loss is Huber's
    target network      replaced every `target_every` updates
    epsilon             from 1 to `epsilon_last`, over the first `explores` part of the jobs
    replay              its size, the exponents of priorities and of their correction, returns over
                        `ahead` decisions, how many decisions there are to an update
    impossible actions  masked, when acting and in the target

One decision of each environment is a row of the replay memory, which holds observations as
16-bit numbers and makes returns when it is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skep_lab.fast_env.arrays import JOB, NUM, Floats, Ints
from skep_lab.fast_env.sched2 import STATISTICS, Batch, Options
from skep_lab.learn.progress import Progress, Saved, Tensors, numbers_of, rng_of
from skep_lab.learn.sched2_protocol import EPISODES, REALISTIC, TRAINING
from skep_lab.learn.sched2_teachers import JOB_FEATURES

HOUR_NS = 3600.0 * 1e9
PRIORITY_LEAST = 1e-3
"""Added to each error, so that every transition can be drawn."""
BETA_FIRST = 0.4
"""Schaul et al., table 3: the correction of priorities begins with this, and ends with 1."""
CLIP = 10.0
"""The largest norm of a gradient."""
SORTS = "sorts"
"""Weights have this if their network sees nodes by free GPUs."""
UNKNOWN_VALUE = -1e9
"""The value of an action that is not possible."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a training run goes by."""

    environment: Options = REALISTIC
    traces: tuple[int, ...] = TRAINING
    """Seeds of the traces, in turn; empty: every episode has a new one."""
    episodes: int = EPISODES
    envs: int = 60
    """Environments that are played beside one another."""
    reward: Literal["effectiveness", "waiting"] = "effectiveness"
    """`effectiveness`: of each job that is started (equation 2). `waiting`: less the hours that
    jobs wait, and less those that a job will run beyond its ideal time."""
    scale: float = 0.1
    """By what rewards are multiplied."""
    gamma: float = 0.99
    """The discount of each decision, if `horizon_s` is 0."""
    horizon_s: float = 0.0
    """Above 0: the discount is e^(-t/horizon) for the time t that passes; decisions of one instant
    count fully."""
    ahead: int = 5
    """Decisions whose rewards are added before the value of the state after them is estimated."""
    gap: float = 0.0
    """Above 0: an action is valued less once more by this part of what it loses against the best
    one, so that losses become 1 / (1 - gap) times as large (Bellemare et al. 2016)."""
    sorts: bool = False
    """Whether the network sees nodes by free GPUs, instead of each in a place of its own."""
    double: bool = False
    """Whether the network chooses the action that the target network values."""
    rate: float = 5e-4
    batch: int = 256
    decisions: int = 120
    """Of all environments, for each update."""
    target_every: int = 200
    memory: int = 200_000
    """Decisions in the replay memory."""
    alpha: float = 0.6
    epsilon_last: float = 0.02
    explores: float = 0.1
    tells: int = 500
    """Updates between two points of the curves."""
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: A value makes no sense.
        """
        counts = (self.episodes, self.envs, self.ahead, self.batch, self.target_every, self.tells)
        wrong = {
            "episodes, envs, ahead, batch, target_every and tells are 1 or more": min(counts) < 1,
            "gamma is from 0 to 1, and 0 or more are horizon_s and alpha": not 0 <= self.gamma <= 1
            or min(self.horizon_s, self.alpha) < 0,
            "gap is from 0 to below 1": not 0 <= self.gap < 1,
            "epsilon_last and explores are from 0 to 1": not 0 <= self.epsilon_last <= 1
            or not 0 < self.explores <= 1,
            "decisions is a multiple of envs": self.decisions % self.envs != 0
            or self.decisions < self.envs,
            "memory has room for a batch, and for 2 + ahead decisions of each environment": (
                self.memory < max(self.batch, (self.ahead + 2) * self.envs)
            ),
            "environment has nodes of one type": len(self.environment.nodes) != 1,
        }
        for reason, true in wrong.items():
            if true:
                raise ValueError(reason)


class Network(nn.Module):
    """Values of all actions: the same weights for every server (figure 6, equations 3 to 5)."""

    def __init__(self, nodes: int, node_gpus: int, window: int, *, sorts: bool = False) -> None:
        """Take the sizes of the state; weights are torch's random ones."""
        super().__init__()
        self.nodes, self.node_gpus = nodes, node_gpus
        rest = window * JOB_FEATURES + STATISTICS
        self._sorts = sorts
        if sorts:
            self.register_buffer(SORTS, torch.ones(()))
        self.server = nn.Sequential(
            nn.Linear(node_gpus, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()
        )
        self.jobs = nn.Sequential(nn.Linear(rest, 128), nn.ReLU())
        self.values = nn.Sequential(
            nn.Linear(nodes * 32 + 128, 256), nn.ReLU(), nn.Linear(256, window + 1)
        )

    def forward(self, seen: Tensor) -> Tensor:
        """Return the value of each action [B, J + 1] for observations [B, D]."""
        gpus = self.nodes * self.node_gpus
        left = seen[:, :gpus].reshape(-1, self.nodes, self.node_gpus)
        # A GPU that is taken for a minute more is seen as 0.016, a free one as 0: too alike.
        left = left + (left > 0.0)
        if self._sorts:
            taken = (left > 0.0).sum(2) * 2.0 * self.node_gpus + left.sum(2)
            order = taken.argsort(dim=1, stable=True)
            left = left.gather(1, order.unsqueeze(2).expand_as(left))
        servers = self.server(left)
        both = torch.cat([servers.flatten(1), self.jobs(seen[:, gpus:])], 1)
        made: Tensor = self.values(both)
        return made


def network(options: Options, *, sorts: bool = False) -> Network:
    """Return an untrained network for a setting."""
    return Network(sum(options.nodes), options.node_gpus, options.window, sorts=sorts)


def weights_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return the weights of a network as arrays."""
    return {name: each.detach().cpu().numpy().copy() for name, each in model.state_dict().items()}


def with_weights(options: Options, weights: Tensors) -> Network:
    """Return a network with given weights.

    Args:
        options: The setting that they were trained in.
        weights: As from `weights_of`.
    """
    made = network(options, sorts=SORTS in weights)
    made.load_state_dict({name: torch.from_numpy(np.array(each)) for name, each in weights.items()})
    return made


class SumTree:
    """Weights of places; a place is found by a number below their sum (Schaul et al., B.2.1)."""

    def __init__(self, places: int) -> None:
        """Begin with weights of 0."""
        self.leaves = 1 << max(places - 1, 1).bit_length()
        self.nodes: Floats = np.zeros(2 * self.leaves)

    def put(self, places: Ints, weights: Floats | float) -> None:
        """Set weights."""
        at = places + self.leaves
        self.nodes[at] = weights
        while at[0] > 1:
            at = at // 2
            self.nodes[at] = self.nodes[2 * at] + self.nodes[2 * at + 1]

    def find(self, numbers: Floats) -> Ints:
        """Return for each number the place at which the sum of the weights before passes it."""
        at, left = np.ones(len(numbers), np.int64), numbers.copy()
        while at[0] < self.leaves:
            at = 2 * at
            below = self.nodes[at]
            right = (left >= below) & (self.nodes[at + 1] > 0.0)
            left -= np.where(right, below, 0.0)
            at += right
        return at - self.leaves

    @property
    def total(self) -> float:
        """Return the sum of the weights."""
        return float(self.nodes[1])


class Drawn(NamedTuple):
    """Transitions from the replay memory."""

    places: Ints
    seen: NDArray[np.float32]
    action: Ints
    may: NDArray[np.bool_]
    reward: Floats
    """Added over the decisions ahead."""
    then: NDArray[np.float32]
    may_then: NDArray[np.bool_]
    keeps: Floats
    """By what the value of the state after them counts; 0: the episode was over."""
    weight: Floats


class Memory:
    """The latest decisions of all environments, row by row, drawn by priority."""

    def __init__(self, settings: Settings, features: int, actions: int) -> None:
        """Allocate it."""
        envs = settings.envs
        self.envs, self.ahead, self.alpha = envs, settings.ahead, settings.alpha
        self.rows = settings.memory // envs
        self.seen = np.zeros((self.rows, envs, features), np.float16)
        self.may = np.zeros((self.rows, envs, actions), np.bool_)
        self.action = np.zeros((self.rows, envs), np.uint8)
        self.reward = np.zeros((self.rows, envs), np.float32)
        self.keeps = np.zeros((self.rows, envs), np.float32)
        self.tree = SumTree(self.rows * envs)
        self.count, self.most = 0, 1.0
        """Rows that were ever written; the largest priority that there was."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return its arrays by name, to be stored, or written to."""
        names = ("seen", "may", "action", "reward", "keeps")
        return {**{name: getattr(self, name) for name in names}, "tree": self.tree.nodes}

    def see(self, seen: NDArray[np.float32], may: NDArray[np.bool_]) -> None:
        """Begin a row with what all environments show before a decision."""
        row = self.count % self.rows
        self.seen[row], self.may[row] = seen, may
        self.tree.put(self._places(row), 0.0)

    def add(self, action: Ints, reward: Floats, keeps: Floats) -> None:
        """End the row with what was decided, and what came of it.

        Args:
            action: By environment.
            reward: By environment.
            keeps: The discount of what comes after; 0: the episode was over.
        """
        row = self.count % self.rows
        self.action[row], self.reward[row], self.keeps[row] = action, reward, keeps
        self.count += 1
        if self.count > self.ahead:
            self.tree.put(self._places((self.count - 1 - self.ahead) % self.rows), self.most)

    def _places(self, row: int) -> Ints:
        return np.arange(row * self.envs, (row + 1) * self.envs)

    def draw(self, count: int, beta: float, rng: np.random.Generator) -> Drawn:
        """Return transitions by priority, one from each of `count` equal parts of their sum.

        Args:
            count: How many.
            beta: The exponent of the correction of priorities, 0 to 1.
            rng: Random numbers.
        """
        total = self.tree.total
        places = self.tree.find((np.arange(count) + rng.random(count)) * (total / count))
        row, env = places // self.envs, places % self.envs
        reward, keeps = np.zeros(count), np.ones(count)
        for step in range(self.ahead):
            at = (row + step) % self.rows
            reward += keeps * self.reward[at, env]
            keeps *= self.keeps[at, env]
        then = (row + self.ahead) % self.rows
        part = self.tree.nodes[places + self.tree.leaves] / total
        weight = (part * min(self.count, self.rows) * self.envs) ** -beta
        return Drawn(
            places=places,
            seen=self.seen[row, env].astype(np.float32),
            action=self.action[row, env].astype(np.int64),
            may=self.may[row, env],
            reward=reward,
            then=self.seen[then, env].astype(np.float32),
            may_then=self.may[then, env],
            keeps=keeps,
            weight=weight / weight.max(),
        )

    def learn(self, places: Ints, errors: Floats) -> None:
        """Set the priorities of drawn transitions by their errors."""
        weights = (np.abs(errors) + PRIORITY_LEAST) ** self.alpha
        self.most = max(self.most, float(weights.max()))
        self.tree.put(places, weights)


class _Run:
    """A training run: all that changes while it goes on."""

    def __init__(self, settings: Settings, seed: int, begins: Tensors | None) -> None:
        torch.manual_seed(seed)
        self.settings, self.rng = settings, np.random.default_rng(seed)
        options, sorts = settings.environment, settings.sorts
        made = network(options, sorts=sorts) if begins is None else with_weights(options, begins)
        self.model = made.to(settings.device)
        self.target = network(options, sorts=SORTS in made.state_dict()).to(settings.device)
        self.target.load_state_dict(self.model.state_dict())
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=settings.rate, fused=settings.device == "cuda"
        )
        cycle = np.array(self.rng.permutation(settings.traces), np.int64)
        self.batch = Batch(settings.envs, settings.environment, cycle)
        first = (
            cycle[np.arange(settings.envs) % len(cycle)]
            if len(cycle)
            else self.rng.integers(2**31 - 1, size=settings.envs)
        )
        sight = self.batch.reset(first)
        self.memory = Memory(settings, sight.observation.shape[1], sight.mask.shape[1])
        self.updates, self.episodes, self.loss = 0, 0, 0.0
        self.latest: list[list[float]] = []
        """Of the latest episodes: mean completion time, effectiveness, makespan."""

    # --- one decision of every environment -------------------------------------------------------

    def part(self) -> float:
        """Return how much of the run is over, 0 to 1: the part of its jobs that have ended."""
        jobs = self.settings.environment.jobs
        ended = (self.episodes + self.settings.envs) * jobs - int(
            self.batch.state.num[:, NUM.open].sum()
        )
        return min(ended / (self.settings.episodes * jobs), 1.0)

    def epsilon(self) -> float:
        """Return with what probability an action is random."""
        last = self.settings.epsilon_last
        return max(1.0 - (1.0 - last) * self.part() / self.settings.explores, last)

    def act(self) -> Ints:
        """Return an action for each environment, by epsilon-greedy over the possible ones."""
        sight = self.batch.sight
        with torch.no_grad():
            seen = torch.from_numpy(sight.observation).to(self.settings.device)
            values = self.model(seen).cpu().numpy()
        greedy = np.where(sight.mask, values, UNKNOWN_VALUE).argmax(1)
        chance = np.where(sight.mask, self.rng.random(sight.mask.shape), -1.0).argmax(1)
        random = self.rng.random(len(greedy)) < self.epsilon()
        chosen: Ints = np.where(random, chance, greedy)
        return chosen

    def step(self) -> None:
        """Decide once in every environment, and note what came of it."""
        sight, state = self.batch.sight, self.batch.state
        self.memory.see(sight.observation, sight.mask)
        actions = self.act()
        before, queued = state.num[:, NUM.now].copy(), state.num[:, NUM.queued].copy()
        each = np.arange(len(actions))
        chosen = state.jobs[each, state.queue[each, np.minimum(actions, queued - 1)]].copy()
        self.batch.step(actions)
        # Where an episode ended, its latest time is not shown; nothing counts after it anyway.
        passed = np.where(sight.done, 0, state.num[:, NUM.now] - before)
        reward = sight.reward.copy()
        if self.settings.reward == "waiting":
            run, effect = chosen[:, JOB.run], np.maximum(sight.reward, 1e-9)
            # Time goes on with a hold, or when no job waits any more: then nothing is counted.
            beyond = np.where(
                sight.reward > 0, run / effect - (before - chosen[:, JOB.at]) - run, passed * queued
            )
            reward = -beyond / HOUR_NS
        keeps = np.full(len(actions), self.settings.gamma)
        if self.settings.horizon_s:
            keeps = np.exp(-passed / (self.settings.horizon_s * 1e9))
        keeps = np.where(sight.done, 0.0, keeps)
        self.memory.add(actions, reward * self.settings.scale, keeps)
        for env in np.flatnonzero(sight.done):
            self.episodes += 1
            self.latest.append([float(each) for each in sight.finished[env]])

    # --- one update ------------------------------------------------------------------------------

    def update(self) -> None:
        """Learn from drawn transitions, by the error of their values."""
        settings = self.settings
        beta = BETA_FIRST + (1.0 - BETA_FIRST) * self.part()
        drawn = self.memory.draw(settings.batch, beta, self.rng)
        # One copy to the device for all numbers: each takes as long as a whole layer.
        numbers = np.concatenate(
            [
                drawn.seen,
                drawn.then,
                drawn.may_then,
                drawn.may,
                drawn.action[:, None],
                drawn.reward[:, None],
                drawn.keeps[:, None],
                drawn.weight[:, None],
            ],
            axis=1,
            dtype=np.float32,
        )
        given = torch.from_numpy(numbers).to(settings.device)
        wide, actions = drawn.seen.shape[1], drawn.may_then.shape[1]
        seen, then = given[:, :wide], given[:, wide : 2 * wide]
        may_then, may, rest = given[:, 2 * wide :].tensor_split((actions, 2 * actions), 1)
        action, reward, keeps, weight = rest.unbind(1)
        action = action.long().unsqueeze(1)
        with torch.no_grad():
            after = self.target(then).masked_fill(may_then == 0.0, UNKNOWN_VALUE)
            if settings.double:
                choice = self.model(then).masked_fill(may_then == 0.0, UNKNOWN_VALUE)
                best = after.gather(1, choice.argmax(1, True)).squeeze(1)
            else:
                best = after.amax(1)
            wanted = reward + keeps * best
            if settings.gap:
                now = self.target(seen).masked_fill(may == 0.0, UNKNOWN_VALUE)
                wanted -= settings.gap * (now.amax(1) - now.gather(1, action).squeeze(1))
        value = self.model(seen).gather(1, action).squeeze(1)
        loss = (weight * nn.functional.smooth_l1_loss(value, wanted, reduction="none")).mean()
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimiser.step()
        told = torch.cat([(value - wanted).detach(), loss.detach().reshape(1)]).cpu().numpy()
        self.memory.learn(drawn.places, told[:-1].astype(np.float64))
        self.loss += 0.01 * (float(told[-1]) - self.loss)
        self.updates += 1
        if self.updates % settings.target_every == 0:
            self.target.load_state_dict(self.model.state_dict())

    # --- what it goes on from --------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that change, to be stored, or written to."""
        batch = self.batch
        parts: list[tuple[str, Any]] = [("state", batch.state), ("sight", batch.sight)]
        made = {f"memory/{name}": each for name, each in self.memory.arrays().items()}
        for part, fields in parts:
            made |= {f"{part}/{name}": each for name, each in fields._asdict().items()}
        return {**made, "tally": batch.tally}

    def save(self) -> Saved:
        """Return all that the run goes on from."""
        tensors = {name: each.copy() for name, each in self.arrays().items()}
        for name, model in (("model", self.model), ("target", self.target)):
            tensors |= {f"{name}/{key}": each for key, each in weights_of(model).items()}
        for at, each in self.optimiser.state_dict()["state"].items():
            tensors |= {
                f"adam/{at}/{key}": value.cpu().numpy().copy() for key, value in each.items()
            }
        numbers = {
            "rng": numbers_of(self.rng),
            "updates": self.updates,
            "episodes": self.episodes,
            "loss": self.loss,
            "latest": self.latest,
            "count": self.memory.count,
            "most": self.memory.most,
        }
        return Saved(self.updates, tensors, numbers)

    def load(self, saved: Saved) -> None:
        """Go on from what was saved."""
        for name, array in self.arrays().items():
            array[...] = saved.tensors[name]
        for name, model in (("model", self.model), ("target", self.target)):
            model.load_state_dict(_under(saved.tensors, f"{name}/"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, moment in _under(saved.tensors, "adam/").items():
            at, key = name.split("/")
            moments.setdefault(int(at), {})[key] = moment
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        numbers = saved.numbers
        self.rng = rng_of(numbers["rng"])
        self.updates, self.episodes = numbers["updates"], numbers["episodes"]
        self.loss, self.latest = numbers["loss"], [list(each) for each in numbers["latest"]]
        self.memory.count, self.memory.most = numbers["count"], numbers["most"]


def _under(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): torch.from_numpy(np.array(each))
        for name, each in tensors.items()
        if name.startswith(prefix)
    }


def train(
    settings: Settings, seed: int, saved: Saved | None = None, begins: Tensors | None = None
) -> Iterator[Progress]:
    """Train a network; equal arguments give equal weights, stopped and resumed or not.

    Args:
        settings: What it goes by.
        seed: Of weights, exploration and what is drawn from the memory.
        saved: What an earlier run with the same settings and seed had come to; None: nothing.
        begins: Weights that the network begins with, as from `sched2_clone`; None: random ones.

    Yields:
        Progress in updates: episodes, loss, epsilon, and means over the episodes since then.
        `of` is an estimate until the last one.
    """
    torch.set_num_threads(1)
    run = _Run(settings, seed, begins)
    if saved is not None:
        run.load(saved)
    steps = settings.decisions // settings.envs
    least = max(settings.batch // settings.envs, settings.ahead) + 1
    while run.episodes < settings.episodes:
        for _ in range(steps):
            run.step()
        if run.memory.count <= least:
            continue
        run.update()
        if run.updates % settings.tells == 0 or run.episodes >= settings.episodes:
            progress = _progress(run)
            run.latest.clear()
            yield progress


def _progress(run: _Run) -> Progress:
    part = run.part()
    values = {"episodes": float(run.episodes), "loss": run.loss, "epsilon": run.epsilon()}
    if run.latest:
        completion, effect, makespan = np.mean(run.latest, 0)
        values |= {
            "mean_jct_s": float(completion),
            "effectiveness": float(effect),
            "makespan_s": float(makespan),
        }
    expected = round(run.updates / part) if part > 0 else run.updates
    return Progress(run.updates, max(expected, run.updates), values, run.save)
