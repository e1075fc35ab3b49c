"""Arrays: which tasks one has, how a task is called, and what an array says of itself.

`array: "0-99%8"` in a spec makes one job into a hundred tasks, of which at most 8 are unfinished
jobs at one time. A part is an index, a range, or a range with a step: `1,3,7`, `0-9:2`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from skep.ids import job_sequence
from skep.units import Instant
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec

TASKS_MAX = 10_000
"""Tasks of one array: what they are, and which failed, fits one record as ranges."""
INDEX_MAX = 999_999_999
"""The highest index: nine digits, more than any list of files or seeds has."""
ARRAY_CHARS_MAX = 4096
"""Characters of `array`; ranges and steps say the most in a few."""
ARRAY_KEYS = "array/"
"""What the idempotency keys of tasks begin with: `array/j7/3/1/5f0c…`, see `key_of`."""
MARK_CHARACTERS = 16

VARIABLES = (
    "SKEP_ARRAY_ID",
    "SKEP_ARRAY_INDEX",
    "SKEP_ARRAY_COUNT",
    "SKEP_ARRAY_MIN",
    "SKEP_ARRAY_MAX",
)
"""What a task's processes are told of their array, in their environment."""

PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
TASK = re.compile(r"(j[1-9][0-9]{0,17})(?:\[(0|[1-9][0-9]{0,8})\]|_(0|[1-9][0-9]{0,8}))", re.ASCII)
DIGITS_MAX = len(str(INDEX_MAX))
SHOWN_MAX = 40
"""Characters shown of a part that is wrong."""


class Tasks(msgspec.Struct, frozen=True):
    """The tasks of an array in the order in which they begin, and how many may run at once."""

    ranges: tuple[range, ...]
    most: int
    """0: as many as there are GPUs for."""

    @property
    def count(self) -> int:
        """Return how many tasks there are."""
        return sum(map(len, self.ranges))

    @property
    def lowest(self) -> int:
        """Return the lowest index."""
        return min(min(each[0], each[-1]) for each in self.ranges)

    @property
    def highest(self) -> int:
        """Return the highest index."""
        return max(max(each[0], each[-1]) for each in self.ranges)

    def __contains__(self, index: object) -> bool:
        """Return whether there is a task of this index."""
        return any(index in each for each in self.ranges)

    def indices(self) -> Iterator[int]:
        """Yield the indices in the order in which the tasks begin."""
        return chain.from_iterable(self.ranges)


def is_gated(spec: JobSpec) -> bool:
    """Return whether an array waits for something before its first task becomes a job."""
    return spec.after is not None or spec.begin is not None or spec.hold


def parse_array(text: str) -> Tasks | str:
    """Return the tasks that a text names, or what is wrong with it, in one clause."""
    if len(text) > ARRAY_CHARS_MAX:
        return f"`array` has {len(text)} characters; at most {ARRAY_CHARS_MAX} are accepted"
    body, mark, bound = text.replace(" ", "").partition("%")
    most = _number(bound) if mark else 0
    if mark and (most is None or most < 1):
        return f"`%{bound[:SHOWN_MAX]}` must be `%` and a number from 1 on: tasks at once"
    if not body:
        return "`array` is empty: it has no task"
    ranges: list[range] = []
    for part in body.split(","):
        found = _range(part)
        if isinstance(found, str):
            return found
        ranges.append(found)
    tasks = Tasks(tuple(ranges), min(most or 0, TASKS_MAX))
    if tasks.count > TASKS_MAX:
        return f"`array` has {tasks.count} tasks; at most {TASKS_MAX} are accepted"
    twice = _twice(tasks)
    return tasks if twice is None else f"`array` has the index {twice} twice"


@functools.lru_cache(maxsize=256)
def tasks_of(text: str) -> Tasks:
    """Return the tasks that a text names which is known to be right."""
    tasks = parse_array(text)
    assert isinstance(tasks, Tasks), tasks
    return tasks


def _range(part: str) -> range | str:
    match = PART.fullmatch(part)
    if match is None:
        shown = part[:SHOWN_MAX]
        return f"`{shown}` is no index, range or range with a step: such as `7`, `0-9`, `0-9:2`"
    numbers = [_number(each) if each is not None else None for each in match.groups()]
    if any(
        each is not None and number is None
        for each, number in zip(match.groups(), numbers, strict=True)
    ):
        return f"`{part[:SHOWN_MAX]}` has a number above {INDEX_MAX}, the highest index"
    first, last, step = numbers
    assert first is not None, part
    if last is None:
        return range(first, first + 1)
    if last < first:
        return f"`{part}` is reversed: write `{last}-{first}`"
    if step == 0:
        return f"`{part}` has a step of 0: it must be 1 or more"
    return range(first, last + 1, step or 1)


def _number(digits: str) -> int | None:
    """Return a number that an index may be, or None; `int` is not asked of endless digits."""
    plain = digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX
    return int(digits) if plain else None


