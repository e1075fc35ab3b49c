"""The rate of a rank, lasting changes of its speed, and stalls.

All of it rests on cumulative counts and on when the latest mini-batch ended, by the rank's own
clock: the sending, delay or loss of a report changes nothing. The measure is Gandiva's, the time
per mini-batch (section 4.1), as a rate over a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skep.perf.course import Course
from skep.perf.steady import Gathering
from skep.units import NS_PER_SECOND, Duration, seconds
from skep.wire.held_up import OwnTime
from skep.wire.standing import Standing

WINDOW = seconds(10.0)
"""The time over which a rate is measured: ten reports, and longer than most pauses between mini-
batches."""

LEARNED_STEPS = 20
"""This many mini-batches make a rate as good as a full window does: job lengths vary within ten."""

RATE_MILLI_MAX = 10**12
"""A thousand million mini-batches per second: only a broken clock can report more."""

QUIET = seconds(3.0)
"""Silence that means nothing: a count reaches its node, and the node reports, once a second
each."""

STALL_AFTER = seconds(30.0)
"""The shortest silence that is a stall: validation and checkpoints of small jobs take less."""

STALL_STEPS = 20
"""A stall lasts for at least this many usual mini-batches, for jobs whose mini-batches take
seconds."""

LEVEL_CHANGE_MILLI = 300
"""By how many thousandths a rate must differ from its level to count as another level."""

LEVEL_WINDOWS = 24
"""The number of latest windows that define a level: their deviation is a stable measure of
noise."""

LEVEL_WINDOWS_MIN = 5
"""Windows before there is a level: the first may include compilation and cold caches."""

HELD_WINDOWS = 3
"""Windows that a change must last: a checkpoint or a validation run disturbs one or two."""

HELD_WINDOWS_MAX = 12
"""The most windows that a noisy series asks for: two minutes, after which noise counts as
change."""

NOISE_FACTOR = 28
"""The square of this times the mean deviation is how many windows distinguish a change from
noise.

The median of k normal values deviates by 1.25 * 1.25 * the mean deviation / sqrt(k). This leaves
5.4 times that within LEVEL_CHANGE_MILLI."""

ALIKE_DIVISOR = 10
"""Rates are alike if they differ by a tenth at most: between two of them the level does not
change."""

FINE_PER_MILLI = 10**6
"""Levels are finer than thousandths: a mini-batch in five minutes is only three thousandths."""

PHASE_STEPS_MIN = 5
"""Mini-batches in a window of a level: with fewer the lengths of single ones would decide."""

assert HELD_WINDOWS <= LEVEL_WINDOWS_MIN <= LEVEL_WINDOWS
assert HELD_WINDOWS < HELD_WINDOWS_MAX <= LEVEL_WINDOWS
assert 0 < LEVEL_CHANGE_MILLI < 1000, "a fall must be able to qualify"
assert PHASE_STEPS_MIN <= LEARNED_STEPS
assert LEVEL_CHANGE_MILLI * ALIKE_DIVISOR > 2 * 1000, "what is alike is no change"
assert QUIET < WINDOW < STALL_AFTER, "a rate falls before a stall is called"


def rate_milli(steps: int, span_ns: int) -> int:
    """Return thousandths of a mini-batch per second, 0 to RATE_MILLI_MAX; 0 for an empty span.

    Args:
        steps: Mini-batches in the span.
        span_ns: Its length in nanoseconds.
    """
    if span_ns <= 0 or steps <= 0:
        return 0
    return min(steps * (1000 * NS_PER_SECOND) // span_ns, RATE_MILLI_MAX)


def median(values: Sequence[int]) -> int:
    """Return the median of at least one value, rounded down between the two middle ones."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2


def stall_limit(step_ns: int) -> Duration:
    """Return how long a silence has to be to count as a stall.

    Args:
        step_ns: The usual nanoseconds of a mini-batch of the job.
    """
    return max(STALL_AFTER, Duration(STALL_STEPS * step_ns))


