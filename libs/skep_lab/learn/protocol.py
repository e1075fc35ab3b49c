"""What Skep's own learner is trained, tuned and judged on, written down before any result.

A `Setting` says a kind of workload, how heavy it is, how it comes, what is told wrongly, and on how
many nodes. `draw` makes the jobs of a setting and a trace number; the fast environment and the
production simulator play the same ones. `SCENARIOS` are the settings of the judgement, `BARS` the
groups of them in which the learner has to be better. `docs/experiments/learned.md` says the same in
words.

Numbers of traces have three uses that never mix. Training and tuning draw by
`heldout.training_seed`, the judgement by `heldout.evaluation_seed`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skep.units import Duration
from skep_lab.simulator.settings import Costs
from skep_lab.traces.heldout import evaluation_seed, training_seed
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TRAINING = range(5_000)
TUNING = range(5_000, 5_200)
"""Checkpoints and hyperparameters are chosen by these."""
HELD_OUT = range(10_000, 10_030)
"""The judgement: 30 traces of each scenario."""
TRAINING_SEEDS = range(5)
"""Of the learner itself: weights, exploration, the order of its traces."""

FAMILIES = ("locality", "elastic", "both")
NODE_GPUS = 8
WORKERS_MAX = 16
SECOND = 1_000_000_000
LEVELS = 4
"""Slowdown on as few nodes as hold a job, on one more, two more, three or more."""
JOBS_PER_NODE, JOBS_MIN, JOBS_MAX = 16, 100, 800
COSTS = Costs(
    start_s=10.0,
    stop_s=2.0,
    suspend_s=5.0,
    resume_s=10.0,
    migrate_s=20.0,
    resize_s=10.0,
    checkpoint_every_s=600.0,
)

BURST, BURST_PART, BURST_JOBS_PER_NODE = 10.0, 0.6, 2.0
"""In a burst jobs come ten times as fast; 60 % of the jobs come in bursts of two jobs a node on
average. The mean interval stays the same."""

SIZES, SIZE_WEIGHTS = (1, 2, 4, 8, 16), (0.68, 0.064, 0.096, 0.096, 0.064)
"""GPUs of the gangs of `locality`: 68 % have one (SCHED², section II-B); the others are chosen."""
STARTS, START_WEIGHTS = (1, 2, 4, 8), (0.3, 0.3, 0.25, 0.15)
"""Workers with which owners submit elastic jobs: their run times are drawn for these."""
MEDIAN_S, SIGMA, SHORTEST_S, LONGEST_S = 1800.0, 1.4, 180.0, 86_400.0

SCHED2_WEIGHTS = (0.6, 0.3, 0.025, 0.025, 0.025, 0.025)
SCHED2_SLOWDOWN = (2.7, 1.6, 4.5, 1.4, 1.5, 5.9)
"""Time on one more server (SCHED², section II-A); those of AlexNet and ResNet are chosen."""
FURTHER = (1.0, 1.3, 1.5)
"""By what the excess grows on one, two, and three or more servers more; chosen."""

POOL = 16
"""Models of a pool. Training draws from one; `unseen` draws from another, with wider ranges."""
SEEN_POOL, UNSEEN_POOL = 101, 202


class Setting(NamedTuple):
    """A kind of traces on a cluster of equal nodes."""

    family: str = "both"
    load: float = 0.9
    """GPU time that jobs need as submitted and unspread, over GPU time that there is."""
    bursts: bool = False
    error: float = 0.0
    """Told run times and told speeds are off by up to this part, uniformly and independently."""
    unseen: bool = False
    """Models come from the pool that training never draws from."""
    nodes: int = 15

    @property
    def name(self) -> str:
        """Return it in a few words."""
        words = [self.family, f"load {self.load:g}"]
        words += ["bursts"] if self.bursts else []
        words += [f"error {round(100 * self.error)} %"] if self.error else []
        words += ["unseen models"] if self.unseen else []
        return ", ".join([*words, f"{self.nodes} nodes"])

    @property
    def jobs(self) -> int:
        """Return how many jobs a trace has."""
        return min(max(JOBS_PER_NODE * self.nodes, JOBS_MIN), JOBS_MAX)


TRAIN_NODES = (6, 8, 10, 12, 15, 20)
TRAIN_LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
TRAIN_ERRORS = (0.0, 0.1, 0.2, 0.3)


def training_setting(rng: np.random.Generator) -> Setting:
    """Return a random setting of training: sizes from 6 to 20 nodes, models of the seen pool."""
    return Setting(
        family=FAMILIES[rng.integers(len(FAMILIES))],
        load=TRAIN_LOADS[rng.integers(len(TRAIN_LOADS))],
        bursts=bool(rng.random() < 0.5),
        error=TRAIN_ERRORS[rng.integers(len(TRAIN_ERRORS))],
        nodes=TRAIN_NODES[rng.integers(len(TRAIN_NODES))],
    )


def _each(
    load: float = 0.9, nodes: int = 15, error: float = 0.0, **more: bool
) -> tuple[Setting, ...]:
    return tuple(Setting(family, load, error=error, nodes=nodes, **more) for family in FAMILIES)


BARS: dict[str, tuple[Setting, ...]] = {
    "bursts": (*_each(load=0.7, bursts=True), *_each(bursts=True)),
    "30 % error": (*_each(error=0.3), *_each(error=0.3, bursts=True)),
    "unseen cluster sizes": (*_each(nodes=4), *_each(nodes=32), *_each(nodes=64)),
}
"""In each of these groups the learner has to be better than the better rule."""

SCENARIOS: tuple[Setting, ...] = (
    *(each for load in (0.5, 0.7, 0.9, 1.1) for each in _each(load=load)),
    *(each for error in (0.1, 0.2) for each in _each(error=error)),
    *_each(unseen=True),
    *(each for group in BARS.values() for each in group),
)
"""Nowhere among these it may be worse by more than `WORSE_MAX`."""
WORSE_MAX = 0.02

RULES = ("look-ahead", "hold")
BASELINES = (
    "fifo",
    "backfill",
    "srtf",
    "drf",
    "tetris",
    "optimus",
    "tiresias-l",
    "gandiva",
    "pollux",
    "random",
)
"""Beside the rules. `optimus` is played twice: with what is told, and with true speeds."""
WINDOW = 10
"""Windowed baselines see the first so many waiting jobs only, as SCHED²'s do."""
METRICS = ("mean JCT", "p99 JCT", "p99 wait", "makespan", "execution effectiveness")


