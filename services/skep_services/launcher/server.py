"""The launcher: a runner that is root, and starts each job as its person's Unix account.

    python -I -S launcher_process.py [--config /etc/skep/launcher.toml] [--check]

It speaks the runner's protocol (see `agent.runner`) on a socket that only the agent's account can
open, and adds to it:

    {"id": 5, "do": "ping"}             -> {..., "folder": JOBS, "lacks": {feature: why},
                                            "requires": [feature], "mode"}
    {"id": 9, "do": "prepare", "plan"}  -> {"id": 9, "account": [uid, gid, groups], "workdir", ...}
                                           for a container, which an engine starts
    {"id": 9, "do": "remove", "job",    -> {"id": 9, "done": true}     its `checkpoints`, `logs`,
     "kind"}                               `work` or `copies`, unless it has a run here; or `files`
                                           of secrets of a container, whose run `job` names then
    {"id": 9, "do": "copies"}           -> {"id": 9, "jobs": [...]}    with copies in memory
    {"id": 9, "do": "keep", "tokens"}   -> {"id": 9, "done": true}     the files of secrets of all
                                           other containers are removed
    {"id": 9, "do": "sweep", "before"}  -> {"id": 9, "jobs": [...]}    checkpoints not written since
    {"id": 6, "do": "shutdown"}         -> once no run is left; the launcher itself stays

SIGTERM ends it at once, and the jobs go on: the next launcher adopts them, though it cannot see
their exit codes. SIGHUP has it execute itself anew, with the code and the policy that are there
now: then the jobs stay its children, and nothing of them is lost.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import os
import pwd
import signal
import socket
import stat
import sys
import time
from typing import Any

from skep_services.agent import runner
from skep_services.agent.runner import Client, Server
from skep_services.agent.runner_holder import Holder
from skep_services.launcher import folders, policy
from skep_services.launcher.accounts import Accounts
from skep_services.launcher.enclosure import Apart, said
from skep_services.launcher.folders import Folders
from skep_services.launcher.groups import Groups, mounted
from skep_services.launcher.policy import Policy, PolicyError

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""Linux executes nothing with more than 6 MiB of arguments and variables."""

REMOVABLE = frozenset({folders.CHECKPOINTS, folders.LOGS, folders.WORK, folders.COPIES})
"""Kinds of folders that the agent may have removed."""

EXIT_USAGE = 78
"""EX_CONFIG: a service manager need not try again."""


class LauncherServer(Server):
    """Serves an agent's account, and root."""

    message_bytes_max = MESSAGE_BYTES_MAX
    socket_name = "launcher.sock"

    def __init__(
        self, listener: socket.socket, holder: Holder, apart: Apart, agent_uid: int, mode: str
    ) -> None:
        super().__init__(listener, holder, float("inf"))
        self._apart, self._agent_uid, self._mode = apart, agent_uid, mode
        self._emptying: list[tuple[Client, Any]] = []
        self._leaving = False
        self.again = False
        self._watchdog_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6

    def _may_ask(self, pid: int, uid: int) -> bool:
        # No job has either account, so a process of a run is refused by this as well.
        return uid in (self._agent_uid, 0)

    def _done(self) -> bool:
        if not self.holder.live:
            for client, number in self._emptying:
                client.send({"id": number, "done": True})
            self._emptying.clear()
        if self._watchdog_s:
            notify("WATCHDOG=1")
        self._apart.clear()
        self._apart.prepare()
        return self._leaving or self.again

    def _wait_seconds(self) -> float | None:
        found = super()._wait_seconds() if self._apart.is_clear else 0.0
        if self._watchdog_s:
            return self._watchdog_s if found is None else min(found, self._watchdog_s)
        return found

    def _emptied(self) -> bool:
        return bool(self._emptying)

    def heard(self, numbers: bytes) -> None:
        """Leave at SIGTERM; begin anew at SIGHUP."""
        self._leaving = self._leaving or signal.SIGTERM in numbers or signal.SIGINT in numbers
        self.again = self.again or signal.SIGHUP in numbers

    def _answer(self, client: Client, request: dict[str, Any]) -> dict[str, Any] | None:
        match request["do"]:
            case "start" if self._emptying:
                return {"not_started": "this node is shutting down", "fault": "node"}
            case "ping":
                found = super()._answer(client, request) or {}
                return {**found, **self._apart.about(), "mode": self._mode}
            case "prepare":
                return self._apart.prepare_container(request["plan"])
            case "remove":
                kind = request.get("kind", folders.CHECKPOINTS)
                if kind == "files":
                    self._apart.remove_files(str(request["job"]))
                    return {"done": True}
                if kind not in REMOVABLE:
                    return {"error": f"{str(kind)[:64]!r} is not to be removed"}
                self._apart.remove(kind, str(request["job"]))
                return {"done": True}
            case "keep":
                self._apart.keep_files([str(token) for token in request["tokens"]])
                return {"done": True}
            case "copies":
                return {"jobs": self._apart.copies()}
            case "sweep":
                return {"jobs": self._apart.sweep(min(float(request["before"]), time.time()))}
            case "shutdown":
                for token in list(self.holder.live):
                    self.holder.stop(token, request["grace_s"])
                self._emptying.append((client, request["id"]))
                return None
            case _:
                return super()._answer(client, request)


