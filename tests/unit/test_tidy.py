"""The house rules hold in this tree, and every rule catches what it is for."""

from pathlib import Path

import pytest

from tools import tidy

ROOT = Path(__file__).resolve().parents[2]


def broken(root: Path, name: str, text: str) -> list[tuple[int, str]]:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    findings = tidy.check(root)
    assert all(finding.path == name for finding in findings)
    return [(finding.line, finding.rule) for finding in findings]


@pytest.mark.nightly
def test_the_tree_is_tidy() -> None:
    assert [str(finding) for finding in tidy.check(ROOT)] == []


def test_every_rule_is_listed_in_the_docstring() -> None:
    assert tidy.RULES == (
        "line-length",
        "stray",
        "unfinished",
        "set-order",
        "sleep",
        "machine-path",
        "direction",
        "attempt-id",
        "syntax",
        "word",
        "allow",
    )


def test_a_finding_reads_as_an_editor_expects() -> None:
    assert str(tidy.Finding("a.py", 3, "sleep", "wait")) == "a.py:3: sleep: wait"


@pytest.mark.parametrize("columns,rules", [(100, []), (101, [(1, "line-length")])])
@pytest.mark.parametrize("name", ["scripts/a.py", "Makefile", ".ci/run", "compose/Dockerfile"])
def test_line_length_of_source(
    tmp_path: Path, name: str, columns: int, rules: list[tuple[int, str]]
) -> None:
    assert broken(tmp_path, name, "#" * columns + "\n") == rules


def test_text_may_have_long_lines(tmp_path: Path) -> None:
    assert broken(tmp_path, "README.md", "a " * 200) == []


@pytest.mark.parametrize(
    "text,lines",
    [
        ("The node is told.\n", [1]),
        ("Nobody waits,\nand whom it serves\n", [1, 2]),
        ("Ghosts.\n", [1]),
        ("Cells are told apart, by `mate`, [here](told.md).\n", []),
        ("```\nnobody\n```\nA job waits.\n", []),
        ("This page is generated from the code.\n\nNobody.\n", []),
    ],
)
def test_retired_words(tmp_path: Path, text: str, lines: list[int]) -> None:
    assert broken(tmp_path, "docs/a.md", text) == [(line, "word") for line in lines]
    (tmp_path / "docs" / "a.md").unlink()
    assert broken(tmp_path, "a.txt", text) == []


@pytest.mark.parametrize("name", ["libs/notes.py", "services/skep_web/a.py"])
def test_stray(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.touch()
    assert [finding.rule for finding in tidy.check(tmp_path)] == ["stray"]


@pytest.mark.parametrize(
    "name", ["libs/skep/a.py", "libs/skep_job/a.py", "services/skep_services/a.py"]
)
def test_packages_have_their_places(tmp_path: Path, name: str) -> None:
    assert broken(tmp_path, name, "") == []


def test_a_job_is_no_person_where_the_allocator_is(tmp_path: Path) -> None:
    text = '"""What it is."""\nJOB = 1  # Whoever waits.\n'
    assert broken(tmp_path, "libs/skep_job/a.py", text) == []
    assert broken(tmp_path, "libs/skep/ledger/a.py", text) == [(2, "word")]


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "XX" + "X"])
def test_unfinished(tmp_path: Path, word: str) -> None:
    assert broken(tmp_path, "README.md", f"fine\n{word}: more\n") == [(2, "unfinished")]


def test_a_template_of_mktemp_is_not_unfinished(tmp_path: Path) -> None:
    assert broken(tmp_path, "scripts/a.sh", "mktemp -d /tmp/skep.XXXXXX\n") == []


@pytest.mark.parametrize(
    "path", ["/" + "root/skep", "/" + "home/ada/skep", "/" + "Users/ada/skep", "/" + "root"]
)
def test_machine_path(tmp_path: Path, path: str) -> None:
    assert broken(tmp_path, "scripts/a.py", f'x = "{path}"\n') == [(1, "machine-path")]


