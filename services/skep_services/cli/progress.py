"""How far runs are and how long they may still take, on one line of a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from skep_services.cli import render

BAR = 24
MIB = 1024 * 1024
TOLD_PART = 0.01
"""What has to be done before the length of the rest is guessed."""


class Progress:
    """The line. Without a terminal at standard error nothing is ever said."""

    def __init__(self, labels: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Start counting now; a label for each run."""
        self.labels = labels
        self.shown = render.is_terminal(sys.stderr)
        self.clock = clock
        self.began = clock()
        self.width = 0

    def tell(self, done: Sequence[float]) -> None:
        """Show how far each run is, 0 to 1."""
        if self.shown:
            line = self.line(done)[: render.terminal_width(sys.stderr) - 1]
            sys.stderr.write("\r" + line.ljust(self.width))
            sys.stderr.flush()
            self.width = len(line)

    def line(self, done: Sequence[float]) -> str:
        """Return the line: a bar, the part that is done, the time it may take, runs under way."""
        part = sum(done) / max(len(done), 1)
        passed = self.passed_s()
        left = f"{time_text(passed)} so far"
        if part > TOLD_PART:
            left = f"about {time_text(passed * (1 / part - 1))} left"
        bar = ("█" * round(part * BAR)).ljust(BAR, "·")
        over = sum(each >= 1 for each in done)
        runs = f"{over} of {render.plural(len(done), 'run')} done"
        each = zip(self.labels, done, strict=True)
        going = ", ".join(f"{label} {part:.0%}" for label, part in each if 0 < part < 1)
        return f"{bar} {part:4.0%}  {left}  {runs}" + (f": {going}" if going else "")

    def passed_s(self) -> float:
        """Return the seconds since the beginning."""
        return self.clock() - self.began

    def say(self, text: str) -> None:
        """Tell a person something in place of the line, which comes again below."""
        self.end()
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the line away."""
        if self.shown and self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()


class Transfer:
    """How much of something has been sent or copied. Without a terminal nothing is ever said."""

    def __init__(self, what: str) -> None:
        """Begin to tell of `what`, such as `sending code`."""
        self._what = what
        self._shown = render.is_terminal(sys.stderr)
        self._width = 0

    def tell(self, done: int, total: int) -> None:
        """Show how many of the bytes are done."""
        if self._shown:
            text = f"{self._what}: {done / MIB:.0f} of {total / MIB:.0f} MiB"
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()
            self._width = len(text)

    def end(self) -> None:
        """Take the line away."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()


def time_text(length_s: float) -> str:
    """Return a number of seconds as people say it."""
    return render.duration(round(length_s * 1e9))
