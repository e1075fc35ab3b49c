"""Builds an environment of a job. Standard library only: it runs as the job's account.

    python -I -S -c PROGRAM UNPACKER SNAPSHOT DIGEST FOLDER KIND PATH PYTHON

UNPACKER is the program of `unpack`, which makes FOLDER/files of SNAPSHOT; its file PATH says what
is to be installed, and KIND what installs it. The environment is FOLDER/env. It is made where it
stays, as its programs have its path in them; the agent believes in it only once this has ended
well. What it prints is the job's log, and its last line says what was wrong.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

LINE_BYTES_MAX = 64 * 1024
TOLD_CHARS_MAX = 400
"""What of a line of an installer is told as the reason."""
FAILED, OF_NODE = 70, 75
"""Exit statuses: what was asked for cannot be installed; this node lacks room for it."""
FULL = "No space left on device"
TELLING = ("error", "ERROR", "cause:", "╰─▶", "×")
"""What lines of pip, uv and conda begin with that say what was wrong."""
END_OF_OUTPUT = "[end of output]"
"""What pip prints after the output of a package's own build: the line before says what went wrong.
"""
CONDAS = ("micromamba", "mamba", "conda")
"""The first that is on this node is taken: the fastest come first."""

SETTINGS = {
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_COLOR": "1",
    "PIP_PROGRESS_BAR": "off",
    "UV_NO_PROGRESS": "1",
    "UV_NO_WRAP": "1",
    "UV_COMPILE_BYTECODE": "1",
    # Interpreters are the operator's: what a lock asks for and no node has is refused.
    "UV_PYTHON_DOWNLOADS": "never",
    "NO_COLOR": "1",
    "CONDA_ALWAYS_YES": "true",
    "MAMBA_ALWAYS_YES": "true",
}


class BuildError(Exception):
    """An environment cannot be built; `status` is the exit status."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status


def main(arguments: list[str]) -> int:
    """Build; return the exit status."""
    unpacker, snapshot, digest, folder, kind, path, python = arguments
    began = time.monotonic()
    try:
        _clear(folder)
        os.mkdir(folder, mode=0o755)
        _unpack(unpacker, snapshot, digest, f"{folder}/files")
        _say(f"building the environment of {path} ({kind})")
        BUILDERS[kind](folder, path, python)
        _check(f"{folder}/env/bin/python")
        shutil.rmtree(f"{folder}/files", ignore_errors=True)
    except BuildError as error:
        _say(str(error))
        return error.status
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        _say(f"{error.filename or folder}: {error.strerror}")
        return OF_NODE if full else FAILED
    _say(f"the environment is built, after {time.monotonic() - began:.1f} s")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"environment: {text}\n".encode("utf-8", "replace").decode())
    sys.stdout.flush()


def _clear(folder: str) -> None:
    """Remove what earlier builds of this environment left that did not end."""
    above = os.path.dirname(folder)
    for name in os.listdir(above):
        subprocess.run(["rm", "-rf", "--", os.path.join(above, name)], check=False)


def _unpack(program: str, snapshot: str, digest: str, folder: str) -> None:
    """Make the folder of the files that say what is to be installed.

    Raises:
        BuildError: They cannot be unpacked; what was wrong is printed.
    """
    words = [sys.executable, "-I", "-S", "-c", program, snapshot, digest, folder]
    status = subprocess.run(words, check=False, stdin=subprocess.DEVNULL).returncode
    if status:
        text = f"its files cannot be unpacked (status {status})"
        raise BuildError(text, OF_NODE)


def _requirements(folder: str, path: str, python: str) -> None:
    """Install a file for pip: by uv where it is found, else by pip."""
    env, file = f"{folder}/env", os.path.basename(path)
    place = os.path.join(folder, "files", os.path.dirname(path))
    if uv := shutil.which("uv"):
        _run("uv venv", [uv, "venv", "--quiet", "--python", python, env], place)
        inside = f"{env}/bin/python"
        _run("uv pip install", [uv, "pip", "install", "--python", inside, "-r", file], place)
        return
    inside = f"{env}/bin/python"
    if _has_pip(python):
        # The interpreter's own pip installs: to give each environment its own takes seconds.
        _run("python -m venv", [python, "-I", "-m", "venv", "--without-pip", env], place)
        pip = [python, "-I", "-m", "pip", "--python", inside]
    else:
        _run("python -m venv", [python, "-I", "-m", "venv", env], place)
        pip = [inside, "-I", "-m", "pip"]
    _run("pip install", [*pip, "install", "-r", file], place)


