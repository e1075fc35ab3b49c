"""How long a job will still take: its mini-batches times what one took in earlier runs alike.

Gandiva calls the time per mini-batch predictable within a job (section 3); jobs of one family
carry it over from run to run. What a run took includes its start and its pauses, so the estimate
for a job of the same size is how long those jobs ran.
"""

from __future__ import annotations

from skep.perf.progress import LEARNED_STEPS, median
from skep.units import NS_PER_SECOND, Duration

RUNS_MAX = 16
"""Runs a prediction rests on: their median outlives a few odd ones and follows new hardware."""

KINDS_MAX = 30_000
"""Kinds of runs remembered, the most recently learned: 10,000 families, each at three depths."""

REMAINING_MAX = Duration(10 * 365 * 24 * 3600 * NS_PER_SECOND)
"""Ten years stand for everything longer: predictions are compared, and fit any integer type."""

Kind = tuple[str, int, str]
"""Runs alike: family, GPUs of the gang (-1: any), GPU type (empty: any)."""

ANY_GPUS = -1
ANY_TYPE = ""


def run_step_ns(steps: int, ran_ns: int, step_ns: int, succeeded: bool) -> Duration | None:
    """Return what one mini-batch of an ended run took, or None if the run says nothing.

    A run that succeeded counts whole, start and pauses included, if both ends are known. Of any
    other, only how long its latest mini-batches took (`step_ns`), once it made LEARNED_STEPS: it
    may have hung before it ended.
    """
    if succeeded and steps > 0 and ran_ns > 0:
        return Duration(max(ran_ns // steps, 1))
    if step_ns > 0 and steps >= (1 if succeeded else LEARNED_STEPS):
        return Duration(step_ns)
    return None


def rate_step_ns(rate_milli: int) -> Duration | None:
    """Return what one mini-batch takes at a rate in thousandths per second, None for no rate."""
    if rate_milli <= 0:
        return None
    return Duration(max(1000 * NS_PER_SECOND // rate_milli, 1))


def remaining(total: int | None, done: int, step_ns: Duration | None) -> Duration | None:
    """Return how long `total - done` mini-batches take, at most REMAINING_MAX; None if unknown."""
    if total is None or step_ns is None:
        return None
    return min(Duration(max(total - done, 0) * step_ns), REMAINING_MAX)


class Runs:
    """What a mini-batch took in the latest runs of one kind."""

    __slots__ = ("_median", "_step_ns")

    def __init__(self) -> None:
        """Know of none."""
        self._step_ns: dict[str, int] = {}
        self._median: int | None = None

    def learn(self, job: str, step_ns: int) -> None:
        """Take over what a mini-batch of a job took; a later word on the same job replaces it."""
        self._step_ns.pop(job, None)
        self._step_ns[job] = step_ns
        if len(self._step_ns) > RUNS_MAX:
            del self._step_ns[next(iter(self._step_ns))]
        self._median = None

    def median(self) -> Duration:
        """Return what a mini-batch usually took."""
        if self._median is None:
            self._median = median(list(self._step_ns.values()))
        return Duration(self._median)

    def check(self) -> None:
        """Assert the bound."""
        assert 0 < len(self._step_ns) <= RUNS_MAX, self._step_ns
        assert all(step_ns > 0 for step_ns in self._step_ns.values()), self._step_ns


class FamilySpeeds:
    """What a mini-batch takes, by family, gang size and GPU type, from runs seen.

    Each run counts at three depths, so a kind never seen falls back on the same family with as
    many GPUs, then on the family.
    """

    def __init__(self) -> None:
        self._kinds: dict[Kind, Runs] = {}

    def __len__(self) -> int:
        """Return how many kinds of runs are known; 0 means that nothing can be predicted."""
        return len(self._kinds)

    def learn(self, family: str, gpus: int, gpu_type: str, job: str, step_ns: Duration) -> None:
        """Take over what a mini-batch of a run took; a later word on the same job replaces it.

        `gpu_type` may be empty: the run then counts at the two shallower depths only.
        """
        assert step_ns > 0, (job, step_ns)
        for kind in _depths(family, gpus, gpu_type):
            runs = self._kinds.pop(kind, None) or Runs()
            runs.learn(job, step_ns)
            self._kinds[kind] = runs
        while len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    def step_ns(self, family: str, gpus: int, gpu_type: str) -> Duration | None:
        """Return the median of the deepest kind known, or None if the family is not."""
        for kind in _depths(family, gpus, gpu_type):
            runs = self._kinds.get(kind)
            if runs is not None:
                return runs.median()
        return None

    def check(self) -> None:
        """Assert the bounds, and that no kind is empty."""
        assert len(self._kinds) <= KINDS_MAX
        for runs in self._kinds.values():
            runs.check()


def _depths(family: str, gpus: int, gpu_type: str) -> tuple[Kind, ...]:
    shallow: tuple[Kind, ...] = (family, gpus, ANY_TYPE), (family, ANY_GPUS, ANY_TYPE)
    return ((family, gpus, gpu_type), *shallow) if gpu_type else shallow
