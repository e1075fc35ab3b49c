"""DL²'s environment: give workers and parameter servers to jobs, slot by slot.

State, actions and reward are those of DL², section 4.1 and 4.3. In every slot all jobs begin with
nothing; the agent adds a worker, a server, or both to a job, again and again, until it stops. Where
there are more than J jobs they are decided about in batches of J, in order of arrival (section
6.5.1). Then the slot passes.

    observation   J rows: model (one-hot), slots it has run, remaining work, dominant share,
                  workers, servers; each number 0 to 1
    action        3 i: a worker for job i; 3 i + 1: a server; 3 i + 2: both; 3 J: stop
    reward        with the decision that ends a slot, the sum over jobs of the epochs trained in it,
                  relative to all epochs of the job (equation 1); 0 with every other decision

What a worker or server is on does not matter in DL²: only whether some node has room. So a node is
known by its type and what it has free, and nodes that are alike are counted. The least used node is
taken, of the fastest type first; a gang on several types runs at the speed of the slowest. Numbers
without an upper bound are observed as x / (x + 10): the paper does not say how it scales; unknown
work is 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skep_lab.fast_env import draw
from skep_lab.fast_env.arrays import NUM, Floats, Ints, ints
from skep_lab.fast_env.compiled import compiled, inlined, inner
from skep_lab.fast_env.draw import Workload

MODELS = ("resnet-50", "vgg-16", "resnext-110", "inception-bn", "seq2seq", "ctc", "dssm", "wlm")
"""DL², Table 1."""
THEN = 4
"""Workers and servers with which a job takes its drawn run time, as in `traces.generators.dl2`."""
FEATURES = 5


class Options(NamedTuple):
    """The setting; defaults are the paper's simulation (section 6.2), where it says any."""

    jobs: int = 200
    """Jobs of an episode."""
    window: int = 40
    """J."""
    nodes: tuple[int, ...] = (500,)
    """Nodes of each type of GPU."""
    kind_speeds: tuple[float, ...] = (1.0,)
    """Their speeds, fastest first."""
    node_gpus: int = 2
    node_cpus: int = 8
    """Those of the public code of DL²; the paper has no number."""
    worker_gpus: int = 1
    worker_cpus: int = 2
    server_cpus: int = 2
    most: int = 16
    """The most workers, and servers, of a job (public code)."""
    slot_s: float = 1200.0
    interval_s: float = 450.0
    """200 jobs in 75 slots."""
    interval_sigma: float = 0.0
    median_s: float = 4500.0
    sigma: float = 1.16
    """Of run times with 4 workers and 4 servers: a mean of 147 minutes (section 6.2)."""
    arrivals: tuple[int, ...] = ()
    """Jobs that come in each slot, over and over from a random slot on; empty: by intervals."""
    lengths: tuple[float, ...] = ()
    """Slots that a job takes with 4 workers and 4 servers, by model; empty: drawn."""
    model_gpus: tuple[int, ...] = ()
    """GPUs of a worker by model, 0 or `worker_gpus`; empty: all have `worker_gpus`."""
    shortest_s: float = 60.0
    longest_s: float = 864000.0
    bundle: bool = False
    """Every job begins a slot with a worker and a server, if there is room (public code)."""
    burst: float = 1.0
    burst_part: float = 0.0
    burst_jobs: float = 20.0
    speed_error: float = 0.0
    """Speeds differ from the table by up to this part, by job and slot (Figure 15)."""
    told_error: float = 0.0
    """The epochs that are predicted differ by up to this part (Figure 16)."""
    told_after_slots: int = 0
    """Slots after its arrival at which they are known."""
    fault_part: float = 0.0
    """The part of running jobs that a fault hits in a slot: their work since the last checkpoint is
    lost."""
    checkpoint_slots: int = 1
    """Slots between two checkpoints; a resize stores the state as well."""
    start_s: float = 0.0
    """Without progress when a job first runs; `resume_s` when it runs again after a slot without,
    `resize_s` when it has other numbers than in the slot before."""
    resume_s: float = 0.0
    resize_s: float = 0.0

    def check(self) -> None:
        """Check the values.

        Raises:
            ValueError: A number makes no sense; the message says which.
        """
        wrong = {
            "jobs, window, most and checkpoint_slots are 1 or more": min(
                self.jobs, self.window, self.most, self.checkpoint_slots
            )
            < 1,
            "nodes has 1 or more nodes of each type": not self.nodes or min(self.nodes) < 1,
            "kind_speeds has a speed above 0 for each type of nodes, fastest first": len(
                self.kind_speeds
            )
            != len(self.nodes)
            or min(self.kind_speeds, default=0) <= 0
            or list(self.kind_speeds) != sorted(self.kind_speeds, reverse=True),
            "a node holds a worker, and holds a server": not (
                0 <= self.worker_gpus <= self.node_gpus
                and 0 <= self.worker_cpus <= self.node_cpus
                and 1 <= self.server_cpus <= self.node_cpus
            ),
            "arrivals are 0 or more, with a job in some slot": bool(self.arrivals)
            and (min(self.arrivals) < 0 or not any(self.arrivals)),
            "lengths are above 0": min(self.lengths, default=1.0) <= 0,
            "model_gpus are 0 or worker_gpus": not set(self.model_gpus) <= {0, self.worker_gpus},
            "slot_s, interval_s, median_s and shortest_s are above 0": min(
                self.slot_s, self.interval_s, self.median_s, self.shortest_s
            )
            <= 0,
            "longest_s is not below shortest_s": self.longest_s < self.shortest_s,
            "burst is 1 or more, burst_part from 0 to below 1": self.burst < 1
            or not 0 <= self.burst_part < 1,
            "errors are from 0 to below 1, fault_part from 0 to 1": not (
                0 <= self.speed_error < 1 and 0 <= self.told_error < 1 and 0 <= self.fault_part <= 1
            ),
            "sigmas, costs and told_after_slots are 0 or more": min(
                self.sigma,
                self.interval_sigma,
                self.start_s,
                self.resume_s,
                self.resize_s,
                self.told_after_slots,
            )
            < 0,
        }
        for reason, true in wrong.items():
            if true:
                raise ValueError(reason)


