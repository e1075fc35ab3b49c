"""How far a log is known to reach, remembered outside it: a log cut short looks whole from within.

Counter and hash chain show a gap, but every beginning of a log is itself a valid log, and a bus
server that finds damage on its disk may drop everything behind it. So each owner notes, in its own
state folder, the last record it knows to be stored. The note is not synced: what it loses in a
power failure only makes it say less.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

NOTE = re.compile(rb"(\d{20}) ([0-9a-f]{64})\n")


class LogEnd:
    """The note at `path`: a record's sequence and hash."""

    def __init__(self, path: Path) -> None:
        """Read it; one that is missing or torn says nothing."""
        self.path = path
        self.sequence, self.hash = 0, ""
        try:
            match = NOTE.fullmatch(path.read_bytes())
        except OSError:
            match = None
        if match is not None:
            self.sequence, self.hash = int(match[1]), match[2].decode()

    def note(self, sequence: int, digest: str) -> None:
        """Remember that the record at `sequence` is stored."""
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, b"%020d %s\n" % (sequence, digest.encode()), 0)
            finally:
                os.close(file)
        except OSError:
            pass  # A full disk: the log itself is elsewhere, and the note only says less.

    def contradicts(self, sequence: int, digest: str) -> str:
        """Return what is wrong with a log that has this record, in words; empty if nothing is."""
        if sequence == self.sequence and digest != self.hash:
            return f"its record {sequence} is another than the one that was stored there"
        return ""

    def missing(self, sequence: int) -> str:
        """Return what is wrong with a log that ends here, in words; empty if nothing is."""
        if sequence >= self.sequence:
            return ""
        return f"it ends at sequence {sequence}, and {self.sequence} was stored"
