"""The lines of an output in which a text occurs, as JSON lines that a reader can go on from.

The text is plain: no pattern, so none that takes for ever. A line that is longer than
LINE_BYTES_MAX is looked at in pieces of that length.
"""

from __future__ import annotations

from collections import deque

from skep.wire import codec

LINE_BYTES_MAX = 64 * 1024
TEXT_CHARS_MAX = 256
LINES_MAX = 100_000
"""Last lines that may be asked for."""
KEPT_BYTES_MAX = 8 * 1024 * 1024
"""The last matching lines are kept while the output is read; beyond this the oldest go."""
TOLD_EVERY_BYTES = 1024 * 1024
"""Output without a match after which a reader is told how far it has come."""


class Lines:
    """Chooses lines.

    Args:
        text: What must occur in them; empty: nothing, every line is chosen.
        offset: Where the output begins (bytes).
        any_case: Capitals and small letters are alike.
    """

    def __init__(self, text: str, offset: int, *, any_case: bool = False) -> None:
        self._any_case = any_case
        self._text = self._folded(text.encode("utf-8", "surrogateescape"))
        self._rest = b""
        self.offset = offset
        """Behind the last whole line: where a reader goes on."""
        self._told = offset

    def _folded(self, raw: bytes) -> bytes:
        if not self._any_case:
            return raw
        return raw.decode("utf-8", "replace").casefold().encode()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the whole lines that a piece completes and that are chosen."""
        *lines, rest = (self._rest + piece).split(b"\n")
        whole = [line + b"\n" for line in lines]
        while len(rest) >= LINE_BYTES_MAX:
            whole.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._rest = rest
        self.offset += sum(map(len, whole))
        return [line for line in whole if self._text in self._folded(line)]

    def end(self) -> list[bytes]:
        """Return the last line, which has no end, if it is chosen; the next output begins at 0."""
        last, self._rest, self.offset, self._told = self._rest, b"", 0, 0
        return [last] if last and self._text in self._folded(last) else []

    def told(self, lines: list[bytes]) -> bytes:
        """Return JSON for chosen lines and how far the output was read; empty: nothing to say."""
        if not lines and self.offset - self._told < TOLD_EVERY_BYTES:
            return b""
        self._told = self.offset
        text = b"".join(lines).decode("utf-8", "replace")
        return codec.encode({"offset": self.offset, "text": text}) + b"\n"


class Last:
    """Keeps the last lines.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=count)
        self._bytes = 0

    def take(self, lines: list[bytes]) -> None:
        """Take over further lines."""
        for line in lines:
            if len(self._lines) == self._lines.maxlen and self._lines:
                self._bytes -= len(self._lines[0])
            self._lines.append(line)
            self._bytes += len(line) if self._lines.maxlen else 0
            while self._bytes > KEPT_BYTES_MAX:
                self._bytes -= len(self._lines.popleft())

    def lines(self) -> list[bytes]:
        """Return them."""
        return list(self._lines)