class _Job(NamedTuple):
    """The whole numbers of a job, by their place in `State.jobs`."""

    arrives: int = 0
    """Its slot."""
    model: int = 1
    workers: int = 2
    servers: int = 3
    workers_before: int = 4
    """In the slot before."""
    servers_before: int = 5
    ran: int = 6
    """Slots in which it had a worker and a server."""
    kind: int = 7
    """The slowest type that its workers are on."""


class _Work(NamedTuple):
    """The epochs of a job, by their place in `State.work`."""

    all: int = 0
    told: int = 1
    """As predicted."""
    done: int = 2
    stored: int = 3
    ended: int = 4
    """When it ended, in slots; below 0: it has not."""


class _Sum(NamedTuple):
    """The numbers of an environment, by their place in `State.sums`."""

    slot: int = 0
    next: int = 1
    active: int = 2
    base: int = 3
    """The first job of the batch that is decided about."""
    open: int = 4
    room: int = 5
    """What there is room for, as bits: a worker, a server, both; then the same for a worker that
    has no GPU."""
    faults: int = 6
    gpus: int = 7
    """GPUs that were given, summed over slots."""


JOB, WORK, SUM = _Job(), _Work(), _Sum()


class Jobs(NamedTuple):
    """The distribution of jobs, as arrays for kernels."""

    drawn: Workload
    arrivals: Ints
    """Jobs that come in each slot; empty: by intervals."""
    lengths: Floats
    """[M] slots of a job; empty: drawn."""


class State(NamedTuple):
    """Arrays of a batch of B environments with J jobs each."""

    jobs: Ints
    """[B, J, JOB]"""
    work: Floats
    """[B, J, WORK]"""
    active: Ints
    """[B, J] jobs that have come and not ended, in order of arrival."""
    alike: Ints
    """[B, T, G + 1, C + 1] nodes by type, free GPUs and free CPUs."""
    sums: Ints
    """[B, SUM]"""
    num: Ints
    """[B, NUM] random numbers, as in `arrays`."""
    speed: Floats
    """[M, most + 1, most + 1] epochs a slot by model, workers and servers."""
    kinds: Floats
    """[T] speeds of the types."""
    nodes: Ints
    """[T]"""
    needs: Ints
    """GPUs and CPUs of a worker, CPUs of a server; then the GPUs of a worker of each model."""
    rules: Floats
    """See `RULES`."""


