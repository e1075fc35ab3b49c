"""Reads which imports a script makes before it does anything else.

They are the same for every run of that text, and nothing that the script does comes before them. So
a process that has made them already is where the script would be after them. Reading stops at the
first statement that may have an effect, such as a call or an assignment to what is not a plain
name: what is imported after that is left to the script.
"""

from __future__ import annotations

import ast
import os
import sys
from typing import NamedTuple

IMPORTS_MAX = 128
FILES_MAX = 64
FILE_BYTES_MAX = 1024 * 1024
"""What is read of a script and of the modules beside it: far more than people write by hand."""


class Import(NamedTuple):
    """`import module`, or `from module import name`."""

    module: str
    name: str = ""


class UnreadableError(Exception):
    """A script cannot be read. The text says why."""


def leading_imports(script: str) -> list[Import]:
    """Return the imports of modules that are not beside the script, in their order.

    Modules of the standard library are left out: to import them takes no time.

    Args:
        script: The path, from the working directory.

    Raises:
        UnreadableError: It is no Python text, or too large.
    """
    reader = _Reader(os.path.dirname(os.path.realpath(script)))
    reader.read(script, main=True)
    return reader.found


def files_read(script: str) -> list[str]:
    """Return the script, and the files beside it that it begins to import.

    Raises:
        UnreadableError: It is no Python text, or too large.
    """
    reader = _Reader(os.path.dirname(os.path.realpath(script)))
    reader.read(script, main=True)
    return reader.files


class _Reader:
    """One reading. Each `take` returns whether the statements after it may be read on."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.found: list[Import] = []
        self.files: list[str] = []
        self._seen: dict[str, bool] = {}

    def read(self, path: str, *, main: bool = False) -> bool:
        path = os.path.realpath(path)
        if path in self._seen:
            return True
        self._seen[path] = True
        self.files.append(path)
        if len(self._seen) > FILES_MAX:
            return False
        try:
            with open(path, "rb") as file:
                text = file.read(FILE_BYTES_MAX + 1)
            if len(text) > FILE_BYTES_MAX:
                message = f"{path} has more than {FILE_BYTES_MAX} bytes"
                raise UnreadableError(message)
            body = ast.parse(text).body
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
            if not main:
                return False
            message = f"{path} cannot be read: {error}"
            raise UnreadableError(message) from None
        return self._take_all(body, path, main)

    def _take_all(self, body: list[ast.stmt], path: str, main: bool) -> bool:
        return all(self._take(statement, path, main) for statement in body)

    def _take(self, statement: ast.stmt, path: str, main: bool) -> bool:
        match statement:
            case ast.Import(names=names):
                return all(self._import(each.name, "") for each in names)
            case ast.ImportFrom():
                return self._import_from(statement, path)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
                return True
            case ast.If(test=ast.Attribute(attr="TYPE_CHECKING"), orelse=[]):
                return True
            case ast.If(test=test, body=body, orelse=[]) if _is_main(test):
                return self._take_all(body, path, main) if main else True
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=[]):
                other = [each for handler in handlers for each in handler.body]
                plain = all(_is_plain_or_import(each) for each in (*body, *other, *orelse))
                return plain and self._take_all(body, path, main)
            case _:
                return _is_plain(statement)

    def _import_from(self, statement: ast.ImportFrom, path: str) -> bool:
        names = [each.name if each.name != "*" else "" for each in statement.names]
        if not statement.level:
            module = statement.module or ""
            return module == "__future__" or all(self._import(module, each) for each in names)
        folder = os.path.dirname(path)
        for _ in range(statement.level - 1):
            folder = os.path.dirname(folder)
        parts = (statement.module or "").split(".") if statement.module else []
        return all(self._local(folder, [*parts, *([each] if each else [])]) for each in names)

    def _import(self, module: str, name: str) -> bool:
        parts = module.split(".")
        if self._is_local(parts[0]):
            return self._local(self.folder, [*parts, *([name] if name else [])])
        if parts[0] in sys.stdlib_module_names:
            return True
        if len(self.found) >= IMPORTS_MAX:
            return False
        if (found := Import(module, name)) not in self.found:
            self.found.append(found)
        return True

    def _is_local(self, name: str) -> bool:
        place = os.path.join(self.folder, name)
        return os.path.isfile(place + ".py") or os.path.isfile(os.path.join(place, "__init__.py"))

    def _local(self, folder: str, parts: list[str]) -> bool:
        """Read the files that a dotted name stands for, the outer ones first."""
        for part in parts:
            folder = os.path.join(folder, part)
            package = os.path.join(folder, "__init__.py")
            if os.path.isfile(package):
                if not self.read(package):
                    return False
            elif os.path.isfile(folder + ".py"):
                return self.read(folder + ".py")
            elif not os.path.isdir(folder):
                return True  # A name in the module before.
        return True


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(
            left=ast.Name(id="__name__"),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value="__main__")],
        ):
            return True
        case _:
            return False


def _is_plain_or_import(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom)) or _is_plain(statement)


def _is_plain(statement: ast.stmt) -> bool:
    """Return whether a statement gives names values, functions or classes, and does no more."""
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=targets, value=value):
            return all(isinstance(each, ast.Name) for each in targets) and _is_data(value)
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is None or _is_data(value)
        case ast.ClassDef(decorator_list=[], keywords=[], bases=bases, body=body):
            return all(_is_data(each) for each in bases) and all(_is_plain(each) for each in body)
        case (
            ast.FunctionDef(decorator_list=[], args=args)
            | ast.AsyncFunctionDef(decorator_list=[], args=args)
        ):
            given = [each for each in (*args.defaults, *args.kw_defaults) if each]
            called = any(isinstance(each, ast.Call) for each in ast.walk(args))
            return not called and all(_is_data(each) for each in given)
        case _:
            return False


def _is_data(value: ast.expr) -> bool:
    data = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.expr_context)
    parts = (ast.UnaryOp, ast.unaryop, ast.Attribute)
    return all(isinstance(each, (*data, *parts)) for each in ast.walk(value))
