"""DL²'s learner (Peng et al., TPDS'21, section 4): warm-up from a scheduler, then actor and critic.

Theory of operation. A policy network scores the 3 J + 1 actions of `fast_env.dl2`; a value network
of the same form has one output. First the policy learns the decisions of an existing scheduler by
cross entropy (section 4.2). Then it decides itself, slot after slot, in a few environments at once
(each is a cluster as the paper has it, and every slot that ends in one is one *step*: one update of
both networks, section 4.3). What was decided waits until its slot ends, gets the slot's reward, and
goes to the replay memory, from which each update takes its mini-batch.

Where the paper is silent, or the public code does something else, there is an option; `PAPER` and
`CODE` are the two readings.

- Value of the next state: V of the first state of the next slot (`td`), since all decisions of a
  slot share its reward. The public code does not bootstrap: V is the slot's own reward (`slot`),
  which makes it a contextual bandit.
- Old samples: REINFORCE is right only for actions that the present policy took. The paper replays
  old ones as they are (`none`). `ratio` weighs each by its probability now over then, at most
  `RATIO_MAX`; actions that exploration put in place of the policy's have the probability that they
  had with it. `stored` is what the public code does: the gradient of the logarithm at the
  probabilities of then.
- Reward: the slot's for each of its decisions (equation 1); `job`, the part that the action's job
  trained (section 6.5.2); `gain`, what the action itself added to the slot's by the table of
  speeds, and `epochs`, the same in slots of work (shaped rewards, which the paper does not have:
  they need the speeds). With `epochs` a long job's size counts as much as a short one's.
- Exploration replaces an action in a poor state with probability `explore`; the paper has no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skep_lab.fast_env import dl2, dl2_rules
from skep_lab.fast_env.arrays import Floats, Ints
from skep_lab.learn.dl2_protocol import SMALL, TRAINING
from skep_lab.learn.progress import Count, Progress, Saved, Tensors, numbers_of, rng_of

Singles = NDArray[np.float32]
Flags = NDArray[np.bool_]

NEVER = -1e9
"""The score of an action that is not possible."""
SLOTS_MAX = 500
"""Slots of an episode that is judged; those of DRF have 70 at most."""
TINY = np.float32(1e-30)
RATIO_MAX = 2.0
OPEN_MAX = 2048
"""Decisions of a slot that are kept until it ends: the latest ones."""
ERROR_MIN, PRIORITY_POWER = 1e-3, 0.6
"""Schaul et al., Prioritized Experience Replay, ICLR 2016."""
EVENED, EVENED_STEP = 0.1, 1e-4
"""The power of the correction for what is drawn more often, and what each update adds to it, up to
1 (public code)."""
AVERAGE_KEEPS = 0.99
"""Of the moving average of rewards, in each slot (without the value network)."""
WARM_TELLS = 10
"""Passes of the warm-up between two progresses, from which it can go on."""
TEACHING_SEED = 500_000
"""The seeds of the episodes of the warm-up lie so far above those of training."""


class Settings(NamedTuple):
    """All that a training run depends on, but for its seed."""

    world: dl2.Options = SMALL
    speed: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """The speeds of `dl2.Batch` (`table_of`); empty: the chosen ones."""
    envs: Count = 8
    """Environments at once for each cluster."""
    clusters: Count = 1
    """Federated training (section 6.5.2): each has its own environments and replay memory, and its
    gradients go to the common networks, all of a round taken at the weights of its beginning."""
    # Networks.
    neurons: int = 256
    """Of each hidden layer; 0: two thirds of the inputs (public code)."""
    layers: int = 2
    norm: bool = False
    """Batch norm after each hidden layer (public code)."""
    type_number: bool = False
    """A model is one number, as in the public code, and not one-hot."""
    # Warm-up.
    teacher: Literal["", dl2_rules.Name] = "drf"
    """A rule of `fast_env.dl2_rules`; empty: no warm-up."""
    samples: Count = 8192
    passes: int = 100
    warm_rate: float = 0.005
    loss: Literal["cross-entropy", "square", "absolute"] = "cross-entropy"
    """Section 6.5.2."""
    # Reinforcement learning.
    steps: Count = 1500
    """Slots; one update each."""
    rate: float = 0.0001
    batch: Annotated[int, msgspec.Meta(ge=2)] = 256
    gamma: float = 0.9
    value: Literal["td", "slot"] = "td"
    critic_first: int = 300
    """Steps in which only the value network learns: until it knows the teacher's rewards, every
    advantage is positive, and the policy would learn whatever it does."""
    critic: bool = True
    """Without: a moving average of rewards (section 6.5.2)."""
    replay: int = 8192
    """Decisions in the replay memory; 0: an update takes those of the latest slot."""
    prioritised: bool = True
    full_first: bool = False
    """Updates begin when the memory is full (public code)."""
    correction: Literal["none", "ratio", "stored"] = "none"
    normalise: bool = True
    """Advantages of a mini-batch get mean 0 and deviation 1. The paper says nothing of it. Without,
    most that the memory draws is better than expected (bursts of short jobs), so that the policy
    learns whatever it did."""
    reward: Literal["slot", "job", "gain", "epochs"] = "slot"
    entropy: float = 0.001
    explore: float = 0.1
    threshold: float = 10.0
    """Workers for each server, or servers for each worker, that are poor."""
    bundle_action: bool = True
    models_at: tuple[tuple[int, int], ...] = ()
    """From a step on, so many models are drawn (Figure 17)."""
    report_every: Count = 500


PAPER = Settings()
CODE = Settings(
    world=SMALL._replace(bundle=True),
    neurons=0,
    norm=True,
    type_number=True,
    value="slot",
    full_first=True,
    correction="stored",
    entropy=0.1 / 121,
    normalise=False,
    explore=0.5,
)
"""Its exploration compares served with starved jobs; here it is the paper's, with its 0.5."""


