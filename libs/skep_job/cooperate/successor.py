"""A process that makes everything ready, gets the state of the one it succeeds, and then trains.

    warming up --ready--> listening --the state, and its source knows--> loaded --resume--> trains
                              ^                                              |
                              +----------- another transfer begins ----------+

It never trains without both: the whole state, and `resume` from its agent.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any, NamedTuple

from skep_job.link.orders import Control, Lost, describe
from skep_job.observe.reporter import complain
from skep_job.state import snapshot, transfer
from skep_job.state.snapshot import place_of


class Whose(NamedTuple):
    """Whose state is awaited."""

    job: str
    attempt: int
    rank: int
    world: int


class Successor:
    """Listens for the state on a thread of its own, while the training thread waits."""

    def __init__(
        self, control: Control, whose: Whose, token: str, tracked: dict[str, Any], host: str = ""
    ) -> None:
        self._control = control
        self._whose, self._token, self._tracked = whose, token, tracked
        self._changing = threading.Lock()  # Held while state comes in, and to begin training.
        self._place: dict[str, Any] | None = None
        self._stopped_at = 0
        self._trains = False
        self.about: dict[str, Any] = {}
        """What the source says of itself, beside its state."""
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def place(self) -> dict[str, Any] | None:
        """Where the training is to go on, or None while the state has not arrived."""
        return self._place

    def wait(self) -> tuple[dict[str, Any], Any, int]:
        """Return the place to go on from, the order to resume, and the pause in nanoseconds.

        Raises:
            SystemExit: The agent is gone, so that the order can never come; the status is 1.
        """
        control = self._control
        with control.standing():
            threading.Thread(target=self._serve, name="skep-successor", daemon=True).start()
            control.say("ready", port=self.port)
            while True:
                try:
                    message = control.wait("resume")
                except Lost:
                    complain("the agent cannot be heard any more, so this successor ends")
                    raise SystemExit(1) from None
                if not self._changing.acquire(blocking=False):
                    control.fail(message, "the state is still on its way")
                    continue
                if self._place is None:
                    self._changing.release()
                    control.fail(message, "no state has arrived")
                    continue
                self._trains = True  # Nothing that still comes in may touch it.
                self._changing.release()
                self._listener.close()
                pause_ns = max(time.time_ns() - self._stopped_at, 0)
                return self._place, message, pause_ns

    def _serve(self) -> None:
        pid = os.getpid()
        while os.getpid() == pid:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return  # Closed: the training has begun.
            with peer, self._changing:
                if self._trains:
                    return
                loaded = self._receive_one(peer)
            # Only now: the agent's `resume` follows at once, and must find nothing going on.
            if loaded is None:
                self._control.say("ready", port=self.port)
            else:
                self._control.say("loaded", step=loaded[0], bytes=loaded[1])

    def _receive_one(self, peer: socket.socket) -> tuple[int, int] | None:
        try:
            return self._receive(transfer.Wire(peer))
        except Exception as error:  # The next one may do better.
            complain(f"the state has not arrived: {describe(error)}")
            return None

    def _receive(self, wire: transfer.Wire) -> tuple[int, int]:
        """Take the state in; return its mini-batch and bytes.

        Whatever goes wrong is raised, and unless the connection failed the source is told of it.

        Raises:
            Broken: The other side is not the source, what it sent does not fit, or it did not take
                note that the state is loaded.
            OSError: The connection failed.
        """
        wire.prove(self._token, "successor", "source")
        self._place = None
        try:
            place, about, moved = self._load(wire)
        except OSError:
            raise
        except Exception as error:
            wire.send({"loaded": False, "error": describe(error)})
            raise
        wire.send({"loaded": True})
        if not wire.receive().get("taken"):
            reason = "the source did not take note"
            raise transfer.Broken(reason)
        self._stopped_at, self.about = about["stopped_at"], about
        self._control.step = about.get("counted") or 0
        self._place = place
        return about["step"], moved

    def _load(self, wire: transfer.Wire) -> tuple[dict[str, Any], dict[str, Any], int]:
        header = wire.receive()
        whose = self._whose
        why = transfer.is_ours(header, job=whose.job, rank=whose.rank, world=whose.world)
        if not why and header["about"]["attempt"] >= whose.attempt:
            why = f"attempt {header['about']['attempt']} cannot be succeeded by {whose.attempt}"
        plain, layout = header["plain"], header["layout"]
        why = why or snapshot.why_unfit(self._tracked, plain, layout)
        if why:
            raise transfer.Broken(why)
        snapshot.require_optimizers(self._tracked, plain)
        tensors = snapshot.destinations(self._tracked, layout, plain)
        moved = wire.receive_tensors(tensors)
        snapshot.load(self._tracked, plain, tensors)
        return place_of(plain, tensors), header["about"], moved
