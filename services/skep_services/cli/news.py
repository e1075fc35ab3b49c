"""The gateway's event stream, read in a thread of its own: it says when a view is out of date."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import Any

from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, EventParser, Target, query

EVENTS_MAX = 1_000
"""Events kept until they are taken; of more the oldest are dropped."""


class News:
    """Follows the events of a cluster until the process ends.

    Args:
        target: The gateway.
        since: The event to begin after; None: the newest.
        vc: Only of one virtual cluster; None: all that the caller sees.
        job: Only of one job; None: all.
        wake: Set with each event; None: one of its own, for `wait`.
    """

    def __init__(
        self,
        target: Target,
        *,
        since: int | None = None,
        vc: str | None = None,
        job: str | None = None,
        wake: threading.Event | None = None,
    ) -> None:
        self._client = Client(target, PATIENCE_FOLLOWING_S)
        self._since, self._vc, self._job = since, vc, job
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._some = wake or threading.Event()
        self._failure: Exception | None = None
        self.connected = False
        """The stream is open; else the view may be out of date."""
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Return whether something happened within a time, or the stream began.

        Args:
            timeout_s: The time (seconds).

        Raises:
            Exception: What stopped the thread.
        """
        happened = self._some.wait(timeout_s)
        self._some.clear()
        self.check()
        return happened

    @property
    def failed(self) -> bool:
        """Return whether the thread has stopped."""
        return self._failure is not None

    def check(self) -> None:
        """Raise what stopped the thread.

        Raises:
            Exception: That.
        """
        if self._failure is not None:
            raise self._failure

    def take(self) -> list[dict[str, Any]]:
        """Return the events that came since the last call."""
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    def _run(self) -> None:
        try:
            while True:
                self._follow()
                self.connected = False
                self._client.pause()
        except Exception as error:  # It is raised again where it is waited for.
            self._failure = error
            self._some.set()

    def _follow(self) -> None:
        """Read the stream until it ends; the gateway ends it only because it ends itself."""
        path = query("/v1/events", follow=1, since=self._since, job=self._job, vc=self._vc)
        pieces = self._client.stream(path, None).pieces()
        parser = EventParser()
        self.connected = True
        self._some.set()
        while piece := _next(pieces):
            for identity, data in parser.feed(piece):
                self._since = int(identity) if identity.isdecimal() else self._since
                self._events.append(json.loads(data))
                self._some.set()


def _next(pieces: Any) -> bytes:
    """Return the next piece; an empty one at the end, and where the connection was lost."""
    try:
        return bytes(next(pieces, b""))
    except OSError:
        return b""
