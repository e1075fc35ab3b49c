"""Executing a run's process, and saying what was wrong where that is not possible."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NODE_ERRNOS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    }
)
"""Errors that the node is taken to have brought about, and not the spec: it lacks room, memory,
processes or descriptors, or a disk fails. On another node the same job may run.
"""


class NotStarted(NamedTuple):
    """Why a run did not come to be, in words. `of_node`: the node is to blame, not the job."""

    detail: str
    of_node: bool = False


def launch(
    argv: Sequence[str],
    env: Mapping[str, str],
    workdir: str,
    stdin: int,
    output: int,
    *,
    errors: int = -1,
    terminal: bool = False,
) -> int | NotStarted:
    """Execute a program in a session of its own.

    Every other descriptor of this process must be close-on-exec. The caller reaps the pid.

    Args:
        argv: The program and its arguments.
        env: The environment. With SKEP_CPUS in it the process is kept on those processors, and so
            is whatever it starts.
        workdir: Where the process begins.
        stdin: A descriptor.
        output: A descriptor, which becomes stdout and stderr.
        errors: A descriptor, which becomes stderr in its place; -1: none.
        terminal: `stdin` is a terminal, which is to be that of the session.

    Returns:
        The pid, or what was wrong.
    """
    kept = keep_on(env.get("SKEP_CPUS", ""))
    try:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=output,
            stderr=output if errors < 0 else errors,
            env=env,
            cwd=workdir,
            # Closing each descriptor by hand is only needed where some are not close-on-exec.
            close_fds=False,
            start_new_session=True,
            # Nothing else runs in the runner's process that a fork could copy half of.
            preexec_fn=take_terminal if terminal else None,  # noqa: PLW1509
        )
    except OSError as error:
        text = explain(error, argv[0], env, workdir)
        return NotStarted(text, of_node=error.errno in NODE_ERRNOS)
    except (ValueError, subprocess.SubprocessError) as error:
        text = f"the command, its environment or workdir cannot be passed to exec: {error}"
        return NotStarted(text)
    finally:
        os.sched_setaffinity(0, kept)
    # The runner reaps all its children itself; an object that believes its process has ended
    # does not try to, and does not warn when it is dropped.
    process.returncode = 0
    return process.pid


def take_terminal() -> None:
    """Have the terminal at standard input be that of this process, which leads its session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def keep_on(cpus: str) -> set[int]:
    """Keep this thread, and what it starts next, on some processors; return where it was.

    Before and not after the start, so that no process of the run is ever elsewhere.
    """
    before = os.sched_getaffinity(0)
    wanted = {int(cpu) for cpu in cpus.split(",") if cpu.isdecimal()} & before
    if wanted:
        os.sched_setaffinity(0, wanted)
    return before


def not_written(what: str, error: OSError) -> NotStarted:
    """Return that something which a run needs cannot be written, and whose fault that is.

    Args:
        what: What it is, with its path.
        error: How it failed.
    """
    text = f"{what} cannot be written: {error.strerror}"
    return NotStarted(text, of_node=error.errno in NODE_ERRNOS)


def explain(error: OSError, program: str, env: Mapping[str, str], workdir: str) -> str:
    """Return in words why executing a program failed, with the paths that were tried.

    Args:
        error: How it failed.
        program: The first word of the command.
        env: The environment, by whose PATH a name is looked up.
        workdir: Where the process was to begin.
    """
    match error.errno:
        case errno.EAGAIN:
            return (
                "no process could be started: too many processes "
                "(limit of the user, the container or the machine)"
            )
        case errno.ENOMEM:
            return "no process could be started: the machine is out of memory"
        case errno.EMFILE | errno.ENFILE:
            return "no process could be started: too many open files on this node"
        case errno.E2BIG:
            return "the arguments and the environment are together too large to execute"
        case errno.ENOENT | errno.ENOTDIR | errno.EACCES | errno.ENOEXEC | errno.ELOOP:
            return workdir_trouble(workdir) or _program_trouble(error, program, env, workdir)
        case _:
            return f"executing {program} failed: {error.strerror}"


def workdir_trouble(workdir: str) -> str | None:
    """Return what keeps processes from working in a folder, or None."""
    if not os.path.exists(workdir):
        return f"workdir {workdir} does not exist on this node"
    if not os.path.isdir(workdir):
        return f"workdir {workdir} is not a folder"
    if not os.access(workdir, os.X_OK):
        return f"workdir {workdir} may not be entered by this user"
    return None


def script_trouble(script: str, workdir: str) -> str | None:
    """Return what is wrong with a script that an interpreter is to read, or None.

    Its interpreter would say so too, but in the log, and with a status that any script may have.

    Args:
        script: The path, also from `workdir`; empty: there is no script.
        workdir: Where the process is to begin.
    """
    path = os.path.normpath(os.path.join(workdir, script))
    if not script or workdir_trouble(workdir):
        return None
    if not os.path.exists(path):
        return f"script {path} does not exist on this node"
    if not os.access(path, os.R_OK):
        return f"script {path} may not be read by this user"
    return None


def _program_trouble(error: OSError, program: str, env: Mapping[str, str], workdir: str) -> str:
    if "/" in program:
        candidates = [os.path.normpath(os.path.join(workdir, program))]
    else:
        folders = os.get_exec_path(env)
        candidates = [os.path.join(workdir, folder, program) for folder in folders]
        if not any(os.path.lexists(each) for each in candidates):
            return f"executable {program} was not found in PATH: {':'.join(folders)}"
    path = next((each for each in candidates if os.path.lexists(each)), candidates[0])
    if not os.path.exists(path):
        return f"executable {path} does not exist on this node"
    if os.path.isdir(path):
        return f"executable {path} is a folder"
    if not os.access(path, os.X_OK):
        return f"{path} is not executable: chmod +x it, or name its interpreter first"
    if error.errno == errno.ENOEXEC:
        return f"{path} is neither a program nor a script with a #! line"
    interpreter = _interpreter(path)
    if interpreter is not None and not os.path.exists(interpreter):
        return f"{path} asks for the interpreter {interpreter}, which does not exist on this node"
    return f"executing {path} failed: {error.strerror}"


def _interpreter(path: str) -> str | None:
    """Return the program named in the #! line, or None if there is no such line."""
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return None
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else None