def _twice(tasks: Tasks) -> int | None:
    """Return an index that is named twice, or None."""
    seen: dict[int, None] = {}
    for index in tasks.indices():
        if index in seen:
            return index
        seen[index] = None
    return None


def as_ranges(indices: Iterable[int]) -> str:
    """Return indices as a text that is short where they follow one another: `0-3,7`."""
    parts: list[str] = []
    first = last = None
    for index in sorted(indices):
        if last is not None and index == last + 1:
            last = index
            continue
        if first is not None and last is not None:
            parts.append(_part(first, last))
        first = last = index
    if first is not None and last is not None:
        parts.append(_part(first, last))
    return ",".join(parts)


def _part(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def from_ranges(text: str) -> Iterator[int]:
    """Yield the indices of a text that `as_ranges` made."""
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


# --- names ---------------------------------------------------------------------------------------


def task_id(array: str, index: int) -> str:
    """Return what a task is called: `j7[3]`."""
    return f"{array}[{index}]"


def task_of(text: str) -> tuple[str, int] | None:
    """Return the array and the index that `j7[3]` (or `j7_3`, for shells) names; None: no task."""
    match = TASK.fullmatch(text)
    return None if match is None else (match[1], int(match[2] or match[3]))


def key_of(array: str, index: int, tried: int, mark: str) -> str:
    """Return the idempotency key of one try of a task.

    The bus knows the keys of all tenants together. The mark keeps others from using this one first,
    by which it would drop the task.
    """
    return f"{ARRAY_KEYS}{array}/{index}/{tried}/{mark}"


def mark_of(trace: str) -> str:
    """Return the mark in an array's keys: it follows from the trace, which only its tenant sees."""
    return hashlib.sha256(trace.encode()).hexdigest()[:MARK_CHARACTERS]


def task_of_key(key: str) -> tuple[str, int] | None:
    """Return the array and the index of a task's key; None: it is no such key."""
    parts = key.removeprefix(ARRAY_KEYS).split("/")
    if not key.startswith(ARRAY_KEYS) or len(parts) != 4 or job_sequence(parts[0]) is None:
        return None
    index = _number(parts[1])
    return None if index is None else (parts[0], index)


def spec_of_task(spec: JobSpec, array: str, tasks: Tasks, index: int) -> JobSpec:
    """Return the spec of the job that a task becomes. What the array waited for has come.

    Args:
        spec: The spec of the array.
        array: Its id.
        tasks: Its tasks.
        index: Which of them.
    """
    values = (array, index, tasks.count, tasks.lowest, tasks.highest)
    told = dict(zip(VARIABLES, map(str, values), strict=True))
    task = task_id(array, index)
    return msgspec.structs.replace(
        spec, array=None, task=task, env=spec.env | told, after=None, begin=None, hold=False
    )


# --- facts of admission --------------------------------------------------------------------------


class ArrayAdmitted(Message, frozen=True, tag="array-admitted"):
    """A submission became an array. `spec` is that of each task, `spec.array` says which there are.

    The other fields are as in `Admitted`. Tasks become jobs later, each by an `Admitted` whose
    `spec.task` names it.
    """

    array: str
    spec: JobSpec
    submitted_at: Instant
    key: str = ""
    trace: str = ""
    owner: str = ""


class TasksCancelled(Message, frozen=True, tag="tasks-cancelled"):
    """Tasks that are not jobs yet end as cancelled. `tasks` are their indices, as ranges.

    With `whole` its jobs are to be cancelled as well: a `CancelAsked` follows for each. `by` is the
    person; empty: the VC as a whole. `why` and `detail` say for what reason, if nobody asked.
    """

    array: str
    tasks: str
    whole: bool = False
    by: str = ""
    why: Reason | None = None
    detail: str = ""


class ArrayOpened(Message, frozen=True, tag="array-opened"):
    """An array waits for nothing more, as the allocator said: its tasks become jobs."""

    array: str


class TasksRetried(Message, frozen=True, tag="tasks-retried"):
    """Tasks that failed wait again to become jobs. `tasks` are their indices, as ranges.

    `number` is the request's sequence in SUBMIT, `by` is as in `TasksCancelled`.
    """

    array: str
    number: int
    tasks: str
    at: Instant
    by: str = ""
    vc: str = ""


class ArrayOver(Message, frozen=True, tag="array-over"):
    """Every task of an array has ended: so many in each way. A retry may begin it anew.

    A task that failed and was retried counts by its latest end. `number` is that of the retry by
    which it was last begun anew after it had ended; 0: it was not.
    """

    array: str
    succeeded: int
    failed: int
    cancelled: int
    at: Instant
    number: int = 0

    @property
    def end(self) -> str:
        """Return the end of the array as one: failed if a task failed, else cancelled if one was.

        Only of an array all of whose tasks succeeded that is the end.
        """
        if self.failed:
            return "failed"
        return "cancelled" if self.cancelled else "succeeded"


ArrayFact = ArrayAdmitted | TasksCancelled | TasksRetried | ArrayOver | ArrayOpened
