"""Write the index of the decision records, docs/adr/README.md.

    python -m tools.adr_index            write it
    python -m tools.adr_index --check    exit 1 if a record or the index is not as it should be

A record is `NNNN-title.md`: the heading `# NNNN: Title`, a line with date, status and tags, and the
sections Context, Decision and Consequences.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "docs" / "adr"
INDEX = "README.md"
HEAD = """# Decision records

One file for each decision that a newcomer would question: context, decision, consequences. Measured
figures are from a machine with two cores. `python -m tools.adr_index` writes this index.

"""
FORM = re.compile(
    r"# (?P<number>\d{4}): (?P<title>.+)\n\n"
    r"Date: (?P<date>\d{4}-\d\d-\d\d)\. Status: (?P<status>.+?)\. Tags: (?P<tags>.+)\.\n\n"
    r"## Context\n\n.+\n\n## Decision\n\n.+\n\n## Consequences\n\n.+\n",
    re.DOTALL,
)


class Record(NamedTuple):
    """One decision record: the name of its file and the lines at its head."""

    file: str
    number: str
    title: str
    date: str
    status: str
    tags: str


def records(folder: Path) -> list[Record]:
    """Return the records of a folder by number.

    Raises:
        ValueError: A file is not in the form of a record, or two records have one number.
    """
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.md")):
        if path.name == INDEX:
            continue
        match = FORM.fullmatch(path.read_text(encoding="utf-8"))
        if match is None or not path.name.startswith(match["number"] + "-"):
            reason = f"{path}: not in the form of a record (see tools/adr_index.py)"
            raise ValueError(reason)
        record = Record(path.name, **match.groupdict())
        if record.number in found:
            reason = f"{path}: {found[record.number].file} has this number too"
            raise ValueError(reason)
        found[record.number] = record
    return list(found.values())


def index(found: list[Record]) -> str:
    """Return the text of the index."""
    rows = [
        f"| [{each.number}]({each.file}) | {each.title} | {each.date} | {each.status} "
        f"| {each.tags} |\n"
        for each in found
    ]
    head = "| number | decision | date | status | tags |\n|---|---|---|---|---|\n"
    return HEAD + head + "".join(rows)


def main() -> int:
    """Write or check the index; return 1 if it is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    path = FOLDER / INDEX
    try:
        text = index(records(FOLDER))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.check:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        print(f"{path}: run python -m tools.adr_index", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
