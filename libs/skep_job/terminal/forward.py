"""Carries one connection to a TCP port of the job, on standard input and output; run by its path.

    python -I -S forward.py PORT

The agent runs it as a session of a person (`skep port-forward`), with the account and the network
of the job: it reaches what the job reaches. It ends by SIGUSR1 if nothing listens there. Standard
library only, and nothing of Skep.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

PIECE_BYTES = 64 * 1024
CONNECT_WITHIN_S = 5.0
HOSTS = ("127.0.0.1", "::1")
NOTHING_LISTENS = signal.SIGUSR1


def connected(port: int) -> socket.socket | None:
    """Return a connection to a port of this machine; None: nothing listens there."""
    for host in HOSTS:
        try:
            return socket.create_connection((host, port), CONNECT_WITHIN_S)
        except OSError:
            continue
    return None


def main(port: int) -> int:
    """Carry bytes both ways until the port has said all; return the exit code."""
    link = connected(port)
    if link is None:
        os.kill(os.getpid(), NOTHING_LISTENS)
        return 1
    link.settimeout(None)
    # Each way of its own: one that has to wait must not hold up the other.
    threading.Thread(target=send, args=(link,), daemon=True).start()
    while data := link.recv(PIECE_BYTES):
        while data:
            data = data[os.write(1, data) :]
    return 0


def send(link: socket.socket) -> None:
    """Carry what comes in, until there is no more of it."""
    try:
        while data := os.read(0, PIECE_BYTES):
            link.sendall(data)
        link.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # The other way sees it too, and ends all.


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1])))
    except OSError:
        sys.exit(1)  # One of both ends has gone.