def table_of(speed: Floats) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Return a table of speeds as settings have it: JSON can."""
    return tuple(tuple(tuple(map(float, row)) for row in model) for model in speed)


def batch_of(settings: Settings, envs: int) -> dl2.Batch:
    """Return environments with a run's setting."""
    speed = np.array(settings.speed) if settings.speed else None
    return dl2.Batch(envs, settings.world, speed)


# --- networks ------------------------------------------------------------------------------------


class Inputs(NamedTuple):
    """How an observation becomes the input of a network."""

    jobs: int
    models: int
    type_number: bool

    @property
    def size(self) -> int:
        """Return the number of inputs."""
        return self.jobs * (dl2.FEATURES + (1 if self.type_number else self.models))

    def of(self, seen: Singles) -> Singles:
        """Return the inputs for observations: one row each."""
        if not self.type_number:
            return seen
        rows = seen.reshape(len(seen), self.jobs, -1)
        number = rows[:, :, : self.models] @ np.arange(1, self.models + 1, dtype=np.float32)
        joined = np.concatenate([number[:, :, None], rows[:, :, self.models :]], 2)
        return np.asarray(joined.reshape(len(seen), -1))


def network(settings: Settings, inputs: int, outputs: int) -> nn.Sequential:
    """Return a fully connected network with fresh weights of torch's random numbers."""
    width, parts, before = settings.neurons or inputs * 2 // 3, [], inputs
    for _ in range(settings.layers):
        parts += [nn.Linear(before, width), nn.ReLU()]
        parts += [nn.BatchNorm1d(width)] if settings.norm else []
        before = width
    return nn.Sequential(*parts, nn.Linear(before, outputs))