class RankWindow:
    """The latest mini-batches of one rank, from its cumulative reports.

    `rate_milli` is the rate over the samples since the newest one that is at least WINDOW old; it
    falls while the rank is silent. It is 0 and `known` false until there is a measurement. `lives`
    counts how often the rank started again: a count or clock that goes back is a new life.
    """

    __slots__ = (
        "_counts",
        "_interval_ns",
        "_seen",
        "_times",
        "course",
        "known",
        "last_step_at",
        "lives",
        "memory",
        "node",
        "own",
        "rate_milli",
        "silent_ns",
        "stands",
        "step_ns",
        "steps",
        "utilisation",
    )

    def __init__(self) -> None:
        self._times: list[int] = []
        self._counts: list[int] = []
        self._interval_ns = 0
        self._seen = 0
        self.course: Course | None = None
        """How it continues until it says otherwise, if it said so."""
        self.known = False
        self.last_step_at = 0
        self.lives = 0
        self.rate_milli = 0
        self.silent_ns = 0
        self.step_ns = 0
        self.steps = 0
        self.utilisation = 0
        self.memory = 0
        self.node = ""
        """Where the rank is."""
        self.own: OwnTime | None = None
        """What it reported of its own time since that was looked at last."""
        self.stands: Standing | None = None
        """Where it stands, as it says while it makes no mini-batches."""

    def observe(self, steps: int, last_step_at: int, step_ns: int, at: int) -> None:
        """Record the rank's counts as of `at`.

        A report without a mini-batch changes nothing.

        Args:
            steps: Mini-batches that the rank has made.
            last_step_at: When the latest one ended, by the rank's clock in nanoseconds; 0 (not
                given) counts as `at`.
            step_ns: What the latest one took, in nanoseconds.
            at: When the report was made, by the same clock.
        """
        self._seen = at
        if steps <= 0:
            return
        if steps != self.steps:
            ended = last_step_at or at
            if steps < self.steps or ended < self.last_step_at or not self._times:
                self._begin(steps, ended)
            elif ended > self.last_step_at:
                self._advance(steps, ended)
        self.step_ns = step_ns
        if not self._times:
            return  # It has made none since it was suspended.
        if not self.known and step_ns > 0:
            self.rate_milli, self._interval_ns, self.known = rate_milli(1, step_ns), step_ns, True
        silent = at - self.last_step_at
        self.silent_ns = max(0, silent)
        if silent > QUIET and self.known:
            self._slow_down()

    def begin_anew(self) -> None:
        """Count mini-batches from the next one on, after a time in which the rank was suspended."""
        self._times, self._counts = [], []
        self.known, self.rate_milli, self.silent_ns = False, 0, 0
        self.own = None

    def full(self) -> bool:
        """Return whether the rate rests on a whole window, or on LEARNED_STEPS mini-batches."""
        span, steps = self.last_step_at - self._times[0], self.steps - self._counts[0]
        return span >= WINDOW or steps >= LEARNED_STEPS

    def pure(self, since: int) -> bool:
        """Return whether the rate rests only on mini-batches that ended at `since` or later.

        Args:
            since: Nanoseconds by the rank's clock.
        """
        return self.known and len(self._times) > 1 and self._times[0] >= since

    def follow(self, course: Course, until: int) -> None:
        """Observe what a rank would have reported every second, up to a report at `until`.

        Of a long stretch only its last reports matter: a rate rests on nothing older.

        Args:
            course: How the rank continues.
            until: Nanoseconds by the rank's clock.
        """
        reach = WINDOW + 2 * course.step_ns + QUIET
        at = self._seen
        if not course.goes and until - at > 2 * reach:
            at = until - NS_PER_SECOND  # It stands, and is silent.
        elif course.goes and until - reach > course.next_at + reach and self.known:
            at = course.heard(until - reach)
            steps, ended = course.done(at)
            self._times, self._counts = [ended], [steps]
            self.steps, self.last_step_at = steps, ended
        steps, ended, step_ns = course.steps, course.last_step_at, course.step_ns
        goes, next_at = course.goes, course.next_at
        while at < until:
            at = self._next(course, at, until)
            if goes and at >= next_at:  # As `course.done` says.
                more = (at - next_at) // step_ns
                steps, ended = course.steps + 1 + more, next_at + more * step_ns
            self.observe(steps, ended, step_ns, at)

    def _next(self, course: Course, at: int, until: int) -> int:
        """Return when the next report that says anything new is made, or the last one."""
        soon = at + NS_PER_SECOND
        if course.step_ns <= NS_PER_SECOND:
            return min(soon, until)
        slow = course.goes and self.pure(course.next_at)
        if not slow or self.last_step_at + course.step_ns <= soon:
            return min(soon, until)
        return min(course.tells(self.last_step_at + course.step_ns), until)

    def _begin(self, steps: int, ended: int) -> None:
        self._times, self._counts = [ended], [steps]
        self._interval_ns = 0
        self.lives += 1
        self.known = False
        self.rate_milli = 0
        self.steps, self.last_step_at = steps, ended

    def _advance(self, steps: int, ended: int) -> None:
        times, counts = self._times, self._counts
        times.append(ended)
        counts.append(steps)
        horizon = ended - WINDOW
        while times[1] <= horizon:
            del times[0], counts[0]
        span, made = ended - times[0], steps - counts[0]
        self._interval_ns = span // made
        self.rate_milli = rate_milli(made, span)
        self.known = True
        self.steps, self.last_step_at = steps, ended

    def _slow_down(self) -> None:
        """Reduce the rate after a silence longer than a pending report or a pending mini-batch.

        With no mini-batch left in the window, all that is known is that the next one takes longer
        than the silence.
        """
        counted = self.silent_ns - max(QUIET, 2 * self._interval_ns)
        if counted <= 0:
            return
        times, counts = self._times, self._counts
        until = self.last_step_at + counted
        while len(times) > 1 and times[1] <= until - WINDOW:
            del times[0], counts[0]
        made = self.steps - counts[0]
        slower = rate_milli(made, until - times[0]) if made else rate_milli(1, self.silent_ns)
        self.rate_milli = min(self.rate_milli, slower)


