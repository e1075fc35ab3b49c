"""What the allocator is told of how jobs go: only what is new, and all of it now and then.

Rates come every second for every job; a policy needs to know one when it has become another. So a
job's pace is told once it is steady and differs from what was told, the sooner the more it differs;
and what its family takes on so many GPUs and nodes as soon as that is known better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from skep.perf import predict
from skep.perf.progress import WINDOW
from skep.perf.scaling import FAMILIES_MAX, POINTS_MAX, Key, Scaling
from skep.perf.steady import APART_DIVISOR, NOT_YET, Steady, is_other
from skep.units import Duration, Instant, after, seconds
from skep.wire.advice import FamilyScale, JobPace, Outlook
from skep.wire.findings import JobRate

STEADY_DIVISOR = 20
"""Two rates, one after the other, are steady if they differ by one in so many."""
OTHER_DIVISOR = 10
"""A rate is another one if it differs by one in so many from what was told."""
DRIFT_DIVISOR = 100
"""Below that nothing is worth being told; in between it can wait."""
OTHER_UTILISATION = 100
"""Thousandths by which a utilisation is another one."""
AT_MOST_EVERY = WINDOW
"""How often a job's pace is told: what is measured takes a window to become what it will be."""
SETTLES_IN, SETTLES_STEPS = Duration(2 * WINDOW), 3
"""How long, or how many mini-batches, until a rate rests on what is so since a change."""
DRIFT_AFTER = seconds(600.0)
AGAIN_AFTER = seconds(5.0)
"""How long after the allocator began it is told everything: it listens by then."""
AGAIN_EVERY = seconds(3600.0)
"""How often everything is told: a lost message is made up for. 20,000 jobs are 3 MB of notes."""
JOBS_MAX = 100
"""Jobs in one message: all of it is noted with what was decided on, 64 KiB at most."""
POINTS_TOLD = 128
"""Points of families in one message."""

assert POINTS_MAX <= POINTS_TOLD


class Runner(msgspec.Struct):
    """A running attempt, and what was measured and told of it."""

    job: str
    attempt: int
    key: Key
    each: int
    """GPUs of a worker."""
    nodes: int
    """0: not known."""
    total: int | None = None
    shares: bool = False
    """It is on GPUs with others, or has been: what it takes says nothing about its family."""
    before: int = 0
    """The rate that was measured last."""
    seen: JobRate | None = None
    """The latest steady measurement, and when it was made."""
    seen_at: Instant = Instant(0)
    told: JobPace | None = None
    told_at: Instant = Instant(0)
    size: int = 0
    """Workers, as measured last."""
    since: Instant = Instant(0)
    """When it was first measured where it is, with so many workers."""
    idle_since: Instant = Instant(0)
    """Since when its utilisation alone is another one; 0: it is not."""
    base: Steady = NOT_YET
    """What it makes in the long run, where it is and as large as it is."""


