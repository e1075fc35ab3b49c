"""Runs a script or module as the interpreter itself would, in `__main__`.

What the script can see is what it would see without Skep: `sys.argv`, `sys.path[0]`, the names in
`__main__` (so that multiprocessing and pickle find them), its exit status, its traceback. What
stays different is below it: a few more frames on the stack, `sys.orig_argv`, and, in an observed
process, a daemon thread and the standard modules that the reports need already imported.
"""

from __future__ import annotations

import io
import marshal
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType, TracebackType

USAGE = """\
usage: python -m skep_job script.py [argument ...]
       python -m skep_job -m module [argument ...]"""

PYTHON_MIN = (3, 10)
"""Of processes that are observed; on an older Python scripts run as they would without Skep."""

EXIT_USAGE = 2
"""What the interpreter returns for a wrong command line and for a script it cannot open."""

_BYTECODE_HEADER_BYTES = 16
_FILE_NAMES = ("__file__", "__cached__")


def main(arguments: list[str]) -> None:
    """Observe this process if the environment asks for it, and run what `arguments` name.

    Whatever the script raises passes through, SystemExit included.

    Args:
        arguments: A script or -m and a module, and then the arguments of these.

    Raises:
        SystemExit: The command line is wrong; the status is EXIT_USAGE.
    """
    module = arguments[1:2] if arguments[:1] == ["-m"] else []
    if not arguments or (arguments[0].startswith("-") and not module):
        print(USAGE, file=sys.stderr)
        raise SystemExit(EXIT_USAGE)

    if os.environ.get("SKEP_SOCK"):
        _observe()
    if module:
        _run_module(module[0], arguments[2:])
    else:
        _run_path(arguments[0], arguments[1:])


def is_safe_path() -> bool:
    """Return whether the interpreter was told to put nothing on the import path (-P, -I)."""
    return getattr(sys.flags, "safe_path", bool(sys.flags.isolated))  # New in Python 3.11.


def _observe() -> None:
    if sys.version_info < PYTHON_MIN:  # An image has any Python.
        has, needed = (".".join(map(str, each[:2])) for each in (sys.version_info, PYTHON_MIN))
        print(f"skep_job: not observed: this is Python {has}, older than {needed}", file=sys.stderr)
        return
    # Imported here, so that outside Skep the script finds no module loaded but what runs it.
    from skep_job.link.orders import describe
    from skep_job.link.settings import Unobserved
    from skep_job.observe.observation import boot
    from skep_job.observe.reporter import complain
    from skep_job.process import ending

    ending.arm()
    try:
        outcome = boot(os.environ)
        why = outcome.why if isinstance(outcome, Unobserved) else ""
    except Exception as error:  # No descriptors or threads left, for example.
        why = describe(error)
    if why:
        complain(f"not observed: {why}")


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]  # runpy puts the module's file in the first place.
    if not is_safe_path():
        try:
            sys.path.insert(0, os.getcwd())
        except OSError:
            pass  # The interpreter, too, leaves out a working directory that was deleted.
    _reset_main(BuiltinImporter)
    _call(lambda: _run_as_main(name, True))


def _run_path(script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    # The interpreter joins the two and tidies nothing: `__file__` may well contain "..".
    path = script if os.path.isabs(script) else os.path.join(os.getcwd(), script)
    if pkgutil.get_importer(script) is not None:  # A directory or an archive with a __main__.py.
        sys.path.insert(0, path)
        _reset_main(BuiltinImporter)
        _call(lambda: _run_as_main("__main__", False))
        return
    try:
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
    if not is_safe_path():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    is_bytecode = content.startswith(MAGIC_NUMBER)
    loader = (SourcelessFileLoader if is_bytecode else SourceFileLoader)("__main__", path)
    names = _reset_main(loader, path)
    _call(lambda: exec(_code(content, path, is_bytecode), names))  # noqa: S102  it is the job


def _code(content: bytes, path: str, is_bytecode: bool) -> CodeType:
    if is_bytecode:
        code = marshal.loads(content[_BYTECODE_HEADER_BYTES:])  # noqa: S302  a script's bytecode
        assert isinstance(code, CodeType)
        return code
    return compile(content, path, "exec", dont_inherit=True)


def _run_as_main(name: str, alter_argv: bool) -> None:
    # The function that the interpreter itself calls for -m, for directories and for archives.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _reset_main(loader: object, path: str | None = None) -> dict[str, object]:
    """Make `__main__` what a fresh interpreter has before it runs a script; return its names."""
    names = vars(sys.modules["__main__"])
    builtins = names["__builtins__"]
    fresh: dict[str, object] = {
        "__name__": "__main__",
        "__doc__": None,
        "__package__": None,
        "__loader__": loader,
        "__spec__": None,
        "__annotations__": {},
        "__builtins__": builtins,
        "__file__": path,
        "__cached__": None,
    }
    wanted = [name for name in fresh if name in names and (path or name not in _FILE_NAMES)]
    names.clear()
    names.update({name: fresh[name] for name in wanted})
    return names


def _call(run: Callable[[], None]) -> None:
    """Run the script; let what it raises pass as if nothing were between it and the interpreter.

    The interpreter itself prints the exception and chooses the exit status, because only it can
    end the process as if by the signal after a KeyboardInterrupt.
    """
    try:
        run()
    except BaseException as caught:
        trace = caught.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == _call.__code__.co_filename:
            trace = trace.tb_next
        sys.excepthook = _ShowWithout(sys.excepthook, caught, trace)
        raise


class _ShowWithout:
    """An exception hook that shows one exception without the frames of this package."""

    def __init__(
        self, show: Callable[..., object], caught: BaseException, trace: TracebackType | None
    ) -> None:
        self._show = show
        self._caught = caught
        self._trace = trace

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        sys.excepthook = self._show
        if error is self._caught:
            trace = self._trace
            error.__traceback__ = trace
            sys.last_traceback = trace
        self._show(kind, error, trace)
