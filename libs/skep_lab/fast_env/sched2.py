"""SCHED²'s environment: choose one of the first J waiting jobs, which is packed, or hold.

State, actions and reward are those of SCHED², section III; what the paper leaves open is said
where it is chosen. Time stands still while jobs are chosen, and goes on to the next event when the
agent holds, or no job waits.

    observation   GPU state [N x M], job state [J x (k + 2)], statistics [4], each number 0 to 1
    action        0 to J - 1: start that job of the queue (in order of arrival); J: hold
    reward        the execution effectiveness of the job that is started (equation 2); 0 for a hold

A time t is observed as t / (t + 1 h): the paper does not say how it scales; an unknown one is 1.
The GPUs of a server are in descending order of remaining time, because which GPU of a server a job
has does not matter. A job that does not fit cannot be chosen: the mask says so, and to choose it
is to hold. While every GPU is free a job has to be chosen: no event might come that ends a hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skep_lab.fast_env import draw, engine
from skep_lab.fast_env.arrays import (
    COST,
    JOB,
    NEVER,
    NODE,
    NUM,
    PHASE,
    Floats,
    Ints,
    JobArrays,
    NodeArrays,
    State,
    ints,
    new_state,
)
from skep_lab.fast_env.compiled import compiled, inner
from skep_lab.fast_env.draw import Workload
from skep_lab.fast_env.engine import HANDS_OFF, Rule

RULE = Rule(order=HANDS_OFF)
HOUR = 3600.0 * 1e9
MINUTE = 60.0 * 1e9
"""A GPU whose job ends within no time still shows that it is taken."""
STATISTICS = 4


class Options(NamedTuple):
    """The setting of the environment; defaults are the paper's, where it says any (section IV)."""

    jobs: int = 1000
    """Jobs of an episode."""
    window: int = 10
    """J: the first jobs of the queue."""
    nodes: tuple[int, ...] = (15,)
    """Nodes of each type of GPU."""
    node_gpus: int = 8
    interval_s: float = 172.0
    interval_sigma: float = 1.5
    """Log-normal, as in `traces.generators.sched2`; 0: exponential."""
    median_s: float = 1800.0
    sigma: float = 1.4
    shortest_s: float = 180.0
    longest_s: float = 86400.0
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    size_weights: tuple[float, ...] = (0.68, 0.1, 0.1, 0.12)
    """68 % have one GPU; the others are chosen as in `traces.generators.sched2`."""
    models: tuple[float, ...] = (0.6, 0.3, 0.025, 0.025, 0.025, 0.025)
    """Weights of transformer, deepspeech, alexnet, inception3, resnet50, vgg16 (section IV-A)."""
    slowdown: tuple[float, ...] = (2.7, 1.6, 4.5, 1.4, 1.5, 5.9)
    """Their times on one more server than necessary, relative to the fewest (section II-A); those
    of AlexNet and ResNet are chosen."""
    further: tuple[float, ...] = (1.0, 1.3, 1.5)
    """By what the excess grows on one, two, and three or more servers more; chosen."""
    kind_speeds: tuple[float, ...] = (1.0,)
    """Speeds of the types of GPU."""
    burst: float = 1.0
    burst_part: float = 0.0
    burst_jobs: float = 20.0
    told_sigma: float = 0.0
    told_after_s: float = 0.0
    fault_every_s: float = 0.0
    start_s: float = 0.0
    stop_s: float = 0.0
    checkpoint_every_s: float = 0.0

    def check(self) -> None:
        """Check the values.

        Raises:
            ValueError: A number makes no sense; the message says which.
        """
        gpus = sum(self.nodes) * self.node_gpus
        wrong = {
            "jobs, window and node_gpus are 1 or more": min(self.jobs, self.window, self.node_gpus)
            < 1,
            "nodes has 1 or more nodes of each type": not self.nodes or min(self.nodes) < 1,
            "kind_speeds has a speed above 0 for each type of nodes": len(self.kind_speeds)
            != len(self.nodes)
            or min(self.kind_speeds, default=0) <= 0,
            "sizes fit the cluster, with a weight for each": len(self.sizes)
            != len(self.size_weights)
            or not 1 <= min(self.sizes, default=0) <= max(self.sizes, default=0) <= gpus,
            "models and slowdown have equally many numbers, 1 or more": not self.models
            or len(self.models) != len(self.slowdown)
            or min(self.slowdown) < 1,
            "further has 3 numbers": len(self.further) != 3,
            "interval_s, median_s and shortest_s are above 0, longest_s not below shortest_s": min(
                self.interval_s,
                self.median_s,
                self.shortest_s,
                self.longest_s - self.shortest_s + 1,
            )
            <= 0,
            "burst is 1 or more, burst_part from 0 to below 1": self.burst < 1
            or not 0 <= self.burst_part < 1,
            "sigmas, costs and times between faults are 0 or more": min(
                self.sigma,
                self.interval_sigma,
                self.told_sigma,
                self.told_after_s,
                self.fault_every_s,
                self.start_s,
                self.stop_s,
                self.checkpoint_every_s,
            )
            < 0,
        }
        for reason, true in wrong.items():
            if true:
                raise ValueError(reason)


