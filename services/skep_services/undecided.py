"""Messages on which a machine's `decide` raised: noted beside the log, so that a restart goes on.

    decide raises --failed--> process ends --restart--> decide raises --failed--> process ends
                                           --restart--> passed over, counted and reported

A `decide` that raises is a bug, and the machine's state may be changed by half, so the process ends
and is rebuilt from its facts. But a message of a stream is read again at each start. Without this
note it would end the service for ever. A message gets ATTEMPTS_MAX attempts: the first failure may
have come from soft state that a restart forgets.

A message of a stream is known by its place. A core message has none, and may be sent again each
second: it is known by its class and its sender, which is not heard for QUIET.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from skep.units import Instant, seconds
from skep_services import durable

ATTEMPTS_MAX = 2
"""Attempts that a message gets: one with the state as it was, one with the state a restart has."""
QUIET = seconds(600.0)
"""How long a sender of core messages is not heard: it costs two restarts in ten minutes."""
KEPT_MAX = 1000
"""Messages remembered, the latest: an advisor reads the whole history at each start."""
TEXT_CHARACTERS_MAX = 500


class UndecidedError(Exception):
    """`decide` raised on a message from outside. This process must start anew."""


class Failure(msgspec.Struct, omit_defaults=True):
    """A message on which `decide` raised: how often, and at last when and why."""

    event: str
    error: str
    attempts: int = 0
    at: Instant = Instant(0)
    passed: bool = False
    """It was passed over at least once."""


class Undecided:
    """The failures noted in the file at `path`."""

    def __init__(self, path: Path) -> None:
        """Read the file; one that is missing or damaged says nothing."""
        self.path = path
        self.failures: dict[str, Failure] = {}
        try:
            self.failures = msgspec.json.decode(path.read_bytes(), type=dict[str, Failure])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            pass  # It is made of what fails from here on.

    def failed(self, key: str, event: Any, error: Exception, now: Instant) -> Failure:
        """Note durably that `decide` raised, and return what is known of that message.

        A file that cannot be written costs further restarts, nothing else.
        """
        known = self.failures.pop(key, None)
        failure = Failure(
            event=type(event).__name__,
            error=_text(error),
            at=now,
            attempts=known.attempts + 1 if known is not None else 1,
        )
        self.failures[key] = failure
        for old in list(self.failures)[: max(0, len(self.failures) - KEPT_MAX)]:
            del self.failures[old]
        try:
            durable.write(os.fspath(self.path), msgspec.json.encode(self.failures))
        except OSError:
            pass
        return failure

    def passes(self, key: str, now: Instant) -> Failure | None:
        """Return why a message is not to be decided any more, or None if it is."""
        failure = self.failures.get(key) if self.failures else None
        if failure is None or failure.attempts < ATTEMPTS_MAX:
            return None
        if not _has_place(key) and now - failure.at > QUIET:
            return None
        failure.passed = True
        return failure


def place(stream: str, sequence: int, part: int) -> str:
    """Return the key of a message of a stream, or of a fact of it."""
    return f"{stream}/{sequence}/{part}"


def sender(event: Any) -> str:
    """Return the key of core messages: their class and their sender."""
    said = getattr(event, "message", event)
    sender = "/".join(
        str(getattr(said, name))
        for name in ("node", "job", "attempt", "rank")
        if hasattr(said, name)
    )
    return f"{type(event).__name__} {sender}"


def _has_place(key: str) -> bool:
    return " " not in key


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:TEXT_CHARACTERS_MAX]
