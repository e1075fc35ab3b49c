"""README and ARCHITECTURE stay short, and what the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINES_MAX = {"README.md": 150, "ARCHITECTURE.md": 250}


@pytest.mark.parametrize("name", LINES_MAX)
def test_a_root_document_is_read_in_one_sitting(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= LINES_MAX[name]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_every_test_that_holds_a_promise_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)`", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_folder_and_file_of_the_tree_exists() -> None:
    """The lines of the block in "The tree" begin with a path, indented below its folder."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = text.split("## The tree", 1)[1].split("```", 2)[1]
    folder = ROOT
    for line in filter(None, block.splitlines()):
        inside = line.startswith(" ")
        folder = folder if inside else ROOT / line.split()[0]
        for name in re.split(r" {2,}", line.strip())[0].split():
            path = folder / name if inside else ROOT / name
            assert path.exists(), line
