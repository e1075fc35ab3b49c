"""A process that leaves its gang ends at once, and nothing of the script's is lost."""

import gzip
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.support.job_agent import DEADLINE_S, environment

LEAVE = """
    import atexit, os, sys
    class Slow:
        def __del__(self): print("taken apart", flush=True)
    from skep_job.process import ending
    {first}
    slow, log = Slow(), open(sys.argv[1], "w")
    log.write("last line")
    atexit.register(print, "atexit")
    ending.leave()
    {then}
    try:
        raise SystemExit(0)
    finally:
        sys.stdout.write("finally ")
"""
WHOLE = "finally atexit\n"


def run(tmp_path: Path, first: str, then: str = "") -> tuple[str, int, str]:
    """Return what a script prints that leaves, its status, and what is in its file."""
    code, file = textwrap.dedent(LEAVE).format(first=first, then=then), tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        env=environment(),
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout, done.returncode, file.read_text()


def test_who_leaves_does_all_that_the_script_wants_and_is_gone(tmp_path: Path) -> None:
    assert run(tmp_path, "ending.arm(); ending.arm()") == (WHOLE, 0, "last line")


KINDS = {
    "gz": "import gzip; file = gzip.open(sys.argv[1], 'wb'); file.write(b'kept')",
    "zip": "import zipfile; file = zipfile.ZipFile(sys.argv[1], 'w'); file.writestr('kept', '')",
    "frozen": "import gc; file = open(sys.argv[1], 'w'); file.write('kept'); gc.freeze()",
    "pipe": "import subprocess as sub; file = sub.Popen(['tee', sys.argv[1]], stdin=sub.PIPE,"
    " stdout=sub.DEVNULL); file.stdin.write(b'kept')",
}


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_as_whole_as_at_the_end_of_an_interpreter(tmp_path: Path, kind: str) -> None:
    """What is packed has an end that closing it writes, and what is frozen is not listed."""
    code = LEAVE.format(first="ending.arm()", then="")
    code = textwrap.dedent(code).replace("sys.argv[1]", "os.devnull", 1)
    code = code.replace("ending.leave()", KINDS[kind] + "\nending.leave()")
    file = tmp_path / "file"
    subprocess.run(
        [sys.executable, "-c", code, str(file)],
        env=environment(),
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    # Who reads the pipe has ended: its errors have.
    if kind == "gz":
        assert gzip.decompress(file.read_bytes()) == b"kept"
    elif kind == "zip":
        assert zipfile.ZipFile(file).namelist() == ["kept"]
    else:
        assert file.read_text() == "kept"


def test_who_fails_on_the_way_out_says_so(tmp_path: Path) -> None:
    code = textwrap.dedent(LEAVE).format(first="ending.arm()", then="raise KeyError")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")],
        env=environment(),
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1


def test_nothing_is_cut_short_where_the_script_could_have_come_first(tmp_path: Path) -> None:
    printed, status, written = run(tmp_path, "")
    assert (printed, status, written) == (f"{WHOLE}taken apart\n", 0, "last line")


def test_a_fork_ends_as_ever(tmp_path: Path) -> None:
    printed, status, _ = run(tmp_path, "ending.arm()", "if os.fork(): os.wait(); os._exit(3)")
    assert (printed, status) == (f"{WHOLE}taken apart\n", 3)
