"""Counts the mini-batches of one process.

Three sources are watched. An optimizer's step is the best one: it is exact, and it does not see
validation loops. As long as no optimizer has stepped, the backward passes of scalars count: a
script that updates its parameters by hand makes one in each mini-batch. As long as there is none of
these either, the batches that data loaders hand out do. The first backward pass counts with the
second one: before that it is most likely that of a script whose optimizer steps in a moment.

Counting steps of several optimizers: the count is the largest of the optimizers' levels, never
their sum. A GAN that trains its discriminator five times per generator step, or a model with one
optimizer per layer, thus counts each mini-batch once. A level grows by one with each step of its
optimizer. It starts at 0 for the first; one that first steps later starts at the level of the
mini-batch in progress, so that a script which trains in phases, each with an optimizer of its own,
keeps counting instead of standing still until the later phase has overtaken the earlier one. An
optimizer that makes PHASE steps while no other steps is in a phase of its own, too, whether it
steps for the first time or again (one model after the other in each epoch, as in cross-validation):
those of its steps that were not counted then are.

Times: where mini-batches are short, WINDOW of them are timed and the next UNTIMED are only counted,
as long as no other optimizer steps. A clock and a list of times cost more than the count: their
code and data are not in the caches after a mini-batch.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from skep_job.link.orders import Control, describe
from skep_job.observe.own_time import OwnTime

WINDOW = 64
"""Mini-batches whose median duration is reported: enough to pass over an evaluation in between."""

BACKWARDS_MIN = 2
"""Backward passes without an optimizer's step that tell a script which updates by hand."""

PHASE = 16
"""Steps of one optimizer in a row that tell a phase of its own: more than a discriminator makes
between two steps of its generator."""

UNTIMED = 8 * WINDOW
"""After WINDOW timed mini-batches at most so many are only counted. A report ends that earlier."""

SHORT_NS = 2_000_000
"""Mini-batches of less are short: timing each of them would take some tenths of a percent."""

FAILURE_CHARACTERS_MAX = 2_000
"""Of the text about an internal failure: with escapes (6 bytes each) it still fits in a frame."""

AfterStep = Callable[[object, object, object], None]
"""The signature of torch's post-step hooks: optimizer, args, kwargs."""


class Count(NamedTuple):
    """What is known at one moment. Times are `time.monotonic_ns()`."""

    steps: int  # mini-batches completed since the process started
    step_ns: int  # median duration of the last up to WINDOW mini-batches, 0 if unknown
    last_step_ns: int  # when the latest mini-batch ended, 0 if none has
    source: str  # "optimizer", "backward", "dataloader", "cooperative", or "none"


class _Level:
    """How far one optimizer has come; `alive` keeps the entry from outliving the optimizer."""

    __slots__ = ("alive", "steps")

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.alive: object = None


