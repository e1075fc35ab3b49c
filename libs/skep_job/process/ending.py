"""How a process ends that has no place in its gang any more: at once when the script has ended.

Others wait for its GPU, and taking an interpreter with PyTorch apart takes it seconds on a busy
machine. Whatever is the script's happens as ever: `finally` and `with`, threads that are waited
for, `atexit`, and what was written to files reaches them. The kernel does the rest.
"""

from __future__ import annotations

import atexit
import os
import sys

_armed = 0
_leaves = False


def arm() -> None:
    """Be ready to end this process. Called before anything of the script's: first in, last out."""
    global _armed  # noqa: PLW0603  a process ends once
    if not _armed:
        _armed = os.getpid()
        atexit.register(_end)


def leave() -> None:
    """Have this process end at once after all that `atexit` does."""
    global _leaves  # noqa: PLW0603
    _leaves = True


def _end() -> None:
    if not _leaves or os.getpid() != _armed or hasattr(sys, "last_type"):
        return  # Else who was told of an exception would be told 0, too.
    try:
        _flush()
    finally:
        os._exit(0)


def _flush() -> None:
    """Have the system take what was written to files, as the end of an interpreter does."""
    import ctypes
    import gc
    import io

    files: list[tuple[object, str]] = [(sys.stdout, "flush"), (sys.stderr, "flush")]
    if _writes():
        gc.unfreeze()  # What is frozen is not listed.
        things = gc.get_objects()
        # What is above first: it hands on to what is below.
        for kind, end in (
            ((io.TextIOWrapper,), "flush"),
            (_packers(), "close"),
            ((io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair), "flush"),
        ):
            files += [(thing, end) for thing in things if issubclass(type(thing), kind)]
    for file, end in files:
        try:
            getattr(file, end)()
        except Exception:  # noqa: S110
            pass  # Closed, replaced, or its disk is full: nobody is left to tell.
    try:
        ctypes.CDLL(None).fflush(None)
    except (OSError, AttributeError):
        pass  # A C library without it.


def _packers() -> tuple[type, ...]:
    """Return the types of files that are whole only once they are closed."""
    named = ("gzip", "GzipFile"), ("bz2", "BZ2File"), ("lzma", "LZMAFile"), ("zipfile", "ZipFile")
    return tuple(
        getattr(sys.modules[module], name) for module, name in named if module in sys.modules
    )


def _writes() -> bool:
    """Return whether files or pipes are open for writing, before all that there is is looked at."""
    import fcntl
    import stat

    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return True  # No such folder: nobody can say.
    for name in names:
        try:
            mode = os.fstat(int(name)).st_mode
            reads = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        except OSError:
            continue  # The descriptor of the folder itself, which is closed.
        if (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)) and not reads and int(name) > 2:
            return True
    return False
