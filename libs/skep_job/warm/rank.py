"""What a fork of a warm process does before its script: it becomes as an executed process would be.

Until the runner lets it begin, all that can fail is done, and nothing that others would see. Where
something would not be as if it was executed, it says so and ends; the run is then executed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from skep_job.warm.late_imports import why_late_imports_differ
from skep_job.warm.leading_imports import Import, UnreadableError, leading_imports
from skep_job.warm.process_words import set_words

SCRIPT_AT = 3
"""Where the script is in `python -m skep_job SCRIPT ...`."""
TEXT_MAX = 500


class Cold(Exception):  # noqa: N818 - an outcome
    """The run is to start without a warm process. `other`: another warm process might do."""

    def __init__(self, why: str, *, other: bool = False) -> None:
        super().__init__(why)
        self.other = other


class Forked(Protocol):
    """What a rank has to know of the process that it is forked from (`server.WarmProcess`)."""

    folder: str
    searched: tuple[str, ...]
    changed: dict[str, str | None]
    made: list[Import]
    late: int
    looked_at: tuple[str, ...]
    draws_seed: bool

    def may_set(self, name: str) -> bool:
        """Return whether a script may set a variable: no import has looked at it."""
        ...


def become(warm: Forked, request: Mapping[str, Any], handed: list[int]) -> list[str]:
    """Become the process of a run, or end.

    Args:
        warm: What this process was forked from.
        request: The run: `argv`, `env` and `workdir`.
        handed: Descriptors: stdin, the log, and the socket on which the runner waits.

    Returns:
        The script and its arguments.
    """
    control = socket.socket(fileno=handed[2])
    try:
        _prepare(warm, request, handed)
        answer: dict[str, Any] = {"ready": True}
    except Cold as why:
        answer = {"cold": str(why)[:TEXT_MAX], "other": why.other}
    except BaseException as error:
        answer = {"cold": f"{type(error).__name__}: {error}"[:TEXT_MAX]}
    try:
        control.send(json.dumps(answer).encode())
        begins = "ready" in answer and control.recv(1)
    except OSError:
        begins = False
    if not begins:
        os._exit(0)
    control.close()
    _set_environment(request["env"], warm.changed)
    _set_right()
    if warm.draws_seed:
        sys.modules["torch"].default_generator.seed()
    sys.orig_argv[:] = request["argv"]
    return list(request["argv"][SCRIPT_AT:])


def _prepare(warm: Forked, request: Mapping[str, Any], handed: list[int]) -> None:
    """Do all that may fail.

    Raises:
        Cold: The run must start without a warm process.
        OSError: Something cannot be had here; it is the same for the run.
    """
    os.setsid()
    workdir, env = request["workdir"], request["env"]
    os.chdir(workdir)
    other = next((each for each in warm.looked_at if each in env), None)
    if other is not None:
        message = f"an import looks at {other}, which differs between runs"
        raise Cold(message)
    if warm.folder and warm.folder != os.getcwd():
        message = f"an import looked at the working directory, which was {warm.folder}"
        raise Cold(message)
    script = request["argv"][SCRIPT_AT]
    _fits(warm, script)
    for number, source in enumerate((handed[0], handed[1], handed[1])):
        os.dup2(source, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != handed[2]:
            try:
                os.close(int(name))
            except OSError:
                continue  # That of the folder itself.
    set_words(request["argv"], env)


def _fits(warm: Forked, script: str) -> None:
    """See whether a script begins with the imports that were made, and they are its own.

    Raises:
        Cold: It does not, or has set something by the time that libraries import more.
    """
    try:
        wanted = leading_imports(script)
    except UnreadableError as error:
        raise Cold(str(error)) from None
    if wanted[: len(warm.made)] != warm.made:
        message = "it begins with other imports than the script of the warm process"
        raise Cold(message, other=True)
    if warm.late:
        why = why_late_imports_differ(script, warm.may_set)
        if why:
            raise Cold(why, other=True)
    beside = os.path.dirname(os.path.realpath(script))
    name = _taken(beside)
    if name:
        message = f"{name} beside the script has the name of a module that was imported before"
        raise Cold(message)
    for folder in warm.searched:
        name = _taken(folder)
        if name:
            message = f"{name} in {folder} has the name of a module that was imported before"
            raise Cold(message)


def _taken(folder: str) -> str:
    """Return what in a folder is a module of the name of one that is here; empty: nothing.

    Raises:
        OSError: The folder cannot be read; one that is not there has nothing.
    """
    tops = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    for name in names:
        top = name.partition(".")[0]
        is_module = name.endswith((".py", ".so", ".pyc")) or os.path.isfile(
            os.path.join(folder, name, "__init__.py")
        )
        if is_module and top in tops and top not in sys.builtin_module_names:
            return name
    return ""


def _set_environment(env: Mapping[str, str], changed: Mapping[str, str | None]) -> None:
    import posix

    os.environ.clear()
    os.environ.update(env)
    posix.environ.clear()
    posix.environ.update({os.fsencode(name): os.fsencode(env[name]) for name in env})
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _set_right() -> None:
    """Give each process its own of what was drawn or looked up once, at an import.

    `random` does so itself in every fork.
    """
    for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[path]  # A folder that was not there may be by now.
    logging = sys.modules.get("logging")
    if logging is not None:
        whole = isinstance(vars(logging)["_startTime"], int)  # Since Python 3.13.
        vars(logging)["_startTime"] = time.time_ns() if whole else time.time()
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import process

        process.ORIGINAL_DIR = os.path.abspath(os.getcwd())  # type: ignore[attr-defined]
        process.current_process().authkey = os.urandom(32)
    config = sys.modules.get("torch._dynamo.config")
    if config is not None:
        # The default, and not the setting: a setting would have what is compiled compiled again.
        config._config["debug_dir_root"].default = config.default_debug_dir_root()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