class Tally:
    """The counters. Written by the training threads, read by the reporter, without a lock.

    No statement here leaves the counters torn when another thread reads between two of them; two
    threads that step optimizers at the same instant may lose one count of the two.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        """Why counting stopped, or None while it works."""
        self.wake: Callable[[], None] = _nothing
        """Called when there is something to report at once. Must not raise, must not block."""
        self.first_step: Callable[[], None] = _nothing
        """Called once, on the training thread, when the first optimizer has stepped."""
        self.joins: Callable[[object], None] = _ignore
        """Called on the training thread with each optimizer that steps for the first time. Must not
        raise."""
        self.source = "optimizer"
        self.steps = 0
        self.levels: dict[int, _Level] = {}  # by id(optimizer)
        self.alone = 0  # id of an optimizer with steps that were not counted, 0 for none
        self.row = 0  # its steps since another one's
        self.uncounted = 0  # among these
        self.only = 0  # id of the optimizer whose next steps are only counted
        self.until = 0  # `steps` up to which they are only counted; 0: they are timed
        self.timed = 0  # `steps` at the latest of `ends`, if `until` is set
        self.again = UNTIMED  # `steps` from which they may be only counted: after the warm-up
        self.backwards = 0  # of scalars, none within another
        self.first_backward_ns = 0  # when the first of them ended
        self.batches = 0  # handed out by data loaders
        self.batch_open = False  # the latest of them is still being worked on
        self.ends: deque[int] = deque(maxlen=WINDOW + 1)
        self.own = OwnTime()
        """What of each mini-batch this process spends on its own."""

    def join(self, optimizer: object) -> None:
        """Count the first step of an optimizer, and give it a level."""
        if self.failure is not None:
            return
        is_first = not self.steps
        if is_first:
            self.ends.clear()  # What lesser sources left there has another meaning.
        key = id(optimizer)
        # If who led is gone, this is the next phase of the script: its first step is a mini-batch
        # of its own. If not, it most likely shares the mini-batch that the leader counted.
        # (A copy of the values, since collecting garbage may take an entry out at any moment.)
        led = any(level.steps >= self.steps for level in list(self.levels.values()))
        level = _Level(self.steps if led else self.steps + 1)
        self.alone, self.row, self.uncounted = (key, 1, 1) if led else (0, 0, 0)
        try:
            level.alive = weakref.ref(optimizer, lambda _: self._leave(key))
        except TypeError:
            pass  # A class without weak references: its id is then never taken for a new one.
        self.levels[key] = level
        if level.steps > self.steps:
            self.steps = level.steps
            self._end(time.monotonic_ns())
        self.joins(optimizer)
        if is_first:
            self.wake()
            self.first_step()

    def _leave(self, key: int) -> None:
        """Forget an optimizer that is gone: another may have its id."""
        self.levels.pop(key, None)
        if self.only == key:
            self.only = 0

    def step(self, optimizer: object) -> bool:
        """Count and time a step of an optimizer; return whether a mini-batch may end with it."""
        was_untimed = self.until != 0
        if was_untimed:
            self._end_untimed()
        key = id(optimizer)
        level = self.levels.get(key)
        if level is None:
            self.join(optimizer)
            return True
        level.steps = steps = level.steps + 1
        if self.alone or steps <= self.steps:
            self.in_a_row(key, level)
            steps = level.steps
            if steps <= self.steps:
                return False
        self.steps = steps
        if was_untimed:
            return True
        now = time.monotonic_ns()
        self.ends.append(now)
        if self.own.on:
            self.own.end(now)
        elif steps >= self.again and now - self.ends[0] < WINDOW * SHORT_NS:
            self._begin_untimed(key)
        return True

    def _begin_untimed(self, key: int) -> None:
        """Only count the steps of one optimizer from here on, if enough of them are timed."""
        if len(self.ends) > WINDOW and not self.alone:
            self.only, self.timed = key, self.steps
            self.until = self.steps + UNTIMED

    def _end_untimed(self) -> None:
        """Time the mini-batches from here on: the latest ends now."""
        level = self.levels.get(self.only)
        if level is not None:
            level.steps = self.steps
        self.until = self.only = 0
        self.again = self.steps + 1 + WINDOW
        self._shift(time.monotonic_ns() - self.ends[-1])

    def time_again(self) -> None:
        """Have the next mini-batches timed. For the reporter's thread."""
        if self.until:
            self.until = 1  # Not 0: the thread that trains has to see that it was set.

    def in_a_row(self, key: int, level: _Level) -> None:
        """Note a step of an optimizer, and count what was not, if it is in a phase of its own.

        Args:
            key: The optimizer's.
            level: With this step, which is not in `steps` yet.
        """
        counts = level.steps > self.steps
        if key != self.alone:
            self.alone, self.row, self.uncounted = 0 if counts else key, 0, 0
            if counts:
                return
        self.row += 1
        self.uncounted += not counts
        if self.row == PHASE:
            level.steps = self.steps + counts + self.uncounted
            self.alone = 0

    def hand_over(self) -> None:
        """Count what `tick` is told from here on, and nothing else; go on from what is reached."""
        if not self.steps:
            self.ends.clear()
        if self.until:
            self._end_untimed()
        self.steps = self.reached()
        self.source = "cooperative"
        self.backwards = 0
        self.batches = 0
        self.batch_open = False

    def go_on_from(self, steps: int) -> None:
        """Go on from another process's count, before the first mini-batch here."""
        self.steps = steps

    def tick(self) -> None:
        """Count a mini-batch that the script says is done."""
        self.steps += 1
        self._end(time.monotonic_ns())
        if self.steps == 1:
            self.wake()

    def reached(self) -> int:
        """Return the mini-batches completed, as `count` would."""
        return self.steps or self.backwards or self.batches - self.batch_open

    def pass_over(self, pause_ns: int) -> None:
        """Take a pause that ends now out of the durations. For the thread that trains."""
        self._shift(pause_ns)
        self.own.pass_over(pause_ns)

    def _shift(self, pause_ns: int) -> None:
        for place in range(len(self.ends)):  # In between, one of the gaps is wrong: the median not.
            self.ends[place] += pause_ns

    def end_backward(self) -> bool:
        """Note that a backward pass is done; return whether it counts: all but the first do."""
        now = time.monotonic_ns()
        if not self.first_backward_ns:
            self.first_backward_ns = now
            return False
        if not self.backwards:
            self.backwards = BACKWARDS_MIN - 1
            self.ends.clear()  # What the data loaders left there has another meaning.
            self.ends.append(self.first_backward_ns)
        self.backwards += 1
        self._end(now)
        if self.backwards == BACKWARDS_MIN:
            self.wake()
        return True

    def _end(self, now: int) -> None:
        self.ends.append(now)
        self.own.end(now)

    def begin_batch(self) -> None:
        """Note that a data loader has handed out a batch, which ends the one before."""
        if self.batch_open:
            self.end_batch()
        self.batches += 1
        self.batch_open = True

    def end_batch(self) -> None:
        """Note that the latest batch is done: the loader was asked for another."""
        if not self.batch_open:
            return
        self.batch_open = False
        if not self.steps and not self.backwards:
            self.ends.append(time.monotonic_ns())
            if self.batches == 1:
                self.wake()

    def fail(self, where: str, error: Exception) -> None:
        """Stop counting for good and have the first reason reported. Never raises."""
        if self.failure is not None:
            return
        self.failure = f"{where}: {describe(error)}"[:FAILURE_CHARACTERS_MAX]
        self.levels.clear()  # So that every later step ends up in `join`, and there.
        self.until = 0
        try:
            self.wake()
        except Exception:  # noqa: S110
            pass  # The user's script goes on, whatever happens here.

    def count(self, *, ended: bool = False) -> Count:
        """Return the count at this moment; `ended` says that the script is over.

        After a failure the source is "none" and `steps` is what had been counted by then.
        """
        ends = list(self.ends.copy())
        steps, source = self.steps, self.source
        if not steps and self.backwards:
            steps, source = self.backwards, "backward"
        elif not steps:
            steps = self.batches - (self.batch_open and not ended)
            source = "dataloader"
        if not steps or self.failure is not None:
            source = "none"
        step_ns = _median(_gaps(ends))
        last_ns = ends[-1] if ends else 0
        if self.until and steps > self.timed:
            last_ns = min(last_ns + (steps - self.timed) * step_ns, time.monotonic_ns())
        return Count(steps, step_ns, last_ns, source)

    def timing(self) -> dict[str, int] | None:
        """Return how the latest durations are spread (ns), None for fewer than two of them."""
        return None if self.failure is not None else _timing(_gaps(list(self.ends.copy())))


