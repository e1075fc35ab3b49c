"""The PID namespaces of jobs: in one, a process sees and signals those of its own job only.

A job has one on a node, which its ranks share: they meet by process numbers (CUDA does, for memory
that they share). Its first process is an init of ours. It does nothing and knows nothing: it is
root without a capability, ignores what a job could send it, and the kernel reaps for it, because it
ignores SIGCHLD. Ranks are never its children but the launcher's, who sees their exit codes.

An init outlives a launcher as the runs do, and ends with the last run of its job.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from collections.abc import Mapping
from typing import NamedTuple

from skep_services.agent import proc
from skep_services.launcher import kernel

INIT = ("/bin/sleep", "infinity")
GO = b"\n"


class Init(NamedTuple):
    """The first process of a namespace, by the numbers of the launcher."""

    pid: int
    ticks: int


class Namespaces:
    """The namespaces of the jobs of one launcher.

    `helpers` are the children of the launcher that are of no run: inits are.
    """

    def __init__(self) -> None:
        self._inits: dict[str, Init] = {}
        self._next: Init | None = None
        self._waiting: dict[Init, int] = {}
        """What keeps an init alive that no run is on record for: it ends with the launcher."""

    def prepare(self, helpers: dict[int, bool]) -> None:
        """Make the namespace of the next job, unless it waits already.

        Raises:
            OSError: There can be none.
        """
        if self._next is None or not _lives(self._next):
            self._forget_next()
            self._next, waits = _made()
            self._waiting[self._next] = waits
            helpers[self._next.pid] = True

    def of(self, job: str, helpers: dict[int, bool]) -> Init:
        """Return the first process of a job's namespace, made if need be.

        Raises:
            OSError: There can be none.
        """
        found = self._inits.get(job)
        if found is None or not _lives(found):
            self.prepare(helpers)
            assert self._next is not None, "it was made"
            found = self._inits[job] = self._next
            self._next = None
        return found

    def open(self, init: Init) -> int:
        """Return a descriptor of a namespace, whose init outlives this process from now on.

        Raises:
            OSError: It has ended.
        """
        found = os.open(f"/proc/{init.pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        waits = self._waiting.pop(init, -1)
        if waits >= 0:
            os.write(waits, GO)
            os.close(waits)
        if not _lives(init):
            os.close(found)
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "PID namespace")
        return found

    def adopt(self, job: str, init: Init, helpers: dict[int, bool]) -> None:
        """Take note of a namespace that another launcher made."""
        if _lives(init):
            self._inits.setdefault(job, init)
            helpers[init.pid] = True

    def keep(self, jobs: Mapping[str, object]) -> None:
        """End every namespace but those of these jobs."""
        for job in [job for job in self._inits if job not in jobs]:
            self._end(self._inits.pop(job))

    def close(self) -> None:
        """End what waits for the next job."""
        self._forget_next()

    def _forget_next(self) -> None:
        if self._next is not None:
            self._end(self._next)
            self._next = None

    def _end(self, init: Init) -> None:
        waits = self._waiting.pop(init, -1)
        if waits >= 0:
            os.close(waits)
        one = proc.process(init.pid)
        if one is not None and one.ticks == init.ticks:
            proc.send(one, signal.SIGKILL)


def _lives(init: Init) -> bool:
    one = proc.process(init.pid)
    return one is not None and one.ticks == init.ticks


def _made() -> tuple[Init, int]:
    """Return the first process of a new namespace, and what it waits for.

    It becomes a child of this process.

    Raises:
        OSError: The kernel makes none.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    waits, go = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(go)
        _fork_init(writer, waits)
    os.close(writer)
    os.close(waits)
    with open(reader, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    number, trouble = json.loads(said or f"[0, {errno.EAGAIN}]")
    ticks = proc.start_ticks(number) if number else None
    if ticks is None:
        os.close(go)
        raise OSError(trouble, os.strerror(trouble), "PID namespace")
    return Init(number, ticks), go


def _fork_init(writer: int, waits: int) -> None:
    """Fork a first process, say its number or what went wrong, and end."""
    try:
        kernel.unshare_processes()
        number = os.fork()
        if number == 0:
            os.close(writer)
            _become_init(waits)
        os.write(writer, json.dumps([number, 0]).encode())
    except OSError as error:
        os.write(writer, json.dumps([0, error.errno]).encode())
    finally:
        os._exit(0)


def _become_init(waits: int) -> None:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in range(3):
            os.dup2(null, number)
        # A client that the launcher hangs up on must see it.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        for low, high in ((3, waits), (waits + 1, most)):
            os.closerange(low, high)
        kernel.drop_all_capabilities()
        kernel.forbid_new_privileges()
        if os.read(waits, 1) == GO:
            os.execve(INIT[0], INIT, {})  # noqa: S606 - no shell
    finally:
        os._exit(1)
