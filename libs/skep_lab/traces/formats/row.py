"""Read one row of a table by column; an error names the column and the value."""

from __future__ import annotations

import math
from datetime import datetime
from difflib import get_close_matches

from skep_lab.traces.job import RowProblem

NUMBER_MAX = 1e15
"""A larger number is a mistake: as seconds, 30 million years."""
NO_GPU = "a job that needs none is not simulated"
# tidy: allow word because messages about traces keep their text
WHOLE = "GPUs are whole here; who shares one is for a policy to say"


class RowError(Exception):
    """Why a row is no job. `text` begins alike for all problems of a kind, up to a colon."""

    def __init__(self, column: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.column = column
        self.text = text
        self.hint = hint

    def at(self, row: int) -> RowProblem:
        """Return the problem of this row."""
        return RowProblem(row, self.text, self.column, self.hint)


class Row:
    """The values of a row by column. Every method raises RowError for a value that does not fit."""

    __slots__ = ("number", "values")

    def __init__(self, number: int, values: dict[str, str]) -> None:
        self.number = number
        self.values = values

    def has(self, column: str) -> bool:
        """Return whether the row has a value in a column."""
        return self.values.get(column, "").strip() not in ("", "nan", "NaN", "None")

    def text(self, column: str) -> str:
        """Return the value of a column without surrounding blanks; "" if the column is missing."""
        return self.values.get(column, "").strip()

    def number_of(self, column: str, least: float = 0.0) -> float:
        """Return a finite number.

        Args:
            column: Its name.
            least: The smallest valid number.

        Raises:
            RowError: The value is empty, no number, not finite, too large or too small.
        """
        text = self.text(column)
        if not text:
            raise RowError(column, "is empty")
        try:
            value = float(text)
        except ValueError:
            raise RowError(column, f"is not a number: {text[:40]!r}") from None
        if not math.isfinite(value):
            raise RowError(column, f"is not finite: {text[:40]!r}")
        if value > NUMBER_MAX:
            raise RowError(column, f"is too large: {text[:40]}")
        if value < least:
            negative = value < 0 <= least
            raise RowError(column, f"is negative: {text}" if negative else f"is too small: {text}")
        return value

    def whole(self, column: str, least: int = 0) -> int:
        """Return a whole number; 3.0 is one.

        Args:
            column: Its name.
            least: The smallest valid number.

        Raises:
            RowError: The value is no such number.
        """
        value = self.number_of(column, least)
        if value != int(value):
            raise RowError(column, f"is not a whole number: {self.text(column)}")
        return int(value)

    def whole_or_none(self, column: str) -> int:
        """Return a whole number; 0 if the column is empty.

        Args:
            column: Its name.

        Raises:
            RowError: The value is no whole number.
        """
        return self.whole(column) if self.has(column) else 0

    def gpus(self, column: str) -> int:
        """Return a number of GPUs: whole, and at least 1.

        Args:
            column: Its name.

        Raises:
            RowError: The value is no such number.
        """
        value = self.number_of(column)
        if value == 0:
            raise RowError(column, "asks for no GPU", NO_GPU)
        if value != int(value):
            raise RowError(column, f"asks for a fraction of a GPU: {self.text(column)}", WHOLE)
        return int(value)

    def wall(self, column: str) -> float:
        """Return the seconds of a wall clock such as 2017-10-09 07:01:55, read as UTC.

        Such traces contain local time of an unnamed zone: days are 24 h long, and the hour that a
        change of summer time repeats or skips is not corrected.

        Args:
            column: Its name.

        Raises:
            RowError: The value is no such time.
        """
        text = self.text(column)
        if not text:
            raise RowError(column, "is empty")
        try:
            return datetime.fromisoformat(text + "+00:00").timestamp()
        except ValueError:
            raise RowError(column, f"is not a time: {text[:40]!r}", "2017-10-09 07:01:55") from None


def near(word: str, words: list[str]) -> str:
    """Return "did you mean X?" for the nearest of some words; "" if none is near.

    Args:
        word: What was given.
        words: What exists.
    """
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""