class _Rules(NamedTuple):
    """The settings of `State.rules`."""

    slot: int = 0
    """Seconds."""
    bundle: int = 1
    speed_error: int = 2
    told_error: int = 3
    told_after: int = 4
    fault_part: int = 5
    checkpoint: int = 6
    start: int = 7
    resume: int = 8
    resize: int = 9
    bare: int = 10
    """Some model's workers have no GPU."""


RULES = _Rules()


class Sight(NamedTuple):
    """What a batch shows of itself after a step."""

    observation: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    """[B, J x (M + 5)]"""
    mask: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """[B, 3 J + 1] actions that are possible; to stop always is."""
    reward: Floats
    """[B]"""
    done: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """[B] the episode ended with this step; the environment has begun its next one."""
    slot_ended: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """[B] the slot ended with this step: `reward` is that of all its decisions."""
    finished: Floats
    """[B, 3] of the latest episode that ended, in slots: mean completion time from the beginning of
    the slot of arrival on; time until all had ended; part of the GPUs that were given meanwhile."""
    added: Floats
    """[B, 3] the number of the job that the step gave something, or -1; what that adds to the slot
    by the table of speeds: epochs, and reward."""
    shares: Floats
    """[B, jobs] the part of its epochs that each job trained in the latest slot it was in."""


COEFFICIENTS = (
    (1.0, 0.05, 0.02, 0.010, 0.004),
    (1.0, 0.05, 0.30, 0.020, 0.004),
    (1.0, 0.05, 0.03, 0.005, 0.002),
    (1.0, 0.05, 0.04, 0.015, 0.006),
    (1.0, 0.05, 0.10, 0.010, 0.010),
    (1.0, 0.05, 0.06, 0.030, 0.003),
    (1.0, 0.05, 0.01, 0.008, 0.012),
    (1.0, 0.05, 0.15, 0.004, 0.008),
)
"""Chosen for models that are compute-bound, bound by their servers, or slow with many workers."""


def optimus_speeds(most: int) -> Floats:
    """Return speeds by model, workers and servers: 1 is that of 4 workers and 4 servers.

    The form is that of Optimus (EuroSys 2018, equation 4): the time of a step with w workers and p
    servers at a fixed global batch is a / w + b + c w / p + d w + e p. The coefficients are chosen;
    measured tables (`skep_lab.workloads`) take their place where they are known.

    Args:
        most: The most workers, and servers.
    """
    workers, servers = np.meshgrid(np.arange(1, most + 1), np.arange(1, most + 1), indexing="ij")
    made = np.zeros((len(COEFFICIENTS), most + 1, most + 1))
    for model, (a, b, c, d, e) in enumerate(COEFFICIENTS):
        took = a / workers + b + c * workers / servers + d * workers + e * servers
        then = a / THEN + b + c + (d + e) * THEN
        made[model, 1:, 1:] = then / took
    return made


PAPER = Options()


