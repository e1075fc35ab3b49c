"""`environment:` and `--environment`: the files that say what a job has installed.

They are read at submission, and travel as a snapshot: a job that waits has what was submitted. What
they name in turn travels with them (`-r`, `-c`, the projects of a `uv.lock`); what would have to be
found beside them on a node is refused here, in one line.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tomllib
from argparse import ArgumentParser, Namespace
from typing import Any, NoReturn

from skep.units import MIB
from skep_services.cli import exits
from skep_services.cli.exits import CommandError

FILE_BYTES_MAX = 4 * MIB
"""A lock of a thousand packages with the digests of all their wheels has 2 MiB."""
FILES_MAX = 64
"""Files that one environment is made of: what includes more of them can be put together."""
KINDS = ("requirements", "uv", "conda")
LOCK, PROJECT = "uv.lock", "pyproject.toml"
FOREIGN = re.compile(r"/((?:osx|win|freebsd)-[a-z0-9]+)/")
"""A platform in the address of a conda package, other than Linux."""
NOT_LINUX = re.compile(r"(?:sys_platform|platform_system) *== *'(?:darwin|win32|Darwin|Windows)'")
NAMED_FILES = {"-r": True, "--requirement": True, "-c": True, "--constraint": True}
FOLDERS = ("-f", "--find-links")
EDITABLE = ("-e", "--editable")
ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2")

HELP = (
    "what the job has installed: a requirements.txt, a uv.lock or an environment.yml (conda); each "
    "node builds it once"
)


def options_environment(parser: ArgumentParser) -> None:
    """Add what names an environment."""
    parser.add_argument("--environment", metavar="FILE", help=HELP)


def given(arguments: Namespace) -> dict[str, Any] | None:
    """Return the environment that the command line names, by the kind of its file; None: none.

    Raises:
        CommandError: The name says no kind.
    """
    path = getattr(arguments, "environment", None)
    if not path:
        return None
    name = os.path.basename(path)
    if name == LOCK:
        return {"uv": path}
    if name.endswith((".yml", ".yaml")):
        return {"conda": path}
    if name.endswith((".txt", ".in")):
        text = _text(path)
        return {"conda" if _is_explicit(text) else "requirements": path}
    text = f"--environment {path}: name a requirements.txt, a uv.lock or an environment.yml"
    raise CommandError(exits.USAGE, text, "bad-value")


def settle(tree: dict[str, Any], arguments: Namespace) -> None:
    """Have a spec name a snapshot of its environment's files.

    Args:
        tree: The spec; it is changed.
        arguments: The command line; it keeps what is taken, for `code.send`.

    Raises:
        CommandError: A file cannot be taken, or needs what the nodes do not have.
    """
    named = given(arguments)
    if named is not None:
        python = tree.pop("python", None)
        tree["environment"] = {**named, **({"python": python} if python else {})}
    found = tree.get("environment")
    if not isinstance(found, dict):
        return  # What is wrong with it is said by the check of the spec.
    python = found.get("python")
    if isinstance(python, str) and "/" in python:
        found = {**found, "python": os.path.abspath(os.path.expanduser(python))}
        tree["environment"] = found
    kinds = [kind for kind in KINDS if found.get(kind)]
    if len(kinds) != 1 or found.get("files") or not isinstance(found[kinds[0]], str):
        return
    kind = kinds[0]
    path = os.path.abspath(os.path.expanduser(found[kind]))
    files = Files(os.path.dirname(path), f"environment.{kind}")
    READERS[kind](files, os.path.basename(path))
    from skep_services.cli.snapshots import of_files

    taken = of_files(files.found)
    if getattr(arguments, "snapshots", None) is None:
        arguments.snapshots = {}
    arguments.snapshots[f"environment {taken.digest}"] = taken
    tree["environment"] = {**found, kind: os.path.basename(path), "files": taken.digest}


class Files:
    """The files of one environment, by their paths from the folder of the one that is named."""

    def __init__(self, folder: str, key: str) -> None:
        self.folder, self.key = folder, key
        self.found: dict[str, bytes] = {}

    def add(self, path: str, by: str = "") -> str:
        """Take a file; return its text.

        Args:
            path: Where it is, from the folder.
            by: The file that names it.

        Raises:
            CommandError: It is not in the folder, cannot be read, or is one too many.
        """
        inside = os.path.normpath(path)
        whose = f"{by} names {path}, which" if by else path
        if os.path.isabs(inside) or inside.startswith(".."):
            self.refuse(f"{whose} is not in {self.folder}: put it there, it travels with the job")
        if len(self.found) >= FILES_MAX:
            self.refuse(f"more than {FILES_MAX} files make it: put them together")
        text = _text(os.path.join(self.folder, inside), whose, self.key)
        self.found[inside] = text.encode()
        return text

    def refuse(self, text: str) -> NoReturn:
        """Stop.

        Raises:
            CommandError: Always.
        """
        raise CommandError(exits.FAILED, f"{self.key}: {text}", "bad-value")


def _text(path: str, whose: str = "", key: str = "--environment") -> str:
    """Return the text of a file.

    Raises:
        CommandError: There is none, it is too large, or no text.
    """
    whose = whose or path
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
            raw = file.read(FILE_BYTES_MAX + 1) if regular else b""
    except OSError as error:
        text = f"{key}: {whose} cannot be read: {error.strerror}"
        raise CommandError(exits.FAILED, text, "bad-value") from None
    if not regular:
        raise CommandError(exits.FAILED, f"{key}: {whose} is no file", "bad-value")
    if len(raw) > FILE_BYTES_MAX:
        text = f"{key}: {whose} has more than {FILE_BYTES_MAX // MIB} MiB"
        raise CommandError(exits.FAILED, text, "too-large")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        text = f"{key}: {whose} is no UTF-8 text"
        raise CommandError(exits.FAILED, text, "bad-value") from None


# --- requirements ---------------------------------------------------------------------------------


def _requirements(files: Files, path: str) -> None:
    """Take a file for pip, and those that it includes."""
    waiting = [(path, "")]
    while waiting:
        name, by = waiting.pop()
        if os.path.normpath(name) in files.found:
            continue
        named = (_included(files, line, name) for line in _lines(files.add(name, by)))
        beside = os.path.dirname(name)
        waiting += [(os.path.join(beside, each), name) for each in named if each is not None]


def _lines(text: str) -> list[str]:
    """Return the lines of a file for pip: joined where they go on, without comments."""
    joined = re.sub(r"\\\r?\n", " ", text)
    bare = (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in bare if line]


def _included(files: Files, line: str, name: str) -> str | None:
    """Return the file that a line includes; None: it includes none.

    Raises:
        CommandError: It needs what no node has beside the file.
    """
    option, value = _option(line)
    if option in EDITABLE:
        files.refuse(
            f"{name} has `{line[:80]}`: no node has that folder; send it as the job's `code`"
        )
    if option in FOLDERS:
        if "://" not in value and not value.startswith("/"):
            files.refuse(f"{name} has `{line[:80]}`: name the folder by its full path on the nodes")
        return None
    if option in NAMED_FILES:
        if "://" in value:
            files.refuse(
                f"{name} has `{line[:80]}`: what is there may change; put the file beside {name}"
            )
        return value
    if not option and _is_local(line):
        files.refuse(
            f"{name} has `{line[:80]}`: no node has that file; name it by its full path there, or "
            "have an index serve it"
        )
    return None


def _option(line: str) -> tuple[str, str]:
    """Return the option that a line is, and its value; two empty texts: it is none."""
    if not line.startswith("-"):
        return "", ""
    if not line.startswith("--"):
        return line[:2], _unquoted(line[2:])
    word, _, value = line.replace("=", " ", 1).partition(" ")
    return word, _unquoted(value)


def _unquoted(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError:
        return text.strip()
    return words[0] if words else ""


def _is_local(line: str) -> bool:
    """Return whether a requirement is a relative path."""
    word = line.partition(";")[0].strip()
    _, mark, address = word.partition("@")
    address = address.strip() if mark else word
    if address.startswith("file:"):
        return not address.startswith(("file:/", "file:${"))
    if "://" in address or address.startswith("/"):
        return False
    return address.startswith((".", "~")) or address.partition("[")[0].endswith(ARCHIVES)


# --- uv -------------------------------------------------------------------------------------------


def _uv(files: Files, path: str) -> None:
    """Take a lock of uv, and the descriptions of the projects that it is of."""
    if path != LOCK:
        files.refuse(f"{path} is no {LOCK}: name the file that `uv lock` writes")
    text = files.add(path)
    try:
        lock = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        files.refuse(f"{path} is no TOML: {error}")
    packages = lock.get("package", [])
    if not isinstance(lock.get("version"), int) or not isinstance(packages, list):
        files.refuse(f"{path} is no lock of uv: it says no version and no packages")
    markers = lock.get("supported-markers", [])
    if isinstance(markers, list) and markers and all(NOT_LINUX.search(str(m)) for m in markers):
        files.refuse(
            f"{path} is of another platform ({markers[0]}), and the nodes run Linux: add it to "
            "`tool.uv.environments`, and lock anew"
        )
    files.add(PROJECT, path)
    for one in packages:
        source = one.get("source", {}) if isinstance(one, dict) else {}
        for kind in (
            ("virtual", "editable", "directory", "path") if isinstance(source, dict) else ()
        ):
            if kind in source:
                _member(files, str(one.get("name")), kind, str(source[kind]))


def _member(files: Files, name: str, kind: str, place: str) -> None:
    """Take the description of a project of the lock's workspace."""
    if kind == "path":
        files.refuse(f"{LOCK} has {name} at {place}: no node has that file; have an index serve it")
    project = os.path.normpath(os.path.join(place, PROJECT))
    if project not in files.found:
        files.add(project, LOCK)


# --- conda ----------------------------------------------------------------------------------------


def _is_explicit(text: str) -> bool:
    return any(line.strip() == "@EXPLICIT" for line in text.splitlines())


def _conda(files: Files, path: str) -> None:
    """Take a file for conda, and what its part for pip includes."""
    text = files.add(path)
    if _is_explicit(text):
        if foreign := FOREIGN.search(text):
            files.refuse(f"{path} is of platform {foreign[1]}, and the nodes run Linux")
        return
    import yaml

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        files.refuse(f"{where} is no YAML: {getattr(error, 'problem', None) or 'too deep'}")
    parts = found.get("dependencies") if isinstance(found, dict) else None
    if not isinstance(parts, list):
        files.refuse(f"{path} has no list of `dependencies`")
    for part in parts:
        pip = part.get("pip") if isinstance(part, dict) else None
        for line in pip if isinstance(pip, list) else ():
            if (included := _included(files, str(line).strip(), path)) is not None:
                _requirements(files, included)


READERS = {"requirements": _requirements, "uv": _uv, "conda": _conda}
