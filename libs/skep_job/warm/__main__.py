"""The entry of `python -m skep_job.warm FD`. In a rank's process, it goes on to the script."""

import os
import sys


def _leave_working_directory() -> None:
    """Take the working directory off the import path, as `skep_job.__main__` does."""
    if getattr(sys.flags, "safe_path", sys.flags.isolated):
        return
    try:
        directory = os.getcwd()
    except OSError:
        return
    if sys.path[:1] == [directory]:
        del sys.path[0]


_leave_working_directory()

from skep_job.launch import main  # noqa: E402  the path is put right first
from skep_job.warm.server import serve  # noqa: E402

# Returns in ranks only, and in each to this level: nothing of the warm process is on their stack.
main(serve(int(sys.argv[1])))
