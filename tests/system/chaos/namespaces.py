"""Cutting containers off, by the packet filter inside the network namespace of each.

What a container sends to its own loopback is left alone. Its namespace ends with it, so the rules
are made again for the container that takes its place; fixed addresses keep the meaning of rules.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.system.chaos.delay import Delay
from tests.system.chaos.network import Cut, late_or_lost


@dataclass
class _Made:
    """A cut in force: in the namespace of `pid` by these rules."""

    cut: Cut
    pid: int
    rules: list[list[str]]
    delay: Delay | None = None


class Namespaces:
    """The containers' network, in which every component has one of these `addresses`."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._made: dict[str, _Made] = {}
        self._lock = threading.Lock()

    def cut(self, key: str, name: str, pid: int, cut: Cut) -> None:
        del name  # Its namespace is found by its process.
        with self._lock:
            self._made[key] = _Made(cut, 0, [])
        self.move(key, pid)

    def move(self, key: str, pid: int) -> bool:
        with self._lock:
            made = self._made.get(key)
            if made is None:
                return True
            self._undo(made)
            enter = ["nsenter", "--target", str(pid), "--net"]
            try:
                made.delay = Delay(made.cut.seed, enter) if made.cut.how == "delay" else None
            except OSError:
                return False
            made.pid = pid
            others = [self._addresses[name] for name in made.cut.others]
            for rule in rules(made.cut.how, others, made.delay):
                if not _filter(pid, "-I", rule):
                    self._undo(made)
                    return False
                made.rules.append(rule)
            return True

    def heal(self, key: str) -> None:
        with self._lock:
            made = self._made.pop(key, None)
            if made is not None:
                self._undo(made)

    def heal_all(self) -> None:
        for key in list(self._made):
            self.heal(key)

    def close(self) -> None:
        self.heal_all()

    @staticmethod
    def _undo(made: _Made) -> None:
        for rule in made.rules:
            # Where the container is gone its rules are gone with it.
            _filter(made.pid, "-D", rule)
        made.rules = []
        if made.delay is not None:
            made.delay.stop()
            made.delay = None


def rules(how: str, others: Sequence[str], delay: Delay | None) -> list[list[str]]:
    """Return the packet filter's rules inside a namespace that is cut off.

    Args:
        how: As a `Cut` has it.
        others: The addresses that it is cut off from; empty: from everybody but itself.
        delay: What makes packets late.
    """
    to = [["-d", one] for one in others] or [["!", "-o", "lo"]]
    by = [["-s", one] for one in others] or [["!", "-i", "lo"]]
    says = [["OUTPUT", *words, "-j", "DROP"] for words in to]
    hears = [["INPUT", *words, "-j", "DROP"] for words in by]
    match how:
        case "mute":
            return says
        case "deaf":
            return hears
        case "apart":
            return says + hears
        case _:
            return [["OUTPUT", *words, *late_or_lost(delay)] for words in to]


def _filter(pid: int, verb: str, rule: list[str]) -> bool:
    words = ["nsenter", "--target", str(pid), "--net", "iptables", "-w", verb, *rule]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0
