"""What a history leaves to read: its transcript, and which faults hit which protocol step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from skep.machines.base import Call, Effect, Record, Send
from skep.sim.timeline import Timeline

LINE_COLUMNS_MAX = 400
"""A spec in an event would fill a page; what follows is in the logs anyway."""

QUIET = frozenset({"Tick", "Heartbeat"})
"""Events that say nothing unless they lead to something."""


class Story:
    """The transcript and the counts of one history. Lines are kept only if `on`."""

    def __init__(self, timeline: Timeline, *, on: bool) -> None:
        """Start empty."""
        self.on = on
        self.lines: list[str] = []
        self.coverage: dict[tuple[str, str], int] = {}
        self.faults = 0
        self.crashes = 0
        self._timeline = timeline

    def say(self, who: str, text: str) -> None:
        """Write a line.

        Args:
            who: The process or the machine that it is about; empty: as the line before.
            text: What it does.
        """
        if self.on:
            line = f"{self._timeline.elapsed_s:11.6f} {who:14} {text}"
            self.lines.append(line[:LINE_COLUMNS_MAX])

    def decided(self, who: str, event: Any, effects: list[Effect]) -> None:
        """Write a decision: event in, effects out."""
        if self.on and (effects or type(event).__name__ not in QUIET):
            self.say(who, f"{event!r}")
            for effect in effects:
                self.say("", f"    {_brief(effect)}")

    def hit(self, fault: str, step: str) -> None:
        """Count a fault by what it hit.

        Args:
            fault: The kind of fault.
            step: What a process was doing.
        """
        self.coverage[fault, step] = self.coverage.get((fault, step), 0) + 1

    def fault(self, fault: str, step: str) -> None:
        """Count and tell one of the faults that a history is judged by: not a mere lost message."""
        self.faults += 1
        self.hit(fault, step)
        self.say("FAULT", f"{fault}: {step}")

    def digest(self) -> str:
        """Return a hash of the transcript."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


def _brief(effect: Effect) -> str:
    match effect:
        case Record():
            return f"record {effect.fact!r}"
        case Send():
            return f"send {effect.subject} {effect.message!r}"
        case Call():
            return f"call {effect.command!r}"


def tag(message: Any) -> str:
    """Return what a message is called on the wire, or its class's name."""
    config = getattr(message, "__struct_config__", None)
    name = config.tag if isinstance(config, msgspec.structs.StructConfig) else None
    return name if isinstance(name, str) else type(message).__name__


def table(coverage: Mapping[tuple[str, str], int]) -> str:
    """Return the coverage as text: one row per step, one column per fault."""
    faults = sorted({fault for fault, _ in coverage})
    steps = sorted({step for _, step in coverage})
    width = max((len(step) for step in steps), default=0)
    heads = _heads(faults)
    rows = [f"{'':{width}} {head}" for head in heads]
    for step in steps:
        cells = (coverage.get((fault, step), 0) for fault in faults)
        rows.append(f"{step:{width}} " + " ".join(f"{count or '.':>9}" for count in cells))
    return "\n".join(rows)


def _heads(faults: Iterable[str]) -> list[str]:
    """Return the column heads, broken at hyphens into two lines of nine columns."""
    pairs = [fault.partition("-") for fault in faults]
    first = " ".join(f"{head + ('-' if rest else ''):>9}" for head, _, rest in pairs)
    second = " ".join(f"{rest:>9}" for _, _, rest in pairs)
    return [first, second]
