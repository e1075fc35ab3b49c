"""Lists of node names as Slurm writes them: `a-[1-8],b[01-03,7]` is eleven names in that order."""

from __future__ import annotations

import re
from collections.abc import Sequence

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")
"""What a cluster file may call a node: host names and addresses, wherever the file comes from."""

PIECE = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
NUMBERED = re.compile(r"(.*\D|)(\d{1,9})", re.DOTALL)


def expand(text: str, most: int) -> list[str] | str:
    """Return the names in a host list in its order, or what is wrong with it.

    Args:
        text: The list. Of several brackets in one name the last varies fastest.
        most: The largest number of names; more are a mistake.

    Returns:
        The names, or a message.
    """
    names: list[str] = []
    position = 0
    while position <= len(text):
        match = PIECE.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            return f"{text!r} is no list of nodes: write a-[1-8],b1"
        some = _piece(match[0].strip(), most - len(names))
        if isinstance(some, str):
            return some
        names += some
        position = match.end() + 1
    return names


def _piece(piece: str, most: int) -> list[str] | str:
    names = [""]
    for part in re.split(r"(\[[^\[\]]*\])", piece):
        choices = _choices(part[1:-1], most) if part[:1] == "[" else [part]
        if choices is None:
            return f"{part!r} is no list of numbers: write [1-8] or [01-03,7]"
        if len(names) * len(choices) > most:
            return f"{piece!r} makes more nodes than a chain may have"
        names = [name + choice for name in names for choice in choices]
    wrong = next((name for name in names if not NODE_NAME.fullmatch(name)), None)
    if wrong is not None:
        return f"{wrong!r} is no name for a node: letters, digits, `_`, `.`, `:` and `-`"
    return names


def _choices(inside: str, most: int) -> list[str] | None:
    """Return the numbers of one pair of brackets; one too many where there are more than `most`."""
    found: list[str] = []
    for part in inside.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            return None
        width = len(first) if first[0] == "0" else 0
        stop = min(int(last), int(first) + max(most - len(found), 0))
        found += [str(number).zfill(width) for number in range(int(first), stop + 1)]
    return found


def compress(names: Sequence[str]) -> list[str]:
    """Return host lists that `expand` to `names`, one for each run of consecutive numbers."""
    lists: list[str] = []
    position = 0
    while position < len(names):
        match = NUMBERED.fullmatch(names[position])
        end = position + 1
        if match is not None:
            prefix, first = match[1], match[2]
            width = len(first) if first[0] == "0" else 0
            number = int(first)
            while end < len(names) and names[end] == prefix + str(number + end - position).zfill(
                width
            ):
                end += 1
            if end > position + 1:
                last = str(number + end - position - 1).zfill(width)
                lists.append(f"{prefix}[{first}-{last}]")
                position = end
                continue
        lists.append(names[position])
        position = end
    return lists


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key by which numbers in names count by value: a2 before a10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)
