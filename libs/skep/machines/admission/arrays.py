"""Arrays: which of their tasks become jobs, and when one has ended.

    waiting --Admitted--> job --JobOver--> ended --TasksRetried--> waiting
            --TasksCancelled--> ended

An array with `after`, `begin` or `hold` is gated: none of its tasks becomes a job before the
allocator says that it waits for nothing more (`ArrayOpened`), and that is said once.
An array is one record. Its tasks wait here and not in the allocator's queues: only as many are jobs
as may run at once, and of these only AHEAD that have not begun. A task becomes a job as any
submission does: admission publishes it to SUBMIT, as the array's owner and with a key of its own,
and admits it when it comes from there. So it has a job id, a place in the order of arrival, and is
admitted once, however often it was published. What was published is soft: after a restart all that
may begin is published again, and its key tells what was there already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import msgspec

from skep.machines.base import Effect, Send
from skep.units import Instant, after, seconds
from skep.wire import subjects
from skep.wire.array import (
    ArrayAdmitted,
    ArrayOpened,
    ArrayOver,
    TasksCancelled,
    TasksRetried,
    as_ranges,
    from_ranges,
    is_gated,
    key_of,
    mark_of,
    spec_of_task,
    task_id,
    task_of,
    tasks_of,
)
from skep.wire.spec import JobSpec

AHEAD = 16
"""Jobs of one array that have not begun. When GPUs come free there is one to take them before
another is admitted, which takes milliseconds; a longer queue would cost each decision more."""
RESEND = seconds(5.0)
"""Until a task is published again that has not come from SUBMIT: it takes milliseconds."""
CANCELS_MAX = 500
"""Jobs of an array that are cancelled by one decision: 30 KB of facts."""
ENDED_KEPT = 256
"""Ended arrays whose failed tasks may be retried, the latest: of the largest 100 KB each."""


class Array(msgspec.Struct, kw_only=True):
    """An array and what became of its tasks."""

    spec: JobSpec
    owner: str
    person: str
    mark: str = ""
    """What is in the keys of its tasks."""
    most: int = 0
    """Tasks that may be jobs at once; 0: any number."""
    waiting: deque[int] = msgspec.field(default_factory=deque)
    """Tasks that are not jobs yet, in the order in which they will be."""
    live: dict[int, str] = {}
    """Tasks that are unfinished jobs, and which."""
    queued: int = 0
    """How many of these have not begun."""
    failed: dict[int, None] = {}
    succeeded: int = 0
    cancelled: int = 0
    tries: dict[int, int] = {}
    """Of tasks that were retried: how often they were begun, or are to be."""
    cancelling: bool = False
    """It is to end: its jobs are cancelled, and none of its tasks becomes one."""
    over: bool = False
    retried: int = 0
    """The request by which it was last retried after it had ended."""
    gated: bool = False
    """It waits for something: none of its tasks becomes a job yet."""

    def next(self) -> Iterator[int]:
        """Return the tasks that may become jobs now. The next ones follow them, none is left out.

        What was published may come at any later time: what was in here once stays, until it is a
        job or cancelled.
        """
        if self.gated:
            return iter(())
        room = AHEAD - self.queued
        if self.most:
            room = min(room, self.most - len(self.live))
        return islice(self.waiting, max(room, 0))


class ArrayKept(msgspec.Struct, frozen=True, tag="array-kept"):
    """An array without its jobs, which their own pieces name. Tasks are ranges, in their order."""

    array: str
    spec: JobSpec
    owner: str
    person: str
    mark: str
    waiting: tuple[str, ...]
    failed: tuple[str, ...]
    succeeded: int
    cancelled: int
    tries: tuple[tuple[int, int], ...]
    cancelling: bool
    over: bool
    gated: bool = False
    retried: int = 0


class Arrays:
    """The arrays of admission. `apply...` takes facts over; the rest decides or looks."""

    def __init__(self) -> None:
        """Start without any."""
        self.arrays: dict[str, Array] = {}
        """The unfinished ones, and those that may be retried, the earliest ended first of these."""
        self._ended: dict[str, None] = {}
        self._touched: dict[str, None] = {}
        self._cancels: dict[str, None] = {}
        """Arrays with jobs that are to be cancelled and may not be yet."""
        self._sent: dict[str, dict[int, Instant]] = {}
        """By array and task: when what was published is published again."""
        self._again_at: Instant | None = None
        """No later than the first of these: with a thousand arrays they are looked at only then."""

    def unfinished(self, name: str) -> Array | None:
        """Return an array that has not ended, or None."""
        array = self.arrays.get(name)
        return None if array is None or array.over else array

    # --- what is to be done ------------------------------------------------------------------

    def restarted(self) -> None:
        """Forget what was published: all that may begin is published again."""
        self._sent, self._again_at = {}, None
        self._touched = dict.fromkeys(each for each in self.arrays if each not in self._ended)
        self._cancels = {each: None for each in self._touched if self.arrays[each].cancelling}

    def to_cancel(self, cancelling: Callable[[str], bool]) -> list[str]:
        """Return jobs that are to be cancelled because their array is, CANCELS_MAX at most.

        Args:
            cancelling: Returns whether a job is being cancelled already.
        """
        found: list[str] = []
        for name in list(self._cancels):
            array = self.unfinished(name)
            live = array.live.values() if array is not None else ()
            room = CANCELS_MAX - len(found)
            found += islice((job for job in live if not cancelling(job)), room)
            if len(found) == CANCELS_MAX:
                break
            del self._cancels[name]
        return found

    def ended(self, name: str, now: Instant) -> ArrayOver | None:
        """Return that an array has ended, if all of its tasks have."""
        array = self.arrays[name]
        if array.over or array.waiting or array.live:
            return None
        return ArrayOver(
            array=name,
            succeeded=array.succeeded,
            failed=len(array.failed),
            cancelled=array.cancelled,
            at=now,
            number=array.retried,
        )

    def touched(self) -> list[str]:
        """Return the arrays of which something changed since they were last followed."""
        return [name for name in self._touched if self.unfinished(name) is not None]

    def follow(self, now: Instant) -> list[Effect]:
        """Return what publishes the tasks that may become jobs and were not published lately."""
        names, self._touched = self._touched, {}
        rings = self._again_at is not None and self._again_at <= now
        if rings:
            due = (name for name, times in self._sent.items() if min(times.values()) <= now)
            names.update(dict.fromkeys(due))
        effects = [effect for name in names for effect in self._follow(name, now)]
        looked = self._sent if rings else [name for name in names if name in self._sent]
        times = [at for name in looked for at in self._sent[name].values()]
        if not rings and self._sent and self._again_at is not None:
            times.append(self._again_at)
        self._again_at = min(times, default=None)
        return effects

    def _follow(self, name: str, now: Instant) -> Iterator[Effect]:
        array = self.unfinished(name)
        before = self._sent.pop(name, {})
        if array is None:
            return
        sent = {}
        for index in array.next():
            again = before.get(index)
            if again is None or again <= now:
                yield _submission(name, array, index)
                again = after(now, RESEND)
            sent[index] = again
        if sent:
            self._sent[name] = sent

    def wake_at(self) -> Instant | None:
        """Return when something is to be published again, or more jobs are to be cancelled."""
        if self._cancels:
            return Instant(0)
        return self._again_at

    # --- what the facts say ------------------------------------------------------------------

    def begin(self, fact: ArrayAdmitted, person: str) -> Array:
        """Take over a new array; return it."""
        tasks = tasks_of(fact.spec.array or "")
        array = self.arrays[fact.array] = Array(
            spec=fact.spec,
            owner=fact.owner,
            person=person,
            mark=mark_of(fact.trace),
            most=tasks.most,
            waiting=deque(tasks.indices()),
            gated=is_gated(fact.spec),
        )
        self._touched[fact.array] = None
        return array

    def opened(self, fact: ArrayOpened) -> None:
        """Take over that an array waits for nothing more."""
        self.arrays[fact.array].gated = False
        self._touched[fact.array] = None

    def admitted(self, task: str, job: str) -> Array:
        """Take over that a task became a job; return its array."""
        name, index = _parts(task)
        array = self.arrays[name]
        array.waiting.remove(index)
        array.live[index] = job
        array.queued += 1
        self._touched[name] = None
        return array

    def began(self, task: str) -> None:
        """Take over that the job of a task has GPUs."""
        name, _ = _parts(task)
        self.arrays[name].queued -= 1
        self._touched[name] = None

    def job_over(self, task: str, end: str, *, began: bool) -> None:
        """Take over that the job of a task has ended."""
        name, index = _parts(task)
        array = self.arrays[name]
        del array.live[index]
        array.queued -= not began
        match end:
            case "succeeded":
                array.succeeded += 1
            case "failed":
                array.failed[index] = None
            case _:
                array.cancelled += 1
        self._touched[name] = None

    def cancelled(self, fact: TasksCancelled) -> tuple[Array, int]:
        """Take over that tasks do not become jobs; return the array, and how many."""
        array = self.arrays[fact.array]
        gone = dict.fromkeys(from_ranges(fact.tasks))
        array.waiting = deque(index for index in array.waiting if index not in gone)
        array.cancelled += len(gone)
        self._touched[fact.array] = None
        if fact.whole:
            array.cancelling = True
            self._cancels[fact.array] = None
        return array, len(gone)

    def retried(self, fact: TasksRetried) -> tuple[Array, int]:
        """Take over that tasks that failed wait again; return the array, and how many."""
        array = self.arrays[fact.array]
        again = list(from_ranges(fact.tasks))
        for index in again:
            del array.failed[index]
            array.tries[index] = array.tries.get(index, 1) + 1
        array.waiting.extend(again)
        array.retried = fact.number if array.over else array.retried
        array.over = False
        if fact.array in self._ended:
            del self._ended[fact.array]
        self._touched[fact.array] = None
        return array, len(again)

    def end(self, fact: ArrayOver) -> None:
        """Take over that an array has ended; one without failed tasks is forgotten."""
        array = self.arrays[fact.array]
        array.over, array.cancelling = True, False
        self._sent.pop(fact.array, None)
        self._cancels.pop(fact.array, None)
        del self.arrays[fact.array]
        if not array.failed:
            return
        # Among the ended ones it is the last, here as there.
        self.arrays[fact.array], self._ended[fact.array] = array, None
        for old in list(islice(self._ended, max(0, len(self._ended) - ENDED_KEPT))):
            del self._ended[old], self.arrays[old]

    # --- snapshots ---------------------------------------------------------------------------

    def snapshot(self) -> list[ArrayKept]:
        """Return what rebuilds the arrays, without their jobs."""
        return [self._kept(name) for name in self.arrays]

    def _kept(self, name: str) -> ArrayKept:
        array = self.arrays[name]
        return ArrayKept(
            array=name,
            spec=array.spec,
            owner=array.owner,
            person=array.person,
            mark=array.mark,
            waiting=tuple(_runs(array.waiting)),
            failed=tuple(_runs(array.failed)),
            succeeded=array.succeeded,
            cancelled=array.cancelled,
            tries=tuple(array.tries.items()),
            cancelling=array.cancelling,
            over=array.over,
            gated=array.gated,
            retried=array.retried,
        )

    def restore(self, kept: ArrayKept) -> Array:
        """Take over an array of a snapshot; return it."""
        array = Array(
            spec=kept.spec,
            owner=kept.owner,
            person=kept.person,
            mark=kept.mark,
            most=tasks_of(kept.spec.array or "").most,
            waiting=deque(chain.from_iterable(map(from_ranges, kept.waiting))),
            failed=dict.fromkeys(chain.from_iterable(map(from_ranges, kept.failed))),
            succeeded=kept.succeeded,
            cancelled=kept.cancelled,
            tries=dict(kept.tries),
            cancelling=kept.cancelling,
            over=kept.over,
            gated=kept.gated,
            retried=kept.retried,
        )
        self.arrays[kept.array] = array
        if kept.over:
            self._ended[kept.array] = None
        return array

    def restore_job(self, task: str, job: str, *, began: bool) -> None:
        """Take over a job of a snapshot that is a task."""
        name, index = _parts(task)
        array = self.arrays[name]
        array.live[index] = job
        array.queued += not began

    def check(self) -> None:
        """Assert that each task is in one place, and no more are jobs than may be.

        Raises:
            AssertionError: One is not, or more are.
        """
        for name, array in self.arrays.items():
            tasks = tasks_of(array.spec.array or "")
            places = len(array.waiting) + len(array.live) + len(array.failed)
            assert places + array.succeeded + array.cancelled == tasks.count, name
            apart = {*array.waiting, *array.live, *array.failed}
            assert len(apart) == places, name
            assert not tasks.most or len(array.live) <= tasks.most, name
            assert 0 <= array.queued <= min(AHEAD, len(array.live)), name
            assert array.over is (name in self._ended), name
            assert not array.gated or not (array.live or array.failed or array.succeeded), name
            assert not array.over or (array.failed and not (array.waiting or array.live)), name


def _submission(name: str, array: Array, index: int) -> Send:
    """Return what publishes a task. Admission knows its spec: the message only names it."""
    spec = array.spec
    key = key_of(name, index, array.tries.get(index, 1), array.mark)
    headers = {subjects.KEY_HEADER: key}
    body = {"name": spec.name, "vc": spec.vc, "task": task_id(name, index)}
    return Send(subjects.submit(spec.vc, array.owner), body, headers)


def task_spec(name: str, array: Array, index: int) -> JobSpec:
    """Return the spec of the job that a task becomes."""
    return spec_of_task(array.spec, name, tasks_of(array.spec.array or ""), index)


def _parts(task: str) -> tuple[str, int]:
    found = task_of(task)
    assert found is not None, task
    return found


def _runs(indices: Iterable[int]) -> Iterator[str]:
    """Yield indices in their order as ranges: `5-9`, `0-4`, `12`."""
    first = last = None
    for index in indices:
        if last is not None and index == last + 1:
            last = index
            continue
        if first is not None:
            yield as_ranges(range(first, (last or first) + 1))
        first = last = index
    if first is not None:
        yield as_ranges(range(first, (last or first) + 1))
