"""How fast jobs are by the fits that were heard: what promises take as predicted."""

from __future__ import annotations

from collections.abc import Iterable

from skep.perf.fitted import FitsKept, Fitted
from skep.perf.model.placement import Placement
from skep.perf.model.predict import POINTS_PROMISED
from skep.promises.length import Span
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec

BATCH_FAR = 4
"""A batch size is not predicted for a promise beyond so many times what was measured."""


class Predicted:
    """What is predicted of the speed of jobs, where a promise may rest on it."""

    def __init__(self, fits: FitsKept) -> None:
        """Read these fits."""
        self._fits = fits

    def step(self, spec: JobSpec, gpu_type: str, gpus: int, nodes: int) -> Span | None:
        """Return what a mini-batch of a job takes; None: too little is known for a promise.

        Args:
            spec: The job. Only what its own VC measured counts.
            gpu_type: The type of GPU.
            gpus: GPUs of the whole gang.
            nodes: Nodes that they are on.
        """
        fitted = self._fits.get(spec.vc, spec.size.family or "", gpu_type)
        if fitted is None:
            return None
        batch = batch_of(fitted, spec, gpus)
        if batch is None:
            return None
        span = fitted.at(Placement(gpu_type, gpus, nodes, batch))
        return Span(span.p10, span.p50, span.p90) if span.promised else None

    def lack(self, spec: JobSpec, gpu_types: Iterable[str]) -> Reason:
        """Return why nothing can be promised of a job's speed.

        Args:
            spec: The job.
            gpu_types: The types of GPUs that it may have.
        """
        found = (self._fits.get(spec.vc, spec.size.family or "", each) for each in gpu_types)
        seen = [each.parameters.seen for each in found if each is not None]
        if any(each.points >= POINTS_PROMISED and each.nodes <= 1 for each in seen):
            return Reason.PROFILED_ON_ONE_NODE
        return Reason.PROFILED_TOO_LITTLE if any(each.points for each in seen) else _NONE


_NONE = Reason.NOT_PROFILED


def batch_of(fitted: Fitted, spec: JobSpec, gpus: int) -> float | None:
    """Return the samples per GPU that a job is predicted with; None: none like it was measured.

    Where its spec has none, or measurements had none, it is taken to be what was measured.

    Args:
        fitted: What was fitted.
        spec: The job; its batch size is that of the whole gang.
        gpus: GPUs of the gang.
    """
    least, most = fitted.batches
    if not least or not spec.size.batch_size:
        return 0.0
    batch = spec.size.batch_size / gpus
    return batch if least <= batch * BATCH_FAR and batch <= most * BATCH_FAR else None
