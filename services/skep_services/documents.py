"""Text of people's files as values: YAML or JSON, several documents, and the line of every key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import yaml

NODES_MAX = 100_000
"""Values in one document with its aliases spelled out. A spec of 64 KiB cannot hold more, and a few
hundred bytes of nested aliases could stand for billions."""

TIMESTAMP = "tag:yaml.org,2002:timestamp"


class DocumentError(Exception):
    """A text that cannot be read. `text` says what and where, `line` is 0 if it is not known."""

    def __init__(self, text: str, reason: str, source: str, line: int = 0) -> None:
        """Take what is wrong; `source` is what the text is called."""
        super().__init__(f"{source}:{line}: {text}" if line else f"{source}: {text}")
        self.text, self.reason, self.line = text, reason, line


class Document(NamedTuple):
    """One value as a file describes it. `lines` maps paths (`$.resources.gpus`) to line numbers."""

    source: str
    tree: Any
    lines: dict[str, int]

    def where(self, path: str) -> str:
        """Return file and line of a path, or of the nearest key around it that is in the file."""
        line = self.line(path)
        return f"{self.source}:{line}" if line else self.source

    def line(self, path: str) -> int:
        """Return the line of a path, or of the nearest key around it; 0: none is in the file."""
        while path not in self.lines and "." in path:
            path = path.rpartition(".")[0]
        return self.lines.get(path, 0)


def parse(text: str, source: str) -> list[Document]:
    """Return the documents in a text: JSON values one after another, or YAML documents.

    Args:
        text: The text.
        source: What the text is called in errors; with `.json` or `.jsonl` it is never YAML.

    Raises:
        DocumentError: The text is neither.
    """
    if text.lstrip()[:1] == "{":
        documents = _json(text, source)
        # YAML may begin with a brace as well; then it is YAML that has to say what is wrong.
        if documents is not None:
            return documents
        if source.endswith((".json", ".jsonl")):
            _refuse_json(text, source)
    return _yaml(text, source)


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
        told, line = f"not JSON: {error.msg}", error.lineno
    except RecursionError:
        told, line = "nested too deeply", 0
    else:
        told, line = "not JSON", 0
    raise DocumentError(told, "not-json", source, line)


# --- YAML -----------------------------------------------------------------------------------------


def _yaml(text: str, source: str) -> list[Document]:
    import yaml  # noqa: PLC0415 - commands that read no YAML start without it

    class Loader(yaml.SafeLoader):
        """Reads a date as the text it is: nothing in a spec is a date."""

        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
            first: [each for each in resolvers if each[0] != TIMESTAMP]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    documents: list[Document] = []
    line = 0
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
        line = mark.line + 1 if mark else 0
        told = f"not YAML: {error.problem or error.context}"
    except RecursionError:
        told = "nested too deeply"
    except yaml.YAMLError as error:
        told = f"not YAML: {error}"
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        # What PyYAML raises for values that are not what their tag says.
        told = f"not YAML: a value is not what its tag says ({error})"
    else:
        return documents
    raise DocumentError(told, "not-json", source, line)


def _walk(
    node: yaml.Node, path: str, source: str, lines: dict[str, int], sizes: dict[int, int]
) -> int:
    """Note the line of every key; return how many values the node stands for, aliases included.

    `sizes` holds finished nodes, and 0 for those being walked: an alias to one of those is a value
    that contains itself.

    Raises:
        DocumentError: A value contains itself, a key is given twice, there are too many values, or
            a text has half of a character.
    """
    import yaml  # noqa: PLC0415 - commands that read no YAML start without it

    known = sizes.get(id(node))
    line = node.start_mark.line + 1
    if known == 0:
        told = "a value that contains itself"
        raise DocumentError(told, "bad-value", source, line)
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
            _check_text(name, source, key_line)
            if name in seen and name != "<<":
                told = f"`{name}` is given twice, first on line {seen[name]}"
                raise DocumentError(told, "bad-value", source, key_line)
            seen[name] = lines[here] = key_line
            size += _walk(value, here, source, lines, sizes)
    elif isinstance(node, yaml.ScalarNode):
        _check_text(node.value, source, line)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            size += _walk(value, f"{path}[{position}]", source, lines, sizes)
    if size > NODES_MAX:
        told = f"more than {NODES_MAX} values with all aliases spelled out"
        raise DocumentError(told, "too-large", source, line)
    sizes[id(node)] = size
    return size


def _check_text(text: str, source: str, line: int) -> None:
    """Stop at a text that no other program takes.

    Raises:
        DocumentError: It has half of a character, as an escape in YAML may stand for.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        told = "a text has half of a character (\\uD800 to \\uDFFF)"
        raise DocumentError(told, "bad-value", source, line) from None
