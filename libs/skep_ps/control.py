"""A member's connection to the coordinator: made anew whenever it breaks."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable

from skep_ps.errors import Broken, Refused
from skep_ps.wire import Channel, Late, Message, Patience, Settings, dial

AGAIN_S_MIN, AGAIN_S_MAX = 0.01, 1.0
HEARD_S = 10.0
"""How long the last words to a coordinator that may be frozen are worth."""


class Control(threading.Thread):
    """Says `hello()` on every connection, hands every message to `take`, and ends with `down(why)`.

    `take` runs on this thread. Training needs the coordinator only for changes: while it is away
    everything goes on, for at most `wait_s` seconds.
    """

    def __init__(
        self,
        settings: Settings,
        hello: Callable[[], Message],
        take: Callable[[Message], None],
        down: Callable[[str], None],
    ) -> None:
        super().__init__(name="skep-ps-control", daemon=True)
        self.process = secrets.token_hex(8)
        """What tells a reconnection of this process from another process."""
        self.host = ""  # of this machine, as the coordinator sees it
        self._settings = settings
        self._hello, self._take, self._down = hello, take, down
        self._channel: Channel | None = None
        self._over = threading.Event()
        self._first = self._dial()
        self.host = self._first.own_host()

    def say(self, kind: str, **fields: object) -> None:
        """Send a message if the coordinator is there; our `hello` makes up for what it missed."""
        channel = self._channel
        if channel is not None:
            try:
                channel.send({"type": kind, **fields})
            except Broken:
                channel.close()  # The thread that reads it notices.

    def close(self, last: str = "") -> None:
        """End the connection for good, after a last message that the coordinator has read.

        To close a connection to which the other side still sends takes back what it has not read.

        Args:
            last: The kind of that message; empty: there is none.
        """
        self._over.set()  # First: a coordinator that has read `last` hangs up.
        channel = self._channel
        if channel is None:
            return
        if last:
            self.say(last)
        if last and threading.current_thread() is not self:
            channel.finish()
            self.join(HEARD_S)  # It receives until the coordinator, which has read all, ends it.
        channel.close()

    def run(self) -> None:
        """Keep the connection up until `close`, a refusal, or the end of patience."""
        channel: Channel | None = self._first
        while channel is not None and not self._over.is_set():
            try:
                channel.send({**self._hello(), "type": "hello", "process": self.process})
                self._channel = channel
                while True:
                    message = channel.receive(Patience(math.inf, "a message"))
                    try:
                        self._take(message)
                    except Exception as error:
                        # A member that cannot follow must not leave the others waiting for it.
                        self._down(f"taking {message['type']}: {type(error).__name__}: {error}")
                        raise
            except Broken:
                self._channel = None
                channel.close()
            channel = self._again()
        if channel is not None:
            channel.close()  # It was made while `close` was called.

    def _again(self) -> Channel | None:
        if self._over.is_set():
            return None
        try:
            return self._dial()
        except (Broken, Refused) as error:
            if not self._over.is_set():
                self._down(f"the coordinator is away: {error}")
            return None

    def _dial(self) -> Channel:
        """Return a connection.

        Raises:
            Refused: The token or the attempt is not that of the job.
            Broken: The coordinator is away for longer than patience lasts, or `close` was called.
        """
        settings = self._settings
        patience = Patience(settings.wait_s, f"the coordinator at {settings.host}:{settings.port}")
        pause_s = AGAIN_S_MIN
        while True:
            try:
                return dial(settings.host, settings.port, settings.secret)
            except Broken as error:
                try:
                    patience.slice_s()
                except Late as late:
                    reason = f"{late} ({error})"
                    raise Broken(reason) from error
            began = time.monotonic()
            if self._over.wait(pause_s):
                reason = f"closed after {time.monotonic() - began:.1f} s"
                raise Broken(reason)
            pause_s = min(pause_s * 2, AGAIN_S_MAX)
