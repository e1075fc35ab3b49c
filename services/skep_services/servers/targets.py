"""The targets of notices on a server: `HOME/notify.toml`. Where there is one, the notifier runs."""

from __future__ import annotations

import os
from pathlib import Path

from skep_services import durable
from skep_services.notifier import settings
from skep_services.servers.files import FilesError
from skep_services.service import ConfigurationError
from skep_services.supervisor import home as folder


def path(home: str) -> str:
    """Return where a server keeps the operator's file of targets."""
    return os.path.join(home, "notify.toml")


def has(home: str) -> bool:
    """Return whether this server is to run the notifier."""
    return os.path.exists(path(home))


def trouble(home: str) -> str:
    """Return why the notifier cannot run with this server's file; empty: it can."""
    try:
        settings.read(Path(path(home)))
    except ConfigurationError as error:
        return str(error).removeprefix(f"{settings.VARIABLE}: ")
    return ""


def content(name: str) -> bytes:
    """Return a file of targets that the operator names.

    Raises:
        FilesError: It cannot be used.
    """
    try:
        settings.read(Path(name))
        return Path(name).read_bytes()
    except ConfigurationError as error:
        raise FilesError(str(error).removeprefix(f"{settings.VARIABLE}: ")) from None
    except OSError as error:
        text = f"{name}: {error.strerror}"
        raise FilesError(text) from None


def put(home: str, text: bytes) -> None:
    """Keep a file of targets: the notifier runs from the server's next start on."""
    durable.write(path(home), text, folder.FILE_MODE)


def remove(home: str) -> bool:
    """Remove it; return whether there was one."""
    try:
        os.unlink(path(home))
    except FileNotFoundError:
        return False
    return True
