"""Logs to replay: histories of the fault simulator, as they are and as a cluster's export."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from skep.sim.history import live
from skep.sim.logs import LogRecord as SimRecord
from skep.sim.world import Settings, World
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.facts import AdmissionFact, AllocatorFact
from skep_lab.live_log.decide_again import Log
from skep_services.adapters import exported
from skep_services.adapters.records import Chain
from skep_services.ports import Delivery

LOGS = {
    "admission": (subjects.ADMISSION, AdmissionFact),
    "allocator": (subjects.ALLOC, AllocatorFact),
}


class Record(NamedTuple):
    """A simulated process's record, as a replay takes it."""

    counter: int
    epoch: int
    at: Instant
    facts: tuple[Any, ...]
    noted: bytes


@cache
def history(seed: int) -> World:
    """Return a world that has lived through its faults, and noted what it decided on."""
    world = World(seed, Settings(notes=True))
    live(world)
    return world


def log_of(world: World, service: str, *, noted: bool = True) -> Log:
    """Return what a service of a simulated world decided on, and what it recorded."""
    messages = {
        name: {
            one.sequence: codec.read(one.subject, one.payload, one.headers, one.sequence, one.at)
            for one in stream.messages
        }
        for name, stream in world.network.streams.items()
    }
    records = [
        Record(one.n, one.epoch, one.at, one.facts, one.noted if noted else b"")
        for one in _records(world, service)
    ]
    return Log(records, messages)


def _records(world: World, service: str) -> list[SimRecord]:
    log = world.roles[service].log
    assert log is not None
    return log.replay()


def export(world: World, path: Path) -> None:
    """Write a simulated world's streams as a cluster's."""
    streams = {
        name: [
            Delivery(one.subject, one.payload, one.headers, name, one.sequence, one.at)
            for one in stream.messages
        ]
        for name, stream in world.network.streams.items()
    }
    for service, (name, facts) in LOGS.items():
        chain = Chain(name, facts)
        for at, one in enumerate(_records(world, service)):
            record, payload = chain.encode(one.facts, one.pos, one.at, one.epoch, one.noted)
            chain.advance(record, payload)
            stored = streams[name][at]
            streams[name][at] = Delivery(
                stored.subject, payload, stored.headers, name, stored.sequence, stored.at
            )
    exported.write(path, streams)
