"""Logs of the allocator, made by seeds, and digests of the state that they lead to.

A `Story` drives one allocator through what leads to choices: nodes that join and fall silent, GPUs
that break and heal, quotas and chains that change, gangs that borrow, are put aside, are packed and
leave again. Its answers come at once and its clock is virtual, so a story takes part of a second.
"""

from __future__ import annotations

import gzip
import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skep.ledger.job_state import Part, State
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Record, Restarted, Send, Tick
from skep.units import Instant, seconds
from skep.wire.admin import QuarantineGpu, SetVcs
from skep.wire.bearing import RULES
from skep.wire.changes import AskPack, ChangeAsked
from skep.wire.cluster import Chain, Level, NodeCell, Quota, VirtualCluster
from skep.wire.codec import Facts
from skep.wire.commands import ChangeJob
from skep.wire.facts import AllocatorFact, EpochBegan
from skep.wire.node import MemberExited, MemberKnown, MemberStarted, Outcome, Tier
from tests.kit import T0, admitted, cancel_asked, heartbeat, joined
from tests.unit.test_allocator_changes import EVERYTHING, changed

GPUS, NODES = 4, 8
LEVELS = (Level(name="pair", fanout=2), Level(name="node", fanout=2), Level(name="rack", fanout=4))
LOGS = Path(__file__).parent / "fold" / "logs"
DECODER = msgspec.json.Decoder(tuple[AllocatorFact, ...])
KEPT_KEYS = ("holds", "ill", "doomed", "astray", "orders")
"""What of the cells a stored digest is of. Later versions may keep more; this must stay."""
PLACED_KEYS = ("type", "jobs", "parked", "reserved", "borrowed", "away")

Facts_ = tuple[Any, ...]
"""The facts of one record."""


class Log(NamedTuple):
    """A stored log: its records, and a digest of the state after each."""

    records: list[Facts_]
    digests: list[str]


def rack(nodes: Sequence[int]) -> Chain:
    """Return a chain of whole racks of these nodes."""
    return Chain(
        gpu="cpu",
        levels=LEVELS,
        node_level="node",
        nodes=tuple(NodeCell(node=f"node-{number}") for number in nodes),
    )


