"""What a command in a job printed, kept in memory up to a bound."""

from __future__ import annotations

from typing import Any

from skep_services.cli import session

CAPTURED_BYTES_MAX = 8 * 1024 * 1024
"""What `exec --json` keeps of each output; what is beyond it is counted."""


class Captured:
    """What a command printed, for JSON."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._kept = {session.STDOUT: bytearray(), session.STDERR: bytearray()}
        self._sizes = {session.STDOUT: 0, session.STDERR: 0}

    def write(self, number: int, data: bytes) -> int:
        """Keep some output; return how much of it was taken."""
        room = CAPTURED_BYTES_MAX - len(self._kept[number])
        self._kept[number] += data[:room]
        self._sizes[number] += len(data)
        return len(data)

    def told(self) -> dict[str, Any]:
        """Return it as it is printed."""
        names = {session.STDOUT: "stdout", session.STDERR: "stderr"}
        return {
            **{names[each]: kept.decode("utf-8", "replace") for each, kept in self._kept.items()},
            "cut_bytes": sum(self._sizes[each] - len(kept) for each, kept in self._kept.items()),
        }
