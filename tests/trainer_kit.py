"""Logs of an allocator, written by the simulator: what a trainer follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skep.machines.base import Record
from skep.units import Duration, Instant
from skep.wire import subjects
from skep.wire.advice import FamilyScale, Outlook, QueueAdvice, ScalePoint
from skep.wire.facts import AllocatorFact, EpochBegan
from skep.wire.inputs import InputNotes
from skep_lab.learn import protocol
from skep_lab.learn.protocol import Drawn, Setting
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import EVERYTHING, Settings
from skep_lab.simulator.world import World
from skep_services.adapters import exported
from skep_services.adapters.records import Chain
from skep_services.ports import Delivery

OWNER = "test"
TYPE = "v100"
"""Of the GPUs of the simulator's equal nodes."""


class LogWriter:
    """Writes the records of an allocator as its service does."""

    def __init__(self, owner: str = OWNER) -> None:
        self.log: list[Delivery] = []
        self._chain, self._notes = Chain(subjects.ALLOC, AllocatorFact), InputNotes()
        self.write([EpochBegan(epoch=1, owner=owner)], Instant(1))

    def write(self, facts: Sequence[Any], at: Instant) -> None:
        record, payload = self._chain.encode(facts, {}, at, 1, self._notes.take())
        self._chain.advance(record, payload)
        subject, number = subjects.ALLOC_FACTS, len(self.log) + 1
        self.log.append(Delivery(subject, payload, {}, subjects.ALLOC, number, at))

    def watch(self, world: World) -> None:
        """Have every decision of a simulated allocator written down."""
        decide = world.allocator.decide

        def decided(event: Any, now: Instant) -> list[Any]:
            effects = decide(event, now)
            if isinstance(event, Outlook | QueueAdvice):
                self._notes.heard(event, now)
            facts = [each.fact for each in effects if isinstance(each, Record)]
            if facts:
                self.write(facts, now)
            return effects

        world.allocator.decide = decided  # type: ignore[method-assign]


def simulated(
    setting: Setting,
    number: int = 0,
    policies: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    owner: str = OWNER,
    mute: bool = False,
) -> list[Delivery]:
    """Return the log of an allocator that had a trace of the protocol.

    Args:
        setting: What kind of jobs, on how many nodes.
        number: Of the trace.
        policies: Of VCs, as the simulator takes them.
        jobs: No more than these of the trace.
        owner: Of the log: what tells logs apart.
        mute: Nothing is said of run times.
    """
    drawn = protocol.draw(setting, number)
    trace = protocol.trace_of(drawn, "log")
    kept = [replace(each, said_time=Duration(0)) for each in trace.jobs] if mute else trace.jobs
    trace = replace(trace, jobs=tuple(kept[:jobs]))
    writer = LogWriter(owner)
    settings = Settings(
        costs=protocol.COSTS,
        can=EVERYTHING,
        policies=dict(policies or {}),
        hints="none" if mute else "exact",
    )
    cluster = uniform(setting.nodes, protocol.NODE_GPUS)
    world = World(trace, cluster, settings, protocol.TruthOf(drawn))
    writer.watch(world)
    steps = world.steps()
    next(steps)
    world.allocator.decide(told(drawn), world.now)
    for _ in steps:
        pass
    return writer.log


def told(drawn: Drawn) -> Outlook:
    """Return how fast the models of a trace are, as an advisor tells what was measured."""
    scales = []
    for model, (growth, spread) in enumerate(
        zip(drawn.pool.growth, drawn.pool.spread, strict=True)
    ):
        points = []
        for gpus in range(1, protocol.WORKERS_MAX + 1):
            fewest = -(-gpus // protocol.NODE_GPUS)
            points += [
                ScalePoint(
                    gpus=gpus,
                    nodes=fewest + more,
                    step_ns=Duration(int(1e9 / growth[gpus] / spread[more])),
                )
                for more in range(protocol.LEVELS)
                if more == 0 or fewest + more <= gpus <= protocol.NODE_GPUS
            ]
        kind = FamilyScale(family=f"m{model}", gpu_type=TYPE, points=tuple(points))
        scales.append(kind)
    return Outlook(at=Instant(1), families=tuple(scales))


def export(log: Sequence[Delivery], path: Path) -> None:
    """Write a log as the export of a cluster."""
    exported.write(path, {subjects.ALLOC: log})
