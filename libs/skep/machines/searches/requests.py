"""What requests for searches and for services have in common, and the keys of their jobs."""

from __future__ import annotations

from skep.access.rights import Ruling
from skep.wire import subjects
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchRequest
from skep.wire.spec import Problem

KEY_CHARACTERS_MAX = 256
DIGITS_MAX = 17
PASSING = (Reason.TOO_MANY_JOBS, Reason.OVER_QUOTA)
"""Refusals that depend on what else the VC runs: the job is submitted again."""


def ruled_out(ruling: Ruling) -> Problem | None:
    """Return the problem that a ruling is, or None if it permits."""
    if ruling:
        return None
    assert ruling.reason is not None, ruling
    return Problem(path="$", reason=ruling.reason, text=ruling.text)


def begin_problem(event: SearchRequest, ruling: Ruling, vc: str) -> Problem | None:
    """Return why nothing may begin by a request, or None.

    Args:
        event: The request.
        ruling: Whether its person may.
        vc: The VC in its spec.
    """
    forbidden = ruled_out(ruling)
    if forbidden is not None:
        return forbidden
    if vc != event.vc:
        text = f"published for `{event.vc}`, and for `{vc}`"
        return Problem(path="$.spec.vc", reason=Reason.WRONG_VC, text=text)
    if len(event.key) > KEY_CHARACTERS_MAX or not event.key.isprintable():
        return Problem(
            path=f"header {subjects.KEY_HEADER}",
            reason=Reason.BAD_VALUE,
            text=f"a key has at most {KEY_CHARACTERS_MAX} printable characters",
        )
    return None


def whole_number(text: str) -> int:
    """Return the number that a text is; 0 if it is none, or has too many digits."""
    fits = len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if fits else 0


def by_key(key: str, prefix: str) -> tuple[str, int, int]:
    """Return whose job a key is: a search or service, its trial or replica, and the try.

    Args:
        key: What the job was submitted with.
        prefix: What all keys of the kind begin with. Any other key: nothing, 0 and 0.
    """
    parts = key.removeprefix(prefix).split("/")
    if not key.startswith(prefix) or len(parts) != 3:
        return "", 0, 0
    return parts[0], whole_number(parts[1]), whole_number(parts[2])
