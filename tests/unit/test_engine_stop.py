"""What ends simulations in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from skep_services.engines.stop import SIGNALS, Stop


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put the handlers of this process back."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_for_the_end(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop().on_interrupt() as stop:
        os.kill(os.getpid(), number)
        assert stop.asked
        assert signal.getsignal(number) is before, "the second one ends it at once"


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    """`nohup skep sim ...` goes on when its terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop().on_interrupt() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.asked
