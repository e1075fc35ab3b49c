"""Stops the training at a mini-batch boundary, keeps it there, and lets it go on.

    running --suspend at its boundary--> suspended --release--> released
    suspended | released --resume, state back--> running

A job that is suspended keeps its state where it is. One that is released has it in the host's
memory, and where that is not possible stays suspended and says why. What comes to the process
meanwhile is dealt with so that no code meets an empty tensor: while the state is moved, the
handlers of signals wait, and while it is away, it is taken back before the handler runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from skep_job.devices.device_binding import Place, numbers
from skep_job.devices.memory_share import MemoryShare
from skep_job.link.orders import Control, Lost, Message
from skep_job.observe.step_counter import Tally

if TYPE_CHECKING:
    from skep_job.devices.memory_release import Store

AGAIN_S = 1.0
"""Pause between attempts to take the state back when no agent is left who would ask for it."""


DRIVER = "libcuda.so"


class _Nothing:
    """The state of a script without PyTorch and without a device: it is where it was."""

    moved = 0

    def take_back(self) -> None:
        """Do nothing."""

    def peek(self, storage: object) -> object:
        """Return what is asked for: nothing is away."""
        return storage

    def residue(self) -> int:
        """Return 0."""
        return 0


def _release(limit: int | None) -> Store:
    if "torch" not in sys.modules:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            if any(DRIVER in line for line in maps):
                reason = "the script uses a device without PyTorch: nothing is known of its state"
                raise RuntimeError(reason)
        return _Nothing()
    # Imported when it is needed: most processes that are observed never release anything.
    from skep_job.devices.memory_release import release

    return release(sys.modules["torch"], limit)


class Suspender:
    """Does the agent's suspend, release and resume in one process."""

    def __init__(
        self,
        tally: Tally,
        control: Control,
        host_bytes: int | None = None,
        release: Callable[[int | None], Store] = _release,
        share: MemoryShare | None = None,
    ) -> None:
        """Take no order yet.

        Args:
            tally: Pauses are taken out of its durations.
            control: The orders of the agent.
            host_bytes: What `release` may put into the host's memory; None: no bound.
            release: It moves the state into at most so many bytes of the host's memory.
            share: The share of the devices' memory; None: all of it.
        """
        self._share = share or MemoryShare({})
        self._tally = tally
        self._control = control
        self._host_bytes = host_bytes
        self._move_away = release
        self._place = Place(os.environ)
        self._store: Store | None = None
        self._limit: int | None = None
        self._guard = _SignalGuard(self._bring_back, control.let_pass)

    def install(self) -> None:
        """Take the agent's orders from here on."""
        self._control.on("suspend", self._suspend)
        self._control.on("resume", self._go_elsewhere)
        self._control.peek = self._peek
        self._control.at_once("resume", self._resume_running)
        self._control.at_once("release", self._refuse_running)

    def can(self) -> list[str]:
        """Return the names of what can be done with this process at its boundaries."""
        return ["suspend", "release", *(["rebind"] if self._place.movable() else [])]

    # --- on the reporter's thread ------------------------------------------------------------

    def _resume_running(self, message: Message) -> object:
        devices = numbers(message.get("devices")) or self._place.devices
        if self._control.stands or devices != self._place.devices:
            return False
        step = self._tally.reached()
        self._control.say("resumed", order=message["order"], step=step, pause_ns=0)
        return True

    def _refuse_running(self, message: Message) -> object:
        if self._control.stands:
            return False
        self._control.fail(message, "not suspended")
        return True

    # --- on the training thread ----------------------------------------------------------------

    def _go_elsewhere(self, message: Message) -> None:
        """Go on with other devices, though no order holds the job any more: a signal ended it."""
        self._place.enter(numbers(message.get("devices")), numbers(message.get("cpus")))
        self._control.say("resumed", order=message["order"], step=self._control.step, pause_ns=0)

    def _suspend(self, message: Message) -> None:
        control, since_ns = self._control, time.monotonic_ns()
        self._guard.install()
        control.say("suspended", order=message["order"], step=control.step)
        try:
            message = self._stay()
        except Lost:
            self._take_back_alone()
            raise
        finally:
            # Also if a signal's handler raised: whatever comes of that, the job does not stand.
            self._guard.remove()
            pause_ns = time.monotonic_ns() - since_ns
            self._tally.pass_over(pause_ns)
            control.say("resumed", order=message["order"], step=control.step, pause_ns=pause_ns)
        self._guard.run_deferred()

    def _stay(self) -> Message:
        """Do what is asked while the training stands; return the order to go on, once done."""
        while True:
            message = self._control.wait("suspend", "release", "resume")
            if message["type"] == "release":
                self._release(message)
            elif message["type"] == "suspend":
                step = self._control.step
                self._control.say("suspended", order=message["order"], step=step)
            elif self._go_on(message):
                return message

    def _go_on(self, message: Message) -> bool:
        """Take the state back, on other devices if the agent names them."""
        devices, cpus = numbers(message.get("devices")), numbers(message.get("cpus"))
        try:
            with self._guard.moving():
                self._take_back(devices, cpus)
        except Exception as error:  # No memory on the device, most likely: it may be asked again.
            self._control.fail(message, error)
            self._guard.run_deferred()
            return False
        return True

    def _release(self, message: Message) -> None:
        if self._store is None:
            told = message.get("max_bytes")
            self._limit = told if isinstance(told, int) else self._host_bytes
            try:
                with self._guard.moving():
                    self._store = self._move_away(self._limit)
                    self._share.away()
            except Exception as error:
                self._control.fail(message, error)
                self._guard.run_deferred()
                return
        store = self._store
        order = message["order"]
        self._control.say("released", order=order, moved=store.moved, residue=store.residue())
        self._guard.run_deferred()

    def _peek(self, storage: object) -> object:
        if self._store is None:
            reason = "the state is where the script has it"
            raise RuntimeError(reason)
        return self._store.peek(storage)

    def _take_back(self, devices: tuple[int, ...] = (), cpus: tuple[int, ...] = ()) -> None:
        undo = self._place.enter(devices, cpus)
        if self._store is None:
            return
        try:
            with self._share.taking_back():
                self._store.take_back()
        except BaseException:
            undo()
            raise
        self._store = None

    def _bring_back(self) -> Callable[[], None]:
        """Have the state where the script expects it; return what undoes that."""
        if self._store is None:
            return _nothing
        self._take_back()
        return self._release_again

    def _release_again(self) -> None:
        try:
            self._store = self._move_away(self._limit)
            self._share.away()
        except Exception:  # noqa: S110
            pass  # It stays where it is usable.

    def _take_back_alone(self) -> None:
        """Take the state back without an agent, as soon as there is room for it."""
        while True:
            try:
                self._take_back()
            except Exception:
                time.sleep(AGAIN_S)  # Going on without the state would end the job.
            else:
                return


