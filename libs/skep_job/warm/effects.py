"""Sees what an import did to the process beside making modules.

A rank that is forked after it must be as one that imports the same itself. So an import that starts
a thread, leaves a file open or writes is not made before the fork, nor one that seeds random
numbers or looks at the arguments, the script or the process. What else an import looked at that
differs between ranks is noted: a rank for which it is another is executed. Changes of the
environment are noted too, and made again in each rank.

What goes through all variables is taken to look for its own: it finds none that differ.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any

PATHS = frozenset({"posixpath", "genericpath", "pathlib", "os"})
SET_RIGHT = frozenset({"torch._dynamo.config"})
"""Modules that keep the working directory, and for which a rank sets it right."""
WORDS_AT = 1
"""Stdout, which in a warm process is a file of its own, and shares its position with stderr."""


class Watch:
    """Watches imports, one after the other, until `end`.

    Args:
        is_per_run: Tells whether a variable differs between the ranks that are forked.
        is_installed: Tells whether a file may be of a module that is imported here.
    """

    def __init__(
        self, is_per_run: Callable[[str], bool], is_installed: Callable[[str], bool]
    ) -> None:
        self._is_per_run, self._is_installed = is_per_run, is_installed
        self.reads_folder = False
        """Whether an import has asked for the working directory."""
        self.changed: dict[str, str | None] = {}
        """What imports did to the environment; None: they removed the variable."""
        self.looked_at: dict[str, bool] = {}
        """Variables that differ between ranks, and that imports asked for."""
        self._asked = ""
        """What the import since `begin` asked for that no rank has in common with this process."""
        self._getcwd, self._getpid, self._seed = os.getcwd, os.getpid, random.seed
        self._kind = type(os.environ)
        self._arguments, self._main = sys.argv, sys.modules["__main__"]
        os.getcwd, os.getpid, random.seed = self._asked_folder, self._asked_pid, self._seeded
        sys.argv = self._listing()(sys.argv)
        self._main.__spec__ = self._main.__package__ = None  # As it is where a script is run.
        self._main.__class__ = self._showing()
        os.environ.__class__ = self._watching()
        self._before: dict[str, Any] = {}
        self._environment: dict[str, str] = {}
        self._modules: dict[str, bool] = {}
        self.begin()

    def end(self) -> None:
        """Stop watching."""
        os.getcwd, os.getpid, random.seed = self._getcwd, self._getpid, self._seed
        os.environ.__class__ = self._kind
        self._main.__class__ = ModuleType
        sys.argv = self._arguments

    def begin(self) -> None:
        """Take the process as it is now for the state before an import."""
        self._before = _state()
        self._environment = self._variables()
        self._modules = dict.fromkeys(sys.modules, True)
        self._asked = ""

    def why_not(self) -> str:
        """Return what the import since `begin` did that it must not have done, or an empty text."""
        asked, after, environment = self._asked, _state(), self._variables()
        for what, before in self._before.items():
            if after[what] != before:
                return f"it changes {what}"
        if asked:
            return asked
        for name in sorted(environment.keys() | self._environment.keys()):
            if environment.get(name) != self._environment.get(name):
                if self._is_per_run(name):
                    return f"it sets {name}"
                self.changed[name] = environment.get(name)
        for name in [each for each in list(sys.modules) if each not in self._modules]:
            file = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(file, str) and os.path.isabs(file) and not self._is_installed(file):
                return f"{file} is not installed in the environment"
        return ""

    def _variables(self) -> dict[str, str]:
        return {os.fsdecode(name): os.fsdecode(value) for name, value in _data().items()}

    def _asked_folder(self) -> str:
        if not _may_ask_folder(sys._getframe(1)):
            self.reads_folder = True
        return self._getcwd()

    def _asked_pid(self) -> int:
        if not _is_standard(sys._getframe(1)):
            self._asked = "it looks at the number of the process"
        return self._getpid()

    def _seeded(self, *given: Any, **named: Any) -> None:
        self._asked = "it seeds random numbers"
        self._seed(*given, **named)

    def _listing(self) -> type[list[str]]:
        """Return a kind of list that notes that it is read."""
        watch = self

        def noting(name: str) -> Callable[..., Any]:
            read = getattr(list, name)

            def note(arguments: list[str], *given: Any) -> Any:
                watch._asked = "it looks at sys.argv"
                return read(arguments, *given)

            return note

        names = ("__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__repr__")
        return type("list", (list,), {name: noting(name) for name in names})

    def _showing(self) -> type[ModuleType]:
        """Return a kind of module that notes that a library asks it for its file."""
        watch = self

        class Showing(ModuleType):
            def __getattribute__(self, name: str) -> Any:
                if name == "__file__" and not _is_standard(sys._getframe(1)):
                    watch._asked = "it looks at the script"
                return super().__getattribute__(name)

        return Showing

    def _watching(self) -> type:
        """Return a kind of environment that notes which variables are asked for."""
        watch = self

        class Watching(self._kind):  # type: ignore[misc, name-defined]
            def __getitem__(self, name: str) -> str:
                if watch._is_per_run(name):
                    watch.looked_at[name] = True
                found: str = super().__getitem__(name)
                return found

        return Watching


def _data() -> Mapping[bytes, bytes]:
    found: Mapping[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return found


def _may_ask_folder(frame: FrameType | None) -> bool:
    """Return whether what asked, modules of paths apart, may: the standard library, and SET_RIGHT.

    `multiprocessing` keeps the folder, which a rank sets right; `inspect` compares with it.
    """
    while frame is not None and frame.f_globals.get("__name__") in PATHS:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__")) if frame is not None else ""
    return name in SET_RIGHT or _is_standard(frame)


def _is_standard(frame: FrameType | None) -> bool:
    """Return whether code of the standard library runs in a frame."""
    name = str(frame.f_globals.get("__name__")) if frame is not None else ""
    return name.partition(".")[0] in sys.stdlib_module_names


def _state() -> dict[str, Any]:
    """Return what an import must leave as it is, by its name in a message."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
    return {
        "the number of threads": threads(),
        "which child processes there are": _children(),
        "which files are open": _open_files(),
        "what was written": os.lseek(WORDS_AT, 0, os.SEEK_CUR),
        "the handlers of signals": _signals(),
        "the working directory": os.readlink("/proc/self/cwd"),
        "the limits": [resource.getrlimit(each) for each in _limits()],
        "the processors": sorted(os.sched_getaffinity(0)),
        "the priority": os.getpriority(os.PRIO_PROCESS, 0),
        "the mask of new files": _umask(),
        "sys.path": list(sys.path),
        "sys.argv": (list.copy(sys.argv), sys.getrefcount(sys.argv)),
        "NumPy's random numbers": _numpy_is_seeded(),
        "what traces": (sys.gettrace(), sys.getprofile()),
        "what shows exceptions": sys.excepthook,
        "stdin, stdout or stderr": (sys.stdin, sys.stdout, sys.stderr),
    }


def threads() -> int:
    """Return how many threads this process has, as the kernel counts them."""
    return len(os.listdir("/proc/self/task"))


def _children() -> str:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read()


def _open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # The descriptor of the folder itself.
    return found


def _signals() -> list[object]:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        masks = [line for line in file if line.startswith("Sig") and not line.startswith("SigQ")]
    return [*masks, *(signal.getsignal(each) for each in signal.valid_signals())]


def _limits() -> list[int]:
    return [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("Umask")), -1)


def _numpy_is_seeded() -> bool:
    """Return whether NumPy's global generator has a seed that was chosen.

    A rank draws its own, as each process does that imports NumPy.
    """
    module = sys.modules.get("numpy.random.mtrand")
    generator = getattr(getattr(module, "_rand", None), "_bit_generator", None)
    return getattr(generator, "_seed_seq", True) is None