def test_the_path_of_the_tree_itself_is_a_machine_path(tmp_path: Path) -> None:
    assert broken(tmp_path, "README.md", f"cd {tmp_path}/x\n") == [(1, "machine-path")]


@pytest.mark.parametrize("path", ["~/skep", "$HOME/root/x", "/tmp/x", "a/home/x", "/rooted"])
def test_other_paths_are_fine(tmp_path: Path, path: str) -> None:
    assert broken(tmp_path, "README.md", f"cd {path}\n") == []


@pytest.mark.parametrize(
    "path, line",
    [
        ("tests/unit/a.py", "from scripts.demo import run"),
        ("tests/unit/a.py", "import benchmarks"),
        ("tests/support/a.py", "from tests import kit"),
        ("benchmarks/a.py", "from tests.kit import Driver"),
        ("benchmarks/a.py", "from tests import supporters"),
        ("tools/a.py", "from tests.support import ports"),
        ("scripts/a.py", "import tests.support.ports"),
        ("libs/skep/a.py", "from tools import tidy"),
        ("services/skep_services/a.py", "import tests"),
    ],
)
def test_direction(tmp_path: Path, path: str, line: str) -> None:
    assert broken(tmp_path, path, f"{line}\n") == [(1, "direction")]


@pytest.mark.parametrize(
    "path, line",
    [
        ("tests/unit/a.py", "from tools import tidy"),
        ("tests/system/a.py", "from tests.kit import Driver"),
        ("tests/support/a.py", "from tests.support import ports"),
        ("benchmarks/a.py", "from tests.support import ports"),
        ("benchmarks/a.py", "import toolshed"),
    ],
)
def test_imports_the_other_way_are_fine(tmp_path: Path, path: str, line: str) -> None:
    assert broken(tmp_path, path, f"{line}\n") == []


@pytest.mark.parametrize("call", ["time.sleep(1)", "asyncio.sleep(0.1)", "sleep(delay)"])
def test_sleep(tmp_path: Path, call: str) -> None:
    assert broken(tmp_path, "tests/unit/test_a.py", f"async def f():\n    {call}\n") == [
        (2, "sleep")
    ]


@pytest.mark.parametrize("call", ["asyncio.sleep(0)", 'run(["sleep", "1"])', "event.wait(1)"])
def test_waiting_otherwise_is_fine(tmp_path: Path, call: str) -> None:
    assert broken(tmp_path, "tests/unit/test_a.py", f"{call}\n") == []


def test_sleep_outside_tests_is_fine(tmp_path: Path) -> None:
    assert broken(tmp_path, "scripts/a.py", "time.sleep(1)\n") == []


@pytest.mark.parametrize(
    "text",
    [
        'f"{job}.{attempt}"',
        'f"{job.job}.{job.attempt}.{rank}"',
        'f"for {job.job}.{job.following}"',
        'name.rpartition(".")',
        'token.rsplit(".", 2)',
        'token.split(".", maxsplit=1)',
    ],
)
def test_attempt_id(tmp_path: Path, text: str) -> None:
    assert broken(tmp_path, "libs/skep/machines/a.py", text + "\n") == [(1, "attempt-id")]
    (tmp_path / "libs/skep/machines/a.py").unlink()
    assert broken(tmp_path, "libs/skep/ids.py", text + "\n") == []


@pytest.mark.parametrize(
    "name,text",
    [
        ("libs/skep/machines/a.py", 'f"{job} attempt {attempt}, {job}.{key}"'),
        ("libs/skep/machines/a.py", 'text.split(" ")'),
        ("libs/skep/wire/a.py", 'path.split(".")'),
        ("tests/unit/a.py", 'f"{job}.{attempt}"'),
    ],
)
def test_other_texts_with_dots(tmp_path: Path, name: str, text: str) -> None:
    assert broken(tmp_path, name, text + "\n") == []


