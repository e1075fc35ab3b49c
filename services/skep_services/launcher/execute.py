"""The way of a process from the launcher's rights to those of a job.

It begins as a copy of the launcher, and does one thing after the other, each of which cannot be
undone: it joins its control groups, gets mounts of its own, gives up every capability and then its
account. Only after that does it touch what the job names: its folder, its script, its program. So
no path of a job is ever followed with root's rights. What goes wrong is said through a pipe, which
the executed program closes. Standard library only.

To move a process to another control group takes the kernel 10 ms on an idle machine (it waits for
every processor), so a copy waits in the groups of the next run before there is one: the `Spare`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from skep_services.agent.runner_launch import (
    NODE_ERRNOS,
    NotStarted,
    explain,
    script_trouble,
    take_terminal,
    workdir_trouble,
)
from skep_services.launcher import kernel, volumes
from skep_services.launcher.accounts import Account
from skep_services.launcher.namespaces import Init
from skep_services.launcher.policy import REPLACED, Limits
from skep_services.launcher.volumes import Shown

EXECUTE_SECONDS_MAX = 10.0
"""How long a process may take from its fork to its program: milliseconds, but for a workdir on a
file server that hangs. The launcher waits that long, and so do the other jobs of the node."""

SIZES = struct.Struct(">II")
NUMBER = struct.Struct(">Q")
MOVED = b"\0"
"""What begins the word that another process goes on, and its number; nothing else begins so."""
SAID_BYTES_MAX = 64 * 1024
FAILED = 127
PIDS_SPARE = 64
OOM_SCORE = "200"
OWN_MEMORY = "/dev/shm"  # noqa: S108 - of the job's own
OWN_TMP = "/tmp"  # noqa: S108 - of the job's own
SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables whose folders programs look into without saying what is missing."""
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"


class View(NamedTuple):
    """What a process sees of its machine. Empty: what everybody sees."""

    scratch: str
    """The folder with its `tmp` and `shm`."""
    hides_processes: bool
    hidden: tuple[str, ...]
    owns_processes: bool = False
    """It is in a PID namespace, whose /proc it gets."""
    volumes: tuple[str, ...] = ()
    """The paths of all volumes of the node: it sees none of them there that it does not have."""
    shown: tuple[Shown, ...] = ()
    """Those that it has."""


class Request(NamedTuple):
    """One process to execute, as its launcher has decided."""

    plan: Mapping[str, Any]
    account: Account
    mark: int
    joins: Sequence[str]
    view: View
    limits: Limits
    umask: int
    null: int
    output: int
    makes_checkpoints: bool
    namespace: int
    """A descriptor of the PID namespace that it is to be in; -1: the launcher's."""
    errors: int = -1
    """What becomes stderr in place of `output`; -1: nothing."""
    terminal: bool = False
    """`null` is a terminal, which is to be that of the process's session."""


class Spare:
    """A copy of the launcher that waits in the groups of a run for what the run is to be.

    It ends by itself when the launcher does.
    """

    def __init__(self, mark: int, joins: Sequence[str]) -> None:
        """Make the copy.

        Args:
            mark: The number of the run that it will be.
            joins: The files that it joins its groups by.
        """
        self.mark = mark
        self.init: Init | None = None
        """The first process of its PID namespace, if it has one of its own."""
        self._ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            _wait(theirs, joins)
        theirs.close()

    def take(self, request: Request, writer: int) -> bool:
        """Have the copy become a run; return whether it is still there."""
        text = json.dumps([request.plan, request.account, request.mark, request.view]).encode()
        rest = json.dumps([request.limits, request.umask, request.makes_checkpoints]).encode()
        head = SIZES.pack(len(text), len(rest))
        handles = [request.null, request.output, writer]
        if request.namespace >= 0 and self.init is None:
            handles.append(request.namespace)
        try:
            socket.send_fds(self._ours, [head], handles)
            self._ours.sendall(text + rest)
        except OSError:
            return False
        finally:
            self._ours.close()
        return True

    def close(self) -> None:
        """Let the copy end."""
        self._ours.close()


