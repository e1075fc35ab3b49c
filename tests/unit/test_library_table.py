"""The table of what can be done to jobs of libraries keeps the rows that were not played again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.libraries import EXAMPLES
from tests.system.library_table import CELLS, key_of, merged, table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "library-jobs.md"
ORDER = [(each.library, each.name) for each in EXAMPLES]


def test_a_page_without_new_rows_is_as_it_was() -> None:
    assert merged(PAGE.read_text(), [], ORDER) == PAGE.read_text()


def test_a_row_takes_the_place_of_its_own_and_no_other() -> None:
    yes = dict.fromkeys(CELLS, "yes")
    old = [
        {"script": "a", "library": "torch 1", **yes, "recover": "no: one reason"},
        {"script": "b", "library": "torch 1", **yes, "migrate": "no: another reason"},
    ]
    page = f"before\n\n{table(old)}\n\nafter\n"
    new = {"script": "a", "library": "torch 2", **yes}
    other = {"script": "c", "library": "trl 1", **yes, "resize": "no: cannot"}
    order = [("torch", "a"), ("trl", "c"), ("torch", "b")]
    assert (
        merged(page, [new, other], order) == f"before\n\n{table([new, other, old[1]])}\n\nafter\n"
    )
    assert key_of(new) == ("torch", "a")


@pytest.mark.parametrize("page", ["", "| script | library | seen |\n|---|\n| a | b | no (1) |\n"])
def test_a_page_that_cannot_be_read_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="the page has no"):
        merged(page, [], ORDER)
