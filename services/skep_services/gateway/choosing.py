"""Which jobs a listing has, and in which order: read from a query, for jobs in memory and stored.

Both halves of a listing are chosen here: `Choice.takes` looks at rows in memory, and
`Choice.conditions` says the same to SQLite about ended jobs. A test holds one against the other.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from skep.access.person import LABEL, person_of
from skep.wire.parse import nearest
from skep.wire.reasons import Reason
from skep.wire.spec import NAME_CHARS_MAX
from skep_services.gateway.api import ApiError, number
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.rows import ACTIVE, ENDED, PLACED, Row, State

GROUPS: dict[str, frozenset[State]] = {
    "active": frozenset(ACTIVE),
    "ended": frozenset(ENDED),
    "all": frozenset((*ACTIVE, *ENDED)),
}
"""Words for several states."""
STATES_MAX = 16
LABELS_MAX = 8
"""Labels that one listing may ask for: each is looked up in every job."""
WORD_CHARS_MAX = 512
"""A label in a query. Longer ones are found by no listing."""
WILDCARDS_MAX = 4
"""More `*` in a pattern only cost time: each multiplies the places that are tried."""

ORDERS = ("submitted", "newest", "queue")
"""The orders that are no column's."""
FIELDS = {
    "job": "job",
    "name": "name",
    "vc": "vc",
    "owner": "owner",
    "state": "state",
    "gpus": "gpus",
    "priority": "priority",
    "age": "submitted_at",
    "run": "started_at",
    "try": "attempt",
    "rate": "rate_milli",
    "steps": "steps",
    "eta": "eta_s",
    "place": "place",
    "why": "why",
}
"""What may be sorted by, and the field of a row that has it."""
BACKWARDS = frozenset({"age", "run"})
"""What grows as its field falls: the oldest job is the one that was submitted first."""


class Label(NamedTuple):
    """A label that jobs must have; `value` None: whatever its value."""

    key: str
    value: str | None


class Sorting(NamedTuple):
    """An order by one field of a row; jobs without it come last, equals as submitted."""

    field: str
    descending: bool


class Choice(NamedTuple):
    """Which jobs are listed. Empty fields do not choose."""

    states: frozenset[State]
    vc: Only = ""
    name: str = ""
    owner: str = ""
    user: str = ""
    labels: tuple[Label, ...] = ()
    prefix: str = ""
    tasks: bool = False
    """The jobs of arrays' tasks are listed, too."""
    array: str = ""
    """The jobs of this array's tasks are listed, and no other."""

    @property
    def active(self) -> bool:
        """Return whether jobs in memory may be among them."""
        return not self.states.isdisjoint(ACTIVE)

    @property
    def ended(self) -> bool:
        """Return whether stored jobs may be among them."""
        return not self.states.isdisjoint(ENDED)

    def test(self) -> Callable[[Row], bool]:
        """Return what says of a row in memory whether it is listed."""
        checks: list[Callable[[Row], bool]] = []
        if not self.states >= set(ACTIVE):
            checks.append(lambda row: row.state in self.states)
        if self.vc != "":
            checks.append(lambda row: covers(self.vc, row.vc))
        if self.name:
            matches = re.compile(fnmatch.translate(_glob(self.name))).match
            checks.append(lambda row: matches(row.name) is not None)
        if self.owner:
            checks.append(lambda row: row.owner == self.owner)
        if self.user:
            checks.append(lambda row: person_of(row.owner, row.labels) == self.user)
        if self.labels:
            checks.append(lambda row: all(_has(row.labels, one) for one in self.labels))
        if self.array:
            checks.append(lambda row: row.task.startswith(f"{self.array}["))
        elif not self.tasks:
            checks.append(lambda row: not row.task)
        if self.prefix:
            begin = self.prefix
            checks.append(lambda row: row.job.startswith(begin) or row.name.startswith(begin))
        return lambda row: all(check(row) for check in checks)

    def conditions(self) -> list[tuple[str, list[Any]]]:
        """Return the same for the table of jobs, as conditions of SQL and their values.

        A label is first looked for as bytes in the stored row, which costs next to nothing, and
        only rows that have it are taken apart.
        """
        found: list[tuple[str, list[Any]]] = []
        states = sorted(state.value for state in self.states if state in ENDED)
        if len(states) < len(ENDED):
            found.append((f"state IN ({', '.join('?' * len(states))})", [*states]))
        if isinstance(self.vc, tuple):
            found.append((f"vc IN ({', '.join('?' * len(self.vc))})", [*self.vc]))
        elif self.vc:
            found.append(("vc = ?", [self.vc]))
        if self.name:
            found.append(("name GLOB ?", [_glob(self.name)]))
        if self.owner:
            found.append(("owner = ?", [self.owner]))
        if self.user:
            labelled, values = _labelled(Label(LABEL, self.user))
            found.append((f"(owner = ? OR owner = '' AND {labelled})", [self.user, *values]))
        found += [_labelled(one) for one in self.labels]
        if self.array:  # `j7[3]` is between `j7[` and what follows on it.
            found.append(("task > ? AND task < ?", [f"{self.array}[", f"{self.array}\\"]))
        elif not self.tasks:
            found.append(("task = ''", []))
        if self.prefix:
            sequence = self.prefix[1:] if self.prefix.startswith("j") else ""
            found.append(
                (
                    "(substr(name, 1, ?) = ? OR 'j' || sequence LIKE ?)",
                    [
                        len(self.prefix),
                        self.prefix,
                        f"j{sequence}%" if _digits(sequence) or self.prefix == "j" else "",
                    ],
                )
            )
        return found