class LevelChange(NamedTuple):
    """The level of a series before and after a change, in the unit of the series."""

    before: int
    after: int


class Level:
    """The level of a series of rates (any unit), and when it changes.

    The medians of two adjacent stretches are compared: the latest HELD_WINDOWS rates (more, if the
    series is noisy) and the LEVEL_WINDOWS before them. The level has changed once they differ by
    more than LEVEL_CHANGE_MILLI and at least HELD_WINDOWS rates in a row do so on the same side.
    These rates are the next level, and the series begins with them, so a change back takes as long.
    Slow drift is followed and is no change.
    """

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: list[int] = []

    def settled(self, rate: int) -> bool:
        """Return whether further windows of this rate cannot complete a change.

        All windows are alike then, and so are all medians of them.
        """
        return all(abs(each - rate) * ALIKE_DIVISOR <= rate for each in self._windows)

    def repeat(self, rate: int, count: int) -> None:
        """Add further windows of one rate.

        Args:
            rate: A rate for which the series is settled.
            count: How many windows.
        """
        self._windows += [rate] * min(count, LEVEL_WINDOWS + HELD_WINDOWS_MAX)
        del self._windows[: -(LEVEL_WINDOWS + HELD_WINDOWS_MAX)]

    def add(self, rate: int) -> LevelChange | None:
        """Add the rate of the next window; return the change that it completes, if any.

        Args:
            rate: Above 0.
        """
        windows = self._windows
        windows.append(rate)
        del windows[: -(LEVEL_WINDOWS + HELD_WINDOWS_MAX)]
        before = windows[:-HELD_WINDOWS][-LEVEL_WINDOWS:]
        if len(before) < LEVEL_WINDOWS_MIN:
            return None
        level = median(before)
        if not _differs(rate, level):
            return None
        noise = sum(abs(each - level) for each in before) // len(before)
        held = (NOISE_FACTOR * noise) ** 2 // level**2 + 1
        held = min(max(held, HELD_WINDOWS), HELD_WINDOWS_MAX)
        before = windows[:-held][-LEVEL_WINDOWS:]
        if len(before) < LEVEL_WINDOWS_MIN:
            return None
        level, latest = median(before), median(windows[-held:])
        if not _differs(latest, level):
            return None
        run = _run(windows, level, latest > level)
        if len(run) < HELD_WINDOWS:
            return None
        self._windows = run
        return LevelChange(level, median(run))