class Batch:
    """Many environments, each with jobs of its own seed; an ended one begins its next episode."""

    def __init__(self, envs: int, options: Options = PAPER, speed: Floats | None = None) -> None:
        """Allocate the arrays; `reset` begins the episodes.

        Args:
            envs: How many environments.
            options: The setting of all of them.
            speed: [models, most + 1, most + 1] speeds by model, workers and servers, where 1 is
                the speed of a job's drawn run time; None: `optimus_speeds`.

        Raises:
            ValueError: An option makes no sense, or the table has another shape.
        """
        options.check()
        if envs < 1:
            reason = "envs is 1 or more"
            raise ValueError(reason)
        table = optimus_speeds(options.most) if speed is None else np.array(speed, np.float64)
        if table.ndim != 3 or table.shape[1:] != (options.most + 1,) * 2 or not len(table):
            reason = f"speed has the shape (models, {options.most + 1}, {options.most + 1})"
            raise ValueError(reason)
        if {len(options.lengths), len(options.model_gpus)} - {0, len(table)}:
            reason = f"lengths and model_gpus have a number for each of {len(table)} models"
            raise ValueError(reason)
        self.options, self.models = options, len(table)
        rules = np.zeros(len(RULES))
        told = {"slot": options.slot_s, "bundle": options.bundle}
        told["bare"] = 0 in options.model_gpus
        told |= {"told_after": options.told_after_slots, "checkpoint": options.checkpoint_slots}
        told |= {field: getattr(options, f"{field}_s") for field in ("start", "resume", "resize")}
        for field in ("speed_error", "told_error", "fault_part"):
            told[field] = getattr(options, field)
        for field, value in told.items():
            rules[getattr(RULES, field)] = value
        gpus = options.model_gpus or [options.worker_gpus] * len(table)
        self.state = State(
            jobs=np.zeros((envs, options.jobs, len(JOB)), np.int64),
            work=np.zeros((envs, options.jobs, len(WORK))),
            active=np.zeros((envs, options.jobs), np.int64),
            alike=np.zeros(
                (envs, len(options.nodes), options.node_gpus + 1, options.node_cpus + 1), np.int64
            ),
            sums=np.zeros((envs, len(SUM)), np.int64),
            num=np.ones((envs, len(NUM)), np.int64),
            speed=table,
            kinds=np.array(options.kind_speeds, np.float64),
            nodes=ints(options.nodes),
            needs=ints([options.worker_gpus, options.worker_cpus, options.server_cpus, *gpus]),
            rules=rules,
        )
        weights = np.ones(self.models)
        drawn = Workload(draw.scalars_of(options), ints([1]), np.ones(1), weights)
        lengths = np.array(options.lengths, np.float64)
        self.workload = Jobs(drawn, ints(options.arrivals), lengths)
        self.sight = Sight(
            np.zeros((envs, options.window * (self.models + FEATURES)), np.float32),
            np.zeros((envs, 3 * options.window + 1), np.bool_),
            np.zeros(envs),
            np.zeros(envs, np.bool_),
            np.zeros(envs, np.bool_),
            np.zeros((envs, 3)),
            np.zeros((envs, 3)),
            np.zeros((envs, options.jobs)),
        )

    def reset(self, seeds: Ints) -> Sight:
        """Begin an episode of each environment with a seed of its own."""
        reset_all(self.state, self.workload, ints(seeds), self.sight)
        return self.sight

    def step(self, actions: Ints) -> Sight:
        """Take one decision in each environment; returns the same arrays every time."""
        step_all(self.state, self.workload, ints(actions), self.sight)
        return self.sight

    def play_random(self, decisions: int) -> int:
        """Take so many random possible decisions in each environment, without Python in between."""
        return random_all(self.state, self.workload, decisions, self.sight)


# --- jobs ----------------------------------------------------------------------------------------


@inner
def _draw(s: State, b: int, come_by: Jobs) -> None:
    """Fill an environment with random jobs, and begin its first slot."""
    w = come_by.drawn
    at, inside, come = 0.0, False, 0
    slot, pattern = s.rules[RULES.slot], len(come_by.arrivals)
    first = int(draw.uniform(s.num, b) * pattern) if pattern > 0 else 0
    for j in range(s.jobs.shape[1]):
        for i in range(s.jobs.shape[2]):
            s.jobs[b, j, i] = 0
        run = draw.run_time(s.num, b, w)
        wrong = 1.0 + s.rules[RULES.told_error] * (2.0 * draw.uniform(s.num, b) - 1.0)
        model = draw.choose(s.num, b, w.models)
        s.jobs[b, j, JOB.model] = model
        if len(come_by.lengths) > 0:
            run = come_by.lengths[model] * slot
        if pattern > 0:
            while come == come_by.arrivals[(first + int(at / slot)) % pattern]:
                at, come = at + slot, 0
            come += 1
        s.jobs[b, j, JOB.arrives] = int(at / slot)
        s.work[b, j, WORK.all], s.work[b, j, WORK.told] = run / slot, run / slot * wrong
        s.work[b, j, WORK.done] = s.work[b, j, WORK.stored] = 0.0
        s.work[b, j, WORK.ended] = -1.0
        if pattern == 0:
            inside = draw.goes_on(s.num, b, w, inside)
            at += draw.gap(s.num, b, w, inside)
    for i in range(s.sums.shape[1]):
        s.sums[b, i] = 0
    s.sums[b, SUM.open] = s.jobs.shape[1]
    _begin_slot(s, b)


