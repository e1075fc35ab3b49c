"""What an experiment consists of, and the lines of its report."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any, NamedTuple


class Line(NamedTuple):
    """One figure to compare: what it is, the paper's value, ours for every seed, and its unit."""

    what: str
    paper: str
    ours: list[float]
    unit: str = ""
    note: str = ""

    def spread(self) -> str:
        """Return mean, standard deviation and range over seeds, as text."""
        if not self.ours:
            return "-"
        deviation = stdev(self.ours) if len(self.ours) > 1 else 0.0
        low, high = min(self.ours), max(self.ours)
        return f"{fmean(self.ours):.3g} ± {deviation:.2g} ({low:.3g} to {high:.3g}){self.unit}"


Results = dict[str, list[Any]]
"""By the setting's label, in the order of seeds; all of one kind in an experiment."""


class Experiment(NamedTuple):
    """One of the paper's figures."""

    name: str
    title: str
    source: str
    settings: Callable[[float | None], list[Any]]
    """By days of submissions; None: a week if there are cells, else the whole two months."""
    lines: Callable[[Results], list[Line]]
    about: str = ""
    needs: str = ""
    """The public table of measurements that its settings need, if any."""
