"""Lengths of time as people write them."""

from __future__ import annotations

import re

TIME = re.compile(r"(\d+)(s|m|h|d)")
TIME_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def time_s(value: int | str) -> int | None:
    """Return a time limit in seconds, or None if the text is not one.

    Args:
        value: Seconds, or text such as `90s`, `15m`, `2h`, `1d`.
    """
    if isinstance(value, int):
        return value
    match = TIME.fullmatch(value.strip())
    return int(match[1]) * TIME_UNITS_S[match[2]] if match and len(match[1]) < 12 else None
