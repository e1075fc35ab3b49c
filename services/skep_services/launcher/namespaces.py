"""The PID namespaces of jobs: in one, a process sees and signals those of its own job only.

A job has one on a node, which its ranks share: they meet by process numbers (CUDA does, for memory
that they share). Its first process is an init of ours. It does nothing and knows nothing: it is
root without a capability, ignores what a job could send it, and the kernel reaps for it, because it
ignores SIGCHLD. Ranks are never its children but the launcher's, which sees their exit codes.

An init outlives a launcher as the runs do, and ends with the last run of its job.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from skep_services.agent import proc
from skep_services.launcher import kernel

INIT = ("/bin/sleep", "infinity")
GO = b"\n"
T = TypeVar("T")


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
        self._waiting: dict[Init, int] = {}
        """What keeps an init alive that no run is on record for: it ends with the launcher."""
        self._killed: set[Init] = set()
        """Inits that are told to end: for a moment they are there still."""

    def make(self, helpers: dict[int, bool], fork: Callable[[], T]) -> tuple[Init, T]:
        """Return the init of a new namespace, and what `fork` returns, whose children are in it.

        Raises:
            OSError: There can be none.
        """
        init, waits, forked = _made(fork)
        self._waiting[init] = waits
        helpers[init.pid] = True
        return init, forked

    def give(self, job: str, init: Init) -> None:
        """Have a job get a new namespace."""
        self._inits[job] = init

    def of(self, job: str) -> Init | None:
        """Return the init of a job's namespace; None: it has none yet."""
        found = self._inits.get(job)
        return found if found is not None and self.lives(found) else None

    def lives(self, init: Init) -> bool:
        """Return whether a namespace has not ended."""
        return init not in self._killed and _is_there(init)

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
        if not self.lives(init):
            os.close(found)
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "PID namespace")
        return found

    def adopt(self, job: str, init: Init, helpers: dict[int, bool]) -> None:
        """Take note of a namespace that another launcher made."""
        if self.lives(init):
            self._inits.setdefault(job, init)
            helpers[init.pid] = True

    def keep(self, jobs: Mapping[str, object]) -> None:
        """End every namespace of a job but those of these."""
        self._killed = {init for init in self._killed if _is_there(init)}
        for job in [job for job in self._inits if job not in jobs]:
            self.end(self._inits.pop(job))

    def end(self, init: Init) -> None:
        """End a namespace, and whatever is in it."""
        waits = self._waiting.pop(init, -1)
        if waits >= 0:
            os.close(waits)
        one = proc.process(init.pid)
        if one is not None and one.ticks == init.ticks:
            self._killed.add(init)
            proc.send(one, signal.SIGKILL)


def _is_there(init: Init) -> bool:
    """Return whether a process has not ended."""
    one = proc.process(init.pid)
    return one is not None and one.ticks == init.ticks


def _made(fork: Callable[[], T]) -> tuple[Init, int, T]:
    """Return the first process of a new namespace, what it waits for, and what `fork` returns.

    Raises:
        OSError: The kernel makes none.
    """
    waits, go = os.pipe2(os.O_CLOEXEC)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    number = 0
    try:
        kernel.unshare_processes()
        try:
            number = os.fork()
            if number == 0:
                _become_init(waits)
            forked = fork()
        finally:
            _go_back(own)
    except OSError:
        os.close(go)  # Which ends the init, if there is one.
        if number:
            os.waitpid(number, 0)
        raise
    finally:
        os.close(waits)
        os.close(own)
    ticks = proc.start_ticks(number)
    assert ticks is not None, "a child that was not waited for has an entry in /proc"
    return Init(number, ticks), go, forked


def _go_back(own: int) -> None:
    """Have what this process forks next be beside it again; without that it cannot go on."""
    try:
        kernel.enter_processes(own)
    except OSError as error:
        os.write(2, f"the launcher ends: its own PID namespace is closed to it: {error}\n".encode())
        os._exit(1)  # The next one adopts the runs.


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
