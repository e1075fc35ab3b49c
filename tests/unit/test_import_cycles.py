"""Circles of imports are found wherever the imports stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.import_cycles import cycle


@pytest.mark.parametrize(
    "text",
    [
        "import p.b\n",
        "from p import b\n",
        "from p.b import name\n",
        "def late() -> None:\n    from p.b import name\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import name\n",
    ],
)
def test_a_circle_is_found(tmp_path: Path, text: str) -> None:
    package = tmp_path / "libs" / "p"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(text)
    (package / "b.py").write_text("name = 1\n")
    assert cycle(tmp_path) == []
    (package / "b.py").write_text("import p.c\n")
    (package / "c.py").write_text("from p.a import name\n")
    found = cycle(tmp_path)
    assert found[0] == found[-1]
    assert sorted(found[1:]) == ["p.a", "p.b", "p.c"]


def test_a_module_that_names_itself_is_no_circle(tmp_path: Path) -> None:
    folder = tmp_path / "services"
    folder.mkdir()
    (folder / "a.py").write_text("from a import main\n")
    assert cycle(tmp_path) == []
