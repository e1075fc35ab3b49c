"""Commands typed on machines, as a transcript with times, and what went wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tests.system.deployment.bed import Done

WITHIN_S = 180.0
LOOK_EVERY_S = 0.5
ANY = -1
"""A command may end with any exit code."""


class Machine(Protocol):
    """Where commands are typed."""

    name: str

    def do(self, *words: str, env: Mapping[str, str] = {}, text: str = "") -> Done:
        """Return what a command comes to."""


class Story:
    """Types commands on machines and prints them with their times.

    Args:
        within_s: How long is waited for what has to come (seconds).
    """

    def __init__(self, within_s: float = WITHIN_S) -> None:
        self._began, self._within_s = time.monotonic(), within_s
        self.failed: list[str] = []

    def say(self, text: str) -> None:
        """Print a line with the time."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def do(
        self,
        machine: Machine,
        *words: str,
        env: Mapping[str, str] = {},
        code: int = 0,
        shown: str = "",
        text: str = "",
        quiet: bool = False,
    ) -> Done:
        """Type a command; note if it does not end with `code`.

        Args:
            machine: Where it is typed.
            words: The command.
            env: Variables beside the usual ones.
            code: The exit code that it should have; ANY: any.
            shown: What is printed for it; empty: the command itself.
            text: What it reads.
            quiet: What it prints is not shown.
        """
        done = machine.do(*words, env=env, text=text)
        self.say(f"{machine.name}$ {shown or _shown(words)}    ({done.seconds:.2f} s)")
        for line in () if quiet else (*done.out.splitlines(), *done.error.splitlines()):
            print(f"             {_short(line)}", flush=True)
        if code not in (done.code, ANY):
            self.failed.append(f"{_shown(words)}: exit code {done.code}, not {code}")
            print(f"             !! exit code {done.code}, expected {code}", flush=True)
        return done

    def until(self, what: str, holds: Callable[[], bool], within_s: float = 0.0) -> float:
        """Wait until something holds; return how long it took (seconds)."""
        within_s = within_s or self._within_s
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > within_s:
                self.failed.append(f"not within {within_s:.0f} s: {what}")
                self.say(f"!! not within {within_s:.0f} s: {what}")
                break
            time.sleep(LOOK_EVERY_S)
        took = time.monotonic() - began
        self.say(f"{what}: after {took:.1f} s")
        return took

    def check(self, what: str, *, holds: bool, found: object = "") -> None:
        """Note whether something is as it should be.

        Args:
            what: What should be.
            holds: Whether it is.
            found: What is there instead.
        """
        self.say(what if holds else f"!! not so: {what}: {found}")
        if not holds:
            self.failed.append(f"{what}: {found}")

    def json(self, machine: Machine, *words: str, env: Mapping[str, str] = {}) -> dict[str, Any]:
        """Return what a command prints as JSON, without telling of it; empty if it fails."""
        done = machine.do(*words, "--json", env=env)
        try:
            found = json.loads(done.out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {}
        return found if isinstance(found, dict) else {}


def _shown(words: Sequence[str]) -> str:
    return " ".join(_short(word) for word in words)


def _short(text: str) -> str:
    """Return a text with tokens cut: they are secrets, and long."""
    cut = [
        f"{word[:12]}..@{word.rpartition('@')[2]}" if "@" in word and len(word) > 90 else word
        for word in text.split(" ")
    ]
    return " ".join(cut)
