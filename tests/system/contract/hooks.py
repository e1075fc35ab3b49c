"""What Schemathesis does before each request (SCHEMATHESIS_HOOKS)."""

from __future__ import annotations

from typing import Any

import schemathesis


def before_call(context: Any, case: Any, _: dict[str, Any]) -> None:
    """Have no request go on for ever, or wait."""
    del context
    query = case.query or {}
    if "follow" in query and str(query["follow"]) == "1":
        query["follow"] = 0
    if "wait" in query:
        query["timeout_s"] = 0


schemathesis.hook(before_call)