def _glob(pattern: str) -> str:
    """Return a pattern in which only `*` and `?` are special, for fnmatch and for SQLite alike."""
    return pattern.replace("[", "[[]")


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _has(labels: Mapping[str, str], wanted: Label) -> bool:
    return wanted.key in labels if wanted.value is None else labels.get(wanted.key) == wanted.value


def _labelled(wanted: Label) -> tuple[str, list[Any]]:
    key = msgspec.json.encode(wanted.key) + b":"
    each = "SELECT 1 FROM json_each(CAST(line AS TEXT), '$.labels') WHERE key = ?"
    if wanted.value is None:
        return f"(instr(line, ?) AND EXISTS ({each}))", [key, wanted.key]
    text = key + msgspec.json.encode(wanted.value)
    return f"(instr(line, ?) AND EXISTS ({each} AND value = ?))", [text, wanted.key, wanted.value]


# --- from a query ---------------------------------------------------------------------------------


def choice_of(request: web.Request, vc: Only, owner: str) -> Choice:
    """Return what a query chooses.

    Args:
        request: The request.
        vc: The VCs that it is about.
        owner: The person whose jobs it asks for; empty: no one's in particular.

    Raises:
        ApiError: A parameter is wrong (400).
    """
    query = request.query
    labels = query.getall("label", [])
    if len(labels) > LABELS_MAX:
        raise ApiError(400, Reason.BAD_VALUE, f"at most {LABELS_MAX} labels in one listing")
    user = query.get("user", "")
    if len(user) > WORD_CHARS_MAX:
        raise ApiError(400, Reason.BAD_VALUE, "`user` is too long")
    name = query.get("name", "")
    if name.count("*") > WILDCARDS_MAX or len(name) > NAME_CHARS_MAX:
        text = f"`name` has at most {NAME_CHARS_MAX} characters and {WILDCARDS_MAX} `*`"
        raise ApiError(400, Reason.BAD_VALUE, text)
    return Choice(
        states=states_of(query.get("state", "active")),
        vc=vc,
        name=name,
        owner=owner,
        user=user,
        labels=tuple(label_of(text) for text in labels),
        prefix=query.get("prefix", "")[:NAME_CHARS_MAX],
        tasks=bool(number(request, "tasks", 0)),
    )


def states_of(text: str) -> frozenset[State]:
    """Return the states that a text names: `running,queued`, `active`.

    Raises:
        ApiError: There is no such state (400).
    """
    words = text.split(",")
    found: set[State] = set()
    if len(words) > STATES_MAX:
        raise ApiError(400, Reason.BAD_VALUE, f"at most {STATES_MAX} states in one listing")
    for word in words:
        if word in GROUPS:
            found |= GROUPS[word]
        elif word in GROUPS["all"]:
            found.add(State(word))
        else:
            known = ["active", "ended", "all", *ACTIVE, *ENDED]
            hint = nearest(word, known)
            text = f"no such state: {word[:40]}; " + (hint or f"there are {', '.join(known)}")
            raise ApiError(400, Reason.BAD_VALUE, text)
    return frozenset(found)


def label_of(text: str) -> Label:
    """Return the label that a text names: `team=vision`, or `team` whatever its value.

    Raises:
        ApiError: It has no key, or is too long (400).
    """
    key, mark, value = text.partition("=")
    if not key or len(text) > WORD_CHARS_MAX:
        raise ApiError(
            400,
            Reason.BAD_VALUE,
            f"`label` is KEY or KEY=VALUE, of at most {WORD_CHARS_MAX} characters",
        )
    return Label(key, value if mark else None)


def sorting_of(text: str) -> Sorting | None:
    """Return the order that a text names: a column, `-` before it turns it round; None: no column.

    Raises:
        ApiError: There is nothing of this name to sort by (400).
    """
    if text in ORDERS:
        return None
    word = text.removeprefix("-")
    if word not in FIELDS:
        known = [*ORDERS, *FIELDS]
        hint = nearest(word, known) or f"one of {', '.join(known)}; `-` before it turns it round"
        raise ApiError(400, Reason.BAD_VALUE, f"`order` is not `{word[:40]}`: {hint}")
    return Sorting(FIELDS[word], text.startswith("-") != (word in BACKWARDS))


# --- in order -------------------------------------------------------------------------------------

Line = tuple[int, Row | bytes]
"""The number of a job, and its row: in memory, or stored as JSON."""

_ROWS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUES = msgspec.json.Decoder()


def in_order(lines: list[Line], sorting: Sorting) -> list[Line]:
    """Return jobs in an order; those that have no such value come last."""

    def value(line: Line) -> Any:
        row = line[1]
        if isinstance(row, Row):
            found = getattr(row, sorting.field)
        else:
            raw = _ROWS.decode(row).get(sorting.field)
            found = None if raw is None else _VALUES.decode(raw)
        if sorting.field == "job":
            return line[0]
        return None if found == "" else found

    keyed = [(value(line), line) for line in sorted(lines, key=_by_sequence)]
    there = [one for one in keyed if one[0] is not None]
    there.sort(key=lambda one: one[0], reverse=sorting.descending)
    return [line for _, line in there] + [line for key, line in keyed if key is None]


def order_in_sql(sorting: Sorting) -> str:
    """Return the same order for the table of jobs."""
    if sorting.field == "job":
        return "sequence DESC" if sorting.descending else "sequence"
    value = f"nullif(json_extract(CAST(line AS TEXT), '$.{sorting.field}'), '')"
    direction = "DESC" if sorting.descending else "ASC"
    return f"{value} {direction} NULLS LAST, sequence"


def stage(row: Row) -> int:
    """Return where a job stands in the order of the queue: those that hold GPUs come first."""
    return 0 if row.state in PLACED else 1


def _by_sequence(line: Line) -> int:
    return line[0]
