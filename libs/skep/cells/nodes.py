"""The nodes of the cluster beside their GPUs: CPUs, memory, ports, and what is owed to each."""

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
    suspended: bool = False
    """It has given its GPUs to others, and is there all the same."""
    guest: bool = False
    """By a recorded decision it uses GPUs that others held before."""
    meets: int = 0
    """The port on which its ranks meet when they change how many they are; 0: they never did."""
    came: int = 0
    """The order by which its gang came here while it grew; 0: it was here from the beginning."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Return every GPU of the node that the attempt holds."""
        if self.suspended:
            return ()
        return tuple(device for rank in self.member.devices for device in rank)


class NodeState:
    """One node: inventory, holdings, and what is free. Counts are kept, not recomputed.

    The cells know which of its GPUs are free.
    """

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
        self.quarantined: dict[int, None] = {}
        """GPUs that count as bad until an operator says otherwise."""
        self.cpus_free = 0
        self.memory_free = 0
        self.refresh(joined)

    def refresh(self, joined: NodeJoined) -> None:
        """Take over a new inventory; what attempts hold stays theirs."""
        self.joined = joined
        self._types = {gpu.index: gpu.type for gpu in joined.gpus}
        self.gpu_memory = {
            kind: min(gpu.memory for gpu in joined.gpus if gpu.type == kind)
            for kind in dict.fromkeys(self._types.values())
        }
        """By type: bytes of its smallest GPU; 0: not known."""
        self.cpus_free = joined.cpus - sum(h.cpus for h in self.holdings.values())
        self.memory_free = joined.memory - sum(h.memory for h in self.holdings.values())

    @property
    def usable(self) -> bool:
        """Return whether work may be placed here."""
        return not (self.drained or self.lost or self.clearing)

    def bad(self, device: int, kind: str) -> bool:
        """Return whether a GPU that should be of this type can be given to no job now."""
        usable = self.usable and device not in self.quarantined
        return not (usable and self._types.get(device) == kind)

    def workers(self, wanted: Resources, cpus: int = 0, memory: int = 0) -> int:
        """Return how many workers the free CPUs and memory, and so much more of them, serve."""
        limits = []
        if wanted.cpus:
            limits.append((self.cpus_free + cpus) // wanted.cpus)
        if wanted.memory:
            limits.append((self.memory_free + memory) // int(wanted.memory))
        return max(0, min(limits, default=wanted.workers))

    def port(self) -> int | None:
        """Return the next free rendezvous port, or None.

        Ports are used in turn, so that one just released is not reused while the operating system
        may still hold it.
        """
        first, last = self.joined.ports
        span, held = last - first + 1, self.holdings.values()
        for step in range(min(span, 2 * len(held) + 1)):
            port = first + (self.next_port - first + step) % span
            for each in held:
                if port in (each.port, each.meets):
                    break
            else:
                return port
        return None

    def take(self, attempt: Attempt, holding: Holding) -> None:
        """Give an attempt its CPUs, memory and port."""
        assert attempt not in self.holdings, attempt
        self.cpus_free -= holding.cpus
        self.memory_free -= holding.memory
        self._pass_by(holding.port)
        self.holdings[attempt] = holding

    def _pass_by(self, port: int) -> None:
        if port:
            first, last = self.joined.ports
            self.next_port = port + 1 if port < last else first

    def alter(self, attempt: Attempt, holding: Holding) -> None:
        """Have an attempt hold something else here from now on."""
        before = self.holdings[attempt]
        self.cpus_free += before.cpus - holding.cpus
        self.memory_free += before.memory - holding.memory
        self.holdings[attempt] = holding

    def meet(self, attempt: Attempt, port: int) -> None:
        """Give an attempt the port on which its ranks meet when they change how many they are."""
        held = self.holdings[attempt]
        if held.meets != port:
            self._pass_by(port)
            self.holdings[attempt] = msgspec.structs.replace(held, meets=port)

    def release(self, attempt: Attempt) -> None:
        """Free what an attempt held."""
        holding = self.holdings.pop(attempt)
        self.cpus_free += holding.cpus
        self.memory_free += holding.memory

    def suspend(self, attempt: Attempt, *, suspended: bool) -> None:
        """Note that an attempt has given back its GPUs, or has them again; the rest stays its."""
        held = self.holdings[attempt]
        self.holdings[attempt] = msgspec.structs.replace(held, suspended=suspended)

    def haunted(self, attempt: Attempt, identity: str, order: int) -> bool:
        """Return whether an agent speaks of a part of an attempt that was given up here."""
        return (
            attempt in self.ghosts
            and identity == self.joined.identity
            and self.means(attempt, order)
        )

    def means(self, attempt: Attempt, order: int) -> bool:
        """Return whether what was said of a part that began by this order is of the present one."""
        held = self.holdings.get(attempt)
        return held is None or held.came in (0, order)

    def settled(self, order: int) -> int:
        """Return the highest order up to which this node has answered all, given the latest."""
        return min(self.open_orders.values(), default=order + 1) - 1

    def check(self) -> None:
        """Assert that every GPU is held once, but for guests, and that the counts are right."""
        own = [each for each in self.holdings.values() if not each.guest]
        held = [device for each in own for device in each.devices]
        assert len(held) == len(dict.fromkeys(held)), f"{self.joined.node}: a GPU is held twice"
        assert self.cpus_free == self.joined.cpus - sum(h.cpus for h in self.holdings.values())
        for attempt in self.ghosts:
            assert attempt in self.holdings, f"{self.joined.node}: ghost {attempt} holds nothing"
