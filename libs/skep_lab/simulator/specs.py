"""The spec of a trace's job, as its owner would submit it."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from skep.cells.levels import gpus_per_node
from skep.policy.schedulers.elasticflow import DEADLINE
from skep.units import Duration, in_seconds, seconds
from skep.wire.cluster import Cluster
from skep.wire.spec import TIME_S_MAX, TYPES_APART
from skep_lab.simulator.settings import Settings
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation, Speeds
from skep_lab.workloads.table import fewest

ENCODER = msgspec.json.Encoder()
NOISY_SIGMA = 1.0
"""Spread of what owners say with `noisy`: a log-normal factor. Users' estimates are off by a factor
of e at one sigma."""


NOWHERE = "one on which its speed is not 0"
"""The GPU type in the spec of a job that runs on no type of this cluster: it is refused with these
words."""


def node_gpus(cluster: Cluster, gpu_type: str = "") -> int:
    """Return the GPUs of the cluster's largest node.

    Args:
        cluster: The cluster.
        gpu_type: Only nodes with this type count; empty: all.
    """
    largest = 1
    for chain in cluster.chains.values():
        if gpu_type in ("", chain.gpu):
            size = 1
            for level in chain.levels:
                size *= level.fanout
                if level.name == chain.node_level:
                    largest = max(largest, size)
                    break
    return largest


def nodes_of(cluster: Cluster) -> dict[str, int]:
    """Return how many GPUs each node has in all chains."""
    found: dict[str, int] = {}
    for chain in cluster.chains.values():
        size = gpus_per_node(chain)
        for cell in chain.nodes:
            found[cell.node] = found.get(cell.node, 0) + size
    return found


def shape(job: TraceJob, node: int) -> tuple[int, int]:
    """Return how many workers a job has, and the GPUs of each.

    If the source gives the number of workers, and they can have equally many GPUs, it is that
    number. Else there are as few workers as nodes allow; if GPUs do not fill nodes evenly, a worker
    gets the largest equal part that fits a node.

    Args:
        job: The job.
        node: GPUs of a node.
    """
    if job.workers and job.gpus % job.workers == 0:
        return job.workers, job.gpus // job.workers
    each = next(size for size in range(min(job.gpus, node), 0, -1) if job.gpus % size == 0)
    return job.gpus // each, each


class Owners:
    """Writes the specs of jobs. Noise depends only on the seed and the job."""

    def __init__(self, cluster: Cluster, settings: Settings, speeds: Speeds) -> None:
        """Prepare to write specs.

        Args:
            cluster: Where they are submitted.
            settings: What owners say.
            speeds: The workload model, for the GPU types that a job can run on.
        """
        self._settings, self._speeds = settings, speeds
        self._kinds = tuple(dict.fromkeys(chain.gpu for chain in cluster.chains.values()))
        self._nodes = {kind: node_gpus(cluster, kind) for kind in ("", *self._kinds)}
        self._alone = next(iter(cluster.vcs)) if len(cluster.vcs) == 1 else ""

    def vc(self, job: TraceJob) -> str:
        """Return where a job is submitted: one without a VC goes to the only VC."""
        return job.vc or self._alone

    def write(self, job: TraceJob) -> bytes:
        """Return a spec as JSON."""
        tied = job.gpu_type if job.tied else self._able(job)
        workers, gpus = shape(job, self._nodes.get(tied, self._nodes[""]))
        resources: dict[str, Any] = {"gpus": gpus, "workers": workers}
        if tied:
            resources["gpu_type"] = tied
        if job.mixed and workers > 1 and not (job.workers_max or job.opportunistic or job.hard):
            resources["mixed"] = True
        if job.within:
            resources["topology"] = {"within": job.within, "hard": job.hard}
        if job.cpus:
            resources["cpus"] = job.cpus
        if job.memory:
            resources["memory"] = job.memory
        spec: dict[str, Any] = {"name": job.id or "job", "vc": self.vc(job), "resources": resources}
        if job.servers:
            spec["script"] = "train.py"
            spec["ps"] = {"servers": job.servers, "min": 1}
        elif self._settings.over_quota == "auto":
            spec["script"] = "train.py"  # A command is not assumed to store its state.
        else:
            spec["command"] = ("train",)
        if job.workers_max:
            spec["elastic"] = {"min": job.workers_min or 1, "max": job.workers_max}
        said = {"user": job.user, "project": job.project}
        labels = {name: text for name, text in said.items() if text}
        spec |= self._deadline(job, labels)
        if labels:
            spec["labels"] = labels
        if job.priority:
            spec["priority"] = job.priority
        if job.opportunistic:
            spec["service_class"] = "opportunistic"
        else:
            spec["over_quota"] = self._settings.over_quota
        size = self._size(job)
        if size:
            spec["size"] = size
        return ENCODER.encode(spec)

    def _able(self, job: TraceJob) -> str:
        """Return the types of GPUs on which a job's speed is not 0; empty: all of them.

        Only an owner knows that a model does not fit on some of them.
        """
        able = []
        for kind in self._kinds:
            spread = fewest(max(job.gpus, 1), self._nodes[kind])
            where = Situation(kind, spread, job.workers or max(job.gpus, 1), job.servers)
            if self._speeds.speed(job, where) > 0:
                able.append(kind)
        if len(able) == len(self._kinds):
            return ""
        return TYPES_APART.join(able) or NOWHERE

    def _deadline(self, job: TraceJob, labels: dict[str, str]) -> dict[str, Any]:
        """Return the keys about a job's deadline; it may be a label instead."""
        said: dict[str, Any] = {}
        if job.deadline is not None and job.deadline > job.at:
            within_s = in_seconds(Duration(job.deadline - job.at))
            if self._settings.deadlines == "spec":
                said["finish_by"] = min(max(round(within_s), 1), TIME_S_MAX)
            else:
                labels[DEADLINE] = f"{within_s:.0f}"
        if job.qos:
            said["qos"] = job.qos
        if job.late:
            said["late"] = job.late
        return said

    def _size(self, job: TraceJob) -> dict[str, Any]:
        size: dict[str, Any] = {}
        hints = self._settings.hints
        if job.said_time:
            size["run_time"] = min(in_seconds(job.said_time), TIME_S_MAX)
        elif hints != "none" and 0 < job.run_time < seconds(TIME_S_MAX):
            factor = 1.0
            if hints == "noisy":
                rng = random.Random(f"hint {self._settings.seed} {job.id}")
                factor = rng.lognormvariate(0.0, NOISY_SIGMA)
            size["run_time"] = min(in_seconds(job.run_time) * factor, TIME_S_MAX)
        if job.mini_batches:
            size["mini_batches"] = job.mini_batches
        if job.batch_size:
            size["batch_size"] = job.batch_size
        if job.model:
            size["family"] = job.model
        return size
