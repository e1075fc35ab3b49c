"""`skep port-forward`: each connection to a local port is a session of its own in the job."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from typing import Any

from skep_services.cli import exits, returning, session
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError
from skep_services.cli.options import say

CONNECTIONS_MAX = 32
"""At once; more wait. A browser opens six to a server, and a page with sockets some more."""
HOST = "127.0.0.1"


def ports_of(text: str) -> tuple[int, int]:
    """Return the job's port and the local one of `PORT[:LOCAL]`; LOCAL 0 is any that is free.

    Raises:
        CommandError: They are none.
    """
    first, mark, second = text.partition(":")
    local = second if mark else first
    if not all(each.isascii() and each.isdecimal() and len(each) <= 5 for each in (first, local)):
        raise CommandError(exits.USAGE, f"{text}: PORT or PORT:LOCAL, such as 8888:9999")
    port, at = int(first), int(local)
    if not 1 <= port <= 65535 or at > 65535:
        raise CommandError(exits.USAGE, f"{text}: ports are numbers from 1 to 65535")
    return port, at


class Forwarder:
    """The local ports, and what connects to them."""

    def __init__(self, client: Client, job: str, rank: int) -> None:
        """Take the job, and the rank on whose machine the ports are."""
        self._client, self._job, self._rank = client, job, rank
        self._returns = returning.Returns()
        self._listeners: dict[socket.socket, int] = {}
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._wake, self._wakes = socket.socketpair()

    def listen(self, port: int, local: int) -> int:
        """Listen on a local port for what is to go to the job's; return the local one.

        Raises:
            CommandError: It is taken.
        """
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((HOST, local))
        except OSError as error:
            made.close()
            text = f"{HOST}:{local} cannot be used: {error.strerror}; name another: {port}:LOCAL"
            raise CommandError(exits.FAILED, text) from None
        made.listen(CONNECTIONS_MAX)
        self._listeners[made] = port
        found: int = made.getsockname()[1]
        return found

    def serve(self) -> None:
        """Take connections until `stop`, or until this process is interrupted."""
        while True:
            readable, _, _ = select.select([self._wake, *self._listeners], [], [])
            if self._wake in readable:
                return
            for listener in readable:
                self._room.acquire()
                link, _ = listener.accept()
                port = self._listeners[listener]
                threading.Thread(target=self._carry, args=(link, port), daemon=True).start()

    def stop(self) -> None:
        """Have `serve` return; any thread may say so."""
        self._wakes.send(b".")

    def _carry(self, link: socket.socket, port: int) -> None:
        def write(number: int, data: bytes) -> int:
            if number == session.STDOUT:
                link.sendall(data)
            return len(data)

        wanted: dict[str, Any] = {"what": "forward", "port": port, "rank": self._rank}
        stdin = os.dup(link.fileno())
        try:
            own = Client(self._client.target, self._client.patience_s)
            while True:
                try:
                    session.Session(own, self._job, wanted, stdin=stdin, write=write).run()
                except CommandError as error:
                    if not self._returns.wait(own, self._job, error, lambda: _connected(link)):
                        return
                else:
                    return
        except CommandError as error:
            say(f"skep port-forward: {error.text}")
        except OSError:
            pass  # The one that connected here has gone.
        finally:
            os.close(stdin)
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
            self._room.release()


def _connected(link: socket.socket) -> bool:
    """Return whether the one that connected here is still there, as far as it says."""
    try:
        return link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