class Pool(NamedTuple):
    """Models: how likely each is, how it scales, and how it bears being spread."""

    weights: Floats
    growth: Floats
    """[M, WORKERS_MAX + 1] speed by workers, 1 with one; 0 with none."""
    spread: Floats
    """[M, LEVELS] speed by nodes beyond the fewest, 1 with none."""


class Drawn(NamedTuple):
    """The jobs of a trace, in the order of submission, and what is told of them."""

    at: Ints
    """Nanoseconds."""
    run: Ints
    """Nanoseconds with the workers that were submitted, on as few nodes as hold them."""
    workers: Ints
    """Of one GPU each."""
    most: Ints
    """The most workers that it may have; for a fixed gang those that were submitted."""
    least: Ints
    model: Ints
    told_run: Ints
    told_growth: Floats
    """[J, WORKERS_MAX + 1] as `Pool.growth`, of each job."""
    told_spread: Floats
    """[J, LEVELS] as `Pool.spread`, of each job."""
    pool: Pool


def pool_of(family: str, *, unseen: bool) -> Pool:
    """Return the models of a family of workloads."""
    rng = np.random.default_rng(UNSEEN_POOL if unseen else SEEN_POOL)
    growth = np.stack([_growth(rng, number, wide=unseen) for number in range(POOL)])
    slow = rng.uniform(1.1, 5.0 if unseen else 4.0, POOL)
    if family == "elastic":
        slow = np.ones(POOL)
    weights = np.full(POOL, 1.0 / POOL)
    if family == "locality":
        growth = np.tile(np.arange(WORKERS_MAX + 1.0), (POOL, 1))
        if not unseen:
            weights, slow = np.array(SCHED2_WEIGHTS), np.array(SCHED2_SLOWDOWN)
            growth = growth[: len(slow)]
    times = 1.0 + (slow[:, None] - 1.0) * np.array([0.0, *FURTHER])[None, :]
    return Pool(weights, growth, 1.0 / times)


