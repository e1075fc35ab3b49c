"""What is wrong with a spec, in one line."""

from __future__ import annotations

from typing import Any

from skep_services.cli.render import printable


def problem_text(problem: dict[str, Any]) -> str:
    """Return one line about something wrong with a spec."""
    text = f"{problem.get('path', '$')}: {problem.get('text', '')}"
    if problem.get("reason"):
        text += f" ({problem['reason']})"
    if problem.get("suggestion"):
        text += f": {problem['suggestion']}"
    return printable(text)