def test_syntax(tmp_path: Path) -> None:
    assert broken(tmp_path, "scripts/a.py", "x = 1\ny = = 2\n") == [(2, "syntax")]


SETS = [
    "{1, 2}",
    "{x for x in y}",
    "set(y)",
    "frozenset(y)",
    "set(y).union(z)",
    "set(y) | z",
    "y - {1}",
    "y ^ {1}",
    "d.keys() & e",
    "set(y) if z else y",
    "z or set(y)",
]


@pytest.mark.parametrize("value", SETS)
@pytest.mark.parametrize(
    "use",
    [
        "for i in {}: pass",
        "a = [i for i in ({})]",
        "a = list({})",
        "a = tuple({})",
        "a = [*({})]",
        "a = dict.fromkeys({})",
        "a = ','.join({})",
        "a = ({}).pop()",
        "s = {}\nfor i in s: pass",
        "self.s = {}\nfor i in self.s: pass",
    ],
)
def test_set_order(tmp_path: Path, use: str, value: str) -> None:
    text = use.replace("{}", value)
    last = text.count("\n") + 1
    assert broken(tmp_path, "libs/skep/a.py", text + "\n") == [(last, "set-order")]


@pytest.mark.parametrize(
    "text",
    [
        "def f(s: set[str]):\n    for i in s: pass",
        "def f(s: 'frozenset[str]'):\n    for i in s: pass",
        "def f(*, s: set[str] | None):\n    for i in s: pass",
        "def f(s: AbstractSet[str]):\n    for i in s: pass",
        "S: Final[frozenset[str]] = make()\nfor i in S: pass",
        "class A:\n    s: frozenset[str]\ndef f(a):\n    for i in a.s: pass",
        "def f(a):\n    for i in a.s: pass\n    a.s: set[int] = b",
        "async def f():\n    s = set()\n    return [i for i in s]",
    ],
)
def test_set_order_by_annotation(tmp_path: Path, text: str) -> None:
    assert [rule for _, rule in broken(tmp_path, "libs/skep/a.py", text)] == ["set-order"]


@pytest.mark.parametrize(
    "text",
    [
        "for i in sorted({1, 2}): pass",
        "a = len({1, 2}) + (3 in {1, 2})",
        "for i in d.keys(): pass",
        "a = d.pop('x')",
        "def f():\n    s = set()\ndef g(s):\n    for i in s: pass",
        "s = {1}\ns = sorted(s)\nfor i in s: pass",
        "def f(s: dict[str, set[str]]):\n    for i in s: pass",
    ],
)
def test_order_that_is_given_is_fine(tmp_path: Path, text: str) -> None:
    assert broken(tmp_path, "libs/skep/a.py", text + "\n") == []


@pytest.mark.parametrize("name", ["libs/skep_job/a.py", "services/skep_services/a.py"])
def test_sets_have_an_order_elsewhere(tmp_path: Path, name: str) -> None:
    assert broken(tmp_path, name, "for i in {1, 2}: pass\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(1)  # tidy: allow sleep the job under test measures time\n",
        "# tidy: allow sleep the job under test measures time\ntime.sleep(1)\n",
    ],
)
def test_an_allowance_with_a_reason_counts(tmp_path: Path, text: str) -> None:
    assert broken(tmp_path, "tests/a.py", text) == []


@pytest.mark.parametrize("allowance", ["sleep", "slumber it is needed", ""])
def test_an_allowance_names_a_rule_and_a_reason(tmp_path: Path, allowance: str) -> None:
    assert broken(tmp_path, "tests/a.py", f"# tidy: {'allow'} {allowance}\n") == [(1, "allow")]


def test_what_is_built_or_installed_is_not_read(tmp_path: Path) -> None:
    for name in ["env/pyvenv.cfg", "env/lib/a.py", ".venv/a.py", "out/a.py", "__pycache__/a.py"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = = 1\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "link.py").symlink_to(tmp_path / "env" / "lib" / "a.py")
    assert tidy.check(tmp_path) == []
