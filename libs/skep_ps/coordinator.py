"""The coordinator's process: carries messages to its machine, and effects away from it.

`python -m skep_ps.coordinator --servers S --workers W --listen HOST:PORT`
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import sys
import threading
from typing import NamedTuple

from skep_ps.errors import Broken, ParameterServerError
from skep_ps.machine import Coordinator
from skep_ps.members import Close, Effect, Finish, Note, Send, Wanted
from skep_ps.wire import (
    SLICE_S,
    AwakeClock,
    Channel,
    Late,
    Message,
    Patience,
    Settings,
    admit,
    settings,
)

LINKS_MAX = 4096
SEND_S = 5.0
"""Messages are small: who does not read one in this time is lost."""


class _Event(NamedTuple):
    link: int
    message: Message | None  # None: the connection has ended


class Process:
    """One job's coordinator at work."""

    def __init__(self, where: Settings, wanted: Wanted) -> None:
        """Listen.

        Raises:
            OSError: The port is taken.
        """
        self._settings = where
        self._clock = AwakeClock()
        self.machine = Coordinator(wanted, self._clock.now())
        self._inbox: queue.Queue[_Event] = queue.Queue(maxsize=10_000)
        self._links: dict[int, Channel] = {}
        self._listener = socket.create_server((where.host, where.port), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> int:
        """Coordinate until the job is over or has failed; return the exit code."""
        threading.Thread(target=self._accept, daemon=True).start()
        while True:
            wake_at, now = self.machine.wake_at(), self._clock.now()
            wait_s = SLICE_S if wake_at is None else min(max(wake_at - now, 0) / 1e9, SLICE_S)
            try:
                event = self._inbox.get(timeout=max(wait_s, 0.001))
            except queue.Empty:
                effects = self.machine.tick(self._clock.now())
            else:
                effects = self._decide(event)
            code = self._carry_out(effects)
            if code is not None:
                return code

    def _decide(self, event: _Event) -> list[Effect]:
        now = self._clock.now()
        if event.message is None:
            self._links.pop(event.link, None)
            return self.machine.lost(event.link, now)
        try:
            return self.machine.heard(event.link, event.message, now)
        except (KeyError, TypeError, ValueError) as error:
            # A process of the job, but not one of this version: nothing it says can be relied on.
            text = f"a {event.message['type']} that cannot be read: {error!r}"
            return [Note(text), Close(event.link)]

    def _carry_out(self, effects: list[Effect]) -> int | None:
        for effect in effects:
            match effect:
                case Send(link, message):
                    self._send(link, message)
                case Close(link):
                    if (channel := self._links.pop(link, None)) is not None:
                        channel.close()
                case Note(text):
                    print(f"skep ps: {text}", file=sys.stderr, flush=True)
                case Finish(code):
                    return code
        return None

    def _send(self, link: int, message: Message) -> None:
        channel = self._links.get(link)
        if channel is not None:
            try:
                channel.send(message, wait_s=SEND_S)
            except Broken:
                channel.hang_up()  # Its reader takes what is there, notices, and says so.

    def _accept(self) -> None:
        number = 0
        while True:
            connection, _ = self._listener.accept()
            number += 1
            if len(self._links) >= LINKS_MAX:
                connection.close()
                continue
            threading.Thread(target=self._read, args=(number, connection), daemon=True).start()

    def _read(self, link: int, connection: socket.socket) -> None:
        channel = admit(connection, self._settings.secret)
        if channel is None:
            return
        self._links[link] = channel
        try:
            while True:
                message = channel.receive(Patience(float("inf"), "a message"))
                self._inbox.put(_Event(link, message))
        except (Broken, Late):
            channel.close()
            self._inbox.put(_Event(link, None))


def main() -> int:
    """Coordinate one job's servers and workers."""
    parser = argparse.ArgumentParser(prog="python -m skep_ps.coordinator", description=main.__doc__)
    parser.add_argument("--servers", type=int, required=True, help="how many the job begins with")
    parser.add_argument("--workers", type=int, required=True, help="how many the job begins with")
    parser.add_argument("--listen", help="HOST:PORT, instead of SKEP_PS")
    parser.add_argument("--recover", action="store_true", help="the job may have begun already")
    options = parser.parse_args()
    environ = dict(os.environ)
    if options.listen:
        environ["SKEP_PS"] = options.listen
    try:
        where = settings(environ)
        wanted = Wanted(
            options.servers,
            options.workers,
            options.recover,
            wait_s=where.wait_s,
            lost_s=where.lost_s,
        )
        process = Process(where, wanted)
    except (ParameterServerError, OSError) as error:
        print(f"skep ps: {error}", file=sys.stderr)
        return 1
    print(f"skep ps: coordinates at {where.host}:{process.port}", file=sys.stderr, flush=True)
    return process.run()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # The threads that read have nothing to finish.
