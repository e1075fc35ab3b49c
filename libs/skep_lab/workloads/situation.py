"""What the speed of a job depends on, and the interface of workload models."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from skep_lab.traces.job import TraceJob

STAGES = 20
"""Parts of a run, of equal progress, between which its statistical efficiency may differ."""


class Situation(NamedTuple):
    """Where a job runs. `spread` is the number of its GPUs on each of its nodes, largest first.

    `workers` are the processes that train (GPUs where each has one), `servers` its parameter
    servers. `partners` are the models packed with it on the same GPUs, `neighbours` those that
    share a node's network with it without sharing a GPU; both sorted. `racks`: how many racks (or
    switches) its nodes are in. `stage` is the part of its run in which a job is that may change its
    batch size (0 to STAGES - 1); 0 for all others.
    """

    gpu_type: str
    spread: tuple[int, ...]
    workers: int
    servers: int = 0
    partners: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    racks: int = 1
    stage: int = 0


class Speeds(Protocol):
    """A workload model."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return the speed of the job there, relative to its speed in the trace: 1.0 is the same.

        The function is pure: callers may store results.

        Args:
            job: The job.
            where: Where it runs.

        Returns:
            Never negative; 1.0 for a job whose model is not known (see `unknown`).
        """
        ...

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return seconds of one mini-batch there; 0.0 if unknown.

        Args:
            job: The job.
            where: Where it runs.
        """
        ...

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return the part of the time for which its GPUs are busy, 0 to 1; 1.0 if unknown.

        Args:
            job: The job.
            where: Where it runs.
        """
        ...

    def memory(self, job: TraceJob) -> int:
        """Return the bytes of GPU memory that one worker needs; 0 if unknown."""
        ...

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return the unknown models of these jobs, and how many jobs have each."""
        ...


class Steady:
    """Every job has the speed of its trace everywhere: what most published simulators assume."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return the value of the trace, or 0.0."""
        return job.run_time / 1e9 / job.mini_batches if job.mini_batches else 0.0

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0

    def memory(self, job: TraceJob) -> int:
        """Return 0."""
        return 0

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return nothing: models do not matter."""
        return {}