PAPER = Options()


class Sight(NamedTuple):
    """What a batch shows of itself after a step."""

    observation: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    """[B, D]"""
    mask: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """[B, J + 1] actions that are possible; to hold is, unless every GPU is free."""
    reward: Floats
    """[B]"""
    done: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """[B] the episode ended with this step; the environment has begun its next one."""
    finished: Floats
    """[B, 3] of the latest episode that ended: mean seconds from submission to end, mean execution
    effectiveness, and seconds until all had ended."""
    times: Ints
    """[B, J, 2] of the latest episode that ended: when each job first started, and ended."""


class Jobs(NamedTuple):
    """Where the jobs of episodes come from."""

    workload: Workload
    cycle: Ints
    """Seeds of episodes after the first one; empty: random numbers go on."""


def workload(options: Options) -> Workload:
    """Return the distribution of jobs as arrays."""
    weights = np.array(options.size_weights, np.float64)
    models = np.array(options.models, np.float64)
    return Workload(draw.scalars_of(options, split=1.0), ints(options.sizes), weights, models)


def speeds(options: Options) -> Floats:
    """Return speeds by model, type, and servers beyond the fewest."""
    excess = np.array(options.slowdown)[:, None] - 1.0
    times = 1.0 + excess * np.array([0.0, *options.further])[None, :]
    made: Floats = np.array(options.kind_speeds)[None, :, None] / times[:, None, :]
    return made


class Batch:
    """Many environments, each with jobs of its own seed; an ended one begins its next episode."""

    def __init__(self, envs: int, options: Options = PAPER, cycle: Ints | None = None) -> None:
        """Allocate the arrays; `reset` begins the episodes.

        Args:
            envs: How many environments.
            options: The setting of all of them.
            cycle: Seeds of the further episodes: environment b has those at b + envs, b + 2 envs
                and so on, round and round; None: its random numbers go on.

        Raises:
            ValueError: An option makes no sense.
        """
        options.check()
        if envs < 1:
            reason = "envs is 1 or more"
            raise ValueError(reason)
        self.options, self.workload = options, workload(options)
        kinds = [kind for kind, count in enumerate(options.nodes) for _ in range(count)]
        nodes = NodeArrays(ints([options.node_gpus] * len(kinds)), ints(kinds))
        empty = ints([1] * options.jobs)
        jobs = JobArrays(*[empty] * len(JobArrays._fields))
        costs = np.zeros(len(COST), np.int64)
        costs[COST.start] = round(options.start_s * 1e9)
        costs[COST.stop] = round(options.stop_s * 1e9)
        costs[COST.store_every] = round(options.checkpoint_every_s * 1e9)
        parts = min(max(options.sizes), len(kinds))
        self.state = new_state([jobs] * envs, nodes, speeds(options), costs=costs, parts=parts)
        size = len(kinds) * options.node_gpus + options.window * (2 + 4) + STATISTICS
        self.sight = Sight(
            np.zeros((envs, size), np.float32),
            np.zeros((envs, options.window + 1), np.bool_),
            np.zeros(envs),
            np.zeros(envs, np.bool_),
            np.zeros((envs, 3)),
            np.zeros((envs, options.jobs, 2), np.int64),
        )
        self.tally = np.zeros((envs, 2))
        """Sum of the rewards of the running episode, and how many episodes have ended."""
        self._none = np.zeros(envs, np.int64)
        self._cycle = ints([]) if cycle is None else ints(cycle)

    def reset(self, seeds: Ints) -> Sight:
        """Begin an episode of each environment with a seed of its own."""
        self.tally[:] = 0.0
        self.sight.reward[:] = 0.0
        self.sight.done[:] = False
        self._run(seeds, -1)
        return self.sight

    def step(self, actions: Ints) -> Sight:
        """Take one decision in each environment; returns the same arrays every time."""
        self._run(actions, 0)
        return self.sight

    def play_random(self, decisions: int) -> int:
        """Take so many random possible decisions in each environment, without Python in between."""
        return self._run(self._none, decisions)

    def _run(self, given: Ints, decisions: int) -> int:
        return run_all(
            self.state,
            Jobs(self.workload, self._cycle),
            ints(given),
            decisions,
            self.tally,
            self.sight,
        )