def _has_pip(python: str) -> bool:
    """Return whether an interpreter has a pip that installs for another one (22.3)."""
    look = "import pip, sys; sys.exit(tuple(map(int, pip.__version__.split('.')[:2])) < (22, 3))"
    try:
        found = subprocess.run(
            [python, "-I", "-c", look],
            check=False,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    return found.returncode == 0


def _uv(folder: str, path: str, python: str) -> None:
    """Install what a lock names, without the projects that it is of: the code comes by itself.

    Raises:
        BuildError: There is no uv here, or it fails.
    """
    uv = shutil.which("uv")
    if uv is None:
        text = (
            "this node has no `uv`, which installs what uv.lock names: ask the operator to install "
            "it, or submit `uv export -o requirements.txt` as `requirements`"
        )
        raise BuildError(text)
    place = os.path.join(folder, "files", os.path.dirname(path))
    os.environ["UV_PROJECT_ENVIRONMENT"] = f"{folder}/env"
    words = ["sync", "--frozen", "--no-install-workspace", "--python", python]
    _run("uv sync", [uv, *words], place)


def _conda(folder: str, path: str, python: str) -> None:
    """Make what a file for conda describes, by whichever of its kind is here.

    Raises:
        BuildError: There is none here, or it fails.
    """
    found = [(name, place) for name in CONDAS if (place := shutil.which(name))]
    if not found:
        text = (
            f"this node has none of {', '.join(CONDAS)}: ask the operator to install one, or use "
            "`requirements` or `uv`"
        )
        raise BuildError(text)
    name, program = found[0]
    file = os.path.join(folder, "files", path)
    with open(file, encoding="utf-8", errors="replace") as opened:
        explicit = any(line.strip() == "@EXPLICIT" for line in opened)
    of_file = ["env", "create"] if name != "micromamba" and not explicit else ["create"]
    _run(
        f"{name} {' '.join(of_file)}",
        [program, *of_file, "--prefix", f"{folder}/env", "--file", file],
        os.path.dirname(file),
    )


BUILDERS: dict[str, Callable[[str, str, str], None]] = {
    "requirements": _requirements,
    "uv": _uv,
    "conda": _conda,
}


def _run(what: str, words: list[str], place: str) -> None:
    """Run an installer, and pass on what it prints.

    Raises:
        BuildError: It cannot be run, or ends badly; the text has its own reason.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=place,
            env={**SETTINGS, **os.environ},
        )
    except OSError as error:
        text = f"{words[0]} cannot be run on this node: {error.strerror}"
        raise BuildError(text) from None
    assert process.stdout is not None
    last = told = inner = ""
    full = False
    while raw := process.stdout.readline(LINE_BYTES_MAX):
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        line = raw.decode("utf-8", "replace").strip()
        inner = last if line == END_OF_OUTPUT else inner
        last = line or last
        told = line if line.startswith(TELLING) else told
        full = full or FULL in line
    status = process.wait()
    if status:
        why = (told or last)[:TOLD_CHARS_MAX] + (f" ({inner[:TOLD_CHARS_MAX]})" if inner else "")
        text = f"{what} ended with status {status}: {why}"
        raise BuildError(text, OF_NODE if full else FAILED)


def _check(python: str) -> None:
    """Stop at an environment whose interpreter does not run.

    Raises:
        BuildError: It does not.
    """
    try:
        status = subprocess.run(
            [python, "-I", "-c", ""], check=False, stdin=subprocess.DEVNULL
        ).returncode
    except OSError as error:
        text = f"what was built has no interpreter (bin/python): {error.strerror}"
        raise BuildError(text) from None
    if status:
        text = f"the interpreter of what was built ends with status {status}"
        raise BuildError(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
