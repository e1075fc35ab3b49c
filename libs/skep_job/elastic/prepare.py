"""What a member does for a change before its step: connect, claim its seat, tell the layout."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from skep_job.elastic.agreement import COMMIT, Plan, Round, StoreLost

EVERYBODY_S = 120.0
"""How long members that train on wait for all to be there. Everybody is ready, so that it takes
until the slowest agent has heard of it."""
LOOK_S = 0.5
"""How often who waits looks whether the change was withdrawn."""
MARGIN = 2
MARGIN_S = 0.5
"""Mini-batches, and those of so much time, by which the step lies ahead: answers of the store take
milliseconds, on a machine that is far too busy a few hundred."""


class Preparing:
    """What a member does for a change before its step: connect, claim its seat, tell the layout."""

    def __init__(self, plan: Plan, prefix: str, patience_s: float) -> None:
        self.plan = plan
        self.said = False
        self.step = plan.step
        """The step, once it is known."""
        self.failed = ""
        """Why there will be none."""
        self._prefix = prefix
        self._patience_s = patience_s
        self._round: Round | None = None
        self._error: StoreLost | None = None
        self._connected = threading.Event()
        self._off = threading.Event()

    def connect(self) -> None:
        """Connect on a thread of its own: neither the training nor the reports wait for it.

        Nor a daemon: the interpreter waits for it at its end, since a thread that comes back from
        PyTorch's C++ when there is no interpreter left takes the process down.
        """
        threading.Thread(target=self._connect, name="skep-rescale", daemon=False).start()

    def agree(
        self, old_rank: int, old_world: int, counted: Callable[[], int], step_ns: int
    ) -> None:
        """Connect, wait for everybody, and agree on the step, on a thread of its own.

        Args:
            old_rank: The rank in the old gang.
            old_world: How many ranks the old gang has.
            counted: It returns the mini-batches that this member has made, on any thread.
            step_ns: How long a mini-batch takes; 0: that is not known.
        """
        margin = MARGIN + (math.ceil(MARGIN_S * 1e9 / step_ns) if step_ns else 0)

        def work() -> None:
            self._connect()
            try:
                self._agree(old_rank, old_world, counted, margin)
            except StoreLost as error:
                self.failed = f"the store was lost: {error}"

        threading.Thread(target=work, name="skep-agree", daemon=False).start()

    def say(self, old_rank: int, layout: Callable[[], str]) -> None:
        """Claim the seat; the member of rank 0 tells the layout of the state too.

        Args:
            old_rank: The rank in the old gang.
            layout: It returns the layout of the state's tensors, as JSON.
        """
        if not self._connected.is_set():
            return
        self.said = True
        if self._round is None:
            return  # Whoever asks for the result hears why.
        with contextlib.suppress(StoreLost):
            self._round.take_seat(old_rank)
            if old_rank == 0:
                self._round.publish(layout())

    def result(self, old_rank: int, layout: Callable[[], str]) -> Round:
        """Return the connected round, everything said.

        Args:
            old_rank: The rank in the old gang.
            layout: It returns the layout of the state's tensors, as JSON.

        Raises:
            StoreLost: The store is gone or does not answer.
        """
        if not self._connected.wait(self._patience_s):
            reason = f"{self.plan.host}:{self.plan.port} did not answer"
            raise StoreLost(reason)
        if not self.said:
            self.say(old_rank, layout)
        if self._error is not None:
            raise self._error
        assert self._round is not None
        return self._round

    def refuse(self, why: str) -> None:
        """Vote against the change on a connection of its own: the other may be waiting."""
        self._off.set()

        def vote() -> None:
            with contextlib.suppress(StoreLost):  # Then there can be no commit either.
                Round(self.plan, self._prefix, self._patience_s).refuse(why)

        threading.Thread(target=vote, name="skep-refuse", daemon=False).start()

    def end(self) -> None:
        """Have no thread wait any longer: the process ends."""
        self._off.set()

    def _connect(self) -> None:
        try:
            self._round = Round(self.plan, self._prefix, self._patience_s)
        except StoreLost as error:
            self._error = error
        finally:
            self._connected.set()

    def _agree(
        self, old_rank: int, old_world: int, counted: Callable[[], int], margin: int
    ) -> None:
        # A connection of its own: the training thread speaks on the other.
        round_ = Round(self.plan, self._prefix, self._patience_s)
        everybody = self._wait(round_.everybody)
        refused = round_.refused() if everybody else round_.refuse("not everybody was there")
        if refused:
            self.failed = refused
            return
        round_.tell_step(old_rank, counted(), margin)
        step = 0

        def agreed(wait_s: float) -> bool:
            nonlocal step
            step = round_.common_step(old_world, wait_s)
            return step > 0

        if not self._wait(agreed):
            self.failed = round_.refuse("not every member was there to agree on a mini-batch")
            return
        self.step = step
        # Only now: a boundary in between has either seen the step or counted before this.
        if counted() >= step:
            verdict = round_.refuse(f"rank {old_rank} has passed step {step}")
            self.failed = verdict if verdict != COMMIT else ""  # Then it stands at the step.

    def _wait(self, wait: Callable[[float], bool]) -> bool:
        until = time.monotonic() + EVERYBODY_S
        while not wait(LOOK_S):
            ends = self._off.is_set() or not threading.main_thread().is_alive()
            if ends or time.monotonic() >= until:
                return False
        return True
