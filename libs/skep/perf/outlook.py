"""What the advisor sends to the allocator about the speed of jobs: only changes, and at times all.

Every job reports its rate every second; a policy only needs to know when it has changed. So a job's
pace is sent once it is steady and differs from what was sent, the sooner the more it differs. The
step times of its family on so many GPUs and nodes are sent as soon as they are known better.
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
"""Two successive rates are steady if they differ by at most this part of the first."""
OTHER_DIVISOR = 10
"""A rate counts as another one if it differs by more than this part of the one that was sent."""
DRIFT_DIVISOR = 100
"""Smaller differences are not sent; differences in between can wait."""
OTHER_UTILISATION = 100
"""A utilisation counts as another one if it differs by this many thousandths."""
AT_MOST_EVERY = WINDOW
"""The shortest time between two messages about a job: a measurement needs a window to settle."""
SETTLES_IN, SETTLES_STEPS = Duration(2 * WINDOW), 3
"""The time, or the number of mini-batches, until a rate rests only on what came after a change."""
DRIFT_AFTER = seconds(600.0)
AGAIN_AFTER = seconds(5.0)
"""How long after the allocator began everything is sent to it: it listens by then."""
AGAIN_EVERY = seconds(3600.0)
"""How often everything is sent, to make up for lost messages. 20,000 jobs are 3 MB of notes."""
JOBS_MAX = 100
"""Jobs in one message: all of it is stored with the decision that it led to, 64 KiB at most."""
POINTS_SENT_MAX = 128
"""Points of families in one message."""

assert POINTS_MAX <= POINTS_SENT_MAX


class Runner(msgspec.Struct):
    """A running attempt, and what was measured and sent of it."""

    job: str
    attempt: int
    key: Key
    each: int
    """GPUs of a worker."""
    nodes: int
    """0: not known."""
    total: int | None = None
    shares: bool = False
    """It shares GPUs with other jobs, or has done so: its step time says nothing about its
    family."""
    before: int = 0
    """The latest measured rate."""
    seen: JobRate | None = None
    """The latest steady measurement, and the time from which it holds."""
    seen_at: Instant = Instant(0)
    sent: JobPace | None = None
    sent_at: Instant = Instant(0)
    size: int = 0
    """Workers at the latest measurement."""
    since: Instant = Instant(0)
    """When it was first measured at its present place and with its present workers."""
    idle_since: Instant = Instant(0)
    """Since when only its utilisation differs from what was sent; 0: it does not."""
    base: Steady = NOT_YET
    """Its long-term rate at its present place and size."""
    busy: bool = False
    """Its GPUs were seen busy: while they are not, it stands (it changes its size, or stores its
    state), and its rate says nothing about its family."""


class Outlooks:
    """Follows the running jobs. `take` returns what is to be sent."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.runners: dict[str, Runner] = {}
        self.scaling = Scaling()
        self._due: dict[str, Instant] = {}
        """By job: when its pace is to be sent."""
        self._families: dict[Key, FamilyScale] = {}
        """What was sent of each family."""
        self._learned_families: dict[Key, None] = {}
        self._again_at: Instant | None = None

    def begin(self, runner: Runner) -> None:
        """Follow an attempt, in place of an earlier one of the same job."""
        known = self.runners.get(runner.job)
        if known is not None:
            runner.sent, runner.sent_at = known.sent, known.sent_at
        self.runners[runner.job] = runner
        self._due.pop(runner.job, None)

    def learn(self, key: Key, gpus: int, nodes: int, job: str, step_ns: Duration) -> None:
        """Record what a mini-batch of a job takes, to be told with what else is known.

        Args:
            key: Its family and type of GPU.
            gpus: GPUs of the job.
            nodes: How many nodes they are on.
            job: Its id.
            step_ns: Nanoseconds of a mini-batch.
        """
        self.scaling.learn(key, gpus, nodes, job, step_ns)
        self._learned_families[key] = None

    def end(self, job: str) -> None:
        """Forget a job that does not run any more."""
        self.runners.pop(job, None)
        self._due.pop(job, None)

    def again(self, now: Instant) -> None:
        """Send everything again, AGAIN_AFTER from `now`."""
        self._again_at = after(now, AGAIN_AFTER)

    def measured(self, rate: JobRate, now: Instant) -> None:
        """Record a measurement.

        Args:
            rate: Of an attempt; ignored if it is not the one that is followed.
            now: When it was made.
        """
        runner = self.runners.get(rate.job)
        if runner is None or runner.attempt != rate.attempt:
            return
        steady = abs(rate.rate_milli - runner.before) * STEADY_DIVISOR <= runner.before
        runner.before = rate.rate_milli
        runner.busy = runner.busy or rate.utilisation > 0
        if not runner.since or rate.workers != runner.size:
            runner.since, runner.size, runner.base = now, rate.workers, NOT_YET
        if rate.samples:
            runner.base = Steady(rate.mean_milli, rate.spread_milli, rate.samples)
        elif steady and is_other(rate.rate_milli, runner.base):
            runner.base = NOT_YET  # Its rate has changed, and it is not known yet how steady it is.
        if steady and (rate.rate_milli or runner.sent is not None):
            if runner.seen is None or _is_other_measurement(runner.seen, rate):
                # Steps are extrapolated from when the rate became what it is.
                runner.seen, runner.seen_at = rate, now
            due = _due(runner, rate, now)
            if due is None:
                self._due.pop(rate.job, None)
            else:
                self._due[rate.job] = due

    def wake_at(self) -> Instant | None:
        """Return when there is something to send; None: nothing is planned."""
        times = [*self._due.values()]
        if self._again_at is not None and (self.runners or self._families):
            times.append(self._again_at)
        return min(times, default=None)

    def take(self, now: Instant) -> Iterator[Outlook]:
        """Yield the messages that are to be sent now."""
        if self._again_at is not None and self._again_at <= now:
            self._families.clear()
            self._learned_families.update(dict.fromkeys(self.scaling.keys()))
            self._due.update({job: now for job, runner in self.runners.items() if runner.seen})
            self._again_at = after(now, AGAIN_EVERY)
        due = sorted((job for job, at in self._due.items() if at <= now), key=_by_number)
        jobs = [self._pace(self.runners[job], now) for job in due]
        self._due = {job: at for job, at in self._due.items() if at > now}
        if jobs and self._again_at is None:
            self._again_at = after(now, AGAIN_EVERY)
        families = deque(self._changed_families())
        while jobs or families:
            scales, points = list[FamilyScale](), 0
            while families and points + len(families[0].points) <= POINTS_SENT_MAX:
                points += len(families[0].points)
                scales.append(families.popleft())
            yield Outlook(at=now, jobs=tuple(jobs[:JOBS_MAX]), families=tuple(scales))
            del jobs[:JOBS_MAX]

    def check(self) -> None:
        """Assert that only running jobs have something to send.

        Raises:
            AssertionError: Another job does, or a bound of `scaling` is exceeded.
        """
        assert self._due.keys() <= self.runners.keys()
        self.scaling.check()

    def _pace(self, runner: Runner, now: Instant) -> JobPace:
        rate = runner.seen
        assert rate is not None, runner
        step_ns = predict.rate_step_ns(rate.rate_milli)
        steps = rate.steps + (now - runner.seen_at) // step_ns if step_ns else rate.steps
        runner.sent = JobPace(
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
            workers=rate.workers,
        )
        runner.sent_at, runner.idle_since = now, Instant(0)
        stands = runner.busy and not rate.utilisation
        lasts = not stands and not runner.shares
        if step_ns and lasts and runner.key[0] and runner.nodes and rate.workers:
            gpus = rate.workers * runner.each
            self.learn(runner.key, gpus, runner.nodes, runner.job, step_ns)
        return runner.sent

    def _changed_families(self) -> Iterator[FamilyScale]:
        """Yield what is to be sent of families."""
        fresh, self._learned_families = self._learned_families, {}
        for key in fresh:
            scale = FamilyScale(family=key[0], gpu_type=key[1], points=self.scaling.points(key))
            known = self._families.pop(key, None)
            self._families[key] = scale
            if scale.points and (known is None or _differs(known, scale)):
                yield scale
            if len(self._families) > FAMILIES_MAX:
                del self._families[next(iter(self._families))]


