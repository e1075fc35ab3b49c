"""Predict how long a job will still take: its mini-batches times what one took in similar runs.

Gandiva calls the time per mini-batch predictable within a job (section 3); here jobs of one family
share it from run to run. The time of a run includes its start and its pauses, so the estimate for a
job of the same size is how long those jobs ran.
"""

from __future__ import annotations

from skep.perf.progress import LEARNED_STEPS, median
from skep.units import NS_PER_SECOND, Duration

RUNS_MAX = 16
"""The runs of a prediction: their median tolerates a few outliers and follows new hardware."""

KINDS_MAX = 30_000
"""Kinds of runs that are remembered, the most recent ones: 10,000 families, each at three
depths."""

REMAINING_MAX = Duration(10 * 365 * 24 * 3600 * NS_PER_SECOND)
"""Ten years stand for everything longer: predictions can be compared, and fit any integer type."""

Kind = tuple[str, int, str]
"""Similar runs: family, GPUs of the gang (-1: any), GPU type (empty: any)."""

ANY_GPUS = -1
ANY_TYPE = ""


def run_step_ns(steps: int, ran_ns: int, step_ns: int, succeeded: bool) -> Duration | None:
    """Return what one mini-batch of an ended run took; None: the run says nothing.

    A run that succeeded counts whole, start and pauses included, if both ends are known. Of any
    other run only the time of its latest mini-batches counts, and only after LEARNED_STEPS: it may
    have hung before it ended.

    Args:
        steps: Mini-batches that the run made.
        ran_ns: How long it ran; 0: unknown.
        step_ns: How long its latest mini-batches took, each; 0: unknown.
        succeeded: Whether it succeeded.
    """
    if succeeded and steps > 0 and ran_ns > 0:
        return Duration(max(ran_ns // steps, 1))
    if step_ns > 0 and steps >= (1 if succeeded else LEARNED_STEPS):
        return Duration(step_ns)
    return None


def rate_step_ns(rate_milli: int) -> Duration | None:
    """Return what one mini-batch takes, in nanoseconds; None for a rate of 0.

    Args:
        rate_milli: Thousandths of a mini-batch per second.
    """
    if rate_milli <= 0:
        return None
    return Duration(max(1000 * NS_PER_SECOND // rate_milli, 1))


def remaining(total: int | None, done: int, step_ns: Duration | None) -> Duration | None:
    """Return how long the remaining mini-batches take, at most REMAINING_MAX; None: unknown.

    Args:
        total: Mini-batches of the whole job; None: unknown.
        done: Mini-batches that are done.
        step_ns: What one takes; None: unknown.
    """
    if total is None or step_ns is None:
        return None
    return min(Duration(max(total - done, 0) * step_ns), REMAINING_MAX)


class Runs:
    """What a mini-batch took in the latest runs of one kind."""

    __slots__ = ("_median", "_step_ns")

    def __init__(self) -> None:
        """Begin without runs."""
        self._step_ns: dict[str, int] = {}
        self._median: int | None = None

    def learn(self, job: str, step_ns: int) -> None:
        """Record what a mini-batch of a job took, in place of an earlier value of the same job.

        Args:
            job: The id of the job.
            step_ns: Nanoseconds.
        """
        self._step_ns.pop(job, None)
        self._step_ns[job] = step_ns
        if len(self._step_ns) > RUNS_MAX:
            del self._step_ns[next(iter(self._step_ns))]
        self._median = None

    def median(self) -> Duration:
        """Return the median time of a mini-batch, in nanoseconds."""
        if self._median is None:
            self._median = median(list(self._step_ns.values()))
        return Duration(self._median)

    def check(self) -> None:
        """Assert the bound.

        Raises:
            AssertionError: There are no runs, too many, or one without a time.
        """
        assert 0 < len(self._step_ns) <= RUNS_MAX, self._step_ns
        assert all(step_ns > 0 for step_ns in self._step_ns.values()), self._step_ns


class FamilySpeeds:
    """What a mini-batch takes, by family, gang size and GPU type, from earlier runs.

    Each run counts at three depths, so an unknown kind falls back on the same family with as many
    GPUs, then on the family.
    """

    def __init__(self) -> None:
        self._kinds: dict[Kind, Runs] = {}

    def __len__(self) -> int:
        """Return how many kinds of runs are known; 0 means that nothing can be predicted."""
        return len(self._kinds)

    def learn(self, family: str, gpus: int, gpu_type: str, job: str, step_ns: Duration) -> None:
        """Record what a mini-batch of a run took, in place of an earlier value of the same job.

        Args:
            family: The family of the job.
            gpus: GPUs of the gang.
            gpu_type: May be empty: the run then counts at the two shallower depths only.
            job: The id of the job.
            step_ns: Nanoseconds, above 0.
        """
        assert step_ns > 0, (job, step_ns)
        for kind in _depths(family, gpus, gpu_type):
            runs = self._kinds.pop(kind, None) or Runs()
            runs.learn(job, step_ns)
            self._kinds[kind] = runs
        while len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    def step_ns(self, family: str, gpus: int, gpu_type: str) -> Duration | None:
        """Return what a mini-batch takes, by the deepest kind that is known.

        Args:
            family: The family of the job.
            gpus: GPUs of the gang.
            gpu_type: May be empty: any.

        Returns:
            The median in nanoseconds; None: the family is unknown.
        """
        for kind in _depths(family, gpus, gpu_type):
            runs = self._kinds.get(kind)
            if runs is not None:
                return runs.median()
        return None

    def check(self) -> None:
        """Assert the bounds, and that no kind is empty.

        Raises:
            AssertionError: One of them is broken.
        """
        assert len(self._kinds) <= KINDS_MAX
        for runs in self._kinds.values():
            runs.check()


def _depths(family: str, gpus: int, gpu_type: str) -> tuple[Kind, ...]:
    shallow: tuple[Kind, ...] = (family, gpus, ANY_TYPE), (family, ANY_GPUS, ANY_TYPE)
    return ((family, gpus, gpu_type), *shallow) if gpu_type else shallow