def masked(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of the probabilities of actions; impossible ones have none."""
    return torch.log_softmax(scores.masked_fill(~mask, NEVER), 1)


class Policy:
    """What decides: a network that reads observations."""

    def __init__(self, net: nn.Sequential, inputs: Inputs, bundle_action: bool = True) -> None:
        """Take a network; `bundle_action` says whether it may give both at once."""
        self.net, self.inputs, self.bundle_action = net, inputs, bundle_action

    def possible(self, mask: Flags) -> Flags:
        """Return which actions it may take."""
        if self.bundle_action:
            return mask
        allowed = mask.copy()
        allowed[:, 2:-1:3] = False
        return allowed

    def choose(
        self, seen: Singles, mask: Flags, rng: np.random.Generator | None
    ) -> tuple[Ints, Singles]:
        """Return an action for each observation, and the logarithms of all probabilities.

        Args:
            seen: [n, inputs]
            mask: [n, actions]
            rng: Samples the actions; None: takes the most likely ones.
        """
        self.net.eval()
        with torch.no_grad():
            scores = self.net(torch.from_numpy(self.inputs.of(seen)))
            logs = masked(scores, torch.from_numpy(mask)).numpy()
        if rng is None:
            return np.argmax(logs, 1), logs
        # Gumbel's trick: the largest of noisy logarithms is a sample.
        noise = -np.log(np.maximum(rng.standard_exponential(logs.shape, np.float32), TINY))
        return np.argmax(logs + noise, 1), logs


# --- decisions that wait, and replay -------------------------------------------------------------


class Columns:
    """Decisions in a ring, one array for each of their fields."""

    def __init__(self, lead: tuple[int, ...], inputs: int, actions: int) -> None:
        """Allocate them.

        Args:
            lead: The first axes of each array.
            inputs: Numbers of an observation.
            actions: Number of actions.
        """
        self.seen = np.zeros((*lead, inputs), np.float32)
        self.mask = np.zeros((*lead, actions), np.bool_)
        self.logs = np.zeros((*lead, actions), np.float32)
        """Of the probabilities with which the action was chosen."""
        self.action = np.zeros(lead, np.int64)
        self.added = np.zeros((*lead, 3))


class Sample(NamedTuple):
    """A mini-batch as tensors."""

    seen: torch.Tensor
    mask: torch.Tensor
    logs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    after: torch.Tensor
    """The first observation of the next slot."""
    last: torch.Tensor
    """1: no next slot in the episode."""
    weight: torch.Tensor
    """Of each decision in the gradient: less for one that is drawn more often; 1 at most."""


class Memory:
    """The replay memory: the latest decisions, chosen evenly or by their last error."""

    def __init__(self, size: int, inputs: int, actions: int, prioritised: bool) -> None:
        """Allocate room for `size` decisions."""
        self.columns = Columns((size,), inputs, actions)
        self.after = np.zeros((size, inputs), np.float32)
        self.reward, self.last = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.priority = np.zeros(size)
        self.size, self.prioritised = size, prioritised
        self.count = 0
        """Decisions that came, those included that are gone."""
        self.draws = 0

    def held(self) -> int:
        """Return how many decisions it holds."""
        return min(self.count, self.size)

    def add(
        self, parts: Mapping[str, NDArray[Any]], reward: NDArray[Any], after: Singles, last: bool
    ) -> None:
        """Add the decisions of a slot; of more than fit, the latest ones.

        Args:
            parts: Fields of `Columns`, one row for each decision.
            reward: Of each.
            after: The first observation of the next slot.
            last: Whether the episode ended.
        """
        new = min(len(reward), self.size)
        rows = (self.count + np.arange(new)) % self.size
        for name, part in parts.items():
            getattr(self.columns, name)[rows] = part[-new:]
        self.reward[rows], self.after[rows], self.last[rows] = reward[-new:], after, float(last)
        self.priority[rows] = max(float(self.priority.max()), 1.0)
        self.count += new

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Ints, Sample]:
        """Return the rows and the fields of random decisions."""
        held, weight = self.held(), np.ones(count, np.float32)
        if self.prioritised:
            ends = np.cumsum(self.priority[:held])
            rows = np.searchsorted(ends, rng.random(count) * ends[-1], "right")
            rows = np.minimum(rows, held - 1)
            evened = self.priority[rows] ** -min(EVENED + EVENED_STEP * self.draws, 1.0)
            weight = (evened / evened.max()).astype(np.float32)
        else:
            rows = rng.integers(held, size=count)
        self.draws += 1
        columns = self.columns
        fields = (columns.seen, columns.mask, columns.logs, columns.action)
        chosen_rows = [torch.from_numpy(each[rows]) for each in fields]
        rest = [torch.from_numpy(each[rows]) for each in (self.reward, self.after, self.last)]
        return rows, Sample._make([*chosen_rows, *rest, torch.from_numpy(weight)])

    def judge(self, rows: Ints, errors: NDArray[Any]) -> None:
        """Remember how wrong the value of decisions was."""
        self.priority[rows] = (np.abs(errors) + ERROR_MIN) ** PRIORITY_POWER


class Cluster:
    """Environments, the decisions of slots that go on in them, and a replay memory."""

    def __init__(self, settings: Settings, inputs: int, actions: int, first: int) -> None:
        """Begin the episodes.

        Args:
            settings: Of the run.
            inputs: Numbers of an observation.
            actions: Number of actions.
            first: The seed of the first environment.
        """
        envs = settings.envs
        self.batch = batch_of(settings, envs)
        self.sight = self.batch.reset(first + np.arange(envs))
        self.open = Columns((OPEN_MAX, envs), inputs, actions)
        self.turns = 0
        """Decisions that each environment has taken."""
        self.begun = np.zeros(envs, np.int64)
        """The turn with which the slot of each environment began."""
        size = settings.replay or OPEN_MAX
        self.memory = Memory(size, inputs, actions, settings.prioritised and settings.replay > 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays that change, by name."""
        found: dict[str, NDArray[Any]] = {"begun": self.begun}
        state = self.batch.state
        for name in ("jobs", "work", "active", "alike", "sums", "num"):
            found[f"state.{name}"] = getattr(state, name)
        found |= {f"sight.{name}": part for name, part in self.sight._asdict().items()}
        found["weights"] = self.batch.workload.drawn.models
        found |= {f"open.{name}": part for name, part in vars(self.open).items()}
        found |= {f"memory.{name}": part for name, part in vars(self.memory.columns).items()}
        for name in ("after", "reward", "last", "priority"):
            found[f"memory.{name}"] = getattr(self.memory, name)
        return found

    def turn(self, policy: Policy, settings: Settings, rng: np.random.Generator) -> int:
        """Take one decision in each environment; return how many slots ended."""
        at, sight = self.turns % OPEN_MAX, self.sight
        mask = policy.possible(sight.mask)
        seen = sight.observation
        actions, logs = policy.choose(seen, mask, rng)
        if settings.explore > 0:
            _explore(actions, logs, seen, mask, settings, rng)
        keep = self.open
        keep.seen[at], keep.mask[at], keep.action[at], keep.logs[at] = seen, mask, actions, logs
        self.batch.step(actions)
        keep.added[at] = sight.added
        self.turns += 1
        ended = np.flatnonzero(sight.slot_ended)
        for b in ended:
            self._close(int(b), settings)
        return len(ended)

    def _close(self, b: int, settings: Settings) -> None:
        """Hand the decisions of a slot that ended over to the memory."""
        first = max(int(self.begun[b]), self.turns - OPEN_MAX)
        rows = np.arange(first, self.turns) % OPEN_MAX
        self.begun[b] = self.turns
        parts = {name: part[rows, b] for name, part in vars(self.open).items()}
        if settings.reward == "gain":
            reward = parts["added"][:, 2]
        elif settings.reward == "epochs":
            reward = parts["added"][:, 1]
        elif settings.reward == "job":
            jobs = parts["added"][:, 0].astype(np.int64)
            reward = np.where(jobs >= 0, self.sight.shares[b, np.maximum(jobs, 0)], 0.0)
        else:
            reward = np.full(len(rows), self.sight.reward[b])
        if settings.replay == 0:
            self.memory.count = 0
        done = bool(self.sight.done[b])
        self.memory.add(parts, reward, self.sight.observation[b], done)


def _explore(
    actions: Ints,
    logs: Singles,
    seen: Singles,
    mask: Flags,
    settings: Settings,
    rng: np.random.Generator,
) -> None:
    """Replace actions in poor states (section 4.3), and correct the probabilities of all.

    A job is poor with several workers and no server, with several servers and no worker, or with
    more than `threshold` times as many of one as of the other. The first poor job that can have it
    gets one more of what it lacks.
    """
    rows = seen.reshape(len(seen), settings.world.window, -1)
    counts = rows[:, :, -2:] * settings.world.most
    workers, servers = counts[:, :, 0], counts[:, :, 1]
    less, more = np.minimum(workers, servers), np.maximum(workers, servers)
    poor = ((less < 0.5) & (more > 1.5)) | ((less > 0.5) & (more > settings.threshold * less + 0.5))
    wanted = np.arange(settings.world.window) * 3 + (workers > servers)
    poor &= np.take_along_axis(mask, wanted, 1)
    there = np.flatnonzero(poor.any(1))
    if not len(there):
        return
    picked = wanted[there, np.argmax(poor[there], 1)]
    actions[there] = np.where(rng.random(len(there)) < settings.explore, picked, actions[there])
    with np.errstate(divide="ignore"):
        mixed = np.exp(logs[there]) * (1 - settings.explore)
        mixed[np.arange(len(there)), picked] += settings.explore
        logs[there] = np.maximum(np.log(mixed), NEVER)


# --- the two phases ------------------------------------------------------------------------------


def teach(settings: Settings, seed: int) -> tuple[Singles, Flags, Ints]:
    """Return observations, possible actions and decisions of the teacher.

    It decides in batches of J as the policy does. That nothing more is possible is no decision, so
    none of a teacher that goes on until nothing fits is to stop: after the warm-up the policy does
    not stop by itself either, which the public code has in common.
    """
    batch = batch_of(settings, settings.envs)
    if settings.models_at:
        batch.workload.drawn.models[settings.models_at[0][1] :] = 0.0
    sight = batch.reset(TRAINING + TEACHING_SEED + 1000 * seed + np.arange(settings.envs))
    rule = dl2_rules.rule_of(settings.teacher, batch)
    rng = np.random.default_rng([seed, 2])
    found: list[tuple[Singles, Flags, Ints]] = []
    actions, held = np.zeros(settings.envs, np.int64), 0
    episodes = 0
    while episodes < settings.envs or held < settings.samples:
        dl2_rules.actions(batch.state, rule, settings.world.window, actions)
        # Of a large cluster's many decisions in a slot a part is enough.
        some = rng.random(settings.envs) < 16 / settings.world.window
        some &= sight.mask.sum(1) > 1
        found.append((sight.observation[some], sight.mask[some], actions[some].copy()))
        held += int(some.sum())
        sight = batch.step(actions)
        episodes += int(sight.done.sum())
    seen, mask, action = (np.concatenate(parts) for parts in zip(*found, strict=True))
    rows = rng.permutation(len(action))[: settings.samples]
    return seen[rows], mask[rows], action[rows]


def _warm_loss(settings: Settings, logs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return how far the policy is from the teacher."""
    if settings.loss == "cross-entropy":
        return nn.functional.nll_loss(logs, action)
    off = logs.exp() - nn.functional.one_hot(action, logs.shape[1])
    return (off.square() if settings.loss == "square" else off.abs()).sum(1).mean()


class Learner:
    """Networks, optimisers and clusters of a run."""

    def __init__(self, settings: Settings, seed: int) -> None:
        """Make fresh networks, and begin the episodes."""
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.settings = settings
        models = batch_of(settings, 1).models
        self.inputs = Inputs(settings.world.window, models, settings.type_number)
        seen, actions = settings.world.window * (models + dl2.FEATURES), _actions(settings)
        self.policy = Policy(
            network(settings, self.inputs.size, actions), self.inputs, settings.bundle_action
        )
        self.value = network(settings, self.inputs.size, 1)
        self.nets = {"policy": self.policy.net, "value": self.value}
        self.optimisers = {
            name: torch.optim.Adam(net.parameters(), settings.rate)
            for name, net in self.nets.items()
        }
        self.clusters = [
            Cluster(settings, seen, actions, TRAINING + 1000 * seed + 100 * number)
            for number in range(settings.clusters)
        ]
        self.rng = np.random.default_rng([seed, 1])
        self.step, self.average, self.reward, self.loss = 0, 0.0, 0.0, 0.0
        self.warmer: torch.optim.Adam | None = None
        """Of the warm-up, while it goes on; `step` counts its passes then, up to 0."""

    def warm(self, seed: int) -> Iterator[float]:
        """Learn the teacher's decisions; yields the loss of each pass (section 4.2).

        A warm-up that was stopped between two passes goes on.
        """
        settings, net = self.settings, self.policy.net
        seen, mask, action = teach(settings, seed)
        rows = [torch.from_numpy(each) for each in (self.inputs.of(seen), mask, action)]
        if self.warmer is None:
            self.step, self.warmer = -settings.passes, self._warmer()
        optimiser = self.warmer
        net.train()
        while self.step < 0:
            order, total = torch.from_numpy(self.rng.permutation(len(action))), 0.0
            for first in range(0, len(order) - 1, settings.batch):
                some = order[first : first + settings.batch]
                logs = masked(net(rows[0][some]), rows[1][some])
                loss = _warm_loss(settings, logs, rows[2][some])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                total += loss.item() * len(some)
            self.step += 1
            self.warmer = optimiser if self.step < 0 else None
            yield total / len(action)

    def _warmer(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.policy.net.parameters(), self.settings.warm_rate)

    def play(self, cluster: Cluster) -> int:
        """Decide until a slot ends; return how many did."""
        ended = 0
        while ended == 0:
            ended = cluster.turn(self.policy, self.settings, self.rng)
        keep = AVERAGE_KEEPS**ended
        mean = float(cluster.sight.reward[cluster.sight.slot_ended].mean())
        if self.settings.reward != "slot":
            mean = float(cluster.memory.reward[: cluster.memory.held()].mean())
        self.average = keep * self.average + (1 - keep) * mean
        self.reward = keep * self.reward + (1 - keep) * mean
        return ended

    def gradients(self, cluster: Cluster) -> list[torch.Tensor | None] | None:
        """Return the gradients of a mini-batch of a cluster's memory; None: too few yet."""
        settings, memory = self.settings, cluster.memory
        least = settings.replay if settings.full_first else 2
        if memory.held() < max(least, 2):
            return None
        rows, sample = memory.draw(min(settings.batch, memory.held()), self.rng)
        for net in self.nets.values():
            net.train()
            net.zero_grad()
        seen = torch.from_numpy(self.inputs.of(sample.seen.numpy()))
        values = self.value(seen)[:, 0]
        target = sample.reward
        if settings.value == "td":
            self.value.eval()
            with torch.no_grad():
                after = torch.from_numpy(self.inputs.of(sample.after.numpy()))
                target = target + settings.gamma * (1 - sample.last) * self.value(after)[:, 0]
        errors = target - values
        advantage = errors.detach() if settings.critic else sample.reward - self.average
        if settings.normalise:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        scores = self.policy.net(seen)
        logs = masked(scores, sample.mask)
        advantage = advantage * sample.weight
        loss = _policy_loss(settings.correction, logs, scores, sample, advantage)
        entropy = -(logs.exp() * logs.clamp(min=-1e4)).sum(1)
        loss = loss - settings.entropy * entropy.mean()
        (loss + (sample.weight * errors.square()).mean()).backward()
        memory.judge(rows, errors.detach().numpy())
        self.loss = float(errors.detach().square().mean())
        return [each.grad for net in self.nets.values() for each in net.parameters()]

    def update(self, gradients: list[torch.Tensor | None]) -> None:
        """Let the networks take a step."""
        weights = [each for net in self.nets.values() for each in net.parameters()]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        waits = self.settings.critic and self.step < self.settings.critic_first
        for name, optimiser in self.optimisers.items():
            if name == "value" or not waits:
                optimiser.step()

    # --- what a run goes on from -----------------------------------------------------------------

    def save(self) -> Saved:
        """Return all that the run goes on from."""
        tensors: dict[str, NDArray[Any]] = {}
        counts: dict[str, float] = {}
        for name, net in self.nets.items():
            tensors |= {f"{name}.{key}": part.numpy() for key, part in net.state_dict().items()}
        for name, optimiser in self._optimisers().items():
            for number, part in optimiser.state_dict()["state"].items():
                counts[f"{name}.{number}"] = float(part["step"])
                for key in ("exp_avg", "exp_avg_sq"):
                    tensors[f"{name}.adam.{number}.{key}"] = part[key].numpy()
        for number, cluster in enumerate(self.clusters):
            tensors |= {f"{number}.{key}": part for key, part in cluster.arrays().items()}
        numbers = {
            "rng": numbers_of(self.rng),
            "average": [self.average, self.reward, self.loss],
            "turns": [[each.turns, each.memory.count, each.memory.draws] for each in self.clusters],
            "adam": counts,
        }
        copies = {name: np.array(part) for name, part in tensors.items()}
        return Saved(self.step, copies, numbers)

    def load(self, saved: Saved) -> None:
        """Go on from what was saved by a run with the same settings and seed."""
        numbers, self.step = saved.numbers, saved.step
        self.rng = rng_of(numbers["rng"])
        self.average, self.reward, self.loss = numbers["average"]
        for name, net in self.nets.items():
            state = {
                key: torch.from_numpy(np.array(saved.tensors[f"{name}.{key}"]))
                for key in net.state_dict()
            }
            net.load_state_dict(state)
        self.warmer = self._warmer() if self.step < 0 else None
        for name, optimiser in self._optimisers().items():
            moments = {}
            for number in range(len(optimiser.param_groups[0]["params"])):
                if f"{name}.{number}" in numbers["adam"]:
                    moments[number] = {
                        key: torch.from_numpy(
                            np.array(saved.tensors[f"{name}.adam.{number}.{key}"])
                        )
                        for key in ("exp_avg", "exp_avg_sq")
                    } | {"step": torch.tensor(numbers["adam"][f"{name}.{number}"])}
            optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
        for number, cluster in enumerate(self.clusters):
            for key, part in cluster.arrays().items():
                part[...] = saved.tensors[f"{number}.{key}"]
            cluster.turns, memory = numbers["turns"][number][0], cluster.memory
            memory.count, memory.draws = numbers["turns"][number][1:]

    def _optimisers(self) -> dict[str, torch.optim.Adam]:
        """Return those whose state a run goes on from."""
        return self.optimisers | ({} if self.warmer is None else {"warm": self.warmer})


def _actions(settings: Settings) -> int:
    return 3 * settings.world.window + 1


def _policy_loss(
    correction: str,
    logs: torch.Tensor,
    scores: torch.Tensor,
    sample: Sample,
    advantage: torch.Tensor,
) -> torch.Tensor:
    """Return what has the gradient of REINFORCE, with the correction for old samples."""
    rows = sample.action[:, None]
    now, then = logs.gather(1, rows)[:, 0], sample.logs.gather(1, rows)[:, 0]
    if correction == "ratio":
        weight = (now.detach() - then).exp().clamp(max=RATIO_MAX)
        return -(weight * now * advantage).mean()
    if correction == "stored":
        score = nn.functional.one_hot(sample.action, logs.shape[1]) - sample.logs.exp()
        score = score * sample.mask  # What was impossible has no score.
        return -((score * scores).sum(1) * advantage).mean()
    return -(now * advantage).mean()


def train(
    settings: Settings, seed: int, saved: Saved | None = None, *, warmed: Tensors | None = None
) -> Iterator[Progress]:
    """Train, and yield the progress after the warm-up and each `report_every` steps.

    During the warm-up it is yielded each `WARM_TELLS` passes, with steps below 0 that count up to
    its end.

    Args:
        settings: Of the run.
        seed: Of weights, episodes, samples and exploration.
        saved: What an earlier run with the same settings and seed goes on from.
        warmed: What another run had after the same warm-up; this one has none of its own then.
    """
    learner = Learner(settings, seed)
    if saved is not None:
        learner.load(saved)
    elif warmed is not None:
        learner.policy.net.load_state_dict(_weights(learner.policy.net, warmed))
        yield _progress(learner, {"loss": learner.loss})
    if learner.step < 0 or (
        saved is None and warmed is None and settings.teacher and settings.passes
    ):
        for loss in learner.warm(seed):
            learner.loss = loss
            if learner.step < 0 and learner.step % WARM_TELLS == 0:
                yield _progress(learner, {"loss": loss})
        yield _progress(learner, {"loss": learner.loss})
    shown = learner.step // settings.report_every
    while learner.step < settings.steps:
        _draw_models(learner)
        slots = [learner.play(cluster) for cluster in learner.clusters]
        # As many updates as slots ended; with several clusters a round takes one from each.
        for number in range(max(slots)):
            found = [
                learner.gradients(cluster)
                for cluster, ended in zip(learner.clusters, slots, strict=True)
                if number < ended
            ]
            for gradients in found:
                if gradients is not None:
                    learner.update(gradients)
        learner.step += sum(slots) // len(slots)
        if learner.step // settings.report_every > shown or learner.step >= settings.steps:
            shown = learner.step // settings.report_every
            taken = sum(each.turns for each in learner.clusters) * settings.envs
            told = {"loss": learner.loss, "reward": learner.reward, "decisions": float(taken)}
            yield _progress(learner, told)


def _draw_models(learner: Learner) -> None:
    """Have the episodes that begin from now on draw the models of this step."""
    for step, models in learner.settings.models_at:
        if learner.step >= step:
            for cluster in learner.clusters:
                weights = cluster.batch.workload.drawn.models
                weights[:] = np.arange(len(weights)) < models


def _progress(learner: Learner, values: Mapping[str, float]) -> Progress:
    return Progress(learner.step, learner.settings.steps, values, learner.save)


# --- use -----------------------------------------------------------------------------------------


def _weights(net: nn.Sequential, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights of a policy as its network takes them."""
    return {key: torch.from_numpy(np.array(tensors[f"policy.{key}"])) for key in net.state_dict()}


def policy_of(settings: Settings, saved: Saved) -> Policy:
    """Return the policy of a run."""
    models = batch_of(settings, 1).models
    inputs = Inputs(settings.world.window, models, settings.type_number)
    net = network(settings, inputs.size, _actions(settings))
    net.load_state_dict(_weights(net, saved.tensors))
    return Policy(net, inputs, settings.bundle_action)


def judge(
    policy: Policy, world: dl2.Options, speed: Floats | None, seeds: Ints, sampled: int | None
) -> Floats:
    """Return `Sight.finished` of an episode of each seed.

    A policy whose most likely action is to stop gives nothing to anybody, slot after slot: what has
    not ended after `SLOTS_MAX` slots counts so many, which is less than it takes.

    Args:
        policy: What decides.
        world: The setting.
        speed: Its speeds.
        seeds: Of the episodes.
        sampled: The seed of its random actions; None: the most likely ones.
    """
    batch = dl2.Batch(len(seeds), world, speed)
    sight = batch.reset(np.asarray(seeds))
    rng = None if sampled is None else np.random.default_rng([sampled, 3])
    found, left = np.zeros((len(seeds), 3)), np.ones(len(seeds), bool)
    found[:, :2] = SLOTS_MAX
    slots = np.zeros(len(seeds), np.int64)
    while left.any():
        actions, _ = policy.choose(sight.observation, policy.possible(sight.mask), rng)
        sight = batch.step(actions)
        new = sight.done & left
        found[new] = sight.finished[new]
        slots += sight.slot_ended
        left &= ~sight.done & (slots < SLOTS_MAX)
    return found


def sizes(policy: Policy, world: dl2.Options, speed: Floats | None, seed: int, model: int) -> Ints:
    """Return workers and servers in each slot of the first job of a model: [slots, 2].

    Args:
        policy: What decides, by its most likely actions.
        world: The setting.
        speed: Its speeds.
        seed: Of the episode.
        model: The job's; it is one of the episode's.
    """
    batch = dl2.Batch(1, world, speed)
    sight = batch.reset(np.array([seed]))
    found: list[Ints] = []
    jobs = batch.state.jobs[0]
    job = int(np.argmax(jobs[:, dl2.JOB.model] == model))
    arrives = int(jobs[job, dl2.JOB.arrives])
    while batch.state.work[0, job, dl2.WORK.ended] < 0 and len(found) < SLOTS_MAX:
        slot = int(batch.state.sums[0, dl2.SUM.slot])
        sight = batch.step(policy.choose(sight.observation, policy.possible(sight.mask), None)[0])
        if sight.done[0]:
            break
        if sight.slot_ended[0] and slot >= arrives:
            found.append(jobs[job, dl2.JOB.workers_before : dl2.JOB.servers_before + 1].copy())
    return np.array(found, np.int64).reshape(-1, 2)