def main(arguments: list[str]) -> int:
    """Serve until told to end; return the exit status."""
    parser = argparse.ArgumentParser(prog="skep-launcher")
    parser.add_argument("--config", default=policy.CONFIG_PATH)
    parser.add_argument("--check", action="store_true", help="say what is missing, and end")
    given = parser.parse_args(arguments)
    try:
        chosen, agent = _decided(given.config)
    except PolicyError as error:
        said(f"skep-launcher: {error}")
        return EXIT_USAGE
    os.umask(0o022)
    os.makedirs(chosen.folder, mode=0o711, exist_ok=True)
    os.makedirs(chosen.state, mode=0o700, exist_ok=True)
    _check_root_owned(chosen.folder, chosen.state)
    os.chmod(chosen.folder, 0o711)  # noqa: S103 - others may pass through, not look
    os.chmod(chosen.state, 0o700)
    if not given.check and not _lock(chosen.state):
        said(f"skep-launcher: another one serves {chosen.folder}")
        return 1
    runner.prepare()
    _warn_of_code()
    groups = _groups(chosen)
    apart = _enclosure(chosen, agent, groups)
    for feature, why in apart.lacks.items():
        level = "refused" if feature in chosen.require else "warning"
        said(f"skep-launcher: {level}: {feature}: {why}")
    if given.check:
        groups.close()
        return 1 if apart.missing() else 0
    holder = Holder(chosen.state, apart)
    apart.sweep_scratch(holder.marks)
    listener = _listen(chosen.socket, agent.pw_uid)
    server = LauncherServer(listener, holder, apart, agent.pw_uid, chosen.mode)
    said(f"skep-launcher: serves {chosen.agent} at {chosen.socket}, accounts: {chosen.mode}")
    notify("READY=1")
    server.run()
    apart.close()
    groups.close()
    if server.again:
        notify("RELOADING=1")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - itself
    return 0


def _decided(path: str) -> tuple[Policy, pwd.struct_passwd]:
    """Return the policy, and the agent's account.

    Raises:
        PolicyError: One of them is not to be used.
    """
    if os.geteuid() != 0:
        text = "it must be started as root: it starts jobs as other accounts"
        raise PolicyError(text)
    chosen = policy.read(path)
    try:
        agent = pwd.getpwnam(chosen.agent)
    except KeyError:
        text = f"{path}: agent is {chosen.agent!r}, which is no account: useradd --system it"
        raise PolicyError(text) from None
    if agent.pw_uid == 0 or agent.pw_gid == 0:
        text = f"{path}: agent is {chosen.agent!r}, which is root: the agent needs no rights"
        raise PolicyError(text)
    return chosen, agent


def _warn_of_code() -> None:
    """Say who could change what the launcher executes: as good as root, if not root itself."""
    for program in (os.path.realpath(sys.executable), os.path.realpath(__file__)):
        place = program
        while place != "/":
            # Who may write to a folder above may put another program in its place.
            found = os.stat(place)
            sticky = found.st_mode & stat.S_ISVTX
            if found.st_uid != 0 or (found.st_mode & 0o022 and not sticky):
                said(f"skep-launcher: warning: {place} is not root's alone: chown root, chmod go-w")
            place = os.path.dirname(place)


def _check_root_owned(*paths: str) -> None:
    for path in paths:
        found = os.lstat(path)
        if found.st_uid != 0 or found.st_mode & 0o022 or not os.path.isdir(path):
            text = f"{path} is there and is not root's alone"
            raise OSError(errno.EPERM, text, path)


def _groups(chosen: Policy) -> Groups:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        found = mounted(file.read())
    # Two launchers on one machine, as in tests, must not share groups.
    name = "skep-jobs-" + hashlib.sha256(chosen.folder.encode()).hexdigest()[:8]
    return Groups(found, name, chosen.limits)


def _enclosure(chosen: Policy, agent: pwd.struct_passwd, groups: Groups) -> Apart:
    shared = Folders(chosen.jobs, (agent.pw_uid, agent.pw_gid))
    return Apart(chosen, Accounts(chosen, agent.pw_uid, agent.pw_gid), groups, shared)


def _lock(state: str) -> bool:
    lock = os.open(os.path.join(state, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _listen(path: str, uid: int) -> socket.socket:
    """Return a socket that an account and root can connect to."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    _check_root_owned(folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # The usual case: an earlier launcher was told to end.
    umask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(umask)
    os.chown(path, uid, 0)
    listener.listen(runner.BACKLOG)
    listener.setblocking(False)
    return listener


def notify(text: str) -> None:
    """Tell the service manager something, if there is one (sd_notify)."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
        try:
            one.sendto(text.encode(), "\0" + place[1:] if place.startswith("@") else place)
        except OSError:
            pass  # Then it is not waiting for it.
