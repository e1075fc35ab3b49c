"""Logins that are kept: which token a person has for which cluster, in a file of its own.

`$XDG_CONFIG_HOME/skep/logins.json` (`~/.config/skep/logins.json`), readable by its owner only. A
file that others may read is refused, and not read.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, NamedTuple

from skep_services.cli import exits
from skep_services.cli.exits import CommandError


class Login(NamedTuple):
    """A login: the gateway's address, the token, the file of its CA, and the person."""

    url: str
    token: str
    ca: str = ""
    person: str = ""


def path() -> str:
    """Return the file of logins."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "skep", "logins.json")


def read() -> list[Login]:
    """Return the logins, the one in use first.

    Raises:
        CommandError: Others may read the file, or it holds something else.
    """
    try:
        with open(path(), encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                text = f"{path()} can be read by others: chmod 600 it, and revoke what is in it"
                raise CommandError(exits.FAILED, text, "readable")
            found = json.load(file)
        return [Login(**{key: str(each[key]) for key in Login._fields}) for each in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        text = f"{path()} cannot be read ({error}): remove it, and run `skep login`"
        raise CommandError(exits.FAILED, text, "bad-logins") from None


def find(url: str = "") -> Login | None:
    """Return the login for a gateway, or (without an address) the one in use; None: there is none.

    Raises:
        CommandError: The file cannot be used.
    """
    return next((login for login in read() if url in ("", login.url)), None)


def keep(login: Login) -> None:
    """Keep a login, and use it from now on.

    Raises:
        CommandError: The file cannot be written.
    """
    _write([login, *(each for each in read() if each.url != login.url)])


def forget(url: str) -> None:
    """Forget the login for a gateway.

    Raises:
        CommandError: The file cannot be written.
    """
    _write([each for each in read() if each.url != url])


def _write(logins: list[Login]) -> None:
    folder = os.path.dirname(path())
    new = f"{path()}.{os.getpid()}"
    rows: list[dict[str, Any]] = [login._asdict() for login in logins]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path())
    except OSError as error:
        text = f"{path()} cannot be written: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None
