"""DL²'s network as a policy of the production simulator, beside Skep's own policies.

At the beginning of each slot the network shares GPUs and servers out, as in `fast_env.dl2`: one
worker or server after another, until it stops. In the slot that follows running jobs are resized to
what they got, and waiting jobs begin with it. Three things differ from the fast environment, since
production has no such jobs:

- A job is on one node, which the first worker chooses: only there parameter servers can change.
- No job is stopped: one that runs keeps a worker and a server (`Options.bundle` gives them to the
  waiting ones too). So a job that is small is never without GPUs.
- Every worker has a GPU.

The rest of a job's work is what it reports of its mini-batches. Servers take no GPU, and production
counts no processors for them; the policy counts those of the setting.

`python -m tools.dl2_production` plays held-out episodes under this policy and under Skep's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from skep.policy.api import Planner, Policy
from skep.policy.parts import LATE_DIVISOR
from skep.policy.plan import Plan, Resize, Turn
from skep.policy.powers import Powers
from skep.policy.schedulers.lookahead import LookAhead
from skep.policy.sizes import resizable
from skep.policy.view import HOLDING, QUEUED, JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.reasons import Reason
from skep_lab.fast_env import dl2
from skep_lab.fast_env.arrays import Floats
from skep_lab.fast_env.dl2 import JOB, MODELS, THEN, WORK, Options
from skep_lab.learn import dl2_agent
from skep_lab.learn.dl2_agent import Flags, Singles
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.ledger import BEGIN
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation

BATCHES_A_SLOT = 1000
"""Mini-batches that a job makes in a slot at speed 1."""
BEFORE_S = 1.0
"""Jobs come so long before the slot in which they are there."""


class SizeSpeeds(NamedTuple):
    """Speeds by model, workers and servers, wherever they are."""

    table: Floats
    """[M, most + 1, most + 1], as in `fast_env.dl2`."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return the speed of a job, where 1 is that of 4 workers and 4 servers."""
        most = self.table.shape[1] - 1
        size = min(where.workers, most), min(where.servers, most)
        return float(self.table[MODELS.index(job.model), *size])

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return seconds of one mini-batch."""
        speed = self.speed(job, where)
        return job.run_time / 1e9 / job.mini_batches / speed if speed > 0 else 0.0

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0

    def memory(self, job: TraceJob) -> int:
        """Return 0."""
        return 0

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return nothing."""
        return {}


def trace_of(options: Options, seed: int, speed: Floats | None = None) -> Trace:
    """Return the jobs of an episode as a trace; each comes just before its slot.

    Args:
        options: The setting.
        seed: Of the episode.
        speed: The speeds; they say how many models there are.
    """
    batch = dl2.Batch(1, options, speed)
    batch.reset(np.array([seed]))
    jobs, work, slot_s = batch.state.jobs[0], batch.state.work[0], options.slot_s
    first_s = slot_s - BEGIN / 1e9 % slot_s
    made = [
        TraceJob(
            id=f"d{number}",
            at=seconds(first_s + int(jobs[number, JOB.arrives]) * slot_s - BEFORE_S),
            run_time=seconds(float(work[number, WORK.all]) * slot_s),
            gpus=min(THEN, options.most),
            workers=min(THEN, options.most),
            workers_min=1,
            workers_max=min(options.most, options.node_gpus),
            servers=min(THEN, options.most),
            model=MODELS[int(jobs[number, JOB.model])],
            mini_batches=max(round(float(work[number, WORK.all]) * BATCHES_A_SLOT), 1),
        )
        for number in range(len(jobs))
    ]
    return Trace(name=f"dl2-{seed}", jobs=tuple(made))


def play(options: Options, speed: Floats, seed: int, policy: Policy) -> RunResult:
    """Return what becomes of an episode in the production simulator, without costs.

    Args:
        options: The setting; all nodes are of one type.
        speed: The true speeds.
        seed: Of the episode.
        policy: What decides.
    """
    cluster = uniform(options.nodes[0], options.node_gpus)
    trace = trace_of(options, seed, speed)
    # Only of a VC whose policy has a name the advisor tells what its jobs have done.
    settings = Settings(policies={ALL: (LookAhead.name, {})})
    return run(trace, cluster, settings, SizeSpeeds(speed), policies={ALL: policy})


