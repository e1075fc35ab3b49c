"""Check the house rules that no other tool knows. `python -m tools.tidy` prints path:line: rule.

A line may break a rule with a reason, in a comment on it or on the line above:

    # tidy: allow machine-path because the image runs as this user

The rules:

    line-length     a source line has at most 100 columns
    stray           libs/ and services/ hold their packages and nothing else: an editable install
                    would import a stray folder that the wheel lacks
    unfinished      no marker of unfinished work
    set-order       libs/skep and libs/skep_lab never iterate over a set: strings hash differently
                    in each process
    sleep           a test waits on an event or a condition, never on time (tests/system runs whole
                    clusters by the clock)
    machine-path    no path that exists on one machine only
    direction       a folder imports what it may: tests know neither scripts nor benchmarks, nothing
                    but benchmarks knows tests, and these only tests/support
    attempt-id      only libs/skep/ids.py builds and splits names of attempts and their processes
    syntax          a Python file parses
    word            a document uses the words of docs/reference/glossary.md, and no retired ones
    allow           an allowance names a rule and gives a reason
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_COLUMNS_MAX = 100

PACKAGES = {
    "libs": ("skep", "skep_job", "skep_lab", "skep_ps"),
    "services": ("skep_client", "skep_services", "web"),
}
MAY_IMPORT = {
    "libs/": (),
    "services/": (),
    "tools/": ("tools",),
    "scripts/": ("scripts",),
    "benchmarks/": ("benchmarks", "tests.support"),
    "tests/support/": ("tests.support",),
    "tests/": ("tests", "tools"),
}
"""What a folder may import of those that are not installed: the first that matches counts."""
NOT_INSTALLED = ("benchmarks", "scripts", "tests", "tools")
SOURCE_SUFFIXES = (".css", ".html", ".js", ".py", ".sh")
TEXT_SUFFIXES = (
    *SOURCE_SUFFIXES,
    ".cfg",
    ".conf",
    ".json",
    ".md",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
)
SOURCE_NAMES = ("Dockerfile", "Makefile", "run")
SKIPPED_FOLDERS = ("__pycache__", "build", "dist", "htmlcov", "node_modules", "out", "site")
HIDDEN_FOLDERS_READ = (".ci", ".github")

RULES = tuple(re.findall(r"^    ([a-z]+(?:-[a-z]+)?) +[a-z]", __doc__, re.MULTILINE))

# The words are written in halves so that this file may be checked by its own rule.
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}{])/(?:root|home/[a-z]\w*|Users/[A-Za-z]\w*)(?=[/\s\"'`]|$)")

IDS = "libs/skep/ids.py"
BUILDS_NO_IDS = ("libs/", "services/")
SPLITS_NO_IDS = (
    "libs/skep/ledger/",
    "libs/skep/machines/",
    "libs/skep/perf/",
    "services/skep_services/agent/",
    "services/skep_services/gateway/",
)
"""Folders in which a text with dots is the name of an attempt or of a process of one."""
ATTEMPT_FIELDS = ("attempt", "following", "successor")
SPLITS = ("partition", "rpartition", "rsplit", "split")

RETIRED = {
    "astray": "off its chain",
    "deserted": "left",
    "doomed": "bad (of a cell)",
    "ghost": "orphan",
    "haunted": "with an orphan",
    "lately": "statistics of moves",
    "mate": "proven partner",
    "nobody": "no job, no tenant",
    "parked": "unplaceable",
    "ripe": "due",
    "somebody": "a job, a tenant, a person",
    "told": "sent, reported, notified",
    "whoever": "a job that, a person that",
    "whom": "which job",
}
"""A word that documents no longer use: what replaces it. `told apart` is another word."""
RETIRED_WORD = re.compile(rf"\b({'|'.join(RETIRED)})s?\b(?! apart)", re.IGNORECASE)
IMPERSONAL = (
    "libs/skep/base/",
    "libs/skep/cells/",
    "libs/skep/ledger/",
    "libs/skep/machines/",
    "libs/skep/perf/",
    "libs/skep/policy/",
    "libs/skep_lab/experiments/",
    "libs/skep_lab/measures/",
    "libs/skep_lab/outcome.py",
    "libs/skep_lab/simulator/",
    "libs/skep_lab/traces/",
    "libs/skep_lab/workloads/",
    "services/skep_services/adapters/",
    "services/skep_services/admission/",
    "services/skep_services/advisor/",
    "services/skep_services/agent/",
    "services/skep_services/allocator/",
    "services/skep_services/ask_tell/",
    "services/skep_services/compose/",
    "services/skep_services/door/",
    "services/skep_services/experiments/",
    "services/skep_services/gateway/",
    "services/skep_services/introspector/",
    "services/skep_services/searches/",
)
"""Folders in whose code no job is a person; others follow when they are next taken apart."""
PERSON = re.compile(r"\b(nobody|somebody|who|whoever|whom)\b", re.IGNORECASE)
IN_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
GENERATED = "is generated from the code"
"""Pages that say so have the words of the code."""

ALLOW = re.compile(r"tidy: allow\s*([\w-]*)\s*(.*)")

SET_NAMES = ("AbstractSet", "FrozenSet", "MutableSet", "Set", "frozenset", "set")
SET_METHODS = ("difference", "intersection", "symmetric_difference", "union")
ORDER_TAKERS = ("dict", "enumerate", "iter", "list", "map", "next", "reversed", "tuple", "zip")
ORDER_TAKING_METHODS = ("extend", "fromkeys", "join", "pop")


class Finding(NamedTuple):
    """One broken rule: where (path relative to the root, line from 1), which, and what to do."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def check(root: Path) -> list[Finding]:
    """Return what breaks a rule under `root`, by path and line."""
    findings = list(_strays(root))
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines = text.splitlines()
        found = list(_text_findings(name, lines, root))
        if path.suffix == ".py":
            found += _python_findings(name, text)
        if name.startswith(IMPERSONAL):
            found += _person_findings(name, lines)
        if path.suffix == ".md" and GENERATED not in text:
            found += _word_findings(name, lines)
        findings += [finding for finding in found if not _allowed(finding, lines)]
    return sorted(findings)


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.is_symlink():
            continue
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name not in HIDDEN_FOLDERS_READ
            environment = (path / "pyvenv.cfg").exists()
            if not hidden and not environment and path.name not in SKIPPED_FOLDERS:
                yield from _files(path)
        elif path.suffix in TEXT_SUFFIXES or path.name in SOURCE_NAMES:
            yield path


