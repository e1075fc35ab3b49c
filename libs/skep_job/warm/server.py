"""The warm process: makes the imports that a script begins with, and forks a rank at each request.

    loading --ready--> serving --request--> serving (a fork becomes a rank) --EOF, or stale--> gone

It has one thread and no device open whenever it forks, and trains nothing. The runner may end it at
any moment, and takes its silence for a refusal: then a run starts without it. Messages on its
socket are JSON, one in a packet:

    first, from the runner          {"script", "env", "per_run": [...], "prefixes": [...],
                                     "record", "most", "seconds_min"}
    ready                        -> {"ready": [[module, name], ...], "late": how many more,
                                     "left": why it is not all}
    not worth keeping, or ended  -> {"useless": why}, with "most" imports another one might do
    a rank, from the runner         {"argv", "env", "workdir"}, with stdin, the log and a socket
    forked                       -> {"pid"} | {"cold": why}

On the socket that came with a request the rank says {"ready": true} or {"cold": why}, and with
"other" that another warm process might do; it begins once it gets a byte there, or ends with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import site
import socket
import sys
import sysconfig
import time
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from skep_job.warm import rank, recording
from skep_job.warm.effects import Watch, threads
from skep_job.warm.late_imports import why_late_imports_differ
from skep_job.warm.leading_imports import Import, UnreadableError, leading_imports
from skep_job.warm.process_words import can_set_words

PR_SET_PDEATHSIG = 1
CHOSEN_SEED_MAX = 2**32
"""A seed of 64 bits that was drawn is above it; one that an import has set is not."""
MESSAGE_BYTES_MAX = 1024 * 1024
DESCRIPTORS = 3
TEXT_MAX = 500


class Useless(Exception):  # noqa: N818 - an outcome
    """Ranks cannot, or need not, be forked here. The text says why.

    Another warm process that makes the first `most` of the imports might do.
    """

    def __init__(self, why: str, most: int = 0) -> None:
        super().__init__(why)
        self.most = most


class WarmProcess:
    """What ranks are forked from."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        """Make the imports; `first` is the runner's first message.

        Raises:
            Useless: No rank can be forked, or none need be.
        """
        self.given: dict[str, str] = first["env"]
        self.folder = os.getcwd()
        self._names = frozenset(first["per_run"])
        self._prefixes = tuple(first["prefixes"])
        self._installed = _installed()
        self.searched = tuple(each for each in _paths() if not self._is_installed(each + "/"))
        """Folders of PYTHONPATH: a module of theirs comes before one that is installed."""
        _fit()
        _own_modules()
        self.changed: dict[str, str | None] = {
            name: os.environ.get(name)
            for name in self.given.keys() | os.environ.keys()
            if self.given.get(name) != os.environ.get(name)
        }
        """What starting the interpreter, and then imports, did to the environment."""
        self.made: list[Import] = []
        """Imports with which the script of a rank has to begin, too."""
        self.late = 0
        """How many modules were imported that scripts get from libraries as they go on."""
        self.looked_at: tuple[str, ...] = ()
        self.left = ""
        """Which import was left to the ranks, and why."""
        began = time.monotonic()
        try:
            wanted, most = leading_imports(first["script"]), first["most"]
            why = why_late_imports_differ(first["script"], self.is_per_run)
            record = ([], []) if why else recording.read(first["record"])
            self._make(wanted[:most], record, max(most - len(wanted), 0))
        except UnreadableError as error:
            raise Useless(str(error)) from None
        seconds = time.monotonic() - began
        if seconds < first["seconds_min"]:
            message = f"what can be imported before it takes {seconds:.2f} s only"
            raise Useless(f"{message}; {self.left}" if self.left else message)
        self.draws_seed = "torch" in sys.modules and _draws_seed()
        self.files = _signs(self._sources())

    def why_stale(self) -> str:
        """Return what has changed in the environment since the imports, or an empty text."""
        for path, sign in self.files.items():
            if _sign(path) != sign:
                return f"{path} has changed"
        return ""

    def may_set(self, name: str) -> bool:
        """Return whether a script may set a variable: no import has looked at it."""
        return self.is_per_run(name) and name not in self.looked_at

    def _make(self, wanted: list[Import], record: tuple[list[str], list[str]], most: int) -> None:
        watch = Watch(self.is_per_run, self._is_installed)
        try:
            for one in wanted:
                self.left = self._why_left(one)
                if self.left:
                    return
                self._try(watch, one)
                self.made.append(one)
            changed = {*self.changed, *watch.changed}
            modules, other = record
            if all(name in changed or self.is_per_run(name) for name in other):
                self._make_late(watch, modules, most)
        finally:
            watch.end()
            self.changed.update(watch.changed)
            self.looked_at = tuple(watch.looked_at)
            self.folder = self.folder if watch.reads_folder else ""

    def _make_late(self, watch: Watch, modules: list[str], most: int) -> None:
        """Import what else an earlier run had of the packages that are here already."""
        tops = {name.partition(".")[0] for name in sys.modules}
        for name in modules:
            if name in sys.modules or name.partition(".")[0] not in tops:
                continue
            if self.late >= most:
                return
            self._try(watch, Import(name))
            self.late += 1

    def _why_left(self, one: Import) -> str:
        top = one.module.partition(".")[0]
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not all(self._is_installed(each) for each in _places(spec)):
            return f"{top} is not installed in the environment"
        return ""

    def _try(self, watch: Watch, one: Import) -> None:
        """Make one import.

        Raises:
            Useless: It must be left to the ranks, has been made, and cannot be taken back.
        """
        name = f"import of {one.module}" + (f".{one.name}" if one.name else "")
        watch.begin()
        try:
            module = __import__(one.module, {}, {}, [one.name] if one.name else [], 0)
            if one.name:
                getattr(module, one.name)
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
        else:
            why = watch.why_not()
        if why:
            text = f"{name}: {why}"
            raise Useless(text, len(self.made) + self.late)

    def is_per_run(self, name: str) -> bool:
        """Return whether a variable differs between the ranks that are forked."""
        return name in self._names or name.startswith(self._prefixes)

    def _is_installed(self, file: str) -> bool:
        return file.startswith(self._installed) or os.path.realpath(file).startswith(
            self._installed
        )

    def _sources(self) -> list[str]:
        loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        files = [each for each in loaded if isinstance(each, str) and os.path.isabs(each)]
        return [sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), *_site(), *files]


def serve(number: int) -> list[str]:
    """Serve the runner on a socket; return in each rank that is forked, and nowhere else.

    Args:
        number: The descriptor of the socket.

    Returns:
        The script of the rank, and its arguments.
    """
    channel = socket.socket(fileno=number)
    channel.set_inheritable(False)
    # Forks do not inherit that. The runner's end is seen on the socket too, but not while it loads.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        warm = WarmProcess(json.loads(channel.recv(MESSAGE_BYTES_MAX)))
    except Useless as why:
        _leave(channel, str(why), why.most)
    except Exception as error:
        _leave(channel, f"{type(error).__name__}: {error}")
    # What is frozen is left alone by collections, so that ranks share its memory to their end.
    gc.collect()
    gc.freeze()
    _tell(channel, {"ready": warm.made, "late": warm.late, "left": warm.left})
    while True:
        packet, handed, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, DESCRIPTORS)
        if not packet:
            os._exit(0)
        trouble = warm.why_stale()
        if not trouble and threads() != 1:
            trouble = f"it has {threads()} threads"
        if trouble:
            _leave(channel, trouble)
        forked = _fork(channel)
        if not forked:
            channel.detach()  # The rank closes it with all that it has not been handed.
            return rank.become(warm, json.loads(packet), handed)
        _tell(channel, forked)
        for each in handed:
            os.close(each)


def _fork(channel: socket.socket) -> dict[str, Any]:
    """Fork a process that has the runner for its parent; return what to say, nothing in the fork.

    The process between the two ends at once, so that the runner, a subreaper, gets the fork.
    """
    reads, writes = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        os.close(reads)
        os.close(writes)
        return {"cold": f"no process could be forked: {error.strerror}"}
    if between == 0:
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid == 0:
            return {}
        os.write(writes, str(pid).encode())
        os._exit(0)
    os.close(writes)
    text = os.read(reads, 32)
    os.close(reads)
    os.waitpid(between, 0)  # From here on the fork is the runner's child.
    return {"pid": int(text)} if text else {"cold": "no process could be forked"}


def _draws_seed() -> bool:
    """Return whether PyTorch has drawn a seed for itself, as it does when it is imported.

    Raises:
        Useless: Random numbers have been drawn, which all forks would share.
    """
    generator = sys.modules["torch"].default_generator
    seed, state = generator.initial_seed(), generator.get_state().tolist()
    generator.manual_seed(seed)
    if generator.get_state().tolist() != state:
        message = "an import draws random numbers of PyTorch"
        raise Useless(message)
    return bool(seed > CHOSEN_SEED_MAX)


def _fit() -> None:
    """See whether a fork can be as a process that was executed.

    Raises:
        Useless: It cannot.
    """
    if threads() != 1:
        message = "what starts with the interpreter starts threads"
        raise Useless(message)
    if sys.gettrace() or sys.getprofile():
        message = "what starts with the interpreter traces it"
        raise Useless(message)
    if not can_set_words():
        message = "the kernel does not let a process set its arguments (PR_SET_MM_MAP)"
        raise Useless(message)


def _own_modules() -> None:
    """Import what every rank does before its script."""
    for name in ("link.orders", "observe.observation", "observe.reporter", "process.ending"):
        importlib.import_module(f"skep_job.{name}")


def _site() -> list[str]:
    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [each for each in folders if os.path.isdir(each)]


def _paths() -> list[str]:
    """Return the folders of PYTHONPATH, without that of this package."""
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    given = os.environ.get("PYTHONPATH", "") if not sys.flags.ignore_environment else ""
    return [
        each
        for each in given.split(":")
        if each and os.path.realpath(each) != os.path.realpath(ours)
    ]


def _installed() -> tuple[str, ...]:
    """Return the beginnings of all paths of modules that are no files of a job."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    standard = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    folders = [*_site(), *standard, ours]
    every = [*folders, *(os.path.realpath(each) for each in folders)]
    return tuple(dict.fromkeys(each.rstrip("/") + "/" for each in every))


def _places(spec: ModuleSpec) -> list[str]:
    """Return where a module comes from: its file, or the folders of a package without one."""
    if spec.origin and spec.has_location:
        return [spec.origin]
    return [os.path.join(each, "") for each in spec.submodule_search_locations or ["/"]]


Sign = tuple[int, int, int]


def _signs(paths: list[str]) -> dict[str, Sign | None]:
    return {path: _sign(path) for path in dict.fromkeys(paths)}


def _sign(path: str) -> Sign | None:
    """Return what changes when a file or the list of a folder changes; None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, 0 if os.path.isdir(path) else found.st_size


def _tell(channel: socket.socket, message: Mapping[str, Any]) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except OSError:
        os._exit(0)  # The runner is gone.


def _leave(channel: socket.socket, why: str, most: int = 0) -> NoReturn:
    _tell(channel, {"useless": why[:TEXT_MAX], "most": most})
    os._exit(0)