@inner
def squashed(value: float, scale: float) -> float:
    """Return a number from 0 to 1 for one from 0 to infinity."""
    return value / (value + scale)


@inner
def _show_gpus(s: State, b: int, view: Sight) -> None:
    """Write the GPU state: how long the job on each GPU is predicted to run still."""
    at, now = 0, s.num[b, NUM.now]
    for n in range(s.until.shape[1]):
        for i in range(s.until.shape[2]):
            until = s.until[b, n, i]
            left = max(until - now, 0) + MINUTE
            view.observation[b, at] = left / (left + HOUR) if until > 0 else 0.0
            at += 1


@inner
def _show_jobs(s: State, b: int, view: Sight, window: int, base: int) -> int:
    """Write job state and statistics; return how many jobs of the window there are."""
    now, waiting = s.num[b, NUM.now], s.num[b, NUM.queued]
    gpus, told_ms, came_ms = (
        s.num[b, NUM.gpus_waited],
        s.num[b, NUM.told_waited],
        s.num[b, NUM.came_waited],
    )
    there = min(waiting, window)
    for i in range(there):
        j = s.queue[b, i]
        told = engine.known(s, b, j)
        for level in range(4):
            speed = s.speed[s.jobs[b, j, JOB.model], 0, level]
            shown = 1.0 if told >= NEVER else squashed(told / speed, HOUR)
            view.observation[b, base + level] = shown
        want = s.jobs[b, j, JOB.size_now] * s.jobs[b, j, JOB.each]
        view.observation[b, base + 4] = squashed(float(want), 8.0)
        view.observation[b, base + 5] = squashed(float(now - s.jobs[b, j, JOB.at]), HOUR)
        base += 6
        gpus -= want
        told_ms -= s.jobs[b, j, JOB.told] // 1_000_000 if s.jobs[b, j, JOB.told] < NEVER else 0
        came_ms -= s.jobs[b, j, JOB.at] // 1_000_000
    for i in range((window - there) * 6):
        view.observation[b, base + i] = 0.0
    base += (window - there) * 6
    others = waiting - there
    each = float(max(others, 1))
    view.observation[b, base] = squashed(float(others), 10.0)
    view.observation[b, base + 1] = squashed(gpus / each, 8.0)
    view.observation[b, base + 2] = squashed(told_ms * 1e6 / each, HOUR)
    waited = (now / 1e6 * others - came_ms) * 1e6 / each if others else 0.0
    view.observation[b, base + 3] = squashed(max(waited, 0.0), HOUR)
    return int(there)


@inner
def _show_mask(s: State, b: int, view: Sight, window: int, there: int) -> None:
    """Write which jobs fit: where one did not, none with as many workers does."""
    for i in range(window):
        view.mask[b, i] = False
    misfit, all_free, one_fits = 1 << 60, True, False
    for n in range(s.nodes.shape[1]):
        all_free = all_free and s.nodes[b, n, NODE.free] == s.nodes[b, n, NODE.size]
    for i in range(there):
        j = s.queue[b, i]
        workers = s.jobs[b, j, JOB.size_now]  # Of one GPU each: they fit wherever GPUs are free.
        if workers >= misfit:
            continue
        fits = s.num[b, NUM.gpus_free] >= workers and (
            s.speed.shape[1] == 1 or engine.find_packed(s, b, j) > 0
        )
        view.mask[b, i] = fits
        one_fits = one_fits or fits
        if not fits:
            misfit = workers
    view.mask[b, window] = not (all_free and one_fits)


@inner
def look(s: State, b: int, window: int, view: Sight) -> None:
    """Write observation and mask of an environment."""
    size = s.nodes[b, 0, NODE.size]
    _show_gpus(s, b, view)
    there = _show_jobs(s, b, view, window, s.nodes.shape[1] * size)
    _show_mask(s, b, view, window, there)


@inner
def until_a_job_waits(s: State, b: int) -> None:
    """Have events happen until there is something to decide, or every job has ended."""
    while s.num[b, NUM.open] > 0 and s.num[b, NUM.queued] == 0:
        if not engine.step_one(s, b, RULE):
            return


