"""The other side of a parameter-server job's connections, spoken by a test line by line."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from skep_ps.errors import Broken
from skep_ps.placement import Placement
from skep_ps.wire import Channel, Message, Patience, Secret, Settings, admit, dial

WITHIN_S = 30.0
SECRET = Secret("a token that is only for tests", "local.1")

T = TypeVar("T")


class Side:
    """A connection that has proved itself."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def say(self, kind: str, payload: Sequence[memoryview] = (), **fields: Any) -> None:
        """Send a message."""
        self.channel.send({"type": kind, **fields}, payload)

    def hear(self, kind: str = "") -> Message:
        """Return the next message, of that kind if one is given; others are passed over."""
        while True:
            message = self.channel.receive(Patience(WITHIN_S, kind))
            if kind in {"", message["type"]}:
                return message

    def payload(self) -> bytes:
        """Return what came with the latest message."""
        content = bytearray(self.channel.unread)
        self.channel.read_into([memoryview(content)], Patience(WITHIN_S, "the payload"))
        return bytes(content)


class Place:
    """Somebody to connect to: a coordinator, or a server."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sides: queue.SimpleQueue[Side | None] = queue.SimpleQueue()
        self._all: list[Side] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def at(self) -> tuple[str, int]:
        """Return where it is."""
        host, port = self._listener.getsockname()
        return host, port

    @property
    def settings(self) -> Settings:
        """Return what a process reads whose coordinator this is."""
        return Settings(*self.at, SECRET, wait_s=WITHIN_S, lost_s=1.0)

    def side(self) -> Side:
        """Return the next connection. Raises Broken once this place is closed."""
        side = self._sides.get(timeout=WITHIN_S)
        if side is None:
            reason = "closed"
            raise Broken(reason)
        return side

    def close(self) -> None:
        """End it, and every connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(WITHIN_S)
        self._listener.close()
        self._sides.put(None)
        for side in self._all:
            side.channel.close()

    def _accept(self) -> None:
        while True:
            try:
                channel = admit(self._listener.accept()[0], SECRET)
            except OSError:
                return
            if channel is not None:
                side = Side(channel)
                self._all.append(side)
                self._sides.put(side)


class Later(Generic[T]):
    """What a call returns that has to be answered before it can."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._results: list[T] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Return it. Raises what the call raised."""
        self._thread.join(WITHIN_S)
        if self._errors:
            raise self._errors[0]
        assert self._results, "the call has not returned"
        return self._results[0]

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._results.append(call())
        except Exception as error:
            self._errors.append(error)


def connected(port: int) -> Side:
    """Return a connection to a process of the job on this host."""
    return Side(dial("127.0.0.1", port, SECRET))


def placed(placement: Placement) -> Message:
    """Return the fields by which a placement is told."""
    return {"generation": placement.generation, "placement": placement.to_wire()}
