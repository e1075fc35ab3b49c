"""Whether a person wants the end: asked once, everything ends in order; twice, at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Whether Ctrl-C, or a signal to terminate, came. Once one did everything ends in order."""

    def __init__(self) -> None:
        """Go on until told otherwise."""
        self.asked = False

    @contextlib.contextmanager
    def on_interrupt(self) -> Iterator[Stop]:
        """Have the first signal ask for the end, and a second one end it at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = True
            restore()

        def restore() -> None:
            for each, handler in before.items():
                signal.signal(each, handler)

        heard = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
        before = {number: signal.signal(number, ask) for number in heard}  # `nohup` is heeded.
        try:
            yield self
        finally:
            restore()


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Have processes that begin in here hear no signal to stop, from their first instruction on.

    Ctrl-C and a terminal that is closed reach every process of it, and `timeout` and systemd tell
    all that belong together to terminate: the parent hears it too, and says what to do. It ends
    them by SIGKILL where it must. One that comes meanwhile, it hears when this is over.
    """
    resource_tracker.ensure_running()  # Its start, if it were later, would undo the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