class _SignalGuard:
    """Keeps the script's signal handlers from running while its tensors are empty.

    Works on the main thread, on which alone Python runs such handlers. What they raise is the
    script's, wherever in this package it comes up: `let_pass` is told of it.
    """

    def __init__(
        self,
        bring_back: Callable[[], Callable[[], None]],
        let_pass: Callable[[BaseException], None],
    ) -> None:
        self._bring_back = bring_back
        self._let_pass = let_pass
        self._handlers: dict[int, Any] = {}
        self._deferred: list[int] = []
        self._moving = 0

    def install(self) -> None:
        """Stand before every handler that is written in Python."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and number not in self._handlers:
                self._handlers[number] = handler
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Give the handlers their places back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def moving(self) -> _SignalGuard:
        """Defer what arrives within `with`."""
        return self

    def __enter__(self) -> None:
        self._moving += 1

    def __exit__(self, *_: object) -> None:
        self._moving -= 1

    def run_deferred(self) -> None:
        """Run the handlers of what arrived while the state was moved."""
        deferred, self._deferred = self._deferred, []
        for number in deferred:
            signal.raise_signal(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._moving:
            self._deferred.append(number)
            return
        try:
            with self.moving():
                put_away = self._bring_back()
        except Exception:  # There is no room: the handler has to wait for the resume.
            self._deferred.append(number)
            return
        try:
            self._handlers[number](number, frame)
        except BaseException as error:
            self._let_pass(error)
            raise
        with self.moving():
            put_away()
        self.run_deferred()


def _nothing() -> None:
    pass