def _run(windows: list[int], level: int, above: bool) -> list[int]:
    """Return the latest windows that all differ from the level on one side."""
    held = 1  # It ends before the first window: a median has windows on both sides, or on it.
    while _differs(windows[-held], level) and (windows[-held] > level) is above:
        held += 1
    return windows[len(windows) - held + 1 :]


def _differs(rate: int, level: int) -> bool:
    return abs(rate - level) * 1000 > LEVEL_CHANGE_MILLI * level


class PhaseWatch:
    """Cuts a rank's progress into adjacent windows and watches their level.

    A window ends once it is WINDOW long and holds PHASE_STEPS_MIN mini-batches. The watched rank is
    the slowest one when a window begins: it determines the pace of the gang.
    """

    __slots__ = ("_lives", "_since", "_steps", "level", "rank", "steady")

    def __init__(self, rank: RankWindow) -> None:
        self.level = Level()
        self.steady = Gathering()
        self._begin(rank)

    def watch(self, slowest: RankWindow) -> LevelChange | None:
        """Look at the rank; return the change that its progress completes, if any.

        Args:
            slowest: The slowest rank now, to which the next window belongs.

        Returns:
            The levels in thousandths of a mini-batch per second.
        """
        rank = self.rank
        span = rank.last_step_at - self._since
        if rank.lives != self._lives:
            self._begin(slowest)
            return None
        made = rank.steps - self._steps
        if span < WINDOW or made < PHASE_STEPS_MIN:
            return None
        self._begin(slowest)
        rate = _fine(made, span)
        self.steady.add(rate)
        change = self.level.add(rate)
        if change is None:
            return None
        return LevelChange(change.before // FINE_PER_MILLI, change.after // FINE_PER_MILLI)

    def ends(self, course: Course) -> int:
        """Return when the window ends, for a rank that keeps to its course, in nanoseconds."""
        long = -((course.next_at - self._since - WINDOW) // course.step_ns) + course.steps + 1
        steps = max(long, self._steps + PHASE_STEPS_MIN, course.steps + 1)
        return course.tells(course.ends(steps))

    def settled(self, course: Course) -> bool:
        """Return whether nothing is found as long as the rank keeps to its course."""
        pure = self._since >= course.next_at and self.rank.lives == self._lives
        return pure and self.level.settled(_fine(1, course.step_ns))

    def follow(self, course: Course, until: int) -> None:
        """Add the windows that end before a report; nothing is found in them.

        Args:
            course: How the rank continues; it is settled.
            until: When the report is made, in nanoseconds.
        """
        made, at = 0, self.ends(course)
        while at < until:
            steps, ended = course.done(at)
            self._since, self._steps = ended, steps
            made, at = made + 1, self.ends(course)
        rate = _fine(1, course.step_ns)
        self.level.repeat(rate, made)
        self.steady.repeat(rate, made)

    def gathered(self, course: Course) -> int:
        """Return when there are enough windows to compare with, if the rank keeps to its course."""
        since, steps, at = self._since, self._steps, 0
        for _ in range(self.steady.missing):
            at = self.ends(course)
            self._steps, self._since = course.done(at)
        self._since, self._steps = since, steps
        return at

    def _begin(self, rank: RankWindow) -> None:
        self.rank = rank
        self._lives, self._since, self._steps = rank.lives, rank.last_step_at, rank.steps


def _fine(steps: int, span_ns: int) -> int:
    """Return a rate in millionths of a thousandth of a mini-batch per second."""
    return steps * FINE_PER_MILLI * 1000 * NS_PER_SECOND // span_ns
