"""Batch scripts: their `#SBATCH` lines, read as Slurm reads them."""

from __future__ import annotations

from skep.slurm.options import SBATCH, Given, RefusedError, parse

SCRIPT_BYTES_MAX = 48 * 1024
"""A script travels in its job's spec, which has 64 KiB."""
DIRECTIVE = "#SBATCH"
HETEROGENEOUS = ("hetjob", "packjob")
LINES_MAX = 4096
"""A script of 48 KiB has fewer lines of options than that."""


def directives(text: str) -> Given:
    """Return the options that a script's `#SBATCH` lines give.

    They end at the first line that is neither empty nor a comment.

    Args:
        text: The script.

    Raises:
        RefusedError: The text is no batch script, or a line in it is wrong.
    """
    lines = _checked(text)
    given: Given = {}
    for number, line in enumerate(lines[:LINES_MAX], start=1):
        if not line.startswith(DIRECTIVE):
            stripped = line.strip()
            if stripped and not stripped.startswith("#"):
                break
            continue
        after = line[len(DIRECTIVE) :]
        if after[:1] not in ("", " ", "\t"):
            continue
        try:
            words = split(after)
            if words and words[0] in HETEROGENEOUS:
                msg = f"{words[0]}: a job here is one kind of worker; submit several"
                raise RefusedError(msg)
            found, rest = parse("sbatch", SBATCH, words)
            if rest:
                msg = f"{rest[0]!r} is no option"
                raise RefusedError(msg)
        except RefusedError as error:
            # All of a line is about one line of the script.
            raise RefusedError(*(f"line {number}: {each}" for each in error.lines)) from None
        given |= found
    return given


def _checked(text: str) -> list[str]:
    if not text.strip():
        msg = "Batch script is empty!"
        raise RefusedError(msg)
    if "\0" in text:
        msg = "The batch script contains a NUL: it is no text"
        raise RefusedError(msg)
    if not text.startswith("#!"):
        msg = (
            "This does not look like a batch script: the first line must start with #! followed "
            "by the path to an interpreter, such as #!/bin/sh"
        )
        raise RefusedError(msg)
    if "\r\n" in text:
        msg = "Batch script contains DOS line breaks (\\r\\n): dos2unix takes them out"
        raise RefusedError(msg)
    if len(text.encode("utf-8", "surrogateescape")) > SCRIPT_BYTES_MAX:
        msg = f"The batch script has more than {SCRIPT_BYTES_MAX // 1024} KiB: have it call another"
        raise RefusedError(msg)
    return text.split("\n")


def split(text: str) -> list[str]:
    """Return the words of a `#SBATCH` line: quoted as in a shell, up to a comment.

    Args:
        text: What follows `#SBATCH`.

    Raises:
        RefusedError: A quote is not closed.
    """
    words: list[str] = []
    word: list[str] = []
    begun, quote = False, ""
    characters = iter(text)
    for character in characters:
        if quote and character == quote:
            quote = ""
        elif character == "\\" and quote != "'":
            word.append(next(characters, ""))
            begun = True
        elif quote:
            word.append(character)
        elif character in "\"'":
            quote, begun = character, True
        elif character.isspace():
            if begun:
                words.append("".join(word))
            word, begun = [], False
        elif character == "#" and not begun:
            break
        else:
            word.append(character)
            begun = True
    if quote:
        msg = f"a quote {quote} is not closed"
        raise RefusedError(msg)
    return [*words, *(["".join(word)] if begun else [])]
