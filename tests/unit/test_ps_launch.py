"""What keeps the coordinator and the servers of a rank."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest

from skep_ps import launch
from skep_ps.launch import Children

LASTS_S = 60.0


def test_a_signal_that_does_not_wake_a_waiting_rank_is_handled_all_the_same() -> None:
    """As when it comes after the interpreter's last look for signals and before the wait."""
    children, over = Children(), threading.Event()

    class Told(Exception):  # noqa: N818
        pass

    def handler(*_: object) -> None:
        raise Told

    def tell() -> None:  # To this thread itself, so that the one that waits sleeps on.
        while not coordinator.waited_for.is_set():
            os.sched_yield()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    coordinator = Watched(over)
    children._threads.append(coordinator)
    before = signal.signal(signal.SIGUSR1, handler)
    telling = threading.Thread(target=tell)
    try:
        coordinator.start()
        telling.start()
        with pytest.raises(Told):
            children.wait()
        assert not coordinator.ended.is_set(), "the signal was seen only then"
    finally:
        signal.signal(signal.SIGUSR1, before)
        over.set()
        telling.join()


def test_a_process_whose_start_a_signal_comes_into_is_ended_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler runs before anybody knows of the process, and nobody lives on to end it later."""
    story: list[str] = []

    class Started:
        def __init__(self, argv: list[str], **_: object) -> None:
            if not story:
                story.append("signal")
                signal.raise_signal(signal.SIGUSR1)
                story.append("started")

        def terminate(self) -> None:
            story.append("terminated")

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(os, "kill", lambda *_: story.append("killed"))
    children = Children()
    before = signal.signal(signal.SIGUSR1, lambda number, _: launch._stop(children, number))
    try:
        children.start()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert story == ["signal", "started", "terminated", "killed"]
    over = Children()
    over.end()
    over.start()
    assert story[4:] == ["terminated"], "it came after the end"


class Watched(threading.Thread):
    """Lasts until it is over, and says when somebody waits for it."""

    def __init__(self, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._over = over
        self.waited_for, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        self._over.wait(LASTS_S)
        self.ended.set()

    def join(self, timeout: float | None = None) -> None:
        self.waited_for.set()
        super().join(timeout)
