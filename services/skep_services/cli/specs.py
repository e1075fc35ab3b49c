"""Reading spec files: YAML or JSON, several jobs in one file, and where in the file each key is."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from skep_services.cli import exits
from skep_services.cli.exits import CommandError

if TYPE_CHECKING:
    import yaml

FILE_BYTES_MAX = 16 * 1024 * 1024
"""A quarter of a million lines: 250 specs of the largest size that is accepted."""

NODES_MAX = 100_000
"""Values in one document with its aliases spelled out. A spec of 64 KiB cannot hold more, and a few
hundred bytes of nested aliases could stand for billions."""

TIMESTAMP = "tag:yaml.org,2002:timestamp"

TEXT_KEYS = ("env", "labels")
"""Objects whose values are text: what `--set` puts there is never read as a number."""


class Document(NamedTuple):
    """One job as a file describes it. `lines` maps paths (`$.resources.gpus`) to line numbers."""

    source: str
    tree: Any
    lines: dict[str, int]

    def where(self, path: str) -> str:
        """Return file and line of a path, or of the nearest key around it that is in the file."""
        while path not in self.lines and "." in path:
            path = path.rpartition(".")[0]
        line = self.lines.get(path)
        return f"{self.source}:{line}" if line else self.source


def read(name: str) -> list[Document]:
    """Return the documents of a file, at least one, or of standard input for `-`.

    Args:
        name: The file.

    Raises:
        CommandError: There is no such file (exit code 2), or it is empty or cannot be parsed (1).
    """
    documents = read_any(name)
    if not documents:
        source = "standard input" if name == "-" else name
        raise CommandError(exits.FAILED, f"{source}: no job in it", "missing-key")
    return documents


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
    if text.lstrip()[:1] == "{":
        documents = _json(text, source)
        # YAML may begin with a brace as well; then it is YAML that has to say what is wrong.
        if documents is not None:
            return documents
        if source.endswith((".json", ".jsonl")):
            _refuse_json(text, source)
    return _yaml(text, source)


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


# --- JSON -----------------------------------------------------------------------------------------


def _json(text: str, source: str) -> list[Document] | None:
    decoder = json.JSONDecoder()
    documents: list[Document] = []
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text):
            return documents
        try:
            tree, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        documents.append(Document(source, tree, {}))


def _refuse_json(text: str, source: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        told = f"{source}:{error.lineno}: not JSON: {error.msg}"
    except RecursionError:
        told = f"{source}: nested too deeply"
    else:
        told = f"{source}: not JSON"
    raise CommandError(exits.FAILED, told, "not-json")


# --- YAML -----------------------------------------------------------------------------------------


def _yaml(text: str, source: str) -> list[Document]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads a date as the text it is: nothing in a spec is a date."""

        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
            first: [each for each in resolvers if each[0] != TIMESTAMP]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    documents: list[Document] = []
    try:
        loader = Loader(text)
        while loader.check_node() and (node := loader.get_node()) is not None:
            lines: dict[str, int] = {}
            _walk(node, "$", source, lines, {})
            tree = loader.construct_document(node)
            if tree is not None:
                documents.append(Document(source, tree, lines))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        told = f"{where}: not YAML: {error.problem or error.context}"
    except RecursionError:
        told = f"{source}: nested too deeply"
    except yaml.YAMLError as error:
        told = f"{source}: not YAML: {error}"
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        # What PyYAML raises for values that are not what their tag says.
        told = f"{source}: not YAML: a value is not what its tag says ({error})"
    else:
        return documents
    raise CommandError(exits.FAILED, told, "not-json")


def _walk(
    node: yaml.Node, path: str, source: str, lines: dict[str, int], sizes: dict[int, int]
) -> int:
    """Note the line of every key; return how many values the node stands for, aliases included.

    `sizes` holds finished nodes, and 0 for those being walked: an alias to one of those is a value
    that contains itself.

    Raises:
        CommandError: A value contains itself, a key is given twice, or there are too many values.
    """
    import yaml

    known = sizes.get(id(node))
    line = node.start_mark.line + 1
    if known == 0:
        raise CommandError(exits.FAILED, f"{source}:{line}: a value that contains itself")
    if known is not None:
        return known
    sizes[id(node)] = 0
    lines.setdefault(path, line)
    size = 1
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            here = f"{path}.{name}"
            key_line = key.start_mark.line + 1
            if name in seen and name != "<<":
                told = f"`{name}` is given twice, first on line {seen[name]}"
                raise CommandError(exits.FAILED, f"{source}:{key_line}: {told}", "bad-value")
            seen[name] = lines[here] = key_line
            size += _walk(value, here, source, lines, sizes)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            size += _walk(value, f"{path}[{position}]", source, lines, sizes)
    if size > NODES_MAX:
        told = f"{source}:{line}: more than {NODES_MAX} values with all aliases spelled out"
        raise CommandError(exits.FAILED, told, "too-large")
    sizes[id(node)] = size
    return size
