"""Noticing a bus server that runs and stores nothing.

A write that fails, as on a full disk, makes the server give the stream up: from then on it drops
what is published there without a word, also once there is room again, until it is started anew.
What it says of its own health names such a stream.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

from skep.units import MIB

ANSWER_WITHIN_S = 2.0
ROOM_BYTES_MIN = MIB
"""What has to be free before a new start is worth it: recovery writes an index of each stream."""
SICK = "write error"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def monitor_url(state: str, pid: int) -> str:
    """Return where the server tells how it is, as it wrote into `state`; empty if it did not."""
    try:
        with open(os.path.join(state, f"nats-server_{pid}.ports"), encoding="utf-8") as file:
            urls = json.load(file).get("monitoring") or [""]
    except (OSError, ValueError):
        return ""
    return str(urls[0])


def write_trouble(state: str, pid: int) -> str:
    """Return what the server says of writes that failed, empty if it says nothing of the kind.

    A server that does not answer is not judged: it may start, or be stopped.
    """
    url = monitor_url(state, pid)
    if not url:
        return ""
    try:
        with DIRECT.open(f"{url}/healthz", timeout=ANSWER_WITHIN_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        return text if SICK in text else ""
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
