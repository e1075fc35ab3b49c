"""Pieces of the pages: tables, and texts of docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

GENERATED = "This page is generated from the code by `make reference`.\n"


def page(title: str, *blocks: str) -> str:
    """Return a page of blocks with a line between them."""
    return "\n\n".join(block.strip("\n") for block in (f"# {title}", GENERATED, *blocks)) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; a `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def code(value: Any) -> str:
    """Return a text as code, an empty one as nothing."""
    return f"`{value}`" if str(value) else ""


def docstring(of: Any) -> str:
    """Return the docstring of an object, without its indentation."""
    return inspect.cleandoc(of.__doc__ or "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