@inner
def effectiveness(s: State, b: int, j: int) -> float:
    """Return the execution effectiveness of a job that was just started (SCHED², equation 2)."""
    best = 0.0
    for kind in range(s.speed.shape[1]):
        best = max(best, s.speed[s.jobs[b, j, JOB.model], kind, 0])
    rate = engine.speed_of(s, b, j)
    rest = s.jobs[b, j, JOB.run] - s.jobs[b, j, JOB.done]
    waited = s.num[b, NUM.now] - s.jobs[b, j, JOB.at]
    return float(s.jobs[b, j, JOB.run] / best / (waited + s.costs[COST.start] + rest / rate))


@inner
def decide(s: State, b: int, window: int, action: int) -> float:
    """Start a job, or hold; return the reward."""
    reward = 0.0
    waits = 0 <= action < min(window, s.num[b, NUM.queued])
    parts = engine.find_packed(s, b, s.queue[b, action]) if waits else 0
    if parts > 0:
        j = s.queue[b, action]
        engine.dequeue(s, b, action)
        engine.begin(s, b, j, parts)
        reward = effectiveness(s, b, j)
    elif s.num[b, NUM.open] > 0:
        engine.step_one(s, b, RULE)
    until_a_job_waits(s, b)
    return reward


@inner
def _finish(s: State, b: int, view: Sight, tally: Floats) -> None:
    """Write what came of an episode."""
    ended, total, last = 0, 0.0, 0
    for j in range(s.jobs.shape[1]):
        if s.jobs[b, j, JOB.phase] == PHASE.ended:
            ended += 1
            total += float(s.jobs[b, j, JOB.ended] - s.jobs[b, j, JOB.at])
            last = max(last, s.jobs[b, j, JOB.ended])
        view.times[b, j, 0] = s.jobs[b, j, JOB.first]
        view.times[b, j, 1] = s.jobs[b, j, JOB.ended]
    view.finished[b, 0] = total / max(ended, 1) / 1e9
    view.finished[b, 1] = tally[b, 0] / max(ended, 1)
    view.finished[b, 2] = last / 1e9


@inner
def _step(s: State, b: int, w: Jobs, action: int, tally: Floats, view: Sight) -> None:
    window = view.mask.shape[1] - 1
    reward = decide(s, b, window, action)
    view.reward[b] = reward
    tally[b, 0] += reward
    view.done[b] = s.num[b, NUM.open] == 0
    if view.done[b]:
        _finish(s, b, view, tally)
        tally[b, 0] = 0.0
        tally[b, 1] += 1.0
        if len(w.cycle) > 0:
            at = b + np.int64(tally[b, 1]) * s.num.shape[0]
            draw.seed_with(s.num, b, w.cycle[at % len(w.cycle)])
        draw.draw_jobs(s, b, w.workload)
        until_a_job_waits(s, b)
    look(s, b, window, view)


@inner
def _random(s: State, b: int, view: Sight) -> int:
    """Return a random possible action."""
    window, possible = view.mask.shape[1] - 1, 0
    for action in range(window + 1):
        possible += view.mask[b, action]
    nth = int(draw.uniform(s.num, b) * possible)
    for action in range(window):
        if view.mask[b, action]:
            if nth == 0:
                return action
            nth -= 1
    return window


@compiled
def run_all(s: State, w: Jobs, given: Ints, decisions: int, tally: Floats, view: Sight) -> int:
    """Begin an episode in each environment, or take decisions there.

    All is one function, because each one that Python calls is compiled with all that it calls.

    Args:
        s: The batch.
        w: Its jobs.
        given: By environment: the seed, or the action.
        decisions: Below 0: episodes begin. 0: the given actions are taken. Above 0: as many random
            possible ones are taken in each environment.
        tally: Sums of rewards.
        view: What is shown.

    Returns:
        How many decisions were taken.
    """
    envs = s.num.shape[0]
    for b in range(envs):
        if decisions < 0:
            draw.seed_with(s.num, b, given[b])
            draw.draw_jobs(s, b, w.workload)
            until_a_job_waits(s, b)
            look(s, b, view.mask.shape[1] - 1, view)
            continue
        for _ in range(max(decisions, 1)):
            action = given[b] if decisions == 0 else _random(s, b, view)
            _step(s, b, w, action, tally, view)
    return 0 if decisions < 0 else envs * max(decisions, 1)
