"""What a gateway and the process of a replay tell one another, as lines of JSON."""

from __future__ import annotations

from typing import Any

import msgspec


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A span (Unix ns), and the policies of VCs that are to be others: name and options."""

    since: int
    until: int
    policies: dict[str, tuple[str, dict[str, Any]]]


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far it is: thousandths of a phase."""

    phase: str
    part: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """What came of it, as `answers.ReplayOutcome` has it."""

    outcome: dict[str, Any]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Why there is no outcome."""

    reason: str
    text: str


Said = Progress | Done | Failed