@inner
def _begin_slot(s: State, b: int) -> None:
    """Begin the next slot that has a job: nodes are empty, and jobs have nothing."""
    if s.sums[b, SUM.active] == 0 and s.sums[b, SUM.next] < s.jobs.shape[1]:
        arrives = s.jobs[b, s.sums[b, SUM.next], JOB.arrives]
        s.sums[b, SUM.slot] = max(s.sums[b, SUM.slot], arrives)
    while s.sums[b, SUM.next] < s.jobs.shape[1]:
        j = s.sums[b, SUM.next]
        if s.jobs[b, j, JOB.arrives] > s.sums[b, SUM.slot]:
            break
        s.active[b, s.sums[b, SUM.active]] = j
        s.sums[b, SUM.active] += 1
        s.sums[b, SUM.next] += 1
    kinds, gpus, cpus = s.alike.shape[1], s.alike.shape[2], s.alike.shape[3]
    for kind in range(kinds):
        for g in range(gpus):
            for c in range(cpus):
                s.alike[b, kind, g, c] = 0
        s.alike[b, kind, gpus - 1, cpus - 1] = s.nodes[kind]
    for i in range(s.sums[b, SUM.active]):
        j = s.active[b, i]
        s.jobs[b, j, JOB.workers] = s.jobs[b, j, JOB.servers] = s.jobs[b, j, JOB.kind] = 0
    s.sums[b, SUM.base] = 0
    if s.rules[RULES.bundle] > 0.0:
        for i in range(s.sums[b, SUM.active]):
            add(s, b, s.active[b, i], True, True)
    s.sums[b, SUM.room] = room(s, b)


# --- nodes ---------------------------------------------------------------------------------------


@inner
def _take(s: State, b: int, gpus: int, cpus: int) -> int:
    """Take GPUs and CPUs of the least used node that has them; return its type, or -1."""
    top_gpus, top_cpus = s.alike.shape[2] - 1, s.alike.shape[3] - 1
    for kind in range(s.alike.shape[1]):
        for c in range(top_cpus, cpus - 1, -1):
            for g in range(top_gpus, gpus - 1, -1):
                if s.alike[b, kind, g, c] > 0:
                    s.alike[b, kind, g, c] -= 1
                    s.alike[b, kind, g - gpus, c - cpus] += 1
                    return kind
    return -1


@inner
def _fits(s: State, b: int, gpus: int, cpus: int) -> bool:
    for kind in range(s.alike.shape[1]):
        for c in range(s.alike.shape[3] - 1, cpus - 1, -1):
            for g in range(s.alike.shape[2] - 1, gpus - 1, -1):
                if s.alike[b, kind, g, c] > 0:
                    return True
    return False


@inlined
def gpus_of(s: State, b: int, j: int) -> int:
    """Return the GPUs of a worker of a job."""
    return int(s.needs[3 + s.jobs[b, j, JOB.model]])


