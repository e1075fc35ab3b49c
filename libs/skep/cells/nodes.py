"""The nodes of the cluster: what each has, and which job holds what."""

from __future__ import annotations

import msgspec

from skep.wire.facts import Member
from skep.wire.node import NodeJoined
from skep.wire.spec import Resources

Attempt = tuple[str, int]
"""A job and the number of its attempt."""


class Holding(msgspec.Struct, frozen=True):
    """What one attempt holds on one node until its end there is confirmed."""

    member: Member
    cpus: int
    memory: int
    port: int

    @property
    def devices(self) -> tuple[int, ...]:
        """Return every GPU of the node that the attempt holds."""
        return tuple(device for rank in self.member.devices for device in rank)


class Coming(msgspec.Struct):
    """What is about to come free on one node: GPUs by type, CPUs, and memory in bytes."""

    gpus: dict[str, int] = {}
    cpus: int = 0
    memory: int = 0


NONE_COMING = Coming()


class NodeState:
    """One node: inventory, holdings, and what is free. Counts are kept, not recomputed."""

    def __init__(self, joined: NodeJoined) -> None:
        """Start with everything free."""
        self.joined = joined
        self.drained = False
        self.lost = False
        self.clearing = 0
        """The order that the new owner of the name must clear before it gets work; 0 if none."""
        self.holdings: dict[Attempt, Holding] = {}
        self.ghosts: dict[Attempt, int] = {}
        """Attempts given up while the node was lost, with the order of their StopJob."""
        self.open_orders: dict[Attempt, int] = {}
        """Orders sent to this node that no event has answered."""
        self.next_port = joined.ports[0]
        self.free: dict[str, list[int]] = {}
        self.total: dict[str, int] = {}
        """GPUs by type, held or not."""
        self.cpus_free = 0
        self.memory_free = 0
        self.refresh(joined)

    def refresh(self, joined: NodeJoined) -> None:
        """Take over a new inventory; what attempts hold stays theirs."""
        self.joined = joined
        taken = {device for holding in self.holdings.values() for device in holding.devices}
        self.free, self.total = {}, {}
        for gpu in sorted(joined.gpus, key=lambda gpu: gpu.index):
            self.total[gpu.type] = self.total.get(gpu.type, 0) + 1
            devices = self.free.setdefault(gpu.type, [])
            if gpu.index not in taken:
                devices.append(gpu.index)
        self.cpus_free = joined.cpus - sum(h.cpus for h in self.holdings.values())
        self.memory_free = joined.memory - sum(h.memory for h in self.holdings.values())

    @property
    def usable(self) -> bool:
        """Return whether work may be placed here."""
        return not (self.drained or self.lost or self.clearing)

    def type_of(self, device: int) -> str:
        """Return the type of a GPU; of one that is gone from the inventory, an empty text."""
        return next((gpu.type for gpu in self.joined.gpus if gpu.index == device), "")

    def workers(self, kind: str, wanted: Resources, coming: Coming = NONE_COMING) -> int:
        """Return how many workers fit into what is free and what is coming."""
        workers = (len(self.free.get(kind, ())) + coming.gpus.get(kind, 0)) // wanted.gpus
        if wanted.cpus:
            workers = min(workers, (self.cpus_free + coming.cpus) // wanted.cpus)
        if wanted.memory:
            workers = min(workers, (self.memory_free + coming.memory) // int(wanted.memory))
        return max(workers, 0)

    def workers_at_most(self, kind: str, wanted: Resources) -> int:
        """Return how many workers would fit if nothing were held here."""
        workers = self.total.get(kind, 0) // wanted.gpus
        if wanted.cpus:
            workers = min(workers, self.joined.cpus // wanted.cpus)
        if wanted.memory:
            workers = min(workers, self.joined.memory // int(wanted.memory))
        return workers

    def port(self) -> int | None:
        """Return the next free rendezvous port, or None.

        Ports are used in turn, so that one just released is not reused while the operating system
        may still hold it.
        """
        first, last = self.joined.ports
        taken = {holding.port for holding in self.holdings.values()}
        span = last - first + 1
        for step in range(min(span, len(taken) + 1)):
            port = first + (self.next_port - first + step) % span
            if port not in taken:
                return port
        return None

    def take(self, attempt: Attempt, holding: Holding) -> None:
        """Give an attempt its GPUs, CPUs, memory and port."""
        assert attempt not in self.holdings, attempt
        for device in holding.devices:
            self.free[self.type_of(device)].remove(device)
        self.cpus_free -= holding.cpus
        self.memory_free -= holding.memory
        if holding.port:
            first, last = self.joined.ports
            self.next_port = holding.port + 1 if holding.port < last else first
        self.holdings[attempt] = holding

    def give_back(self, attempt: Attempt, coming: Coming, sign: int) -> None:
        """Add what an attempt holds here to what is coming, or (`sign` -1) take it out again."""
        holding = self.holdings[attempt]
        for device in holding.devices:
            kind = self.type_of(device)
            coming.gpus[kind] = coming.gpus.get(kind, 0) + sign
        coming.cpus += sign * holding.cpus
        coming.memory += sign * holding.memory

    def release(self, attempt: Attempt) -> None:
        """Free what an attempt held."""
        holding = self.holdings.pop(attempt)
        for device in holding.devices:
            kind = self.type_of(device)
            if kind:
                self.free[kind] = sorted([*self.free[kind], device])
        self.cpus_free += holding.cpus
        self.memory_free += holding.memory

    def settled(self, order: int) -> int:
        """Return the highest order up to which this node has answered all, given the latest."""
        return min(self.open_orders.values(), default=order + 1) - 1

    def check(self) -> None:
        """Assert that every GPU is free or held once, and that the counts are right."""
        held = [device for h in self.holdings.values() for device in h.devices]
        assert len(held) == len(dict.fromkeys(held)), f"{self.joined.node}: a GPU is held twice"
        free = [device for devices in self.free.values() for device in devices]
        present = [gpu.index for gpu in self.joined.gpus]
        assert not [device for device in held if device in free]
        assert sorted(free + [d for d in held if d in present]) == sorted(present)
        assert self.cpus_free == self.joined.cpus - sum(h.cpus for h in self.holdings.values())
        for attempt in self.ghosts:
            assert attempt in self.holdings, f"{self.joined.node}: ghost {attempt} holds nothing"