def _growth(rng: np.random.Generator, number: int, *, wide: bool) -> Floats:
    """Return the speed of a model by workers.

    A mini-batch takes a / w + b + c [w > 1] + d (w - 1) of that of one worker, the form of Optimus
    (EuroSys 2018, section 3.2) with a step for having to communicate at all. Four kinds take turns:
    nearly linear; concave; with a peak; and one that gains nothing from the second worker, and
    much from further ones. Some kinds lose where workers do not divide the batch.
    """
    more = 1.3 if wide else 1.0
    kind = number % 4
    serial = rng.uniform(0.0, (0.05, 0.25, 0.15, 0.05)[kind] * more)
    step = rng.uniform((0.0, 0.0, 0.0, 0.4)[kind], (0.02, 0.05, 0.1, 0.6)[kind])
    each = rng.uniform((0.0, 0.0, 0.03, 0.0)[kind], (0.002, 0.01, 0.12 * more, 0.004)[kind])
    uneven = rng.uniform(0.0, 0.25) if rng.random() < 0.5 else 0.0
    made = np.zeros(WORKERS_MAX + 1)
    for workers in range(1, WORKERS_MAX + 1):
        took = (1.0 - serial) / workers + serial + step * (workers > 1) + each * (workers - 1)
        if workers & (workers - 1):
            took *= 1.0 + uneven
        made[workers] = 1.0 / took
    return made


def draw(setting: Setting, number: int) -> Drawn:
    """Return the jobs of a trace of a setting.

    Args:
        setting: The setting.
        number: One of TRAINING, TUNING or HELD_OUT.

    Raises:
        ValueError: It is none of these.
    """
    return drawn(setting, seed_of(number), setting.jobs)


def drawn(setting: Setting, seed: int, jobs: int) -> Drawn:
    """Return so many jobs of a setting.

    Args:
        setting: The setting.
        seed: One of training or of evaluation.
        jobs: How many.
    """
    rng = np.random.default_rng([seed, FAMILIES.index(setting.family)])
    pool = pool_of(setting.family, unseen=setting.unseen)
    fixed = setting.family == "locality"
    sizes, weights = (SIZES, SIZE_WEIGHTS) if fixed else (STARTS, START_WEIGHTS)
    workers = rng.choice(sizes, jobs, p=weights)
    workers = np.minimum(workers, setting.nodes * NODE_GPUS)
    run_s = np.clip(MEDIAN_S * np.exp(SIGMA * rng.standard_normal(jobs)), SHORTEST_S, LONGEST_S)
    run_s = np.round(run_s)
    model = rng.choice(len(pool.weights), jobs, p=pool.weights)
    needed = float(np.dot(sizes, weights)) * mean_run_s()
    interval_s = needed / (setting.load * setting.nodes * NODE_GPUS)
    at_s = _arrivals(rng, jobs, interval_s, setting)

    def wrong(*shape: int) -> Floats:
        return 1.0 + setting.error * rng.uniform(-1.0, 1.0, shape)

    told_growth = pool.growth[model] * wrong(jobs, WORKERS_MAX + 1)
    told_spread = pool.spread[model] * wrong(jobs, LEVELS)
    told_growth /= told_growth[:, 1:2]
    told_spread = np.minimum(told_spread / told_spread[:, :1], 1.0)
    return Drawn(
        at=whole(at_s * 1e9) // 8 * 8,
        run=whole(run_s) * SECOND,
        workers=whole(workers),
        most=whole(workers if fixed else np.full(jobs, WORKERS_MAX)),
        least=whole(workers if fixed else np.ones(jobs)),
        model=whole(model),
        told_run=whole(np.maximum(run_s * wrong(jobs), 1.0)) * SECOND,
        told_growth=told_growth,
        told_spread=told_spread,
        pool=pool,
    )


