"""Create the environment that `make` works in, and say what is happening meanwhile.

    python tools/setup_venv.py .venv --torch "torch==2.13.0"

Runs with the standard library alone. What pip prints is kept in `<venv>/setup.log`; a person sees
one line per step and, while a step runs, the package at hand and the bytes fetched. A failed step
shows the end of pip's own words and exits 1.
"""

from __future__ import annotations

import argparse
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
import venv
from collections import deque
from pathlib import Path
from typing import TextIO

LOG_LINES_SHOWN = 25
"""How much of pip's output a failure shows; the reason is among its last lines."""

PLAIN_EVERY_S = 5.0
"""How often a log file, which cannot be redrawn, gets a line while a step runs."""

TERMINAL_EVERY_S = 0.2
"""How often a terminal's line is redrawn."""

LINE_WIDTH = 96

RAW_PROGRESS_SINCE = (24, 1)
"""The first pip that can report bytes as plain lines (`--progress-bar raw`)."""

NAME = re.compile(r"^\s*(?:Collecting|Obtaining|Building wheel for|Processing)\s+(\S+)")
DOWNLOAD = re.compile(r"^\s*Downloading (\S+)")
BYTES = re.compile(r"^Progress (\d+) of (\d+)")
INSTALL = re.compile(r"^Installing collected packages: (.+)")


class Progress:
    """What one step of the setup is doing, on one line."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._shown_at = self._started
        self._packages = 0
        self._doing = "starting"
        if not self._terminal:
            print(f"{title} ...", flush=True)
        self._show(force=self._terminal)

    def take(self, line: str) -> None:
        """Read one line of pip's output; an empty one says that time went on."""
        if line == "":
            pass  # Time goes on, nothing else.
        elif found := BYTES.match(line):
            done, total = int(found[1]), int(found[2])
            name = self._doing.split(":", maxsplit=1)[0]
            self._doing = f"{name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        elif found := DOWNLOAD.match(line):
            self._doing = "downloading " + found[1].rsplit("/", maxsplit=1)[-1].split("-")[0]
        elif found := NAME.match(line):
            self._packages += 1
            name = found[1].rsplit("/", maxsplit=1)[-1]
            self._doing = "looking at " + re.split(r"[<>=!~;\[(]", name)[0]
        elif found := INSTALL.match(line):
            self._doing = f"unpacking {found[1].count(',') + 1} packages"
        self._show()

    def end(self, *, ok: bool) -> None:
        """Close the line with the step's time."""
        seconds = time.monotonic() - self._started
        text = f"{self._title}: {'done' if ok else 'FAILED'} in {seconds:.0f} s"
        print(f"\r{text:<{LINE_WIDTH}}" if self._terminal else text, flush=True)

    def _show(self, *, force: bool = False) -> None:
        at = time.monotonic()
        every_s = TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S
        if not force and at - self._shown_at < every_s:
            return
        self._shown_at = at
        text = f"{self._title}: {self._doing} ({self._packages} seen, {at - self._started:.0f} s)"
        if self._terminal:
            print(f"\r{text[:LINE_WIDTH]:<{LINE_WIDTH}}", end="", flush=True)
        else:
            print(f"    {text[len(self._title) + 2 :]}", flush=True)


def main() -> int:
    """Create the environment and install into it; return the exit status."""
    parser = argparse.ArgumentParser(description="Create the environment `make` works in.")
    parser.add_argument("venv", type=Path)
    parser.add_argument("--torch", default="torch", help="what to ask pip for, options included")
    arguments = parser.parse_args()
    target: Path = arguments.venv
    python = target / "bin" / "python"
    version = ".".join(map(str, sys.version_info[:3]))
    print(
        f"Setting up {target} with Python {version} (once; the PyTorch download is the long part)"
    )
    if not python.exists() and not _create(target):
        return 1
    torch = shlex.split(arguments.torch)
    steps = [
        (f"[2/3] {torch[0]}", torch),
        ("[3/3] Skep and its tools", ["--editable", ".[dev,lab,learn,train]"]),
    ]
    with (target / "setup.log").open("w", encoding="utf-8") as log:
        if _pip_version(python) < RAW_PROGRESS_SINCE:
            # An older pip installs just as well and only says less, so a failure is no matter.
            _step("[1/3] pip", [*_pip(python), "--upgrade", "pip"], log)
        for title, wanted in steps:
            command = [*_pip(python), *wanted]
            code, tail = _step(title, command, log)
            if code != 0:
                _explain(command, tail, target)
                return 1
    return 0


def _step(title: str, command: list[str], log: TextIO) -> tuple[int, list[str]]:
    log.write(f"$ {shlex.join(command)}\n")
    progress = Progress(title)
    code, tail = _watch(command, progress, log)
    progress.end(ok=code == 0)
    return code, tail


def _create(target: Path) -> bool:
    try:
        venv.create(target, with_pip=True, clear=target.exists())
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"error: no environment could be created in {target}: {error}", file=sys.stderr)
        print("On Debian and Ubuntu, `apt install python3-venv` adds the part that is missing.")
        return False
    return True


def _pip(python: Path) -> list[str]:
    options = ["--disable-pip-version-check", "--no-input", "--no-warn-script-location"]
    bar = "raw" if _pip_version(python) >= RAW_PROGRESS_SINCE else "off"
    return [str(python), "-m", "pip", "install", *options, "--progress-bar", bar]


def _pip_version(python: Path) -> tuple[int, int]:
    asked = [str(python), "-m", "pip", "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = re.match(r"pip (\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _watch(command: list[str], progress: Progress, log: TextIO) -> tuple[int, list[str]]:
    """Run a command to its end; return its exit status and its last lines."""
    tail: deque[str] = deque(maxlen=LOG_LINES_SHOWN)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        # A thread, because pip is silent for minutes while it unpacks and the clock goes on.
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        while (line := _next(lines)) is not None:
            progress.take(line)
            if line and not BYTES.match(line):
                log.write(line)
                tail.append(line)
        reader.join()
    return process.returncode, list(tail)


def _read(stream: TextIO, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _next(lines: queue.Queue[str | None]) -> str | None:
    """Return the next line, an empty one when it is time to redraw, or None at the end."""
    try:
        return lines.get(timeout=TERMINAL_EVERY_S)
    except queue.Empty:
        return ""


def _explain(command: list[str], tail: list[str], target: Path) -> None:
    print("".join(tail), end="", file=sys.stderr)
    print(f"\nerror: this failed: {shlex.join(command)}", file=sys.stderr)
    print(f"All of its output: {target / 'setup.log'}. `make setup` tries again.", file=sys.stderr)
    if any("torch" in word for word in command):
        print(
            "TORCH chooses the build of PyTorch (docs/tutorial/first-cluster.md).", file=sys.stderr
        )


if __name__ == "__main__":
    sys.exit(main())
