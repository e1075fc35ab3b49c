"""One thing that `skep doctor` looked at, and how it is."""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"
CLOCK_SKEW_S_MAX = 2.0


class Check(NamedTuple):
    """One thing looked at. `todo` says what to do; it is empty where nothing is wrong."""

    name: str
    level: str
    text: str
    todo: str = ""
