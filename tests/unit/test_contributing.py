"""What CONTRIBUTING.md tells a contributor to do is done to a copy of the library, and works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FENCE = re.compile(r'^( *)```(\w+)(?: title="([^"]+)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
SKEP = (
    sys.executable,
    "-c",
    "import sys; from skep_services.cli.main import main; sys.exit(main())",
)


class Block(NamedTuple):
    """A code block: its language, the file that it is of or changes (or none), its text."""

    language: str
    path: str
    text: str


def section(title: str) -> list[Block]:
    """Return the blocks of the section whose heading begins with `title`."""
    whole = re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert whole is not None, title
    return [
        Block(language, path, textwrap.dedent(text))
        for _, language, path, text in FENCE.findall(whole[0])
    ]


def follow(blocks: list[Block], tree: Path) -> Iterator[str]:
    """Write and edit what the blocks say, in a copy of library and test kits; yield its tests."""
    shutil.copytree(ROOT / "libs" / "skep", tree / "libs" / "skep")
    (tree / "tests").mkdir()
    for kit in (ROOT / "tests").glob("*kit.py"):
        shutil.copy(kit, tree / "tests")
    for block in blocks:
        path = tree / block.path
        if block.language == "diff":
            path.write_text(edited(path.read_text(encoding="utf-8"), block), encoding="utf-8")
        elif block.path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            if block.path.startswith("tests/"):
                yield block.path


def edited(text: str, block: Block) -> str:
    """Return a file after an edit: its context is in the file once."""
    lines = block.text.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if not line.startswith("+"))
    after = "".join(line[1:] for line in lines if not line.startswith("-"))
    assert text.count(before) == 1, f"{block.path}: this place is there {text.count(before)} times"
    return text.replace(before, after)


def run(tree: Path, *command: str) -> str:
    """Return what a command prints that uses the copy of the library."""
    paths = [tree / "libs", ROOT / "libs", ROOT / "services"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_tests(tree: Path, paths: list[str]) -> None:
    """Run the tests of the text against the copy."""
    shutil.copy(ROOT / "pyproject.toml", tree)
    said = run(tree, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths)
    assert f"{len(paths)} passed" in said


def test_the_policy_of_the_text_is_chosen_by_its_name(tmp_path: Path) -> None:
    blocks = section("Add a policy")
    policy = next(block for block in blocks if block.path.startswith("libs/skep/policy/"))
    assert len(policy.text.splitlines()) <= 30
    run_tests(tmp_path, list(follow(blocks, tmp_path)))
    (command,) = [block.text.split() for block in blocks if block.language == "sh"]
    assert command[0] == "skep"
    said = run(tmp_path, *SKEP, *command[1:])
    (waited,) = [line for line in said.splitlines() if line.startswith("queueing, mean")]
    assert waited.split()[-4:] == ["99.00", "s", "69.00", "s"], said


def test_the_fact_of_the_text_is_written_read_and_applied(tmp_path: Path) -> None:
    blocks = section("Add a fact")
    assert {block.path for block in blocks if block.language == "diff"}
    run_tests(tmp_path, list(follow(blocks, tmp_path)))


def test_an_edit_whose_place_is_not_there_once_is_an_error() -> None:
    block = Block("diff", "a.py", " one\n+two\n")
    assert edited("zero\none\n", block) == "zero\none\ntwo\n"
    for text in ("zero\n", "one\none\n"):
        with pytest.raises(AssertionError, match=r"a\.py"):
            edited(text, block)


def test_every_target_of_make_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z][a-z-]+)", TEXT):
        assert re.search(rf"^(?:[a-z-]+ )*{target}\b.*:", makefile, re.MULTILINE), target
