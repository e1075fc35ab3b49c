"""A finished span, as the decisions tell it to their store and to exporters."""

from __future__ import annotations

from typing import Any

import msgspec

SAMPLED = 1
"""The flag of a traceparent that asks for spans."""


class StoredSpan(msgspec.Struct, frozen=True, gc=False):
    """One finished span as the gateway keeps it; ids in hex, times in wall-clock ns."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
