"""Which parts of a node do nothing: no mini-batch, and no use of their devices.

What is not known counts as use: that of devices that do not tell, as CPU slots. So does what others
do on devices that they share with the part. Soft: an agent that restarts counts anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from skep.machines.agent.parts import PartKey, PartState
from skep.units import Duration, Instant, seconds
from skep.wire.part_facts import Stand
from skep.wire.reports import IdlePart, RankProgress

USE_MAX = 10
"""Thousandths of a device's time: a driver that is asked shows a little."""


class Idling:
    """Since when parts do nothing."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._since: dict[PartKey, tuple[Instant, int]] = {}
        """By part: since when, and the mini-batches then."""

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
        told = []
        for key, part in parts.items():
            if not watched(part) or not unused(part, used):
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


def watched(part: PartState) -> bool:
    """Return whether a part runs, and its VC wants to know whether it does nothing."""
    wanted = part.command is not None and part.command.idle_s > 0
    runs = part.started is not None and part.over is None and part.grace_s is None
    return wanted and runs and part.stand is Stand.RUNNING and part.changing is None


def unused(part: PartState, used: Mapping[int, int]) -> bool:
    """Return whether all devices of a part are known not to be used."""
    devices = [device for rank in part.ranks.values() for device in rank.plan.devices]
    return bool(devices) and all(0 <= used.get(device, -1) <= USE_MAX for device in devices)
