"""What the speed of a job depends on, and who knows it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from skep_lab.traces.job import TraceJob


class Situation(NamedTuple):
    """Where a job runs. `spread` is the number of its GPUs on each of its nodes, largest first.

    `workers` are the processes that train (GPUs where each has one), `servers` its parameter
    servers. `partners` are the models packed with it on the same GPUs, `neighbours` those that
    share a node's network with it without sharing a GPU; both sorted. `racks`: how many racks (or
    switches) its nodes are in.
    """

    gpu_type: str
    spread: tuple[int, ...]
    workers: int
    servers: int = 0
    partners: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    racks: int = 1


class Speeds(Protocol):
    """A workload model."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return how fast the job goes there, relative to how it ran in the trace: 1.0 is as then.

        Never negative; 1.0 for a job whose model is not known (`unknown` tells them). Pure: the
        same arguments always give the same number, so callers may keep it.
        """
        ...

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return seconds of one mini-batch there; 0.0 if nobody knows."""
        ...

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return which part of its GPUs' time is busy, 0 to 1; 1.0 if nobody knows."""
        ...

    def memory(self, job: TraceJob) -> int:
        """Return the bytes of a GPU's memory that one worker needs; 0 if nobody knows."""
        ...

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return which models of these jobs are not known, and how many jobs have each."""
        ...


class Steady:
    """Every job goes everywhere as fast as in the trace: what most published simulators assume."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return the trace's own, or 0.0."""
        return job.run_time / 1e9 / job.mini_batches if job.mini_batches else 0.0

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0

    def memory(self, job: TraceJob) -> int:
        """Return 0."""
        return 0

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return nothing: no model is asked about."""
        return {}