class Story:
    """One allocator's life by a seed: `records` are the facts of each decision."""

    def __init__(self, seed: int, events: int = 120) -> None:
        """Live it."""
        self._start(seed)
        self._begin()
        for number in range(NODES):
            self.tell(joined(f"node-{number}", gpus=GPUS))
        self.set_quotas()
        self._live(events)

    def _start(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = AllocatorMachine()
        self.records: list[Facts_] = []
        self.now, self.epoch, self.jobs, self.asks = T0, 0, 0, 1000
        self.silent: dict[str, None] = {}
        self.commands: list[ChangeJob] = []

    def _live(self, events: int) -> None:
        happenings = [self.submit] * 6 + [self.well] * 6 + [self.exit] * 4 + [self.pack] * 4
        happenings += [self.quarantine] * 4 + [self.set_quotas, self.wait, self.cancel, self.crash]
        for _ in range(events):
            self.rng.choice(happenings)()

    @classmethod
    def after(cls, records: Sequence[Facts_], seed: int, events: int = 60) -> Story:
        """Return the story of an allocator that goes on after a log of another version."""
        story = cls.__new__(cls)
        story._start(seed)
        story.records = list(records)
        story.machine = replayed(records)
        story.now = Instant(story.now + seconds(100_000))
        story.jobs, story.asks = story.machine.state.last_queued, story.machine.state.last_asked
        story.epoch = story.machine.state.epoch
        story._begin()
        story._live(events)
        return story

    def _begin(self) -> None:
        self.epoch += 1
        began = EpochBegan(epoch=self.epoch, owner=f"owner-{self.epoch}", rules=RULES)
        self.machine.apply(began)
        self.records.append((began,))
        self.tell(Restarted(epoch=self.epoch))

    def tell(self, event: Any) -> None:
        """Have the allocator decide on an event."""
        self.now = Instant(self.now + seconds(0.01))
        effects = self.machine.decide(event, self.now)
        facts = tuple(effect.fact for effect in effects if isinstance(effect, Record))
        if facts:
            self.records.append(facts)
        self.commands += [
            effect.message
            for effect in effects
            if isinstance(effect, Send) and isinstance(effect.message, ChangeJob)
        ]

    # --- what may happen -----------------------------------------------------------------------

    def submit(self) -> None:
        """A tenant submits a job."""
        self.jobs += 1
        gpus, workers = self.rng.choice([(1, 1), (1, 1), (2, 1), (4, 1), (1, 3), (4, 2), (2, 2)])
        self.tell(
            admitted(
                self.jobs,
                gpus=gpus,
                workers=workers,
                vc=self.rng.choice(["nlp", "cv", "lab"]),
                priority=self.rng.choice([0, 0, 5, 9]),
                opportunistic=self.rng.random() < 0.25,
                over_quota=self.rng.choice(["wait", "opportunistic"]),
                demotable=self.rng.random() < 0.5,
            )
        )

    def well(self) -> None:
        """Every part that was begun runs, and tells that it can be suspended and packed."""
        commands, self.commands = self.commands, []
        for command in commands:
            if command.node not in self.silent:
                self.tell(changed(command))
        for job in list(self.machine.state.jobs.values()):
            for node, part in list(job.parts.items()):
                if part is Part.BOUND and node not in self.silent and job.state is State.BOUND:
                    known: dict[str, Any] = {
                        "identity": f"id-{node}",
                        "job": job.job,
                        "attempt": job.attempt,
                    }
                    self.tell(MemberStarted(node=node, at=self.now, **known))
                    self.tell(
                        MemberKnown(
                            node=node, at=self.now, can=EVERYTHING, tier=Tier.OBSERVED, **known
                        )
                    )
            if job.state is State.STOPPING:
                self._exits(job, Outcome.STOPPED)

    def exit(self) -> None:
        """A job ends by itself."""
        running = [job for job in self.machine.state.jobs.values() if job.state is State.RUNNING]
        if running:
            self._exits(
                self.rng.choice(running),
                self.rng.choice([Outcome.SUCCEEDED] * 3 + [Outcome.EXITED]),
            )

    def _exits(self, job: Any, outcome: Outcome) -> None:
        for node, part in list(job.parts.items()):
            if part is not Part.GONE and node not in self.silent:
                self.tell(
                    MemberExited(
                        node=node,
                        identity=f"id-{node}",
                        job=job.job,
                        attempt=job.attempt,
                        at=self.now,
                        outcome=outcome,
                    )
                )

    def pack(self) -> None:
        """A tenant has a job that waits join one that runs."""
        running = [job for job in self.machine.state.jobs.values() if job.state is State.RUNNING]
        waiting = [job for job in self.machine.state.jobs.values() if job.state is State.QUEUED]
        if running and waiting:
            shared = [
                job
                for job in running
                if f"{job.job}.{job.attempt}" in self.machine.state.cells.sets
            ]
            host = self.rng.choice(shared or running)
            guests = [job for job in waiting if job.spec.vc == host.spec.vc]
            if guests:
                self.asks += 1
                guest = self.rng.choice(guests)
                wish = AskPack(job=guest.job, beside=host.job)
                fact = ChangeAsked(number=self.asks, ask=wish, at=self.now)
                self.tell(Facts(service="admission", at=self.now, facts=(fact,)))

    def cancel(self) -> None:
        """A tenant takes a job back."""
        if self.machine.state.jobs:
            self.tell(cancel_asked(int(self.rng.choice(list(self.machine.state.jobs))[1:])))

    def quarantine(self) -> None:
        """A GPU breaks, or is well again."""
        node, device = f"node-{self.rng.randrange(NODES)}", self.rng.randrange(GPUS)
        self.tell(QuarantineGpu(node=node, device=device, quarantine=self.rng.random() < 0.6))

    def set_quotas(self) -> None:
        """The operator changes who owns what, and now and then what the chains are."""
        whole = rack(range(NODES))
        parts = {"left": rack(range(4)), "right": rack(range(4, NODES))}
        chains = self.rng.choice([{"main": whole}, {"main": whole}, parts])
        room = {name: len(chain.nodes) for name, chain in chains.items()}
        owned: dict[str, list[Quota]] = {"nlp": [], "cv": [], "lab": []}
        for name in chains:
            for vc in [*self.rng.sample(list(owned), 3), self.rng.choice(list(owned))]:
                level, size = self.rng.choice([("rack", 4), ("node", 1), ("node", 1), ("pair", 1)])
                count = min(self.rng.randrange(3), room[name] // size)
                if count:
                    owned[vc].append(Quota(chain=name, level=level, count=count))
                    room[name] -= count * size
        vcs = {name: VirtualCluster(cells=tuple(cells)) for name, cells in owned.items()}
        self.tell(SetVcs(vcs=vcs, chains=chains))

    def wait(self) -> None:
        """Time passes; a node may fall silent, or be heard again."""
        if self.silent:
            self.silent.clear()
        elif self.rng.random() < 0.7:
            self.silent[f"node-{self.rng.randrange(NODES)}"] = None
        for _ in range(60):
            self.now = Instant(self.now + seconds(0.8))
            for number in range(NODES):
                if f"node-{number}" not in self.silent:
                    self.tell(heartbeat(f"node-{number}"))
            wake = self.machine.wake_at()
            if wake is not None and wake <= self.now:
                self.tell(Tick())

    def crash(self) -> None:
        """The allocator dies and is rebuilt from its log."""
        self.machine = replayed(self.records)
        self._begin()


def replayed(records: Sequence[Facts_]) -> AllocatorMachine:
    """Return a machine that has applied a log."""
    machine = AllocatorMachine()
    for facts in records:
        for fact in facts:
            machine.apply(fact)
    return machine


# --- digests ---------------------------------------------------------------------------------


LATER: dict[str, Any] = {
    "owner": "",
    "deferral": None,
    "deferred": (),
    "apart": False,
    "warned": False,
    "idle_tried": False,
    "first_ran_at": 0,
    "copies": (),
    "further": {},
    "sizes": (),
}
"""Fields of the state that came after the corpus was stored, and what they are without meaning."""
LATER_PIECES = ("ends-kept",)
"""Pieces of a snapshot that came after it, and say nothing of what was there before."""


def digest(machine: AllocatorMachine) -> str:
    """Return a digest of the whole state: of what a snapshot keeps."""
    entries = [
        _without_later(each)
        for each in msgspec.to_builtins(machine.snapshot(), str_keys=True)
        if each["type"] not in LATER_PIECES
    ]
    return hashlib.sha256(msgspec.json.encode(entries, order="sorted")).hexdigest()


def _without_later(tree: Any) -> Any:
    if isinstance(tree, list | tuple):
        return [_without_later(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        key: _without_later(each)
        for key, each in tree.items()
        if key not in LATER or each != LATER[key]
    }


def stored_digest(machine: AllocatorMachine) -> str:
    """Return a digest of what must not change between versions: who holds what, by which right."""
    entries = msgspec.to_builtins(machine.snapshot())
    cells = next(each for each in entries if each["type"] == "cells-kept")
    placed = next(each for each in entries if each["type"] == "placed-kept")
    jobs = [
        (job.job, str(job.state), job.attempt, job.order) for job in machine.state.jobs.values()
    ]
    nodes = [
        (node.joined.node, list(node.holdings), list(node.ghosts))
        for node in machine.state.nodes.values()
    ]
    placed = {key: placed[key] for key in PLACED_KEYS}
    known = [[cells.get(key) for key in KEPT_KEYS], placed, jobs, nodes]
    return hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()


def digests(records: Sequence[Facts_], of: Any = digest) -> Iterator[str]:
    """Yield the digest after each record of a log."""
    machine = AllocatorMachine()
    for facts in records:
        for fact in facts:
            machine.apply(fact)
        yield of(machine)


# --- stored logs -----------------------------------------------------------------------------


def store(path: Path, records: Sequence[Facts_]) -> None:
    """Write a log: a line for each record, with a digest of the state after it."""
    lines = [
        msgspec.json.encode({"facts": facts, "digest": found})
        for facts, found in zip(records, digests(records, stored_digest), strict=True)
    ]
    path.write_bytes(gzip.compress(b"\n".join(lines), mtime=0))


def stored(path: Path) -> Log:
    """Read a log as `store` wrote it."""
    lines = [
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    return Log(
        [DECODER.decode(line["facts"]) for line in lines],
        [msgspec.json.decode(line["digest"], type=str) for line in lines],
    )