@inner
def _room_for(s: State, b: int, gpus: int) -> int:
    """Return what there is room for, as bits: a worker with so many GPUs, a server, both.

    Both fit if they fit after one another as `_take` takes them: on two empty nodes they always do.
    """
    cpus, own = s.needs[1], s.needs[2]
    top_gpus, top_cpus = s.alike.shape[2] - 1, s.alike.shape[3] - 1
    if s.alike[b, 0, top_gpus, top_cpus] > 1:
        return 7
    worker, server, both = _fits(s, b, gpus, cpus), _fits(s, b, 0, own), False
    if worker and server:
        for kind in range(s.alike.shape[1]):
            for c in range(top_cpus, cpus - 1, -1):
                for g in range(top_gpus, gpus - 1, -1):
                    if s.alike[b, kind, g, c] > 0:
                        s.alike[b, kind, g, c] -= 1
                        s.alike[b, kind, g - gpus, c - cpus] += 1
                        both = _fits(s, b, 0, own)
                        s.alike[b, kind, g, c] += 1
                        s.alike[b, kind, g - gpus, c - cpus] -= 1
                        return 1 + 2 + (4 if both else 0)
    return (1 if worker else 0) + (2 if server else 0)


@inlined
def room(s: State, b: int) -> int:
    """Return what there is room for, as the bits of `SUM.room`."""
    bare = s.rules[RULES.bare] > 0.0
    return _room_for(s, b, s.needs[0]) + (8 * _room_for(s, b, 0) if bare else 0)


@inlined
def can(s: State, b: int, j: int, what: int) -> bool:
    """Return whether a job can have a worker (0), a server (1), or both (2)."""
    most, bits = s.speed.shape[1] - 1, s.sums[b, SUM.room]
    if s.rules[RULES.bare] > 0.0 and gpus_of(s, b, j) == 0:
        bits >>= 3
    return bool(
        (bits >> what) & 1
        and (what == 1 or s.jobs[b, j, JOB.workers] < most)
        and (what == 0 or s.jobs[b, j, JOB.servers] < most)
    )


@inner
def add(s: State, b: int, j: int, worker: bool, server: bool) -> None:
    """Give a job a worker, a server, or both, as far as there is room."""
    if worker:
        kind = _take(s, b, gpus_of(s, b, j), s.needs[1])
        if kind >= 0:
            s.jobs[b, j, JOB.workers] += 1
            s.jobs[b, j, JOB.kind] = max(s.jobs[b, j, JOB.kind], kind)
    if server and _take(s, b, 0, s.needs[2]) >= 0:
        s.jobs[b, j, JOB.servers] += 1


# --- time ----------------------------------------------------------------------------------------


@inner
def _lost_s(s: State, b: int, j: int) -> float:
    """Return the seconds of a slot for which a job makes no progress, as it begins or changes."""
    before = s.jobs[b, j, JOB.workers_before] > 0 and s.jobs[b, j, JOB.servers_before] > 0
    same = (
        s.jobs[b, j, JOB.workers] == s.jobs[b, j, JOB.workers_before]
        and s.jobs[b, j, JOB.servers] == s.jobs[b, j, JOB.servers_before]
    )
    if s.jobs[b, j, JOB.ran] == 0:
        return float(s.rules[RULES.start])
    if not before:
        return float(s.rules[RULES.resume])
    return 0.0 if same else float(s.rules[RULES.resize])


@inlined
def speed_of(s: State, b: int, j: int) -> float:
    """Return the epochs that a job trains in a slot as it is, by the table."""
    rate = s.speed[s.jobs[b, j, JOB.model], s.jobs[b, j, JOB.workers], s.jobs[b, j, JOB.servers]]
    return float(rate * s.kinds[s.jobs[b, j, JOB.kind]])