def completion_slots(result: RunResult, slot_s: float) -> Floats:
    """Return how long each job took, in slots from the beginning of its slot of arrival on."""
    took = [((job.ended or 0) - job.job.at) / 1e9 - BEFORE_S for job in result.jobs]
    return np.array(took) / slot_s


# --- the policy ----------------------------------------------------------------------------------


class Size(NamedTuple):
    """What a job gets in a slot, and where."""

    workers: int
    servers: int
    node: str


class Dl2Policy(Policy, frozen=True):
    """The network shares all GPUs out anew in each slot."""

    name: ClassVar[str] = "dl2"
    source: ClassVar[str] = "DL², section 4"
    network: dl2_agent.Policy
    world: Options
    """The setting; its nodes are those of the VC."""
    sampled: int | None = 0
    """The seed of its random actions; None: the most likely ones."""

    @property
    def sees_nodes(self) -> bool:
        """Return True: a job grows on its node only."""
        return True

    @property
    def sees_rates(self) -> bool:
        """Return True: it goes by the mini-batches that jobs have made."""
        return True

    @property
    def powers(self) -> Powers:
        """Return that it resizes, and goes by run times."""
        return Powers(resizes=True, passes=True, run_times=True)

    def plan(self, view: VcView) -> Plan:
        """Return the plan for a view that is the first of its slot."""
        return self.planner()(view)

    def planner(self) -> Planner:
        """Return a function that remembers what the slot's first view led to."""
        length, slot = seconds(self.world.slot_s), -1
        sizes: dict[str, Size] = {}

        def plan(view: VcView) -> Plan:
            nonlocal slot, sizes
            now, into = divmod(view.now, length)
            if now != slot:
                begins = into <= length // LATE_DIVISOR
                slot, sizes = now, _Sharing(self, view).sizes(now) if begins else {}
            return _carried_out(view, sizes, Instant((now + 1) * length))

        return plan


def _carried_out(view: VcView, sizes: Mapping[str, Size], next_slot: Instant) -> Plan:
    """Return what jobs still lack of their sizes; those that shrink come first.

    The view does not say how many servers a job has: one that has its size is not changed again.
    """
    there = [job for job in view.jobs if job.job in sizes]
    running = sorted(
        (job for job in there if resizable(job)),
        key=lambda job: (sizes[job.job].workers - job.workers, job.sequence),
    )
    resizes = [
        Resize(job.job, Reason.MOST_GAIN, sizes[job.job].workers, sizes[job.job].servers)
        for job in running
    ]
    turns = [
        Turn(job.job, Reason.MOST_GAIN, (sizes[job.job].node,), workers=sizes[job.job].workers)
        for job in there
        if job.phase in QUEUED
    ]
    return Plan(
        turns=tuple(turns),
        strict=False,
        actions=tuple(resizes),
        look_at=next_slot,
        behind=Reason.WAITS_FOR_GPUS,
    )


