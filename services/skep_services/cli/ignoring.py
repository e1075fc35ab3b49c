"""What of a folder is left out of a snapshot: rules in gitignore's syntax, as regular expressions.

The last rule that matches decides. What is in a folder that is left out stays out, whatever rules
say of it, as with git.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

FILE = ".skepignore"
FILE_BYTES_MAX = 64 * 1024
RULES_MAX = 1000

USUAL = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "*.pyc",
    ".venv",
    "venv",
    ".tox",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    "node_modules",
    ".DS_Store",
)
"""What is left out of every snapshot, unless a rule such as `!.venv` says otherwise."""


class Rule(NamedTuple):
    """One line: what it matches, whether it leaves out or takes in, and whether only folders."""

    matches: re.Pattern[str]
    leaves_out: bool
    folders_only: bool


def rules_of(lines: Iterable[str]) -> list[Rule]:
    """Return the rules in lines, after the usual ones.

    Raises:
        ValueError: There are too many, or one cannot be read; the text says which.
    """
    found: list[Rule] = []
    for number, line in enumerate((*USUAL, *lines), 1 - len(USUAL)):
        try:
            rule = _rule(line)
        except re.error as error:
            text = f"line {number} is no pattern of gitignore: {error}"
            raise ValueError(text) from None
        if rule is not None:
            found.append(rule)
        if len(found) > RULES_MAX:
            text = f"it has more than {RULES_MAX} rules"
            raise ValueError(text)
    return found


def left_out(rules: list[Rule], path: str, *, folder: bool) -> bool:
    """Return whether the rules leave a path out, whose folder they take in.

    Args:
        rules: The rules in their order.
        path: From the snapshot's folder, without a slash at its end.
        folder: It is a folder.
    """
    for rule in reversed(rules):
        if (folder or not rule.folders_only) and rule.matches.fullmatch(path):
            return rule.leaves_out
    return False


def _rule(line: str) -> Rule | None:
    line = line.rstrip("\r\n")
    # Blanks at the end do not count, unless a backslash is before them.
    while line.endswith((" ", "\t")) and not line.endswith(("\\ ", "\\\t")):
        line = line[:-1]
    if not line or line.startswith("#"):
        return None
    leaves_out = not line.startswith("!")
    pattern = line if leaves_out else line[1:]
    folders_only = pattern.endswith("/")
    pattern = pattern.rstrip("/") if folders_only else pattern
    if not pattern:
        return None
    # One with a slash that is not its last is from the folder of the rules; others are anywhere.
    begin = "" if "/" in pattern else "(?:.*/)?"
    text = begin + _expression(pattern.removeprefix("/"))
    return Rule(re.compile(text, re.DOTALL), leaves_out, folders_only)


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern; `*` and `?` do not match a slash."""
    made, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        at_part = at == 0 or pattern[at - 1] == "/"
        if at_part and rest.startswith("**/"):
            made, at = made + "(?:.*/)?", at + 3
        elif at_part and rest == "**":
            made, at = made + ".+", at + 2
        elif rest[0] == "*":
            made, at = made + "[^/]*", at + len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            made, at = made + "[^/]", at + 1
        elif rest[0] == "[" and (found := _characters(rest)):
            made, at = made + found[0], at + found[1]
        elif rest[0] == "\\" and len(rest) > 1:
            made, at = made + re.escape(rest[1]), at + 2
        else:
            made, at = made + re.escape(rest[0]), at + 1
    return made


def _characters(rest: str) -> tuple[str, int] | None:
    """Return the expression of `[...]` at the beginning of a text, and its length; None: none."""
    negated = rest[1:2] in {"!", "^"}
    begin = 2 if negated else 1
    end = rest.find("]", begin + 1)
    if end < 0:
        return None
    inner = rest[begin:end].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
    inner = inner.replace("]", "\\]")
    return f"(?!/)[{'^' if negated else ''}{inner}]", end + 1
