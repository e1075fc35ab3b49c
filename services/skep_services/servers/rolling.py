"""A rolling upgrade: machines in groups, each until it is back, and none after a failure.

    group: commands begin -> looked at until each machine is back -> next group

What is installed, and by whose rights, is the operator's: a command that is run for each machine,
or a person that types. Here are the order, the wait and the verdict (ADR 0255). One thread does
all of it, so that whoever interrupts it ends what it began.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

import msgspec

BATCH_MAX = 32
"""Machines at a time: their commands run side by side on the operator's machine."""
LOOK_EVERY_S = 0.5
STEADY_LOOKS = 2
"""A machine is back when as many looks in a row say so: what failed at its start shows by then."""
TOLD_BYTES_MAX = 2000
"""What is kept of the end of what a command wrote."""
PLACES = re.compile(r"\{(?:node|server|address|version)\}")
"""What a command may name."""
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,252}")
"""A word that a shell takes as it is, inside quotes and outside, and no program as an option."""
SHELL = "/bin/sh"


class RollingError(Exception):
    """A rolling upgrade cannot begin; the text is one line."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is to be upgraded. `version` is what it runs; empty: it does not tell."""

    name: str
    address: str
    version: str


class Upgraded(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is back."""

    name: str
    before: str
    seconds: float


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is not back, and why. `late`: it may come back yet."""

    name: str
    text: str
    late: bool = False


class Rolled(msgspec.Struct, kw_only=True):
    """What came of it: machines that are upgraded, those that failed, and those not begun."""

    done: list[Upgraded] = []
    failed: list[Failed] = []
    left: list[str] = []


class BrokenError(Exception):
    """A machine is back and not as it was; waiting does not help. The text says what is wrong."""


Missing = Callable[[Machine], str]
"""Returns what a machine lacks to be back; empty: nothing. Raises BrokenError."""


def command_for(template: str, machine: Machine, version: str) -> str:
    """Return the command of one machine.

    Args:
        template: What the operator typed.
        machine: The machine.
        version: The version that it is to have.

    Raises:
        RollingError: What is put in is no plain word. An address comes from the machine itself.
    """
    values = {
        "{node}": machine.name,
        "{server}": machine.name,
        "{address}": machine.address,
        "{version}": version,
    }
    for place, value in values.items():
        if place in template and not PLAIN.fullmatch(value):
            text = (
                f"{machine.name}: {place} is {value!r} there, which is no plain word: no command "
                "is run with it"
            )
            raise RollingError(text)
    # In one pass: a value is not looked at for places.
    return PLACES.sub(lambda found: values[found[0]], template)


def check_template(template: str, name: str) -> None:
    """Refuse a command that would do the same for every machine.

    Args:
        template: The command.
        name: How it may name the machine: `{node}`, `{server}`.

    Raises:
        RollingError: It names none.
    """
    if name not in template and "{address}" not in template:
        text = f"--via {template!r} names no machine: write {name} or {{address}} where it belongs"
        raise RollingError(text)


def roll(
    machines: Sequence[Machine],
    *,
    batch: int,
    within_s: float,
    command: Callable[[Machine], str],
    missing: Missing,
    told: Callable[[Upgraded], None],
) -> Rolled:
    """Upgrade machines group by group; stop behind the first group with a failure.

    Args:
        machines: In this order.
        batch: How many at a time.
        within_s: How long a group may take (seconds).
        command: Returns what is run for a machine; empty: a person does it.
        missing: Looks whether a machine is back.
        told: Is told of each machine that is back.
    """
    rolled = Rolled()
    for first in range(0, len(machines), batch):
        group = machines[first : first + batch]
        _Group(group, within_s, missing, told, rolled).run(command)
        if rolled.failed:
            rolled.left = [one.name for one in machines[first + batch :]]
            break
    return rolled


class _Group:
    """Machines that are upgraded at the same time."""

    def __init__(
        self,
        machines: Sequence[Machine],
        within_s: float,
        missing: Missing,
        told: Callable[[Upgraded], None],
        rolled: Rolled,
    ) -> None:
        self._within_s, self._missing, self._told, self._rolled = within_s, missing, told, rolled
        self._open = {one.name: one for one in machines}
        self._steady = dict.fromkeys(self._open, 0)
        self._lacks = dict.fromkeys(self._open, "nothing was seen of it")
        self._running: dict[str, _Command] = {}
        self._began = time.monotonic()

    def run(self, command: Callable[[Machine], str]) -> None:
        try:
            for name, machine in self._open.items():
                if text := command(machine):
                    self._running[name] = _Command(text)
            while self._open:
                self._look()
                if self._open and time.monotonic() - self._began > self._within_s:
                    self._give_up()
                elif self._open:
                    time.sleep(LOOK_EVERY_S)
        finally:
            for one in self._running.values():
                one.end()

    def _look(self) -> None:
        for name, machine in list(self._open.items()):
            running = self._running.get(name)
            code = running.code() if running is not None else 0
            if code is None:
                self._lacks[name] = "the command has not ended"
                continue
            if code and running is not None:
                self._fail(name, f"the command ended with code {code}{running.last_words()}")
                continue
            try:
                lacks = self._missing(machine)
            except BrokenError as error:
                self._fail(name, str(error))
                continue
            self._lacks[name] = lacks
            self._steady[name] = 0 if lacks else self._steady[name] + 1
            if self._steady[name] >= STEADY_LOOKS:
                del self._open[name]
                took_s = round(time.monotonic() - self._began, 1)
                upgraded = Upgraded(name=name, before=machine.version, seconds=took_s)
                self._rolled.done.append(upgraded)
                self._told(upgraded)

    def _fail(self, name: str, text: str) -> None:
        del self._open[name]
        self._rolled.failed.append(Failed(name=name, text=text))

    def _give_up(self) -> None:
        for name in list(self._open):
            text = f"not back within {self._within_s:g} s: {self._lacks[name]}"
            self._rolled.failed.append(Failed(name=name, text=text, late=True))
        self._open.clear()


class _Command:
    """A command of the operator's; what it writes goes to a file that nobody else sees."""

    def __init__(self, text: str) -> None:
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._process: Any = subprocess.Popen(
            [SHELL, "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
            start_new_session=True,
        )

    def code(self) -> int | None:
        """Return the exit code; None: it has not ended."""
        code: int | None = self._process.poll()
        return code

    def last_words(self) -> str:
        """Return the last line that it wrote, for an error; empty: it wrote none."""
        size = self._out.seek(0, os.SEEK_END)
        self._out.seek(max(0, size - TOLD_BYTES_MAX))
        lines = self._out.read(TOLD_BYTES_MAX).decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return "".join(one if one.isprintable() else " " for one in f": {said[-1]}") if said else ""

    def end(self) -> None:
        """End it, and what it began, if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._out.close()