def _is_other_measurement(seen: JobRate, rate: JobRate) -> bool:
    now = rate.rate_milli, rate.utilisation, rate.memory, rate.workers
    return (seen.rate_milli, seen.utilisation, seen.memory, seen.workers) != now


def _by_number(job: str) -> tuple[int, str]:
    """Return the sort key of jobs in the order of their submission."""
    return len(job), job


def _due(runner: Runner, rate: JobRate, now: Instant) -> Instant | None:
    """Return when a job's pace is to be sent; None: nothing is new."""
    sent = runner.sent
    step_ns = predict.rate_step_ns(rate.rate_milli) or 0
    settled = after(runner.since, max(SETTLES_IN, Duration(SETTLES_STEPS * step_ns)))
    if sent is None or rate.attempt != sent.attempt:
        return max(now, settled)
    difference = abs(rate.rate_milli - sent.rate_milli)
    base = runner.base
    known = abs(base.mean - sent.mean_milli) * APART_DIVISOR <= base.mean and sent.samples
    if difference * OTHER_DIVISOR > sent.rate_milli or (base.samples and not known):
        return max(now, settled, after(runner.sent_at, AT_MOST_EVERY))
    if abs(rate.utilisation - sent.utilisation) >= OTHER_UTILISATION:
        # A job that is changed, or stores its state, stops for a moment.
        runner.idle_since = runner.idle_since or now
        return max(now, settled, after(max(runner.sent_at, runner.idle_since), AT_MOST_EVERY))
    runner.idle_since = Instant(0)
    if difference * DRIFT_DIVISOR > sent.rate_milli:
        return max(now, settled, after(runner.sent_at, DRIFT_AFTER))
    return None


def _differs(known: FamilyScale, scale: FamilyScale) -> bool:
    """Return whether what is known of a family differs from what was sent."""
    before = {(point.gpus, point.nodes): point.step_ns for point in known.points}
    now = {(point.gpus, point.nodes): point.step_ns for point in scale.points}
    return before.keys() != now.keys() or any(
        abs(step - before[each]) * STEADY_DIVISOR > before[each] for each, step in now.items()
    )
