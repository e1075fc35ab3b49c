"""A run that goes on from an image of its processes: `python -I -S restored_run.py ORDER COMMAND`.

It has CRIU bring the processes back, which become its children, and stays above them as the main
process of the run: it ends as the first of them ends. Where they do not come back it says why in
one line, and becomes COMMAND: the attempt begins from the start.

A regular file that the processes had open for writing, not for appending, has to be as long as it
was: CRIU refuses others. What was written behind that later is cut off, as it is written again.
ORDER is JSON (`Order` in `process_checkpoint`). Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
PR_SET_NAME = 15
TRIES_MAX = 5
"""A process number may be taken for a moment by something short-lived."""
PAUSE_S = 0.3
RESTORE_SECONDS_MAX = 300.0
CHUNK_BYTES = 1 << 20
LOG_BYTES_MAX = 256 * 1024
TEXT_CHARACTERS_MAX = 300


class NotRestoredError(Exception):
    """The processes do not come back; the text says why."""


def main(arguments: list[str]) -> int:
    """Bring the processes back and wait for the first of them; return its exit status."""
    order, argv = json.loads(arguments[0]), arguments[1:]
    begun = time.monotonic()
    _be_subreaper(on=True)
    try:
        pid = _restored(order)
    except (NotRestoredError, OSError) as error:
        _say(f"{order['text']} does not come back, the attempt begins from the start: {error}")
        _end_children()
        _be_subreaper(on=False)
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - the job's own command
    _say(f"{order['text']} goes on, after {time.monotonic() - begun:.1f} s")
    return _wait(pid)


def _restored(order: dict[str, Any]) -> int:
    """Return the number of the first process once all are back.

    Raises:
        NotRestoredError: They are not.
    """
    for name, wanted in order["sums"].items():
        if sum_of(os.path.join(order["images"], name)) != tuple(wanted):
            message = f"{os.path.join(order['images'], name)} is damaged"
            raise NotRestoredError(message)
    for path, size, inode in order["files"]:
        _shorten(path, size, inode)
    why = ""
    for _ in range(TRIES_MAX):
        if not os.path.exists(f"/proc/{order['pid']}"):
            why = _restore(order)
            break
        why = f"process number {order['pid']} is taken"
        time.sleep(PAUSE_S)  # tidy: allow sleep because it looks at a condition a few times
    if why:
        raise NotRestoredError(why)
    return int(order["pid"])


def _restore(order: dict[str, Any]) -> str:
    """Have CRIU bring the processes back; return why it did not, or an empty text."""
    log = os.path.join(order["images"], "restore.log")
    words = [*order["criu"], "restore", "--images-dir", order["images"], "--restore-detached"]
    words += ["--log-file", "restore.log", "-v1"]
    if order["output"]:
        # What was written to the log of the earlier attempt goes to this one's from here on.
        words += ["--inherit-fd", f"fd[1]:{order['output'].lstrip('/')}"]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=RESTORE_SECONDS_MAX,
            check=False,
            env={**os.environ, **order["environment"]},
        )
    except OSError as error:
        return f"{order['criu'][0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{order['criu'][0]} restores for more than {RESTORE_SECONDS_MAX:.0f} s"
    if done.returncode == 0:
        return ""
    return last_error(log) or f"{order['criu'][0]} ended with status {done.returncode}"


def sum_of(path: str) -> tuple[int, int]:
    """Return the length and the CRC-32 of a file; of one that is not there, a length of -1.

    Args:
        path: The file.
    """
    size = sum_ = 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(CHUNK_BYTES):
                size, sum_ = size + len(piece), zlib.crc32(piece, sum_)
    except OSError:
        return -1, 0
    return size, sum_


def last_error(log: str) -> str:
    """Return the first error in a log of CRIU, in one line; the later ones follow from it.

    Args:
        log: The path.
    """
    try:
        with open(log, "rb") as file:
            lines = file.read(LOG_BYTES_MAX).decode(errors="replace").splitlines()
    except OSError:
        return ""
    errors = [line[line.index("Error (") :] for line in lines if "Error (" in line]
    errors = [line for line in errors if "RLIMIT_NOFILE" not in line]
    return errors[0][:TEXT_CHARACTERS_MAX].strip() if errors else ""


def _shorten(path: str, size: int, inode: int) -> None:
    """Cut off what was written to a file after the image was made.

    Raises:
        NotRestoredError: It is another file, or shorter.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise NotRestoredError(message) from None
    if found.st_ino != inode or found.st_size < size:
        message = f"{path} is not the file that the job had open"
        raise NotRestoredError(message)
    if found.st_size > size:
        os.truncate(path, size)


def _wait(pid: int) -> int:
    """Reap children until the first process has ended; return its status."""
    # The runner signals every process of the tree by itself: this one only has to outlive them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended != pid:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
            os.kill(os.getpid(), -code)
        return code


def _end_children() -> None:
    """Kill what an interrupted CRIU has left: it is half of a process."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        pids = [int(word) for word in file.read().split()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_subreaper(*, on: bool) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _say(text: str) -> None:
    sys.stderr.write(f"[skep] {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
