"""Reading spec files, setting keys of specs, and making their paths whole."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from skep_services import documents
from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.documents import Document, DocumentError

__all__ = ["Document", "parse", "put", "read", "read_any", "settle_paths"]

FILE_BYTES_MAX = 16 * 1024 * 1024
"""A quarter of a million lines: 250 specs of the largest size that is accepted."""

TEXT_KEYS = ("env", "labels")
"""Objects whose values are text: what `--set` puts there is never read as a number."""


def read(name: str) -> list[Document]:
    """Return the documents of a file, at least one, or of standard input for `-`.

    Args:
        name: The file.

    Raises:
        CommandError: There is no such file (exit code 2), or it is empty or cannot be parsed (1).
    """
    found = read_any(name)
    if not found:
        source = "standard input" if name == "-" else name
        raise CommandError(exits.FAILED, f"{source}: no job in it", "missing-key")
    return found


def read_any(name: str) -> list[Document]:
    """Return the documents of a file as `read` does; none for an empty one.

    Args:
        name: The file; `-` is standard input.

    Raises:
        CommandError: There is no such file (exit code 2), or it is too large or cannot be parsed
            (1).
    """
    source = "standard input" if name == "-" else name
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with open(name, "rb") as file:
                raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CommandError(exits.USAGE, f"{source}: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        text = f"{source}: more than {FILE_BYTES_MAX} bytes; split it into several files"
        raise CommandError(exits.FAILED, text, "too-large")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"{source}: not UTF-8 text: {error.reason} at byte {error.start}"
        raise CommandError(exits.FAILED, text, "not-json") from None
    return parse(text, source)


def parse(text: str, source: str) -> list[Document]:
    """Return the documents in a text: JSON values one after another, or YAML documents.

    Args:
        text: The text.
        source: What the text is called in errors; with `.json` or `.jsonl` it is never YAML.

    Raises:
        CommandError: The text is neither.
    """
    try:
        return documents.parse(text, source)
    except DocumentError as error:
        raise CommandError(exits.FAILED, str(error), error.reason) from None


def put(tree: Any, assignment: str) -> None:
    """Set `a.b=value` in a tree. The value is JSON where it is valid JSON, and text otherwise.

    Args:
        tree: The spec; it is changed.
        assignment: The key and the value.

    Raises:
        CommandError: The text is no assignment, or a key on the way has a value that is no object.
    """
    path, mark, text = assignment.partition("=")
    keys = path.split(".")
    if not mark or not all(keys):
        raise CommandError(exits.USAGE, f"--set {assignment}: write KEY=VALUE, as resources.gpus=2")
    if keys[0] in TEXT_KEYS and len(keys) > 1:
        # A variable's name may have dots of its own.
        keys = [keys[0], ".".join(keys[1:])]
        value: Any = text
    else:
        try:
            value = json.loads(text)
        except ValueError:
            value = text
    for key in keys[:-1]:
        inner = tree.get(key)
        if inner is None:
            inner = tree[key] = {}
        if not isinstance(inner, dict):
            raise CommandError(exits.USAGE, f"--set {assignment}: `{key}` is not an object")
        tree = inner
    tree[keys[-1]] = value


def settle_paths(tree: dict[str, Any], *, keeps_workdir: bool = False) -> None:
    """Make `workdir` absolute, from the current folder, which it also is where none is given.

    So is a `python` that is a path; a name is looked up where the job runs.

    Args:
        tree: The spec; it is changed.
        keeps_workdir: Its `workdir` is in its own folder (`code`), and is left as it is.
    """
    workdir = tree.get("workdir")
    if keeps_workdir:
        pass
    elif workdir is None:
        tree["workdir"] = os.getcwd()
    elif isinstance(workdir, str) and workdir:
        tree["workdir"] = os.path.abspath(os.path.expanduser(workdir))
    python = tree.get("python")
    if isinstance(python, str) and "/" in python:
        tree["python"] = os.path.abspath(os.path.expanduser(python))
