"""What a member does for a change before its step: connect, claim its seat, tell the layout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from skep_job.elastic_round import Plan, Round, StoreLost


class Preparing:
    """What a member does for a change before its step: connect, claim its seat, tell the layout."""

    def __init__(self, plan: Plan, prefix: str, patience_s: float) -> None:
        self.plan = plan
        self.said = False
        self._prefix = prefix
        self._patience_s = patience_s
        self._round: Round | None = None
        self._error: StoreLost | None = None
        self._connected = threading.Event()

    def connect(self) -> None:
        """Connect on a thread of its own: neither the training nor the reports wait for it.

        Nor a daemon: the interpreter waits for it at its end, since a thread that comes back from
        PyTorch's C++ when there is no interpreter left takes the process down.
        """
        threading.Thread(target=self._connect, name="skep-rescale", daemon=False).start()

    def say(self, old_rank: int, layout: Callable[[], str]) -> None:
        """Claim the seat; the member of rank 0 tells the layout of the state too."""
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
        """Return the connected round, everything said. Raises StoreLost."""
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

        def vote() -> None:
            with contextlib.suppress(StoreLost):  # Then there can be no commit either.
                Round(self.plan, self._prefix, self._patience_s).refuse(why)

        threading.Thread(target=vote, name="skep-refuse", daemon=False).start()

    def _connect(self) -> None:
        try:
            self._round = Round(self.plan, self._prefix, self._patience_s)
        except StoreLost as error:
            self._error = error
        finally:
            self._connected.set()