@inner
def _run(s: State, b: int, j: int) -> float:
    """Have a job train for a slot; return the part of its epochs that it trained."""
    workers, servers = s.jobs[b, j, JOB.workers], s.jobs[b, j, JOB.servers]
    trained, slot = 0.0, s.rules[RULES.slot]
    if workers > 0 and servers > 0:
        rate = speed_of(s, b, j)
        if s.rules[RULES.speed_error] > 0.0:
            rate *= 1.0 + s.rules[RULES.speed_error] * (2.0 * draw.uniform(s.num, b) - 1.0)
        lost = min(_lost_s(s, b, j) / slot, 1.0)
        rest = s.work[b, j, WORK.all] - s.work[b, j, WORK.done]
        trained = min(rate * (1.0 - lost), rest)
        s.jobs[b, j, JOB.ran] += 1
        if lost > 0.0:
            s.work[b, j, WORK.stored] = s.work[b, j, WORK.done]
        s.work[b, j, WORK.done] += trained
        if trained >= rest:
            s.work[b, j, WORK.ended] = s.sums[b, SUM.slot] + lost + rest / rate
        elif s.rules[RULES.fault_part] > draw.uniform(s.num, b):
            s.sums[b, SUM.faults] += 1
            trained -= s.work[b, j, WORK.done] - s.work[b, j, WORK.stored]
            s.work[b, j, WORK.done] = s.work[b, j, WORK.stored]
            workers = servers = 0  # It comes back as one that was without.
        elif s.jobs[b, j, JOB.ran] % int(s.rules[RULES.checkpoint]) == 0:
            s.work[b, j, WORK.stored] = s.work[b, j, WORK.done]
    s.jobs[b, j, JOB.workers_before], s.jobs[b, j, JOB.servers_before] = workers, servers
    return float(trained / s.work[b, j, WORK.all])


@inner
def end_slot(s: State, b: int, view: Sight) -> None:
    """Let a slot pass, write what it brought, and begin the next one."""
    reward, left = 0.0, 0
    for i in range(s.sums[b, SUM.active]):
        j = s.active[b, i]
        s.sums[b, SUM.gpus] += s.jobs[b, j, JOB.workers] * gpus_of(s, b, j)
        view.shares[b, j] = _run(s, b, j)
        reward += view.shares[b, j]
        if s.work[b, j, WORK.ended] < 0.0:
            s.active[b, left] = j
            left += 1
    s.sums[b, SUM.open] -= s.sums[b, SUM.active] - left
    s.sums[b, SUM.active] = left
    s.sums[b, SUM.slot] += 1
    _begin_slot(s, b)
    view.reward[b], view.slot_ended[b] = reward, True


@inner
def finish(s: State, b: int, view: Sight) -> None:
    """Write what an episode that ended was like."""
    jobs, total, last, gpus = s.jobs.shape[1], 0.0, 0.0, 0
    for j in range(jobs):
        total += s.work[b, j, WORK.ended] - s.jobs[b, j, JOB.arrives]
        last = max(last, s.work[b, j, WORK.ended])
    for kind in range(len(s.nodes)):
        gpus += s.nodes[kind] * (s.alike.shape[2] - 1)
    took = last - s.jobs[b, 0, JOB.arrives]
    view.finished[b, 0], view.finished[b, 1] = total / jobs, took
    view.finished[b, 2] = s.sums[b, SUM.gpus] / (max(gpus, 1) * took)
    view.done[b] = True


# --- what is seen --------------------------------------------------------------------------------


@inner
def _show_size(s: State, b: int, view: Sight, i: int, j: int) -> None:
    """Write what a decision changes in a job's row: dominant share, workers, servers."""
    models, most = s.speed.shape[0], float(s.speed.shape[1] - 1)
    at = i * (models + FEATURES) + models
    workers, servers = s.jobs[b, j, JOB.workers], s.jobs[b, j, JOB.servers]
    nodes = 0
    for kind in range(len(s.nodes)):
        nodes += s.nodes[kind]
    gpus = workers * gpus_of(s, b, j) / float(nodes * max(s.alike.shape[2] - 1, 1))
    cpus = (workers * s.needs[1] + servers * s.needs[2]) / float(nodes * (s.alike.shape[3] - 1))
    view.observation[b, at + 2] = max(gpus, cpus)
    view.observation[b, at + 3] = workers / most
    view.observation[b, at + 4] = servers / most


@inner
def _show_mask(s: State, b: int, view: Sight, i: int, j: int) -> None:
    """Write what is possible for a job."""
    for what in range(3):
        view.mask[b, 3 * i + what] = can(s, b, j, what)