def _wait(theirs: socket.socket, joins: Sequence[str]) -> None:
    """Join the groups, and become the run that is told; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        # Else a client that the launcher hangs up on would not see it.
        kept = theirs.fileno()
        for low, high in ((3, kept), (kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])):
            os.closerange(low, high)
        for path in joins:
            _join(path)
        head, handles, _, _ = socket.recv_fds(theirs, SIZES.size, 4)
        if len(head) < SIZES.size or len(handles) < 3:
            os._exit(0)  # The launcher has ended.
        sizes = SIZES.unpack(head)
        plan, account, mark, view = json.loads(theirs.recv(sizes[0], socket.MSG_WAITALL))
        limits, umask, makes = json.loads(theirs.recv(sizes[1], socket.MSG_WAITALL))
        null, output, writer, namespace = [*handles, -1][:4]
        for handle in handles:
            os.set_inheritable(handle, False)
        name, uid, gid, groups, home, shell = account
        request = Request(
            plan=plan,
            account=Account(name, uid, gid, tuple(groups), home, shell),
            mark=mark,
            joins=(),
            view=View(view[0], view[1], tuple(view[2]), *view[3:]),
            limits=Limits(*limits),
            umask=umask,
            null=null,
            output=output,
            makes_checkpoints=makes,
            namespace=namespace,
        )
        _child(request, writer)
    finally:
        os._exit(FAILED)


def execute(request: Request, spare: Spare | None = None) -> int | NotStarted:
    """Return the pid of a process that executes the job's program, or why it does not.

    The caller reaps the pid; one that was not started is reaped here.

    Args:
        request: What it is to be.
        spare: A copy that waits in the groups of this run.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    if spare is not None and spare.take(request, writer):
        pid = spare.pid
    else:
        pid = os.fork()
        if pid == 0:
            _child(request, writer)
    os.close(writer)
    try:
        pid, said = _begun(request, pid, reader)
    finally:
        os.close(reader)
    if said == b"":
        return pid
    if said is None:
        os.kill(pid, signal.SIGKILL)
        text = f"workdir {request.plan['workdir']} did not answer in {EXECUTE_SECONDS_MAX:.0f} s"
        _reap(pid)
        return NotStarted(text)
    _reap(pid)
    try:
        detail, of_node = json.loads(said)
    except ValueError:
        return NotStarted("the process ended before it executed the command", of_node=True)
    return NotStarted(str(detail), of_node=bool(of_node))


def _begun(request: Request, pid: int, reader: int) -> tuple[int, bytes | None]:
    """Return the pid of a job's process, and what it said until it executed its program.

    In a namespace it is forked by the copy, which ends. The launcher is its parent from then on.
    """
    said = _said(reader, 1)
    if said != MOVED:
        rest = _said(reader) if said else b""
        return pid, None if said is None or rest is None else said + rest
    (inner,) = NUMBER.unpack(os.read(reader, NUMBER.size))  # One write with what begins it.
    os.waitpid(pid, 0)
    return inner, _said(reader)


def _reap(pid: int) -> None:
    """Wait for a process that is about to end; one that hangs is left to the reaper of all."""
    until = time.monotonic() + 1.0
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
        time.sleep(0.001)


def _said(reader: int, most: int = SAID_BYTES_MAX) -> bytes | None:
    """Return what a process said until it closed its end; None: it did neither in time."""
    said = b""
    until = time.monotonic() + EXECUTE_SECONDS_MAX
    while len(said) < most:
        ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        piece = os.read(reader, most - len(said))
        if not piece:
            return said
        said += piece
    return said


def _child(request: Request, writer: int) -> None:
    """Become the job's process; never returns."""
    step = "preparing"
    try:
        signal.set_wakeup_fd(-1)
        step = "joining its control group"
        for path in request.joins:
            _join(path)
        step = "entering its PID namespace"
        if request.namespace >= 0:
            _move(request.namespace, writer)
        step = "getting mounts of its own"
        _see(request.view)
        step = "leaving the launcher's keyring"
        kernel.leave_keyring()
        step = "setting its limits"
        _bound(request)
        step = "giving up root"
        _descend(request.account)
        trouble = _enter(request)
        if trouble is not None:
            _say(writer, *trouble)
            os._exit(FAILED)
        step = "executing"
        _run(request, writer)
    except volumes.VolumeError as error:
        _say(writer, str(error), error.of_node)
    except OSError as error:
        text = f"the process could not be kept apart, {step}: {error.strerror} ({error.filename})"
        _say(writer, text, True)
    except BaseException as error:
        _say(writer, f"the process could not be kept apart, {step}: {error!r}", True)
    os._exit(FAILED)


def _move(namespace: int, writer: int) -> None:
    """Go on as another process, in a namespace; the first one says its number and ends."""
    kernel.enter_processes(namespace)
    told, tells = os.pipe2(os.O_CLOEXEC)
    number = os.fork()
    if number:
        os.write(writer, MOVED + NUMBER.pack(number))
        os._exit(0)
    os.close(tells)
    os.read(told, 1)  # To the end: nothing is said before the number is.
    os.close(told)


def _say(writer: int, detail: str, of_node: bool) -> None:
    os.write(writer, json.dumps([detail, of_node]).encode()[:SAID_BYTES_MAX])


