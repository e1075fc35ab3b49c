"""Noticing a bus server that runs and stores nothing.

A write that fails, as on a full disk, makes a server alone give the stream up: from then on it
drops what is published there without a word, also once there is room again, until it is started
anew. One of a cluster disables its whole store. What a server says of its own health tells either;
it says other things while it starts, catches up with the others or has no majority.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

from skep.units import MIB

ANSWER_WITHIN_S = 2.0
PORTS_WITHIN_S = 10.0
"""A server writes its ports before it reads its store, within a second of its start."""
ROOM_BYTES_MIN = MIB
"""What has to be free before a new start is worth it: recovery writes an index of each stream."""
SICK = ("write error", "JetStream not enabled")
"""What the health page says of a stream that was given up, and of a store that was. A server that
still reads its store at its start says that it is not ready, and only later what it thinks of it.
"""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def monitor_url(state: str, pid: int) -> str:
    """Return where the server tells how it is, as it wrote into `state`; empty if it did not.

    Args:
        state: The server's folder.
        pid: The server's process.
    """
    try:
        with open(os.path.join(state, f"nats-server_{pid}.ports"), encoding="utf-8") as file:
            urls = json.load(file).get("monitoring") or [""]
    except (OSError, ValueError):
        return ""
    return str(urls[0])


def write_trouble(state: str, pid: int, age_s: float) -> str:
    """Return what a server says of writes that failed, empty if it says nothing of the kind.

    A server that was started on a full disk could not even write where it tells how it is, nor its
    store: it is in trouble if that is still so after PORTS_WITHIN_S.

    Args:
        state: The server's folder.
        pid: The server's process.
        age_s: How long ago it was started (seconds).
    """
    url = monitor_url(state, pid)
    if url:
        return trouble_at(url)
    return "it did not write where it tells how it is" if age_s > PORTS_WITHIN_S else ""


def trouble_at(url: str) -> str:
    """Return what a server says of writes that failed, empty if it says nothing of the kind.

    A server that does not answer is not judged: it may start, or be stopped.

    Args:
        url: Where the server tells how it is.
    """
    try:
        with DIRECT.open(f"{url}/healthz", timeout=ANSWER_WITHIN_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        return text if any(sign in text for sign in SICK) else ""
    except OSError:
        return ""


def has_room(folder: str) -> bool:
    """Return whether a server that starts can write in a folder."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize >= ROOM_BYTES_MIN


def forget_ports(state: str) -> None:
    """Remove what servers that were killed left in `state` about their ports."""
    for name in os.listdir(state):
        if name.startswith("nats-server_") and name.endswith(".ports"):
            os.unlink(os.path.join(state, name))
