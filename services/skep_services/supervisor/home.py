"""The state folder of an embedded cluster: where things are, what is alive, and writing safely.

Imported by every command, so it needs nothing but the smallest parts of the standard library.
"""

from __future__ import annotations

import json
import os
from typing import Any

from skep_services import durable as files

CLUSTER_VERSION = 1
"""Of `cluster.json`. A file of another version is refused, not guessed at."""

SERVER_HOME = "/var/lib/skep"
"""The state folder of a server of a cluster of real machines."""

FOLDER_MODE = 0o700
CHECKPOINTS = "checkpoints"
FILE_MODE = 0o600


def home_folder(given: str | None = None) -> str:
    """Return the absolute state folder.

    Args:
        given: The folder; None and empty: the one of `SKEP_HOME`, or else `~/.skep`.
    """
    return os.path.abspath(os.path.expanduser(given or os.environ.get("SKEP_HOME") or "~/.skep"))


def cluster_folder(given: str | None = None) -> str:
    """Return the absolute state folder of the cluster that a command is about.

    Args:
        given: The folder; None and empty: the one of `SKEP_HOME`, or else `~/.skep`. Where that
            has no cluster it is the one of this machine's server, if it may be read: root's shell
            on a server speaks for the operator.
    """
    found = home_folder(given)
    if given or os.environ.get("SKEP_HOME") or os.path.exists(cluster_path(found)):
        return found
    return SERVER_HOME if os.access(cluster_path(SERVER_HOME), os.R_OK) else found


def cluster_path(home: str) -> str:
    """Return where the cluster's addresses and credentials are kept."""
    return os.path.join(home, "cluster.json")


def pids_path(home: str) -> str:
    """Return where the supervisor says which processes it keeps up."""
    return os.path.join(home, "pids.json")


def lock_path(home: str) -> str:
    """Return the file whose lock is held exactly as long as the cluster has a supervisor."""
    return os.path.join(home, "lock")


def supervisor_log_path(home: str) -> str:
    """Return the supervisor's own log."""
    return os.path.join(home, "supervisor.log")


def refuse_server(home: str) -> str:
    """Return why the commands of an embedded cluster are not for a folder; empty if they are."""
    if os.path.exists(os.path.join(home, "server.json")):
        return f"{home} is of a server: systemctl start|stop skep-server, or `skep server run`"
    return ""


def start_hint(home: str) -> str:
    """Return what starts the cluster of a folder again."""
    return "systemctl start skep-server" if refuse_server(home) else "skep up"


def published_path(home: str) -> str:
    """Return where the supervisor remembers which virtual clusters it published."""
    return os.path.join(home, "vcs-published.json")


def service_log_path(home: str, name: str) -> str:
    """Return the log of one supervised process."""
    return os.path.join(home, name, "service.log")


def checkpoints_path(home: str) -> str:
    """Return where jobs store their checkpoints: the nodes are one machine, and share it."""
    return os.path.join(home, CHECKPOINTS)


def archive_path(home: str) -> str:
    """Return where old messages of the streams go (`skep log archive`)."""
    return os.path.join(home, "archive")


def read_json(path: str) -> Any:
    """Return the JSON value in a file, or None if there is no such file.

    Raises:
        ValueError: The file holds something else.
        OSError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except FileNotFoundError:
        return None


def read_cluster(home: str) -> dict[str, Any] | None:
    """Return `cluster.json`, or None if there is no cluster in `home`.

    Raises:
        ValueError: The file cannot be used; the text is a sentence for a person.
    """
    path = cluster_path(home)
    try:
        cluster = read_json(path)
    except (ValueError, OSError) as error:
        message = f"{path} cannot be read: {error}"
        raise ValueError(message) from None
    if cluster is None:
        return None
    if not isinstance(cluster, dict) or cluster.get("version") != CLUSTER_VERSION:
        message = f"{path} is not a cluster file of version {CLUSTER_VERSION}"
        raise ValueError(message)
    return cluster


def write_json(path: str, value: Any, *, durable: bool = True) -> None:
    """Replace a JSON file atomically, readable by its owner only.

    Args:
        path: The file.
        value: The value.
        durable: It is on disk on return.
    """
    write_text(path, json.dumps(value, indent=1) + "\n", durable=durable)


def write_text(path: str, text: str, *, durable: bool = True) -> None:
    """Replace a file atomically, readable by its owner only.

    Args:
        path: The file.
        text: The content.
        durable: It is on disk on return.
    """
    files.write(path, text.encode(), FILE_MODE, sync=durable)


def is_alive(entry: Any) -> bool:
    """Return whether the process of an entry with `pid` and `start_ticks` still lives.

    The kernel gives a pid again, but not with the same start: together they are an identity.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("pid"), int):
        return False
    ticks = start_ticks(entry["pid"])
    return ticks is not None and ticks == entry.get("start_ticks")


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, None if only its zombie is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name may hold spaces and parentheses; the fields that count begin after it.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def supervisor_alive(cluster: dict[str, Any]) -> bool:
    """Return whether the supervisor named in `cluster.json` lives."""
    return is_alive(cluster.get("supervisor"))
