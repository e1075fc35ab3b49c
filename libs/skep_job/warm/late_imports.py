"""Reads whether a script may change what libraries see when they import more of themselves.

Such imports come while the script runs. A warm process makes them before it, which is the same
unless the script has set something by then that modules look at when they are imported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from skep_job.warm.leading_imports import FILE_BYTES_MAX, files_read

SETTERS = {
    "set_default_dtype": "the default type of tensors",
    "set_default_tensor_type": "the default type of tensors",
    "set_default_device": "the default device of tensors",
    "patch_all": "the standard library",
    "putenv": "the environment",
    "unsetenv": "the environment",
    "load_dotenv": "the environment",
    "setdlopenflags": "how libraries are loaded",
    "sched_setaffinity": "its processors",
}
READS = frozenset({"get", "keys", "items", "values", "copy"})
"""Methods of the environment that change nothing."""
OF_ONE = frozenset({"setdefault", "pop", "__setitem__"})
"""Those that change the variable that they name first."""


def why_late_imports_differ(script: str, may_set: Callable[[str], bool]) -> str:
    """Return what a script sets that imports may look at, or an empty text.

    Args:
        script: The path, from the working directory. Modules beside it that it begins to import
            count too.
        may_set: Tells of a variable whether no import has looked at it.

    Raises:
        UnreadableError: It is no Python text, or too large.
    """
    for path in files_read(script):
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read(FILE_BYTES_MAX))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue  # What is beside the script and cannot be read fails in the script.
        found = _first(tree, may_set)
        if found is not None:
            line, what = found
            return f"line {line} of {path} sets {what}, which imports may look at"
    return ""


def _first(tree: ast.AST, may_set: Callable[[str], bool]) -> tuple[int, str] | None:
    """Return the line of the first statement that sets such a thing, and what."""
    above = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        name = _name(node)
        line = getattr(node, "lineno", 0)
        if name in SETTERS:
            return line, SETTERS[name]
        if name == "environ" and not _only_reads(node, above, may_set):
            return line, "the environment"
        if name in {"modules", "meta_path"} and _is_of_sys(node):
            return line, f"sys.{name}"
    return None


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_of_sys(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and _name(node.value) == "sys"


def _only_reads(node: ast.AST, above: dict[int, ast.AST], may_set: Callable[[str], bool]) -> bool:
    """Return whether a mention of the environment changes no variable but those that may be."""
    parent = above.get(id(node))
    match parent:
        case ast.Subscript(slice=key, ctx=ctx):
            return isinstance(ctx, ast.Load) or _may(key, may_set)
        case ast.Attribute(attr=method) if method in READS:
            return True
        case ast.Attribute(attr=method) if method in OF_ONE:
            call = above.get(id(parent))
            return isinstance(call, ast.Call) and bool(call.args) and _may(call.args[0], may_set)
        case ast.Compare() | ast.Dict() | ast.keyword(arg="env"):
            return True
        case ast.Call(func=ast.Name(id="dict")):
            return True
        case _:
            return False


def _may(key: ast.expr, may_set: Callable[[str], bool]) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and may_set(key.value)