def whole(values: NDArray[Any]) -> Ints:
    """Return numbers without what is behind their points."""
    return values.astype(np.int64)


def seed_of(number: int) -> int:
    """Return the seed of a trace.

    Raises:
        ValueError: The number is none of TRAINING, TUNING or HELD_OUT.
    """
    if number in HELD_OUT:
        return evaluation_seed(number)
    if number in TRAINING or number in TUNING:
        return training_seed(number)
    reason = f"trace {number} is neither of training nor of tuning nor held out"
    raise ValueError(reason)


def mean_run_s() -> float:
    """Return the mean of the run times, which are cut at both ends."""

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    low = math.log(SHORTEST_S / MEDIAN_S) / SIGMA
    high = math.log(LONGEST_S / MEDIAN_S) / SIGMA
    inside = MEDIAN_S * math.exp(SIGMA**2 / 2) * (below(high - SIGMA) - below(low - SIGMA))
    return inside + SHORTEST_S * below(low) + LONGEST_S * (1.0 - below(high))


def _arrivals(rng: np.random.Generator, jobs: int, interval_s: float, setting: Setting) -> Floats:
    """Return when jobs come, in seconds: Poisson, or with bursts (`fast_env.draw.gap`)."""
    gaps = rng.exponential(interval_s, jobs)
    if setting.bursts:
        chance = rng.random(jobs)
        ends = 1.0 / (BURST_JOBS_PER_NODE * setting.nodes)
        begins = ends * BURST_PART / (1.0 - BURST_PART)
        between = (1.0 - BURST_PART / BURST) / (1.0 - BURST_PART)
        inside = False
        for job in range(jobs):
            inside = bool(chance[job] >= ends) if inside else bool(chance[job] < begins)
            gaps[job] *= 1.0 / BURST if inside else between
    at: Floats = np.cumsum(gaps) - gaps[0]
    return at


class TruthOf:
    """The workload model of a trace for the production simulator: its pool's true speeds."""

    def __init__(self, drawn: Drawn) -> None:
        """Look up speeds in the pool of these jobs."""
        self._pool = drawn.pool
        self._jobs = {
            f"t{number}": (int(model), int(workers))
            for number, (model, workers) in enumerate(zip(drawn.model, drawn.workers, strict=True))
        }

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return its speed with so many workers, spread like this."""
        model, then = self._jobs[job.id]
        gpus = sum(where.spread)
        more = len(where.spread) - -(-gpus // NODE_GPUS)
        growth = self._pool.growth[model]
        spread = self._pool.spread[model, min(max(more, 0), LEVELS - 1)]
        return float(growth[min(where.workers, WORKERS_MAX)] / growth[then] * spread)

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return 0.0: unknown."""
        return 0.0

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0

    def memory(self, job: TraceJob) -> int:
        """Return 0: unknown."""
        return 0

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return nothing: every model is known."""
        return {}


def trace_of(drawn: Drawn, name: str) -> Trace:
    """Return the jobs as the production simulator has them, with the run times that are told."""
    jobs = []
    for number in range(len(drawn.at)):
        workers, most = int(drawn.workers[number]), int(drawn.most[number])
        elastic = most > int(drawn.least[number])
        jobs.append(
            TraceJob(
                id=f"t{number}",
                at=Duration(int(drawn.at[number])),
                run_time=Duration(int(drawn.run[number])),
                said_time=Duration(int(drawn.told_run[number])),
                gpus=workers,
                workers=workers,
                workers_min=int(drawn.least[number]) if elastic else 0,
                workers_max=most if elastic else 0,
                model=f"m{int(drawn.model[number])}",
            )
        )
    return Trace(name=name, jobs=tuple(jobs))
