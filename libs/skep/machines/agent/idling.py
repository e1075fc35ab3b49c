"""Which parts of a node do nothing: no mini-batch, and no use of their devices; or they say so.

What is not known counts as use: that of devices that do not tell, as CPU slots. So does what others
do on devices that they share with the part. A rank that knows better when it does nothing, as that
of a notebook does, says so itself, goes by its own time, and is believed: it asks for its own
suspension. Soft: an agent that restarts counts anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from skep.ids import run_token
from skep.machines.agent.parts import PartKey, PartState
from skep.units import Duration, Instant, seconds
from skep.wire.part_facts import Stand
from skep.wire.reports import IdlePart, RankProgress
from skep.wire.talk import Idle

SAID_FRESH = seconds(5)
"""How long what a rank says holds: it says so every second."""
BACK_FRESH = seconds(15)
"""How long a part that went on is not suspended again by its own word: what it says may be of
before, and what it came back for may not have reached it yet."""
USE_MAX = 10
"""Thousandths of a device's time: a driver that is asked shows a little."""


class Idling:
    """Since when parts do nothing."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._since: dict[PartKey, tuple[Instant, int]] = {}
        """By part: since when, and the mini-batches then."""
        self._said: dict[str, tuple[Instant, Idle]] = {}
        """What ranks say of themselves, by token."""

    def heard(self, message: Idle, now: Instant) -> None:
        """Take it that a rank does nothing, by its own measure, or does something again."""
        token = run_token(message.job, message.attempt, message.rank)
        if not message.part:
            self._said[token] = now, message

    def look(
        self,
        parts: Mapping[PartKey, PartState],
        progress: Mapping[PartKey, Mapping[int, RankProgress]],
        used: Mapping[int, int],
        now: Instant,
    ) -> tuple[IdlePart, ...]:
        """Return the parts that have done nothing for as long as their VC allows.

        Args:
            parts: The parts of the node.
            progress: What ranks reported.
            used: The utilisation of each device, in thousandths; negative: unknown.
            now: The time of the decision.
        """
        before, self._since = self._since, {}
        said = self._said
        self._said = {each: one for each, one in said.items() if now - one[0] < SAID_FRESH}
        told = []
        for key, part in parts.items():
            if not runs(part):
                continue
            asked = self._asked(part)
            if asked is not None:
                if asked and not is_back(part, now):
                    told.append(IdlePart(job=key[0], attempt=key[1], idle_ns=asked, asks=True))
                continue
            if not unused(part, used) or not watched(part):
                continue
            steps = sum(rank.steps for rank in progress.get(key, {}).values())
            since, known = before.get(key, (now, steps))
            if known != steps or since > now:
                since = now
            self._since[key] = since, steps
            idle = Duration(now - since)
            if part.command is not None and idle >= seconds(part.command.idle_s):
                told.append(IdlePart(job=key[0], attempt=key[1], idle_ns=idle))
        return tuple(told)

    def _asked(self, part: PartState) -> Duration | None:
        """Return for how long all ranks of a part say that they do nothing, 0 if some do something.

        Returns:
            None: some rank says nothing of it.
        """
        ranks = [token for token, rank in part.alive().items() if not rank.out]
        if not ranks or any(token not in self._said for token in ranks):
            return None
        return Duration(min(self._said[token][1].idle_ns for token in ranks))


def watched(part: PartState) -> bool:
    """Return whether the VC of a part wants to know whether it does nothing."""
    return part.command is not None and part.command.idle_s > 0


def runs(part: PartState) -> bool:
    """Return whether a part runs, and nothing is under way with it."""
    begun = part.started is not None and part.over is None and part.grace_s is None
    return begun and part.stand is Stand.RUNNING and part.changing is None


def is_back(part: PartState, now: Instant) -> bool:
    """Return whether a part was changed a moment ago, as one is that goes on."""
    return part.changed is not None and now - part.changed.changed.at < BACK_FRESH


def unused(part: PartState, used: Mapping[int, int]) -> bool:
    """Return whether all devices of a part are known not to be used."""
    devices = [device for rank in part.ranks.values() for device in rank.plan.devices]
    return bool(devices) and all(0 <= used.get(device, -1) <= USE_MAX for device in devices)
