"""What needs a look: the table of alerts as structs."""

from __future__ import annotations

from typing import Any

import msgspec

from skep_services.gateway.answers import StateList

SEVERITIES = ("critical", "warning", "info")
"""The worst first."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with what it is `about`, since when, and what to do about it.

    `code` is stable. `kind` says what `about` names: job, node, gpu, cell, service or limit. `vc`
    has the virtual clusters that it is of; empty: it is of none.
    """

    alert: str
    code: str
    severity: str
    kind: str
    about: str
    vc: str
    since: int
    text: str
    todo: str


def alerts_of(state: StateList) -> list[Alert]:
    """Return the alerts of a listing, the worst first, of equals the oldest."""
    table = state.tables["alerts"]
    rows: list[dict[str, Any]] = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    # A later version may have more columns, and other severities: those come first.
    found = [msgspec.convert(row, Alert) for row in rows]
    return sorted(found, key=lambda one: (_rank(one.severity), one.since, one.alert))


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1
