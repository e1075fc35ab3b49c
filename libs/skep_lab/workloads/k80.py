"""The speed of GENIE's tasks on K80s: `Speeds` of the curves in `traces.generators.k80`."""

from __future__ import annotations

from skep_lab.traces.generators import k80
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation, Steady


class K80(Steady):
    """How fast a task is where it is: its mini-batch on one GPU over that there."""

    def __init__(self, step_s: k80.StepS = k80.step_s) -> None:
        """Take what a mini-batch takes: by itself as the curves say."""
        self._step_s = step_s

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return the speed of a task, relative to one GPU."""
        alone = self._step_s(job.model, job.batch_size)
        return alone / self._step_s(job.model, job.batch_size, where.spread)

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return seconds of one mini-batch there."""
        return self._step_s(job.model, job.batch_size, where.spread)
