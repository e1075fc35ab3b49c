"""Exit codes, and the one exception that carries them to the top."""

from __future__ import annotations

from typing import Any

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
UNREACHABLE = 4
TIMEOUT = 5
INTERRUPTED = 130

HELP = """exit codes:
  0    done; for `wait` and `run`: every job succeeded
  1    a job failed, was cancelled or refused; for `doctor`: something is wrong
  2    the command line is wrong
  3    no such job, node or virtual cluster
  4    the cluster cannot be reached
  5    not within the time given
  130  interrupted"""


class CommandError(Exception):
    """Why a command ends early: exit code, text for people, and the error for `--json`.

    Args:
        code: The exit code.
        text: What is wrong, where, and what to do; it may have several lines.
        reason: What programs know the error by; empty: what the exit code is called.
        more: Further keys of the error for `--json`.
    """

    def __init__(self, code: int, text: str, reason: str = "", **more: Any) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.error: dict[str, Any] = {"reason": reason or _REASONS[code], "text": text, **more}


_REASONS = {
    FAILED: "failed",
    USAGE: "usage",
    NOT_FOUND: "not-found",
    UNREACHABLE: "unreachable",
    TIMEOUT: "timeout",
    INTERRUPTED: "interrupted",
}