def _join(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(file, b"0")
    os.close(file)


def _see(view: View) -> None:
    if not any(view):
        return
    kernel.unshare_mounts()
    # After that, as a mount of another namespace cannot be shown; before anything hides them.
    sources = volumes.opened(view.shown)
    if view.scratch:
        for place in ("/tmp", "/var/tmp"):  # noqa: S108 - they become the job's own
            kernel.bind(os.path.join(view.scratch, "tmp"), place)
        kernel.bind(os.path.join(view.scratch, "shm"), "/dev/shm")  # noqa: S108
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    for place in view.hidden:
        if os.path.isdir(place):
            kernel.mount("none", place, "tmpfs", flags | kernel.MS_RDONLY, "size=4k,mode=0")
        elif os.path.exists(place):
            kernel.mount("/dev/null", place, "", kernel.MS_BIND)
    volumes.hide(view.volumes, view.shown)
    volumes.show(sources, view.shown)
    if view.hides_processes or view.owns_processes:
        # After the mounts, which are made by paths of /proc too.
        options = "hidepid=2" if view.hides_processes else ""
        kernel.mount("proc", "/proc", "proc", flags, options)


def _bound(request: Request) -> None:
    limits = request.limits
    os.setsid()
    os.umask(request.umask)
    # The launcher is spared when the machine has no memory left; a job goes before services.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(OOM_SCORE)
    for which, value in (
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, limits.core),
        (resource.RLIMIT_MEMLOCK, limits.locked_memory),
    ):
        _limit(which, value)
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_RTTIME, (request.mark, hard))
    cpus = request.plan["env"].get("SKEP_CPUS", "")
    wanted = {int(cpu) for cpu in cpus.split(",") if cpu.isdecimal()} & os.sched_getaffinity(0)
    if wanted:
        os.sched_setaffinity(0, wanted)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _limit(which: int, most: int) -> None:
    """Set a limit; in a container that may raise none, one that is lower already stays."""
    hard = resource.getrlimit(which)[1]
    try:
        resource.setrlimit(which, (most, most))
    except ValueError:
        resource.setrlimit(which, (hard, hard))


def _descend(account: Account) -> None:
    """Become the account for good."""
    os.setgroups(account.groups)
    kernel.drop_all_capabilities()
    kernel.forbid_new_privileges()
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    assert os.getresuid() == (account.uid,) * 3
    assert account.uid != 0
    assert os.getresgid() == (account.gid,) * 3
    assert account.gid != 0


def _enter(request: Request) -> tuple[str, bool] | None:
    """Go to the job's folder; return why that is not possible, and whether it is the node's fault.

    The folder of a process that names none is its account's home, else its own /tmp.
    """
    plan, account = request.plan, request.account
    if request.makes_checkpoints:
        trouble = checkpoints_trouble(plan["checkpoints"])
        if trouble is not None:
            return trouble
    workdir = plan["workdir"]
    if not workdir:
        workdir = account.home if account.home and os.path.isdir(account.home) else OWN_TMP
    why = workdir_trouble(workdir)
    if why is None:
        os.chdir(workdir)
        why = script_trouble(plan["script"], workdir)
    if why is not None:
        why = why.replace("by this user", f"by {account.name}")
        return why + _unseen(request, plan["workdir"], plan["script"]), False
    return None


def checkpoints_trouble(path: str) -> tuple[str, bool] | None:
    """Make the folder of a job's checkpoints, with the rights that this process has.

    It is where everybody may make folders, and the names of jobs can be guessed: another person may
    have made it before, to read what the job keeps, or to have the job load what is none of its.

    Returns:
        What is wrong with it, and whether it is the node's fault; None: it is the account's own.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.makedirs(path, mode=0o700)
        found = os.lstat(path)
    except OSError as error:
        text = f"checkpoints {path} cannot be made: {error.strerror}"
        return text, error.errno in NODE_ERRNOS
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return f"checkpoints {path} are of another account ({found.st_uid}): remove them", False
    return None


def _unseen(request: Request, *paths: str) -> str:
    """Return in words that one of these paths is behind the job's own /tmp; empty: none is."""
    if not request.view.scratch:
        return ""
    for path in paths:
        really = os.path.realpath(path) if os.path.isabs(path) else ""
        if really.startswith(REPLACED) and not os.path.exists(really):
            return (
                f"; a job has a {really[: really.index('/', 1)]} of its own and does not see "
                f"{really}: put it elsewhere, below /home for one"
            )
    return ""


