"""ElasticFlow: each job has the fewest GPUs with which it meets its deadline; the rest gains most.

A job's *minimum satisfactory share* is the smallest number of workers, a power of two, with which
it ends in time on the GPUs that jobs with earlier deadlines leave it, now and later (algorithm 1:
progressive filling). A job is admitted if every admitted job still meets its deadline. GPUs that
are left now go where a further GPU adds the most (algorithm 2).

Source: ElasticFlow (ASPLOS 2023), section 4, algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from skep.policy.api import Policy
from skep.policy.parts import LATE_DIVISOR, by_arrival, check_one_or_more, queued
from skep.policy.plan import Plan, Resize, Turn
from skep.policy.powers import Powers
from skep.policy.sizes import changeable, gpus_per_worker, known_speeds
from skep.policy.view import JobView, VcView
from skep.units import NS_PER_SECOND, Instant
from skep.wire.reasons import Reason

DEADLINE = "finish-by-s"
"""The label of a job's spec that says how many seconds after its submission it is to have ended."""
TRIED_MAX = 16
"""Waiting jobs that are tried for admission in one plan, the first ones to come: each try fills the
GPUs anew for all admitted jobs."""


class ElasticFlow(Policy, frozen=True):
    """Deadlines are met with as few GPUs as possible; what is left makes jobs faster.

    A job's deadline is in the label `label` of its spec: seconds from its submission. A spec has
    no field for it. A job without that label, or whose run time or speeds are unknown, has none:
    it is served from what is left, after the others, in the order of arrival.

    A policy cannot refuse a job: one that is not admitted waits, as one without a deadline, and is
    tried again in the next plan. Every `every_s` seconds shares are computed anew, and after each
    arrival turns. Sizes are powers of two, as in the paper, or the fewest that the spec allows.
    """

    name: ClassVar[str] = "elasticflow"
    source: ClassVar[str] = "ElasticFlow (ASPLOS 2023), section 4, algorithms 1 and 2"
    every_s: float = 60
    label: str = DEADLINE
    margin: float = 0.05

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `every_s` is too short, `label` empty, or `margin` not from 0 to 1.
        """
        check_one_or_more("every_s", self.every_s, "seconds")
        if not self.label:
            reason = "label names the label of a spec that has its deadline: not empty"
            raise ValueError(reason)
        if not 0 <= self.margin < 1:
            reason = f"margin is the part of the time that is kept free, 0 to 1: not {self.margin}"
            raise ValueError(reason)

    @property
    def sees_rates(self) -> bool:
        """Return True."""
        return True

    @property
    def powers(self) -> Powers:
        """Return that it changes the size of elastic jobs, as rates say it."""
        return Powers(resizes=True, rates=True, passes=True, run_times=True)

    def plan(self, view: VcView) -> Plan:
        """Return turns, and at the beginning of a round new sizes."""
        length = round(self.every_s * NS_PER_SECOND)
        began = view.now // length * length
        resizes = view.now - began <= length // LATE_DIVISOR
        turns: list[Turn] = []
        actions: list[Resize] = []
        free = view.free_for()
        wanted = sorted(view.gpus_for()) if resizes or queued(view) else []
        for pin in wanted:
            more, changes = self._among(view, pin, free.get(pin, 0))
            turns += more
            actions += changes if resizes else []
        return Plan(
            turns=tuple(turns),
            strict=False,
            actions=tuple(actions),
            look_at=Instant(began + length),
        )

    def _among(self, view: VcView, pin: str, free: int) -> tuple[list[Turn], list[Resize]]:
        """Return turns and new sizes of the jobs with this pin.

        Args:
            view: The VC.
            pin: The pin.
            free: GPUs that none of its jobs has.
        """
        running = [job for job in view.jobs if job.pin == pin and changeable(job)]
        waiting = [job for job in by_arrival(queued(view)) if job.pin == pin]
        shared = free + sum(job.gpus for job in running)
        wants = {job.job: self._wants(job, view.now) for job in (*running, *waiting)}
        sizes = _minimum_shares(running, waiting, wants, shared)
        _give_rest(running, waiting, wants, sizes, shared)
        return _carry_out(running, waiting, sizes, free)

    def _wants(self, job: JobView, now: Instant) -> Wants:
        """Return what a job has still to do, and by when."""
        each = gpus_per_worker(job)
        speeds = known_speeds(job)
        sizes = {
            workers * each: speed
            for workers, speed in speeds.items()
            if workers & (workers - 1) == 0 or workers == min(speeds)
        }
        remaining = job.remaining(now)
        due = deadline(job, self.label)
        if remaining is None or due is None:
            return Wants(sizes, each, None, 0.0)
        # While it waits, its run time is that at the size of its spec.
        workers = job.workers if job.workers in speeds else max(speeds)
        speed = speeds[workers] * (job.workers / workers)
        within = (due - now) * (1 - self.margin)
        return Wants(sizes, each, max(within, 0.0), remaining * speed)


class Wants(NamedTuple):
    """What a job has still to do."""

    speeds: Mapping[int, float]
    """Work per nanosecond by number of GPUs, fewest first."""
    each: int
    """GPUs of a worker."""
    within: float | None
    """Nanoseconds until its deadline; None: it has none."""
    work: float
    """In the unit of its speeds, multiplied by nanoseconds."""


class Stretch(NamedTuple):
    """A stretch of time, in nanoseconds from now, and the GPUs that are free in it."""

    begin: float
    end: float
    free: int


def deadline(job: JobView, label: str) -> Instant | None:
    """Return when a job is to have ended, by a label of its spec; None: it does not say so.

    Args:
        job: The job.
        label: The label, whose value is seconds from the submission.
    """
    try:
        after_s = float(job.spec.labels.get(label, ""))
    except ValueError:
        return None
    if not 0 < after_s < 1e9:  # NaN is not either.
        return None
    return Instant(job.submitted_at + round(after_s * NS_PER_SECOND))


def fill(wants: Wants, free: Sequence[Stretch]) -> tuple[int, list[Stretch]] | None:
    """Return the minimum satisfactory share of a job, and what it leaves (algorithm 1, line 12).

    Args:
        wants: What it has to do, with a deadline.
        free: The GPUs that are free, without gaps from now on; the last stretch has no end.

    Returns:
        GPUs in the first stretch (0: it can begin later), and the GPUs that stay free; None: no
        share is enough.
    """
    for most in wants.speeds:
        found = _with_share(wants, free, most)
        if found is not None:
            return found
    return None


def _with_share(
    wants: Wants, free: Sequence[Stretch], most: int
) -> tuple[int, list[Stretch]] | None:
    """Return what `fill` does, with at most so many GPUs at any time."""
    assert wants.within is not None
    left, work, first = list[Stretch](), wants.work, 0
    for number, stretch in enumerate(free):
        if stretch.begin >= wants.within:
            return None
        gpus = max((size for size in wants.speeds if size <= min(most, stretch.free)), default=0)
        first = gpus if number == 0 else first
        if not gpus:
            left.append(stretch)
            continue
        ends = stretch.begin + work / wants.speeds[gpus]
        if ends <= stretch.end:
            if ends > wants.within:
                return None
            left.append(Stretch(stretch.begin, ends, stretch.free - gpus))
            rest = [Stretch(ends, stretch.end, stretch.free)] if ends < stretch.end else []
            return first, [*left, *rest, *free[number + 1 :]]
        work -= (stretch.end - stretch.begin) * wants.speeds[gpus]
        left.append(stretch._replace(free=stretch.free - gpus))
    return None


def _filled(
    jobs: Sequence[JobView], wants: Mapping[str, Wants], gpus: int
) -> dict[str, int] | None:
    """Return the present shares of all jobs, the earliest deadline first; None: some miss theirs.

    Args:
        jobs: All have a deadline.
        wants: What each has to do.
        gpus: How many GPUs there are for them.
    """
    free = [Stretch(0.0, float("inf"), gpus)]
    shares = {}
    for job in sorted(jobs, key=lambda job: (wants[job.job].within or 0.0, job.sequence)):
        found = fill(wants[job.job], free)
        if found is None:
            return None
        shares[job.job], free = found
    return shares


def _minimum_shares(
    running: Sequence[JobView], waiting: Sequence[JobView], wants: Mapping[str, Wants], gpus: int
) -> dict[str, int]:
    """Return the GPUs of each job that has any, before what is left is given out (algorithm 1).

    Running jobs have been admitted; of them, those whose deadline can be met no more go on with the
    fewest workers, as do those without a deadline. What these need at least is no other job's.

    Args:
        running: Jobs whose size can be changed.
        waiting: Jobs that wait, in their order.
        wants: What each has to do.
        gpus: GPUs for all.
    """
    shares = {job.job: min(wants[job.job].speeds) for job in running}
    timed = [job for job in running if wants[job.job].within is not None]
    timed.sort(key=lambda job: job.sequence)
    came = [job for job in waiting if wants[job.job].within is not None][:TRIED_MAX]
    admitted: list[JobView] = []
    best: dict[str, int] = {}
    names = {job.job for job in timed}
    others = sum(least for name, least in shares.items() if name not in names)
    all_timed = _filled(timed, wants, max(gpus - others, 0))
    if all_timed is not None:
        admitted, best, timed = timed, all_timed, []
    for job in (*timed, *came):
        chosen = [*admitted, job]
        names = {each.job for each in chosen}
        others = sum(least for name, least in shares.items() if name not in names)
        found = _filled(chosen, wants, max(gpus - others, 0))
        if found is not None:
            admitted, best = chosen, found
    for name, share in best.items():
        # A running job that could pause keeps its fewest workers: it is not stopped.
        least = shares.get(name, 0)
        if max(share, least):
            shares[name] = max(share, least)
    return shares


def _give_rest(
    running: Sequence[JobView],
    waiting: Sequence[JobView],
    wants: Mapping[str, Wants],
    sizes: dict[str, int],
    gpus: int,
) -> None:
    """Give out the GPUs that are left now, where a further one adds the most (algorithm 2).

    What a step adds is its gain in speed per GPU, relative to the speed per GPU of the fewest
    workers. Waiting jobs begin before others grow.

    Args:
        running: Jobs whose size can be changed.
        waiting: Jobs that wait, in their order.
        wants: What each has to do.
        sizes: GPUs by job; changed.
        gpus: GPUs for all.
    """
    left = gpus - sum(sizes.values())
    for job in waiting:
        least = min(wants[job.job].speeds)
        if job.job not in sizes and least <= left:
            sizes[job.job] = least
            left -= least
    while left > 0:
        best: tuple[float, int, str, int] | None = None
        for job in (*running, *waiting):
            now, speeds = sizes.get(job.job, 0), wants[job.job].speeds
            further = next((size for size in speeds if now and size > now), 0)
            if not further or further - now > left or speeds[further] <= speeds[now]:
                continue
            least = min(speeds)
            alone = speeds[least] / least
            gain = (speeds[further] - speeds[now]) / (further - now) / alone
            step = (-gain, job.sequence, job.job, further)
            best = step if best is None else min(best, step)
        if best is None:
            return
        left -= best[3] - sizes[best[2]]
        sizes[best[2]] = best[3]


def _carry_out(
    running: Sequence[JobView], waiting: Sequence[JobView], sizes: Mapping[str, int], free: int
) -> tuple[list[Turn], list[Resize]]:
    """Return the turns and changes that lead to these sizes with the GPUs that are free now.

    Args:
        running: Jobs whose size can be changed.
        waiting: Jobs that wait, in their order.
        sizes: GPUs by job; those that are not in it have to wait.
        free: GPUs that are free now.
    """
    turns, resizes = [], []
    for job in waiting:
        gpus = sizes.get(job.job, 0)
        if gpus:
            begins = gpus // gpus_per_worker(job) if job.spec.elastic else 0
            turns.append(Turn(job.job, Reason.MOST_GAIN, workers=begins))
            free -= gpus
    changes = [(sizes[job.job] - job.gpus, job.sequence, job) for job in running]
    for more, _, job in sorted(changes, key=lambda each: each[:2]):
        if more and more <= max(free, 0):
            free -= max(more, 0)
            workers = sizes[job.job] // gpus_per_worker(job)
            resizes.append(Resize(job.job, Reason.MOST_GAIN, workers))
    return turns, resizes
