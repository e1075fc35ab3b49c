"""Which TCP ports of this machine are free."""

from __future__ import annotations

import socket

from skep_services.supervisor.config import HOST


def is_free(port: int) -> bool:
    """Return whether a server could listen on a loopback port."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier one that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def hold(port: int = 0) -> socket.socket | None:
    """Return what keeps a loopback port for a server that begins later; None: it is taken.

    It is bound, and does not listen. Servers may listen there, as they reuse addresses, but nothing
    else is given the port: no listener that takes any, and no connection that begins here.

    Args:
        port: Which one; 0: one that is free.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((HOST, port))
    except OSError:
        held.close()
        return None
    return held


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