class _Sharing:
    """The decisions of one slot: what each job has so far, and what is left."""

    def __init__(self, policy: Dl2Policy, view: VcView) -> None:
        self._policy, self._options, self._now = policy, policy.world, view.now
        options = self._options
        self._cpus = sum(options.nodes) * options.node_cpus
        self._free = {node.node: node.free for node in view.nodes}
        self._jobs: list[JobView] = []
        self._has: list[list[int]] = []
        """Workers and servers of each job."""
        self._on: list[str] = []
        """Its node; empty: it has none yet."""
        for job in view.jobs:
            if resizable(job):
                self._free[job.nodes[0][0]] += job.gpus
        for job in view.jobs:
            self._enter(job)

    def _enter(self, job: JobView) -> None:
        """Let a job take part that can be resized, or that waits."""
        if not resizable(job) and job.phase not in QUEUED:
            return
        self._jobs.append(job)
        self._has.append([0, 0])
        self._on.append(job.nodes[0][0] if job.phase in HOLDING else "")
        at = len(self._jobs) - 1
        if job.phase in HOLDING or (self._options.bundle and self._possible(at)[2]):
            self._add(at, 2)

    def sizes(self, slot: int) -> dict[str, Size]:
        """Return what jobs get in a slot; those that get nothing are left out."""
        window, sampled = self._options.window, self._policy.sampled
        rng = None if sampled is None else np.random.default_rng([sampled, slot])
        for base in range(0, len(self._jobs), window):
            batch = range(base, min(base + window, len(self._jobs)))
            while True:
                mask = self._mask(batch)
                if mask.sum() == 1:
                    break
                seen = self._seen(batch)[None]
                network = self._policy.network
                action = int(network.choose(seen, network.possible(mask[None]), rng)[0][0])
                if action == 3 * window:
                    break
                self._add(base + action // 3, action % 3)
        return {
            job.job: Size(has[0], has[1], node)
            for job, has, node in zip(self._jobs, self._has, self._on, strict=True)
            if min(has) > 0
        }

    def _node_for(self, at: int) -> str:
        """Return where the next worker of a job goes."""
        return self._on[at] or max(self._free, key=lambda node: self._free[node])

    def _possible(self, at: int) -> tuple[bool, bool, bool]:
        """Return whether a job can have a worker, a server, both."""
        options, (workers, servers) = self._options, self._has[at]
        most = self._jobs[at].spec.elastic
        worker = (
            self._free[self._node_for(at)] >= options.worker_gpus
            and workers < (most.max if most is not None else options.most)
            and self._cpus >= options.worker_cpus
        )
        server = servers < options.most and self._cpus >= options.server_cpus
        both = worker and server and self._cpus >= options.worker_cpus + options.server_cpus
        return worker, server, both

    def _add(self, at: int, what: int) -> None:
        options = self._options
        if what != 1:
            node = self._on[at] = self._node_for(at)
            self._free[node] -= options.worker_gpus
            self._has[at][0] += 1
            self._cpus -= options.worker_cpus
        if what != 0:
            self._has[at][1] += 1
            self._cpus -= options.server_cpus

    def _mask(self, batch: range) -> Flags:
        mask = np.zeros(3 * self._options.window + 1, np.bool_)
        for place, at in enumerate(batch):
            mask[3 * place : 3 * place + 3] = self._possible(at)
        mask[-1] = True
        return mask

    def _seen(self, batch: range) -> Singles:
        """Return what the network sees of jobs, as `fast_env.dl2` shows it."""
        options, models = self._options, self._policy.network.inputs.models
        nodes = sum(options.nodes)
        rows = np.zeros((options.window, models + dl2.FEATURES), np.float32)
        for place, at in enumerate(batch):
            job, (workers, servers) = self._jobs[at], self._has[at]
            ran = round(job.ran(self._now) / (options.slot_s * NS_PER_SECOND))
            left = self._left(job)
            gpus = workers * options.worker_gpus / (nodes * options.node_gpus)
            cpus = workers * options.worker_cpus + servers * options.server_cpus
            model = (job.spec.size.family if job.spec.size is not None else None) or ""
            if model in MODELS:
                rows[place, MODELS.index(model)] = 1.0
            rows[place, models:] = (
                ran / (ran + 10.0),
                1.0 if left is None else left / (left + 10.0),
                max(gpus, cpus / (nodes * options.node_cpus)),
                workers / options.most,
                servers / options.most,
            )
        return rows.reshape(-1)

    def _left(self, job: JobView) -> float | None:
        """Return the slots that a job still needs with 4 workers and 4 servers; None: unknown."""
        size = job.spec.size
        if job.expected is None or size is None or not size.mini_batches:
            return None
        made = float(job.steps)
        if job.phase is Phase.RUNNING and job.steps_at:
            made += job.rate_milli / 1000 * (self._now - job.steps_at) / NS_PER_SECOND
        part = max(1.0 - made / size.mini_batches, 0.0)
        return part * job.expected / (self._options.slot_s * NS_PER_SECOND)
