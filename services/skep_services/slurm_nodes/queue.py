"""Slurm's own commands: asking for allocations, listing them, handing them back."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from skep.slurm import values
from skep.slurm.allocations import Allocation
from skep.slurm.options import RefusedError

ANSWER_WITHIN_S = 60.0
SHIM = "Made by `skep slurm install`."
GONE = ("COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")


class SlurmError(Exception):
    """Slurm cannot be asked, or refuses; the text is one line."""


def find(name: str) -> str:
    """Return the path of one of Slurm's own commands, passing over those of `skep slurm install`.

    Raises:
        SlurmError: There is none.
    """
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = Path(folder or ".", name)
        if os.access(path, os.X_OK) and path.is_file() and SHIM.encode() not in _head(path):
            return str(path)
    msg = f"there is no `{name}` of Slurm's in PATH"
    raise SlurmError(msg)


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

    def __init__(self, name: str, folder: Path, options: list[str], inside: list[str]) -> None:
        self.name = name
        self._folder = folder
        self._options = options
        self._inside = inside
        self._commands = {each: find(each) for each in ("sbatch", "squeue", "scancel")}

    def ask(self) -> str:
        """Ask for one allocation more, and return its number.

        Raises:
            SlurmError: Slurm refuses.
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
            SlurmError: Slurm cannot be asked.
        """
        text = self._run("squeue", "-h", "--me", "-n", self.name, "-o", "%i|%T|%L")
        found = []
        for line in text.splitlines():
            number, state, left = [*line.strip().split("|"), "", ""][:3]
            if state not in GONE:
                found.append(Allocation(number, state, _left(left)))
        return found

    def end(self, *numbers: str) -> None:
        """Hand allocations back.

        Raises:
            SlurmError: Slurm cannot be asked.
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
            raise SlurmError(msg) from None
        if done.returncode:
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise SlurmError(said if said.startswith(command) else f"{command}: {said}")
        return done.stdout


def _left(text: str) -> int | None:
    """Return the time that is left (seconds); None: no limit, or not known yet."""
    try:
        # `squeue` writes it as `sbatch` takes it, and `0:00` is no time at all.
        return values.seconds(text) if text != "0:00" else 0
    except RefusedError:
        return None