def _warn(request: Request, env: Mapping[str, str]) -> None:
    """Say in the job's log which folders of its variables it does not see."""
    for name in SEARCHED:
        unseen = _unseen(request, *env.get(name, "").split(":"))
        if unseen:
            os.write(request.output, f"[skep] {name}:{unseen[1:]}\n".encode())


def _make_files(plan: Mapping[str, Any]) -> dict[str, str]:
    """Make the files of a plan in the job's own memory; return the variables with their paths."""
    files = plan.get("files", {})
    if not files:
        return {}
    folder = os.path.join(OWN_MEMORY, ".skep", plan["token"])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name, content in files.items():
        path = os.path.join(folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o400), "wb") as file:
            file.write(base64.b64decode(content))
    return {name: os.path.join(folder, name) for name in files}


def variables(plan: Mapping[str, Any], account: Account) -> dict[str, str]:
    """Return the whole environment of a process: the plan's, and what an account's begins with."""
    usual = {
        "PATH": PATH_DEFAULT,
        "HOME": account.home or OWN_TMP,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
    }
    return {**usual, **plan["env"]}


def _run(request: Request, writer: int) -> None:
    plan, account = request.plan, request.account
    argv, env = plan["argv"], {**variables(plan, account), **_make_files(plan)}
    if request.errors < 0:  # A person's session has no log that it would be for.
        _warn(request, env)
    # Copied beyond these three first: each may be any of them.
    ends = (request.null, request.output, request.errors)
    kept = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3) for each in ends if each >= 0]
    for number, each in enumerate((*kept, kept[-1])[:3]):
        os.dup2(each, number)
    if request.terminal:
        take_terminal()
    # Everything else closes at the exec; that this is so is not left to what opened it.
    os.set_inheritable(writer, False)
    for low, high in ((3, writer), (writer + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])):
        os.closerange(low, high)
    try:
        _replace(argv, env)
    except OSError as error:
        number = error.errno or errno.EINVAL
        text = explain(error, argv[0], env, os.getcwd()) + _unseen(request, argv[0])
        _say(writer, text, number in NODE_ERRNOS)
    except ValueError as error:
        text = f"the command, its environment or workdir cannot be passed to exec: {error}"
        _say(writer, text, False)
    os._exit(FAILED)


def _replace(argv: list[str], env: Mapping[str, str]) -> None:
    """Execute a command, found by the environment's PATH; returns never.

    Raises:
        OSError: It cannot be executed. A folder of PATH that may not be entered is passed over.
        ValueError: A text has a NUL, or a name a `=`.
    """
    last: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    places = [""] if "/" in argv[0] else os.get_exec_path(env)
    for place in places:
        try:
            os.execve(os.path.join(place, argv[0]), argv, env)  # noqa: S606 - no shell
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
                raise
            last = error if error.errno == errno.EACCES else last
    raise last


def reached(account: Account, workdir: str) -> str:
    """Return where a folder really is, entered with the rights of an account; empty: it cannot be.

    Args:
        account: Whose rights.
        workdir: The folder.
    """

    def look() -> bytes:
        os.chdir(workdir)
        return os.fsencode(os.getcwd())

    return os.fsdecode(_as_account(account, look) or b"")


def made_checkpoints(account: Account, path: str) -> tuple[str, bool] | None:
    """Make the folder of a job's checkpoints as an account; return as `checkpoints_trouble`."""
    said = _as_account(account, lambda: json.dumps(checkpoints_trouble(path)).encode())
    if not said:
        return f"checkpoints {path} did not answer in {EXECUTE_SECONDS_MAX:.0f} s", True
    trouble = json.loads(said)
    return None if trouble is None else (str(trouble[0]), bool(trouble[1]))


def _as_account(account: Account, look: Callable[[], bytes]) -> bytes | None:
    """Return what is seen with the rights of an account; None or nothing: it could not look."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _descend(account)
            os.write(writer, look())
        finally:
            os._exit(0)
    os.close(writer)
    said = _said(reader)
    os.close(reader)
    if said is None:
        os.kill(pid, signal.SIGKILL)
    _reap(pid)
    return said


def can(view: View) -> str:
    """Return why a process cannot get this view, or an empty text; tried in a process."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            if view.owns_processes:
                kernel.unshare_processes()
                inner = os.fork()
                if inner:
                    os.close(writer)
                    os.waitpid(inner, 0)
                    os._exit(0)
            _see(view)
            os.write(writer, b"ok")
        except OSError as error:
            os.write(writer, f"{error.strerror} ({error.filename})".encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = _said(reader) or b"no word"
    os.close(reader)
    os.waitpid(pid, 0)
    return "" if said == b"ok" else said.decode(errors="replace")


assert sys.platform == "linux", "there are no namespaces elsewhere"
