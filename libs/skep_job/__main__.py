"""The entry of `python -m skep_job`: makes room for the script, then runs it."""

import os
import sys


def _leave_working_directory() -> None:
    """Take the working directory, which `-m` puts first, off the import path.

    Otherwise a `json.py` of the user would replace the standard one for this package too.
    """
    if getattr(sys.flags, "safe_path", sys.flags.isolated):
        return  # -P or -I: the interpreter has put nothing there.
    try:
        directory = os.getcwd()
    except OSError:
        return  # A deleted working directory is never on the path.
    if sys.path[:1] == [directory]:
        del sys.path[0]


def _run_opaque() -> None:
    """Become the interpreter that runs the script itself: this one is too old to read the rest."""
    if os.environ.get("SKEP_SOCK"):
        version = ".".join(map(str, sys.version_info[:2]))
        text = "skep_job: not observed: this is Python " + version + ", older than 3.10"
        print(text, file=sys.stderr)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable] + sys.argv[1:])  # noqa: RUF005, S606


if sys.version_info < (3, 8):  # noqa: UP036  a job may run on any Python
    _run_opaque()

_leave_working_directory()

from skep_job.launch import main  # noqa: E402  the path is put right first

main(sys.argv[1:])
