"""Cutting machines off, by the packet filter inside the network namespace of each.

A machine keeps its namespace when it has no power, so a cut lasts until it is healed.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.system.chaos.delay import Delay
from tests.system.chaos.namespaces import rules
from tests.system.chaos.network import Cut
from tests.system.deployment.bed import Machine


@dataclass
class _Made:
    """A cut in force: the commands that made it, and what makes packets late."""

    commands: list[list[str]] = field(default_factory=list)
    delay: Delay | None = None


class Cables:
    """The network between machines, cut for IPv4 and IPv6 alike."""

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self._machines = machines
        self._made: dict[str, _Made] = {}
        self._lock = threading.Lock()

    def cut(self, key: str, name: str, pid: int, cut: Cut) -> None:
        del pid  # The namespace is the machine's, whatever runs there.
        others = [self._machines[one] for one in cut.others]
        enter = ["ip", "netns", "exec", self._machines[name].space]
        families = {
            "iptables": [one.address for one in others],
            "ip6tables": [one.address6 for one in others],
        }
        with self._lock:
            made = self._made[key] = _Made()
            made.delay = Delay(cut.seed, enter) if cut.how == "delay" else None
            for program, addresses in families.items():
                for rule in rules(cut.how, addresses, made.delay):
                    subprocess.run(
                        [*enter, program, "-w", "-I", *rule], check=True, capture_output=True
                    )
                    made.commands.append([*enter, program, "-w", "-D", *rule])

    def move(self, key: str, pid: int) -> bool:
        del key, pid
        return True

    def heal(self, key: str) -> None:
        with self._lock:
            made = self._made.pop(key, _Made())
        for command in made.commands:
            subprocess.run(command, check=True, capture_output=True)
        if made.delay is not None:
            made.delay.stop()

    def heal_all(self) -> None:
        for key in list(self._made):
            self.heal(key)

    def close(self) -> None:
        self.heal_all()