@inner
def _look(s: State, b: int, view: Sight) -> None:
    """Write observation and mask of an environment."""
    models, window = s.speed.shape[0], view.mask.shape[1] // 3
    for i in range(view.observation.shape[1]):
        view.observation[b, i] = 0.0
    for i in range(3 * window):
        view.mask[b, i] = False
    view.mask[b, 3 * window] = True
    base = s.sums[b, SUM.base]
    for i in range(min(window, s.sums[b, SUM.active] - base)):
        j = s.active[b, base + i]
        at = i * (models + FEATURES)
        view.observation[b, at + s.jobs[b, j, JOB.model]] = 1.0
        ran = float(s.jobs[b, j, JOB.ran])
        view.observation[b, at + models] = ran / (ran + 10.0)
        left = max(s.work[b, j, WORK.told] - s.work[b, j, WORK.done], 0.0)
        late = s.sums[b, SUM.slot] - s.jobs[b, j, JOB.arrives] < s.rules[RULES.told_after]
        view.observation[b, at + models + 1] = 1.0 if late else left / (left + 10.0)
        _show_size(s, b, view, i, j)
        _show_mask(s, b, view, i, j)


# --- decisions -----------------------------------------------------------------------------------


@inner
def _add_by(s: State, b: int, action: int, view: Sight) -> None:
    """Carry out an action that is possible, and write what it changed."""
    i, what = action // 3, action % 3
    j, before = s.active[b, s.sums[b, SUM.base] + i], s.sums[b, SUM.room]
    rest = s.work[b, j, WORK.all] - s.work[b, j, WORK.done]
    had = min(speed_of(s, b, j), rest)
    add(s, b, j, what != 1, what != 0)
    more = min(speed_of(s, b, j), rest) - had
    view.added[b, 0], view.added[b, 1] = j, more
    view.added[b, 2] = more / s.work[b, j, WORK.all]
    s.sums[b, SUM.room] = room(s, b)
    _show_size(s, b, view, i, j)
    _show_mask(s, b, view, i, j)
    if s.sums[b, SUM.room] != before:
        there = min(view.mask.shape[1] // 3, s.sums[b, SUM.active] - s.sums[b, SUM.base])
        for k in range(there):
            _show_mask(s, b, view, k, s.active[b, s.sums[b, SUM.base] + k])


@inner
def _step(s: State, b: int, w: Jobs, action: int, view: Sight) -> None:
    window = view.mask.shape[1] // 3
    view.reward[b], view.done[b], view.slot_ended[b] = 0.0, False, False
    view.added[b, 0], view.added[b, 1], view.added[b, 2] = -1.0, 0.0, 0.0
    if 0 <= action < 3 * window and view.mask[b, action]:
        _add_by(s, b, action, view)
        if s.sums[b, SUM.room] != 0:
            return
    s.sums[b, SUM.base] += window if s.sums[b, SUM.room] != 0 else s.sums[b, SUM.active]
    if s.sums[b, SUM.base] >= s.sums[b, SUM.active]:
        end_slot(s, b, view)
    if s.sums[b, SUM.open] == 0:
        finish(s, b, view)
        _draw(s, b, w)
    _look(s, b, view)


@compiled
def reset_all(s: State, w: Jobs, seeds: Ints, view: Sight) -> None:
    """Begin an episode in each environment."""
    for b in range(s.sums.shape[0]):
        draw.seed_with(s.num, b, seeds[b])
        _draw(s, b, w)
        view.reward[b], view.done[b], view.slot_ended[b] = 0.0, False, False
        _look(s, b, view)


@compiled
def step_all(s: State, w: Jobs, actions: Ints, view: Sight) -> None:
    """Take one decision in each environment."""
    for b in range(s.sums.shape[0]):
        _step(s, b, w, actions[b], view)


@compiled
def random_all(s: State, w: Jobs, decisions: int, view: Sight) -> int:
    """Take random possible decisions in each environment; return how many there were."""
    count, actions = 0, view.mask.shape[1]
    for b in range(s.sums.shape[0]):
        for _ in range(decisions):
            chosen = int(draw.uniform(s.num, b) * actions)
            for _ in range(actions):
                if view.mask[b, chosen]:
                    break
                chosen = chosen + 1 if chosen + 1 < actions else 0
            _step(s, b, w, chosen, view)
            count += 1
    return count
