"""The comparison with others names commands and options of Skep's that there are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from skep_services.cli.main import COMMANDS, parser_of

PAGE = Path(__file__).parents[2] / "docs/explanation/compared.md"
SAID = re.compile(r"`skep ([a-z-]+)([^`]*)`")
OPTION = re.compile(r"(?<= )--?[a-z][a-z-]*")


def test_commands_of_the_comparison_are_there() -> None:
    said = SAID.findall(PAGE.read_text(encoding="utf-8"))
    assert len(said) > 30
    for name, rest in said:
        module = importlib.import_module(f"skep_services.cli.{COMMANDS[name][0]}")
        known = parser_of(name, module.COMMANDS[name]).format_help()
        own = rest.partition(" -- ")[0]
        for option in OPTION.findall(own):
            assert re.search(rf"(?<![a-z-]){option}(?![a-z-])", known), (name, option)


def test_every_row_has_what_shows_it() -> None:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| |")
    ]
    assert rows
    for row in rows:
        assert len(row) == 9, row
        assert "`" in row[-1] or row[-1].startswith(("no: ", "the address")), row
        assert all(re.fullmatch(r"(yes|no|part \[\d+\]|)", cell) for cell in row[1:-1]), row
