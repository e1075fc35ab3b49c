"""What could stand where the cursor is: answered to a shell, quickly, and silent about every error.

A shell inserts what it is offered into a command line, and names of jobs are written by anybody. So
a name is offered only if every character of it is plain; other jobs are offered by their ids.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from skep_services.cli import exits
from skep_services.cli.client import Client, find_target, query
from skep_services.cli.exits import CommandError

FILES = "files"
"""The first line of an answer: the shell is to offer files."""
WORDS = "words"
"""The first line of an answer: what is offered follows, a tab before its description."""

PATIENCE_S = 0.0
ANSWER_S = 1.0
"""A person waits with a finger on the key: after this nothing is offered."""
JOBS_MAX = 100
"""Jobs that are offered at once: a longer list is no help."""
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@%+,:-]*")

UNFINISHED = frozenset(
    [
        "cancel",
        "suspend",
        "resume",
        "checkpoint",
        "migrate",
        "resize",
        "pack",
        "unpack",
        "set-priority",
        "wait",
    ]
)
"""Commands about jobs that have not ended."""

Offered = Iterator[tuple[str, str]]


class Known(NamedTuple):
    """The commands that there are.

    `commands` has the line in the help of each. `parser` returns the parser of one, and whether
    what follows its options is another program's command.
    """

    commands: Mapping[str, str]
    parser: Callable[[str], tuple[argparse.ArgumentParser, bool]]


def answer(words: list[str], known: Known) -> list[str]:
    """Return the lines that answer a shell.

    Args:
        words: What is before the cursor, without `skep`; the last one is being written, and may be
            empty.
        known: The commands.
    """
    try:
        return _answer(words or [""], known)
    except (CommandError, OSError, SystemExit):
        return [WORDS]  # A person that presses a key asked for no error.


def _answer(words: list[str], known: Known) -> list[str]:
    *before, current = words
    if not before or before[0] == "help":
        return _lines(iter(known.commands.items()), current)
    if before[0] not in known.commands:
        return [WORDS]
    parser, takes_rest = known.parser(before[0])
    if takes_rest and "--" in before:
        return [FILES]
    action, given = _at_cursor(parser, before[1:])
    asks = Asks(before[0], before[1:], current)
    if action is None and current.startswith("-"):
        return _lines(_flags(parser), current)
    if action is None:
        action = _positional(parser, given)
    if action is None:
        return _lines(_flags(parser), current)
    if _is_file(action):
        return [FILES]
    return _lines(asks.values(action), current)


def _lines(offered: Offered, current: str) -> list[str]:
    found = {word: text for word, text in offered if word.startswith(current)}
    lines = [
        f"{word}\t{' '.join(text.split())}" if text else word
        for word, text in found.items()
        if word.startswith("-") or PLAIN.fullmatch(word)
    ]
    return [WORDS, *lines]


def _flags(parser: argparse.ArgumentParser) -> Offered:
    for action in parser._actions:
        for word in action.option_strings[-1:]:
            if action.help != argparse.SUPPRESS:
                yield word, (action.help or "").partition(";")[0]


def _at_cursor(
    parser: argparse.ArgumentParser, words: list[str]
) -> tuple[argparse.Action | None, int]:
    """Return the option whose value is being written, if one is, and how many other words came."""
    by_flag = {flag: action for action in parser._actions for flag in action.option_strings}
    open_option: argparse.Action | None = None
    given = 0
    for word in words:
        if open_option is not None:
            open_option = None
        elif word in by_flag:
            open_option = by_flag[word] if by_flag[word].nargs != 0 else None
        elif not word.startswith("-"):
            given += 1
    return open_option, given


def _positional(parser: argparse.ArgumentParser, given: int) -> argparse.Action | None:
    """Return the argument that the next word is, where `given` others came before."""
    places = [action for action in parser._actions if not action.option_strings]
    if not places:
        return None
    if given < len(places):
        return places[given]
    return places[-1] if places[-1].nargs in {"*", "+"} else None


def _is_file(action: argparse.Action) -> bool:
    return str(action.metavar or "") in {"FILE", "DIR", "PATH"} or action.dest in {"file", "out"}


class Asks:
    """Knows what values an argument may have.

    Args:
        name: The command.
        words: Its words before the cursor.
        current: The word that is being written.
    """

    def __init__(self, name: str, words: list[str], current: str) -> None:
        self._name, self._words, self._current = name, words, current

    def values(self, action: argparse.Action) -> Offered:
        """Yield the values of an argument that are known, each with its description."""
        if action.choices is not None:
            yield from ((str(choice), "") for choice in action.choices)
            return
        sources: dict[str, Callable[[], Offered]] = {
            "JOB": self._jobs,
            "VC": self._vcs,
            "NODE": self._nodes,
            "STATE": self._states,
            "CODE": self._reasons,
            "COLUMN": self._columns,
            "COLUMNS": self._columns,
        }
        named = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        source = sources.get(named) or sources.get(action.dest.upper())
        if source is not None:
            yield from source()

    def _get(self, path: str) -> Any:
        home = None
        if "--home" in self._words[:-1]:
            home = self._words[self._words.index("--home") + 1]
        return Client(find_target(home), PATIENCE_S).get(path, ANSWER_S)

    def _jobs(self) -> Offered:
        states = ("active",) if self._name in UNFINISHED else ("active", "ended")
        rows: list[dict[str, Any]] = []
        for state in states:
            if not rows:
                path = query(
                    "/v1/jobs", state=state, prefix=self._current, order="newest", limit=JOBS_MAX
                )
                rows = self._get(path)["jobs"]
        names = [row["name"] for row in rows]
        for row in rows:
            job, name, state = row["job"], row["name"], row["state"]
            if job.startswith(self._current):
                yield job, f"{name} ({state})" if PLAIN.fullmatch(name) else state
            elif names.count(name) == 1:
                yield name, f"{job} ({state})"

    def _vcs(self) -> Offered:
        for one in self._get("/v1/vcs")["vcs"]:
            yield one["vc"], ""

    def _nodes(self) -> Offered:
        for one in self._get("/v1/nodes")["nodes"]:
            yield one["node"], one["state"]

    def _states(self) -> Offered:
        from skep_services.cli.job_table import STATES

        yield from ((state, "") for state in STATES)

    def _columns(self) -> Offered:
        from skep_services.cli.job_table import COLUMNS

        begin = self._current.rpartition(",")[0]
        for name, kind in COLUMNS.items():
            yield (f"{begin},{name}" if begin else name), kind.meaning

    def _reasons(self) -> Offered:
        from skep_services.cli.explain import texts

        yield from ((code, one["text"]) for code, one in texts().items())


def complete(words: list[str], known: Known) -> int:
    """Print what could stand at the cursor.

    Args:
        words: What is before it, without `skep`.
        known: The commands.

    Returns:
        The exit code: always 0.
    """
    sys.stdout.write("\n".join(answer(words, known)) + "\n")
    return exits.OK
