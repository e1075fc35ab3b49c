"""Puts units of systemd, accounts and the owner of the state folder in place. Needs root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence

from skep_services import durable, launcher
from skep_services.servers import units
from skep_services.servers.files import FilesError
from skep_services.servers.units import NODE_ACCOUNT, SERVER_ACCOUNT, Unit

UNITS = "/etc/systemd/system"
SERVER, NODE = SERVER_ACCOUNT, NODE_ACCOUNT
POLICY = "/etc/skep/launcher.toml"
READABLE = 0o644


PROCESS = os.path.join(os.path.dirname(launcher.__file__), "launcher_process.py")


def program() -> tuple[str, ...]:
    """Return how this installation's `skep` is started."""
    beside = os.path.join(os.path.dirname(sys.executable), "skep")
    if os.access(beside, os.X_OK):
        return (beside,)
    return (sys.executable, "-m", "skep_services")


def server_units(home: str) -> list[Unit]:
    """Return the units of a server."""
    return [units.server_unit(program(), home)]


def node_units(home: str, *, apart: bool) -> list[Unit]:
    """Return the units of a node.

    Args:
        home: The state folder.
        apart: Jobs are started by the launcher, each as the account of its owner.
    """
    found = [units.node_unit(program(), home, launcher=apart)]
    if apart:
        command = (sys.executable, "-I", "-S", PROCESS)
        found.append(units.launcher_unit(command))
    return found


def put(every: Sequence[Unit], home: str, account: str, *, start: bool) -> None:
    """Install units, and have the state folder belong to the account that they run as.

    Args:
        every: The units.
        home: The state folder.
        account: The account; it is made if there is none.
        start: Whether they are started at once.

    Raises:
        FilesError: This is not root, there is no systemd, or one of its commands fails.
    """
    if os.geteuid() != 0:
        text = "units are installed by root: sudo skep ... install (or --print to look at them)"
        raise FilesError(text)
    if shutil.which("systemctl") is None:
        text = "there is no systemd here: use --print, and keep `skep ... run` up by other means"
        raise FilesError(text)
    make_account(account, home)
    own(home, account)
    for unit in every:
        durable.write(os.path.join(UNITS, unit.name), unit.text.encode(), READABLE)
    _do("systemctl", "daemon-reload")
    names = [unit.name for unit in every]
    if start:
        _do("systemctl", "enable", "--now", *names)


def write_policy() -> None:
    """Write the launcher's policy, unless there is one: jobs run as the account of their owner.

    Raises:
        FilesError: It cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(POLICY), mode=0o755, exist_ok=True)
        if not os.path.exists(POLICY):
            durable.write(POLICY, f'agent = "{NODE_ACCOUNT}"\n'.encode(), READABLE)
    except OSError as error:
        text = f"{POLICY} cannot be written: {error.strerror}"
        raise FilesError(text) from None


def make_account(account: str, home: str) -> None:
    """Make an account of the system that nobody logs in to, unless there is one.

    Raises:
        FilesError: It cannot be made.
    """
    try:
        pwd.getpwnam(account)
    except KeyError:
        shell = shutil.which("nologin") or "/bin/false"
        _do("useradd", "--system", "--user-group", "--home-dir", home, "--shell", shell, account)


def own(home: str, account: str) -> None:
    """Have a folder and all in it belong to an account.

    The account may have the folder already, and change it meanwhile: every name is of a folder that
    is open, and no link is followed.
    """
    entry = pwd.getpwnam(account)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    for _, folders, names, place in os.fwalk(home):
        for name in (*folders, *names):
            os.chown(name, entry.pw_uid, entry.pw_gid, dir_fd=place, follow_symlinks=False)


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"code {done.returncode}"]
        text = f"{' '.join(command)}: {lines[-1]}"
        raise FilesError(text)
