"""The tour of the page has its pictures, and the comparison of pages a source for each fact."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TOUR = DOCS / "tutorial/the-page.md"
COMPARED = DOCS / "explanation/page-compared.md"
PICTURE_BYTES_MAX = 150_000
ALL_BYTES_MAX = 1_200_000
FACT = re.compile(r"\[(yes|part|no)\]\[([a-z-]+)\]( \(\d+\))?|–")


def test_pictures_of_the_tour_are_there_and_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\((page/[a-z]+\.webp)\)", TOUR.read_text(encoding="utf-8"))
    files = {path.relative_to(TOUR.parent).as_posix(): path for path in TOUR.parent.glob("page/*")}
    assert sorted(shown) == sorted(files)
    sizes = [path.stat().st_size for path in files.values()]
    assert max(sizes) <= PICTURE_BYTES_MAX
    assert sum(sizes) <= ALL_BYTES_MAX
    assert all(path.read_bytes()[8:12] == b"WEBP" for path in files.values())


def test_every_fact_of_the_comparison_has_its_source() -> None:
    text = COMPARED.read_text(encoding="utf-8")
    sources = set(re.findall(r"^\[([a-z-]+)\]: https://", text, re.MULTILINE))
    notes = set(re.findall(r"^- (\[[a-z]\]) ", text, re.MULTILINE))
    numbers = set(re.findall(r"(?:^|\s)(\(\d+\))\s[A-Z]", text))
    used: set[str] = set()
    rows = [line for line in text.splitlines() if re.match(r"\| [^| ]", line)]
    assert len(rows) > 50
    for line in rows:
        _, *others, own = (cell.strip() for cell in line.strip().strip("|").split("|"))
        facts = [FACT.fullmatch(cell) for cell in others]
        assert len(facts) == 6, line
        assert all(facts), line
        used |= {fact[2] for fact in facts if fact and fact[2]}
        assert {fact[3].strip() for fact in facts if fact and fact[3]} <= numbers, line
        assert own, line
        if own.startswith("no"):
            assert own.removeprefix("no ") in notes, line
    assert used == sources