def _strays(root: Path) -> Iterator[Finding]:
    for folder, packages in PACKAGES.items():
        for path in sorted((root / folder).glob("*")):
            if path.name not in packages and path.name != "__pycache__":
                message = f"{folder}/ holds only {' and '.join(packages)}"
                yield Finding(path.relative_to(root).as_posix(), 1, "stray", message)


def _allowed(finding: Finding, lines: list[str]) -> bool:
    for line in lines[max(finding.line - 2, 0) : finding.line]:
        allow = ALLOW.search(line)
        if allow and allow[1] == finding.rule and finding.rule != "allow":
            return True
    return False


# --- any text -------------------------------------------------------------------------------------


def _text_findings(name: str, lines: list[str], root: Path) -> Iterator[Finding]:
    source = name.endswith(SOURCE_SUFFIXES) or name.rsplit("/", maxsplit=1)[-1] in SOURCE_NAMES
    # A tree directly under / may share its name with a folder in a container image.
    own_path = str(root.resolve()) if len(root.resolve().parts) > 2 else None
    for number, line in enumerate(lines, start=1):
        if source and len(line) > LINE_COLUMNS_MAX:
            message = f"{len(line)} columns; at most {LINE_COLUMNS_MAX}"
            yield Finding(name, number, "line-length", message)
        if UNFINISHED.search(line):
            yield Finding(name, number, "unfinished", "finish it, or open an issue")
        if MACHINE_PATH.search(line) or (own_path and own_path in line):
            yield Finding(name, number, "machine-path", "name it relative to something given")
        allow = ALLOW.search(line) if name != "tools/tidy.py" else None
        if allow and (allow[1] not in RULES or not allow[2]):
            yield Finding(name, number, "allow", "write: tidy: allow <rule> <the reason>")