def after_step(tally: Tally, control: Control | None = None) -> AfterStep:
    """Return the hook that torch is to call after each step of any optimizer.

    It takes some 2 us within a training, whose data fill the caches; 4 us where the mini-batch is
    timed. It does no input or output except at the first step and when an order of `control` is
    due. It raises only what a signal's handler raised while such an order was done.

    Args:
        tally: The hook changes its counters.
        control: The orders; None: there are none.
    """
    control = control or Control()

    def count_step(optimizer: object, _args: object, _kwargs: object) -> None:
        steps = tally.steps
        if steps < tally.until and id(optimizer) == tally.only:
            tally.steps = steps + 1
        else:
            try:
                if not tally.step(optimizer):
                    return
            except Exception as error:  # Nothing may reach the user's training loop.
                tally.fail("optimizer hook", error)
        if control.due:
            control.boundary(tally.steps)

    # torch.compile calls the hook instead of tracing into it, where it would warn about the clock.
    count_step._torchdynamo_disable = True  # type: ignore[attr-defined]
    return count_step


def _gaps(ends: list[int]) -> list[int]:
    """Return the differences between neighbours, sorted."""
    return sorted(later - earlier for earlier, later in itertools.pairwise(ends))


def _median(gaps: list[int]) -> int:
    """Return the median of sorted numbers, 0 for none."""
    if not gaps:
        return 0
    middle = len(gaps) // 2
    return gaps[middle] if len(gaps) % 2 else (gaps[middle - 1] + gaps[middle]) // 2


def _timing(gaps: list[int]) -> dict[str, int] | None:
    """Return how sorted durations are spread (nanoseconds); None for fewer than two."""
    count = len(gaps)
    if count < 2 or gaps[0] < 0:
        return None
    mean = sum(gaps) / count
    variance = sum((gap - mean) ** 2 for gap in gaps) / (count - 1)
    return {
        "samples": count,
        "mean_ns": round(mean),
        "deviation_ns": round(variance**0.5),
        "p10_ns": gaps[(count - 1) // 10],
        "p50_ns": _median(gaps),
        "p90_ns": gaps[count - 1 - (count - 1) // 10],
    }


def _nothing() -> None:
    pass


def _ignore(_: object) -> None:
    pass
