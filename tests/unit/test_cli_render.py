"""Tables and quantities of the `skep` command."""

from __future__ import annotations

import io
import os
import time

import pytest

from skep_services.cli import render
from skep_services.cli.render import Column

MS, S, M, H, D = 10**6, 10**9, 60 * 10**9, 3600 * 10**9, 86400 * 10**9


@pytest.mark.parametrize(
    "length_ns, text",
    [
        (None, "-"),
        (-5, "0s"),
        (0, "0s"),
        (400_000, "0.4ms"),
        (340 * MS, "340ms"),
        (8_250 * MS, "8.2s"),
        (42 * S, "42s"),
        (3 * M + 12 * S, "3m12s"),
        (2 * H + 5 * M, "2h05m"),
        (3 * D + 4 * H, "3d04h"),
    ],
)
def test_duration_has_two_units_at_most(length_ns: int | None, text: str) -> None:
    assert render.duration(length_ns) == text


@pytest.mark.parametrize(
    "rate_milli, text",
    [(None, "-"), (0, "-"), (250, "0.25/s"), (12_345, "12.3/s"), (4_000_000, "4000/s")],
)
def test_rate(rate_milli: int | None, text: str) -> None:
    assert render.rate(rate_milli) == text


def test_progress_size_and_counts() -> None:
    assert render.progress(0, None) == "-"
    assert render.progress(7, None) == "7"
    assert render.progress(None, 10) == "0/10"
    sizes = [None, 512, 1536, 512 * 2**20, 155 * 2**30 // 10, 2**40]
    told = ["-", "512B", "1.5KiB", "512MiB", "15.5GiB", "1TiB"]
    assert [render.size(one) for one in sizes] == told
    assert [render.plural(count, "job") for count in (1, 3)] == ["1 job", "3 jobs"]


def test_clock_time_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert render.clock_time(None) == "-"
    assert render.clock_time(1_700_000_000_250_000_000) == "22:13:20.250"
    assert render.clock_time(1_700_000_000_250_000_000, date=True) == "2023-11-14 22:13:20.250"


def test_table_aligns_and_leaves_no_trailing_spaces() -> None:
    columns = [
        Column("JOB", ["j1", "j23"]),
        Column("AGE", ["8.2s", "3m12s"], right=True),
        Column("WHY", ["", "waits"]),
    ]
    text = render.table(columns, render.UNLIMITED, colour=False)
    assert text.splitlines() == ["JOB    AGE  WHY", "j1    8.2s", "j23  3m12s  waits"]


def test_table_without_rows_is_its_titles() -> None:
    assert render.table([Column("JOB", []), Column("WHY", [])], 80, colour=False) == "JOB  WHY"


def test_narrow_terminal_cuts_long_columns_before_it_drops_any() -> None:
    def columns() -> list[Column]:
        return [
            Column("JOB", ["j1"]),
            Column("NAME", ["n" * 30], narrow=8),
            Column("PLACE", ["p" * 20], narrow=6, drop=1),
            Column("ETA", ["71s"], drop=2),
        ]

    assert max(map(len, render.table(columns(), 40, colour=False).splitlines())) <= 40
    assert "ETA" in render.table(columns(), 30, colour=False)
    cut = render.table(columns(), 26, colour=False).splitlines()[1]
    assert cut == "j1   nnnnnnn…  ppppp…  71s"
    assert render.table(columns(), 21, colour=False).splitlines()[0] == "JOB  NAME      PLACE"
    assert render.table(columns(), 14, colour=False).splitlines()[0] == "JOB  NAME"
    # What may neither be cut further nor dropped stays, however narrow the terminal is.
    assert render.table(columns(), 3, colour=False).splitlines()[1] == "j1   nnnnnnn…"


def test_wide_and_combining_characters_keep_columns_in_line() -> None:
    names = ["模型训练", "e\u0301te", "ascii"]
    columns = [Column("NAME", names, narrow=4), Column("GPU", ["1", "2", "3"])]
    rows = render.table(columns, render.UNLIMITED, colour=False).splitlines()[1:]
    assert [render.columns_of(line.rpartition(" ")[0]) for line in rows] == [9, 9, 9]
    cut = render.table([Column("N", names, narrow=4), Column("G", ["1"] * 3)], 8, colour=False)
    assert [render.columns_of(line) for line in cut.splitlines()[1:]] == [8, 8, 8]
    assert cut.splitlines()[1] == "模型…  1"
    padded = render.table(
        [Column("N", names, right=False), Column("G", ["1"] * 3)], 99, colour=True
    )
    assert padded.splitlines()[3] == "ascii     1"


def test_cells_cannot_steer_the_terminal() -> None:
    text = render.table([Column("WHY", ["a\x1b[2Jb\nc"])], 80, colour=False)
    assert text == "WHY\na�[2Jb c"
    assert render.printable("plain") == "plain"


def test_states_are_coloured_and_keep_their_width() -> None:
    columns = [Column("STATE", ["running", "odd"], coloured=True), Column("J", ["a", "b"])]
    text = render.table(columns, 80, colour=True)
    assert text.splitlines()[1] == "\x1b[32mrunning\x1b[0m  a"
    assert text.splitlines()[2] == "odd      b"
    assert render.state_text("failed", colour=True) == "\x1b[31mfailed\x1b[0m"
    assert render.state_text("failed", colour=False) == "failed"
    assert render.state_text("odd", colour=True) == "odd"


class Terminal(io.StringIO):
    """A stream that says a person looks at it, over the terminal of a descriptor."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor


def test_width_and_colour_follow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert render.terminal_width(io.StringIO()) == render.UNLIMITED
    assert not render.colour_wanted(io.StringIO())
    closed = io.StringIO()
    closed.close()
    assert not render.is_terminal(closed)
    assert not render.is_terminal(object())
    ours, theirs = os.openpty()
    try:
        terminal = Terminal(theirs)
        assert render.terminal_width(terminal) == 80
        monkeypatch.setenv("COLUMNS", "132")
        assert render.terminal_width(terminal) == 132
        assert render.colour_wanted(terminal)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not render.colour_wanted(terminal)
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "dumb")
        assert not render.colour_wanted(terminal)
        monkeypatch.delenv("COLUMNS")
        assert render.terminal_width(Terminal(10_000)) == 80
    finally:
        os.close(ours)
        os.close(theirs)