def _person_findings(name: str, lines: list[str]) -> Iterator[Finding]:
    for number, line in enumerate(lines, start=1):
        for match in PERSON.finditer(line):
            message = f"{match[1].lower()}: a job is `it`: write which job, a rank that, no job"
            yield Finding(name, number, "word", message)


def _word_findings(name: str, lines: list[str]) -> Iterator[Finding]:
    fenced = False
    for number, line in enumerate(lines, start=1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fenced or fence:
            continue
        for match in RETIRED_WORD.finditer(IN_CODE.sub("", line)):
            word = match[1].lower()
            yield Finding(name, number, "word", f"{word}: write {RETIRED[word]}")


# --- Python ---------------------------------------------------------------------------------------


def _python_findings(name: str, text: str) -> Iterator[Finding]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield Finding(name, error.lineno or 1, "syntax", str(error.msg))
        return
    waits_on_events = name.startswith("tests/") and not name.startswith("tests/system/")
    for node in ast.walk(tree):
        if waits_on_events and isinstance(node, ast.Call) and _is_sleep(node):
            message = "wait on an event or a condition with a deadline"
            yield Finding(name, node.lineno, "sleep", message)
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _direction_findings(name, node)
        if name != IDS and isinstance(node, ast.expr) and _is_id_by_hand(name, node):
            yield Finding(name, node.lineno, "attempt-id", f"use the functions of {IDS}")
    if name.startswith(("libs/skep/", "libs/skep_lab/")):
        for line in SetOrder().check(tree):
            yield Finding(name, line, "set-order", "use a dict or sorted(...)")


def _direction_findings(name: str, node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
    may = next((may for folder, may in MAY_IMPORT.items() if name.startswith(folder)), None)
    if may is None:
        return
    if isinstance(node, ast.Import):
        modules = [each.name for each in node.names]
    else:
        modules = [f"{node.module}.{each.name}" for each in node.names]
    for module in modules:
        inside = any(f"{module}.".startswith(f"{each}.") for each in may)
        if module.partition(".")[0] in NOT_INSTALLED and not inside:
            folder = name.rpartition("/")[0]
            yield Finding(name, node.lineno, "direction", f"{folder}/ does not import {module}")


def _is_id_by_hand(name: str, node: ast.expr) -> bool:
    return _builds_id(name, node) or _splits_id(name, node)


def _builds_id(name: str, node: ast.expr) -> bool:
    """Tell whether `node` is a text of something, a dot, and the number of an attempt."""
    if not name.startswith(BUILDS_NO_IDS) or not isinstance(node, ast.JoinedStr):
        return False
    for before, dot, after in zip(node.values, node.values[1:], node.values[2:], strict=False):
        match before, dot, after:
            case (
                ast.FormattedValue(),
                ast.Constant(value="."),
                ast.FormattedValue(value=ast.Name(id=field) | ast.Attribute(attr=field)),
            ) if field in ATTEMPT_FIELDS:
                return True
            case _:
                pass
    return False


def _splits_id(name: str, node: ast.expr) -> bool:
    """Tell whether `node` splits a text at dots where such texts are names of attempts."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=[ast.Constant(value="."), *_]) if (
            method in SPLITS
        ):
            return name.startswith(SPLITS_NO_IDS)
        case _:
            return False


def _is_sleep(node: ast.Call) -> bool:
    """Tell whether `node` waits for time to pass; `asyncio.sleep(0)` only lets others run."""
    if node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0:
        return False
    return ast.unparse(node.func) in {"time.sleep", "asyncio.sleep", "sleep"}


class SetOrder(ast.NodeVisitor):
    """Finds places where the order of a set decides something.

    Best effort: a set is known by its literal, its constructor, an operator or method on one, an
    annotation in the same file, or a name that was given one of these in the same function.
    """

    def __init__(self) -> None:
        self._lines: list[int] = []
        self._scopes: list[dict[str, bool]] = [{}]
        self._fields: dict[str, bool] = {}

    def check(self, tree: ast.Module) -> list[int]:
        """Return the lines at fault."""
        for node in ast.walk(tree):
            # Fields first: methods may stand above the assignment that tells what a field is.
            if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
                target = node.target
                if isinstance(target, ast.Attribute):
                    self._fields[target.attr] = True
            if isinstance(node, ast.ClassDef):
                for line in node.body:
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        self._fields[line.target.id] = _is_set_type(line.annotation)
        self.visit(tree)
        return sorted(self._lines)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Open a scope with the arguments that are sets."""
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self._scopes.append(
            {each.arg: bool(each.annotation and _is_set_type(each.annotation)) for each in every}
        )
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        """Remember which names hold sets."""
        self.generic_visit(node)
        for target in node.targets:
            self._assign(target, is_set=self._is_set(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Remember which names are declared as sets."""
        self.generic_visit(node)
        self._assign(node.target, is_set=_is_set_type(node.annotation))

    def visit_For(self, node: ast.For) -> None:
        """Check what the loop runs over."""
        self._look(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Check what the comprehension runs over."""
        self._look(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        """Check what is spread."""
        self._look(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Check functions that take the order of their argument."""
        match node.func:
            case ast.Name(id=name) if name in ORDER_TAKERS:
                takes = True
            case ast.Attribute(attr="pop", value=value) if not node.args:
                takes = False
                self._look(value)
            case ast.Attribute(attr=name) if name in ORDER_TAKING_METHODS:
                takes = True
            case _:
                takes = False
        if takes:
            for argument in node.args:
                self._look(argument)
        self.generic_visit(node)

    def _look(self, node: ast.expr) -> None:
        if self._is_set(node):
            self._lines.append(node.lineno)

    def _assign(self, target: ast.expr, *, is_set: bool) -> None:
        if isinstance(target, ast.Name):
            self._scopes[-1][target.id] = is_set
        elif isinstance(target, ast.Attribute) and is_set:
            self._fields[target.attr] = True

    def _is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return next((s[name] for s in reversed(self._scopes) if name in s), False)
            case ast.Attribute(attr=name):
                return self._fields.get(name, False)
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(attr=name, value=value)):
                return name in (*SET_METHODS, "copy") and self._is_set(value)
            case ast.BinOp(left=left, right=right, op=ast.BitAnd() | ast.BitOr() | ast.Sub()):
                return any(self._is_set(side) or _is_keys(side) for side in (left, right))
            case ast.BinOp(left=left, right=right, op=ast.BitXor()):
                return any(self._is_set(side) or _is_keys(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_set(body) or self._is_set(orelse)
            case ast.BoolOp(values=values):
                return any(self._is_set(value) for value in values)
            case _:
                return False


def _is_keys(node: ast.expr) -> bool:
    """Tell whether `node` is a dict's keys view: an operator on one makes a set."""
    match node:
        case ast.Call(func=ast.Attribute(attr="keys"), args=[]):
            return True
        case _:
            return False


def _is_set_type(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SET_NAMES
        case ast.Subscript(value=ast.Name(id="Final" | "ClassVar" | "Annotated"), slice=inside):
            return _is_set_type(inside.elts[0] if isinstance(inside, ast.Tuple) else inside)
        case ast.Subscript(value=value):
            return _is_set_type(value)
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return _is_set_type(left) or _is_set_type(right)
        case ast.Constant(value=str(text)):
            return re.match(r"(frozen)?set\b", text) is not None
        case _:
            return False


def main() -> int:
    """Print what breaks a rule; return 1 when anything does."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    findings = check(root)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
