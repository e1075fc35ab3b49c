"""Slurm's own commands: asking for allocations, listing them, handing them back."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

from skep.pools import Allocation
from skep.slurm import values
from skep.slurm.options import RefusedError
from skep_services.pools.source import SourceError

ANSWER_WITHIN_S = 60.0
SHIM = "Made by `skep slurm install`."
PREFIX = "slurm-"
"""What the names of such nodes begin with; the number of the allocation follows."""
GONE = ("COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")


def find(name: str) -> str:
    """Return the path of one of Slurm's own commands, passing over those of `skep slurm install`.

    Raises:
        SourceError: There is none.
    """
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = Path(folder or ".", name)
        if os.access(path, os.X_OK) and path.is_file() and SHIM.encode() not in _head(path):
            return str(path)
    msg = f"there is no `{name}` of Slurm's in PATH"
    raise SourceError(msg)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(200)


class Queue:
    """The allocations of one cluster of Skep's.

    Args:
        name: What they are called in Slurm's queue.
        folder: Where their scripts and logs are: all of Slurm's machines see it.
        options: What else `sbatch` is told.
        inside: The command line of what runs in an allocation.
    """

    noun = "allocation"
    token_minutes = 10.0

    def __init__(self, name: str, folder: Path, options: list[str], inside: list[str]) -> None:
        self.name = name
        self._folder = folder
        self._options = options
        self._inside = inside
        self._commands = {each: find(each) for each in ("sbatch", "squeue", "scancel")}

    def ask(self) -> str:
        """Ask for one allocation more, and return its number.

        Raises:
            SourceError: Slurm refuses.
        """
        # Nothing of the shell is passed on but where this program itself was found.
        library = os.environ.get("PYTHONPATH", "")
        found = f"PYTHONPATH={shlex.quote(library)} " if library else ""
        script = f"#!/bin/sh\n{found}exec {shlex.join(self._inside)}\n"
        fixed = ["--parsable", "--nodes=1", "--ntasks=1", "--exclusive", "--no-requeue"]
        # The agent is told by SIGTERM; what it has to do then takes less than Slurm waits.
        fixed += [f"--job-name={self.name}", f"--output={self._folder}/%j.log", "--export=NONE"]
        done = self._run("sbatch", *fixed, *self._options, stdin=script)
        return done.strip().partition(";")[0]

    def allocations(self) -> list[Allocation]:
        """Return the allocations that there are.

        Raises:
            SourceError: Slurm cannot be asked.
        """
        text = self._run("squeue", "-h", "--me", "-n", self.name, "-o", "%i|%T|%L")
        found = []
        for line in text.splitlines():
            number, state, left = [*line.strip().split("|"), "", ""][:3]
            if state not in GONE:
                found.append(Allocation(number, f"{PREFIX}{number}", state, _left(left)))
        return found

    def owns(self, node: str) -> bool:
        """Return whether a name is that of a node in an allocation."""
        return node.startswith(PREFIX) and node.removeprefix(PREFIX).isdecimal()

    def news(self) -> list[str]:
        """Return nothing: Slurm says no more of what has ended."""
        return []

    def invite(self, number: str, invitation: str) -> bool:
        """Put the token where the allocation looks for it."""
        path = self._folder / f"{number}.token"
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{invitation}\n")
        part.rename(path)
        return True

    def wait(self, at_most_s: float) -> None:
        """Wait: Slurm tells no events."""
        time.sleep(at_most_s)

    def end(self, *numbers: str) -> None:
        """Hand allocations back.

        Raises:
            SourceError: Slurm cannot be asked.
        """
        if numbers:
            self._run("scancel", *numbers)

    def _run(self, command: str, *words: str, stdin: str = "") -> str:
        try:
            done = subprocess.run(
                [self._commands[command], *words],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=ANSWER_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            msg = f"{command}: {error}"
            raise SourceError(msg) from None
        if done.returncode:
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise SourceError(said if said.startswith(command) else f"{command}: {said}")
        return done.stdout


def _left(text: str) -> int | None:
    """Return the time that is left (seconds); None: no limit, or not known yet."""
    try:
        # `squeue` writes it as `sbatch` takes it, and `0:00` is no time at all.
        return values.seconds(text) if text != "0:00" else 0
    except RefusedError:
        return None