class Outlooks:
    """Follows the jobs that run. `take` returns what there is to tell."""

    def __init__(self) -> None:
        """Know of no job."""
        self.runners: dict[str, Runner] = {}
        self.scaling = Scaling()
        self._due: dict[str, Instant] = {}
        """By job of which there is something to tell: when."""
        self._families: dict[Key, FamilyScale] = {}
        """What was told of them."""
        self._fresh: dict[Key, None] = {}
        self._again_at: Instant | None = None

    def begin(self, runner: Runner) -> None:
        """Follow an attempt, in place of an earlier one of the same job."""
        known = self.runners.get(runner.job)
        if known is not None:
            runner.told, runner.told_at = known.told, known.told_at
        self.runners[runner.job] = runner
        self._due.pop(runner.job, None)

    def end(self, job: str) -> None:
        """Forget a job that does not run any more."""
        self.runners.pop(job, None)
        self._due.pop(job, None)

    def again(self, now: Instant) -> None:
        """Tell everything again, soon."""
        self._again_at = after(now, AGAIN_AFTER)

    def measured(self, rate: JobRate, now: Instant) -> None:
        """Take over what was measured."""
        runner = self.runners.get(rate.job)
        if runner is None or runner.attempt != rate.attempt:
            return
        steady = abs(rate.rate_milli - runner.before) * STEADY_DIVISOR <= runner.before
        runner.before = rate.rate_milli
        if not runner.since or rate.workers != runner.size:
            runner.since, runner.size, runner.base = now, rate.workers, NOT_YET
        if rate.samples:
            runner.base = Steady(rate.mean_milli, rate.spread_milli, rate.samples)
        elif steady and is_other(rate.rate_milli, runner.base):
            runner.base = NOT_YET  # It goes otherwise now, and it is not known yet how steadily.
        if steady and (rate.rate_milli or runner.told is not None):
            if runner.seen is None or _told_otherwise(runner.seen, rate):
                # What is as before is reckoned on from when it became so.
                runner.seen, runner.seen_at = rate, now
            due = _due(runner, rate, now)
            if due is None:
                self._due.pop(rate.job, None)
            else:
                self._due[rate.job] = due

    def wake_at(self) -> Instant | None:
        """Return when there is something to tell."""
        times = [*self._due.values()]
        if self._again_at is not None and (self.runners or self._families):
            times.append(self._again_at)
        return min(times, default=None)

    def take(self, now: Instant) -> Iterator[Outlook]:
        """Yield what is to be told now."""
        if self._again_at is not None and self._again_at <= now:
            self._families.clear()
            self._fresh.update(dict.fromkeys(self.scaling.keys()))
            self._due.update({job: now for job, runner in self.runners.items() if runner.seen})
            self._again_at = after(now, AGAIN_EVERY)
        due = sorted((job for job, at in self._due.items() if at <= now), key=_by_number)
        jobs = [self._tell(self.runners[job], now) for job in due]
        self._due = {job: at for job, at in self._due.items() if at > now}
        if jobs and self._again_at is None:
            self._again_at = after(now, AGAIN_EVERY)
        families = deque(self._news())
        while jobs or families:
            scales, points = list[FamilyScale](), 0
            while families and points + len(families[0].points) <= POINTS_TOLD:
                points += len(families[0].points)
                scales.append(families.popleft())
            yield Outlook(at=now, jobs=tuple(jobs[:JOBS_MAX]), families=tuple(scales))
            del jobs[:JOBS_MAX]

    def check(self) -> None:
        """Assert that nothing is to be told of a job that does not run."""
        assert self._due.keys() <= self.runners.keys()
        self.scaling.check()

    def _tell(self, runner: Runner, now: Instant) -> JobPace:
        rate = runner.seen
        assert rate is not None, runner
        step_ns = predict.rate_step_ns(rate.rate_milli)
        steps = rate.steps + (now - runner.seen_at) // step_ns if step_ns else rate.steps
        runner.told = JobPace(
            job=rate.job,
            attempt=rate.attempt,
            steps=steps,
            rate_milli=rate.rate_milli,
            utilisation=rate.utilisation,
            memory=rate.memory,
            remaining=predict.remaining(runner.total, steps, step_ns),
            mean_milli=runner.base.mean,
            spread_milli=runner.base.spread,
            samples=runner.base.samples,
        )
        runner.told_at, runner.idle_since = now, Instant(0)
        if step_ns and runner.key[0] and runner.nodes and rate.workers and not runner.shares:
            gpus = rate.workers * runner.each
            self.scaling.learn(runner.key, gpus, runner.nodes, runner.job, step_ns)
            self._fresh[runner.key] = None
        return runner.told

    def _news(self) -> Iterator[FamilyScale]:
        """Yield what is to be told of families."""
        fresh, self._fresh = self._fresh, {}
        for key in fresh:
            scale = FamilyScale(family=key[0], gpu_type=key[1], points=self.scaling.points(key))
            known = self._families.pop(key, None)
            self._families[key] = scale
            if scale.points and (known is None or _differs(known, scale)):
                yield scale
            if len(self._families) > FAMILIES_MAX:
                del self._families[next(iter(self._families))]


def _told_otherwise(seen: JobRate, rate: JobRate) -> bool:
    now = rate.rate_milli, rate.utilisation, rate.memory, rate.workers
    return (seen.rate_milli, seen.utilisation, seen.memory, seen.workers) != now


def _by_number(job: str) -> tuple[int, str]:
    """Return what orders jobs as they came, whichever rate was told first."""
    return len(job), job


def _due(runner: Runner, rate: JobRate, now: Instant) -> Instant | None:
    """Return when a job's pace is to be told, None if nothing is new."""
    told = runner.told
    step_ns = predict.rate_step_ns(rate.rate_milli) or 0
    settled = after(runner.since, max(SETTLES_IN, Duration(SETTLES_STEPS * step_ns)))
    if told is None or rate.attempt != told.attempt:
        return max(now, settled)
    apart = abs(rate.rate_milli - told.rate_milli)
    base = runner.base
    known = abs(base.mean - told.mean_milli) * APART_DIVISOR <= base.mean and told.samples
    if apart * OTHER_DIVISOR > told.rate_milli or (base.samples and not known):
        return max(now, settled, after(runner.told_at, AT_MOST_EVERY))
    if abs(rate.utilisation - told.utilisation) >= OTHER_UTILISATION:
        # A job that is changed, or stores its state, stands for a moment.
        runner.idle_since = runner.idle_since or now
        return max(now, settled, after(max(runner.told_at, runner.idle_since), AT_MOST_EVERY))
    runner.idle_since = Instant(0)
    if apart * DRIFT_DIVISOR > told.rate_milli:
        return max(now, settled, after(runner.told_at, DRIFT_AFTER))
    return None


def _differs(known: FamilyScale, scale: FamilyScale) -> bool:
    """Return whether what is known of a family has become something else."""
    before = {(point.gpus, point.nodes): point.step_ns for point in known.points}
    now = {(point.gpus, point.nodes): point.step_ns for point in scale.points}
    return before.keys() != now.keys() or any(
        abs(step - before[each]) * STEADY_DIVISOR > before[each] for each, step in now.items()
    )
