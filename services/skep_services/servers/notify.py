"""A few words to systemd, by the protocol of sd_notify(3): nothing where there is no systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

SOCKET = "NOTIFY_SOCKET"
WATCHDOG = "WATCHDOG_USEC"
OWN = (SOCKET, WATCHDOG, "WATCHDOG_PID")
"""Variables that are for the unit's main process, and not for those that it starts."""

READY = "READY=1"
ALIVE = "WATCHDOG=1"
STOPPING = "STOPPING=1"


def tell(*words: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell systemd something; return whether anybody listens.

    Args:
        words: Assignments, such as `READY=1`.
        environment: Says where systemd listens.
    """
    address = environment.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
            link.sendto("\n".join(words).encode(), target)
    except OSError:
        return False
    return True


def status(text: str) -> str:
    """Return the assignment that `systemctl status` shows."""
    return f"STATUS={text.splitlines()[0] if text else ''}"


def watchdog_every_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return how often systemd has to hear of this process (seconds); None: it need not.

    Half of what the unit allows, as sd_watchdog_enabled(3) advises.

    Args:
        environment: Says what the unit allows.
    """
    allowed = environment.get(WATCHDOG, "")
    meant = environment.get("WATCHDOG_PID", "")
    if not allowed.isdecimal() or not int(allowed):
        return None
    if meant and meant != str(os.getpid()):
        return None
    return int(allowed) / 1e6 / 2
