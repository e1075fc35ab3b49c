"""The process of a job that is a notebook: it becomes Jupyter, and says where that listens.

With `--idle` it stays, as Jupyter's parent: `skep_job.notebook_idle`.

    python -m skep_job.notebook [--python PYTHON] [--idle SECONDS]     what `skep notebook` submits
    python -m skep_job.notebook --where                                run in the job: where it is

The token is made here, in the job. It reaches Jupyter by a variable of its process, and a person by
a file that only the job's account may read: it is in no argument, no spec and no log. Standard
library only; Jupyter may be another interpreter's.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence

RUN_VARIABLE = "SKEP_RUN"
TOKEN_VARIABLE = "JUPYTER_TOKEN"  # noqa: S105 - a name
TOKEN_BYTES = 24
HOST = "127.0.0.1"
PROGRAMS = ("jupyterlab", "jupyter_server")
"""What serves notebooks, the better one first: the other has no page to edit them, only "/"."""
LOOK = (
    "import importlib.util as u; "
    f"print(next((each for each in {PROGRAMS!r} if u.find_spec(each)), ''))"
)
LOOK_WITHIN_S = 30.0
LISTENS_WITHIN_S = 120.0
"""How long Jupyter may take to begin: 3 s, but more on a busy node or a slow file system."""
LOOK_EVERY_S = 0.05
IDLE_PYTHON_MIN = (3, 10)
OLD = (
    f"--idle needs Python {'.'.join(map(str, IDLE_PYTHON_MIN))} or later as `python3`, which is "
    f"{sys.version.split()[0]} here: leave --idle out"
)
NOT_YET = 4
"""The exit code of `--where` if Jupyter does not come to listen."""


def folder() -> str:
    """Return the folder of this account's notebooks, in the job's own /tmp where it has one."""
    return f"/tmp/skep-notebook-{os.getuid()}"  # noqa: S108 - its owner is looked at before use


def place_of(run: str) -> str:
    """Return the file that says where the notebook of a run is."""
    return os.path.join(folder(), f"{run.replace('/', '_')}.json")


def own_folder() -> str:
    """Return the folder, made if it was not there.

    Raises:
        OSError: It cannot be made, or another account was there before.
    """
    path = folder()
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # Another notebook of this account, or of another account: it is looked at.
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(errno.EPERM, "it is not a folder of this account alone", path)
    return path


def program_of(python: str) -> str:
    """Return what an interpreter has that serves notebooks; empty: nothing.

    Raises:
        OSError: It cannot be executed.
    """
    try:
        done = subprocess.run(
            [python, "-c", LOOK],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LOOK_WITHIN_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return ""
    found = done.stdout.strip()
    return found if found in PROGRAMS else ""


def lacks(python: str) -> str:
    """Return what to say of an interpreter that has nothing to serve notebooks with."""
    return (
        f"{python} has neither jupyterlab nor jupyter_server: install `skep[notebook]` there, or "
        "name an interpreter that has one: --python"
    )


def free_port() -> int:
    """Return a port of this machine that nothing listens at."""
    with socket.socket() as link:
        link.bind((HOST, 0))
        found: int = link.getsockname()[1]
        return found


def options(port: int) -> list[str]:
    """Return what Jupyter is told in its arguments, which everyone on the node may read.

    Args:
        port: Where it is to listen.
    """
    told = [
        "--no-browser",
        f"--ServerApp.ip={HOST}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={os.getcwd()}",
    ]
    if os.getuid() == 0:
        told.append("--allow-root")
    return told


def write(path: str, about: dict[str, object]) -> None:
    """Write what only this account may read."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # The usual case: no earlier run of this name was here.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(handle, "w", encoding="ascii") as file:
        json.dump(about, file)


def serve(python: str, idle_s: int) -> int:
    """Become Jupyter, or with `idle_s` run it; return the exit code of that, or of a failure."""
    run = os.environ.get(RUN_VARIABLE, "")
    if not run:
        return _said("it is a job's process: `skep notebook` starts it", 2)
    if idle_s and sys.version_info < IDLE_PYTHON_MIN:
        return _said(OLD, 1)
    try:
        program = program_of(python)
        if not program:
            return _said(lacks(python), 1)
        place = own_folder()
        port, token = free_port(), secrets.token_hex(TOKEN_BYTES)
        page = "lab" if program == "jupyterlab" else ""
        write(place_of(run), {"port": port, "token": token, "page": page})
        os.environ[TOKEN_VARIABLE] = token
        os.environ["JUPYTER_RUNTIME_DIR"] = os.path.join(place, "runtime")
        sys.stdout.write(f"[skep] a notebook runs here: skep notebook {run.partition('.')[0]}\n")
        sys.stdout.flush()
        argv = [python, "-m", program, *options(port)]
        if idle_s:
            from skep_job.notebook_idle import stay

            return stay(argv, port, token, idle_s)
        os.execv(python, argv)  # noqa: S606 - no shell
    except OSError as error:
        return _said(f"{error.filename or python}: {error.strerror}", 1)


def where(within_s: float = LISTENS_WITHIN_S) -> int:
    """Print, as JSON, where the notebook of this job is, once it listens; return the exit code."""
    place = place_of(os.environ.get(RUN_VARIABLE, ""))
    until = time.monotonic() + within_s
    while not (told := _listening(place)):
        if time.monotonic() > until:
            return NOT_YET
        time.sleep(LOOK_EVERY_S)
    sys.stdout.write(told)
    return 0


def _listening(place: str) -> str:
    """Return what a notebook says of itself; empty: it does not listen yet."""
    try:
        with open(place, encoding="ascii") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return ""
            told = file.read()
        socket.create_connection((HOST, int(json.loads(told)["port"])), 1.0).close()
    except (OSError, ValueError):
        return ""
    return told


def _said(text: str, code: int) -> int:
    sys.stderr.write(f"skep_job.notebook: {text}\n")
    return code


def main(argv: Sequence[str]) -> int:
    """Do what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(description="What `skep notebook` runs as a job.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of Jupyter")
    parser.add_argument("--idle", type=int, default=0, help="be suspended after so many seconds")
    parser.add_argument("--where", action="store_true", help="say where the job's notebook is")
    given = parser.parse_args(argv)
    return where() if given.where else serve(given.python, given.idle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
