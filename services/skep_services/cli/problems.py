"""What is wrong with a spec, in one line."""

from __future__ import annotations

from typing import Any

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.render import printable
from skep_services.documents import Document


def problem_text(problem: dict[str, Any]) -> str:
    """Return one line about something wrong with a spec."""
    text = f"{problem.get('path', '$')}: {problem.get('text', '')}"
    if problem.get("reason"):
        text += f" ({problem['reason']})"
    if problem.get("suggestion"):
        text += f": {problem['suggestion']}"
    return printable(text)


def refuse_wrong(document: Document, read: Any, what: str) -> None:
    """Refuse a spec that was read with problems.

    Args:
        document: The spec.
        read: What its parser returned: the spec, or the list of its problems.
        what: What it is a spec of.

    Raises:
        CommandError: It has problems; the error has every one.
    """
    if not isinstance(read, list):
        return
    found = [
        {
            "path": each.path,
            "reason": str(each.reason),
            "text": each.text,
            "suggestion": each.suggestion,
        }
        for each in read
    ]
    lines = [f"{document.where(each['path'])}: {problem_text(each)}" for each in found]
    text = "\n  ".join([f"nothing was submitted, because the {what} is wrong:", *lines])
    raise CommandError(exits.FAILED, text, found[0]["reason"], problems=found)
