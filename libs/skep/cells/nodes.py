"""What nodes have beside GPUs: CPUs, memory, ports, and which attempts hold some of them."""

from __future__ import annotations

import msgspec

from skep.wire.facts import Member
from skep.wire.node import NodeJoined
from skep.wire.spec import Resources, suits

Attempt = tuple[str, int]
"""A job and the number of its attempt."""


class Holding(msgspec.Struct, frozen=True):
    """What one attempt holds on one node until its end there is confirmed."""

    member: Member
    cpus: int
    memory: int
    port: int
    suspended: bool = False
    """It has released its GPUs, and is still on the node."""
    guest: bool = False
    """By a recorded decision it uses GPUs that others held before."""
    meets: int = 0
    """The port on which its ranks meet when their number changes; 0: it never did."""
    came: int = 0
    """The order by which its gang came to this node while it grew; 0: it was here from the
    beginning."""

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
        self.maintained = False
        """A window for maintenance is open."""
        self.clearing = 0
        """The order that the new owner of the node name must clear before it gets work; 0 if
        none."""
        self.holdings: dict[Attempt, Holding] = {}
        self.ghosts: dict[Attempt, int] = {}
        """Orphans: attempts that were given up while the node was lost, with the order of their
        StopJob."""
        self.open_orders: dict[Attempt, int] = {}
        """Orders sent to this node that no event has answered."""
        self.next_port = joined.ports[0]
        self.quarantined: dict[int, None] = {}
        """GPUs that count as bad until an operator releases them."""
        self.cpus_free = 0
        self.memory_free = 0
        self.changed = True
        """Whether inventory, CPUs or memory may be others since a reader set this to False."""
        self.refresh(joined)

    def refresh(self, joined: NodeJoined) -> None:
        """Set a new inventory; attempts keep what they hold."""
        self.joined, self.changed = joined, True
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
        return not (self.drained or self.lost or self.clearing or self.maintained)

    def bad(self, device: int, kind: str) -> bool:
        """Return whether a GPU can be given to no job now.

        Args:
            device: Its device index.
            kind: The type that it should have.
        """
        usable = self.usable and device not in self.quarantined
        return not (usable and self._types.get(device) == kind)

    def workers(self, wanted: Resources, cpus: int = 0, memory: int = 0) -> int:
        """Return for how many workers the free CPUs and memory suffice.

        Args:
            wanted: What each worker needs.
            cpus: CPUs that count as free too.
            memory: Bytes that count as free too.
        """
        limits = []
        if wanted.gpu_memory and not self._has_gpu_memory(wanted):
            return 0
        if wanted.cpus:
            limits.append((self.cpus_free + cpus) // wanted.cpus)
        if wanted.memory:
            limits.append((self.memory_free + memory) // int(wanted.memory))
        return max(0, min(limits, default=wanted.workers))

    def _has_gpu_memory(self, wanted: Resources) -> bool:
        """Return whether each of its GPUs of a type has as much memory, as far as it tells."""
        known = [
            gpu.memory
            for gpu in self.joined.gpus
            if gpu.memory and suits(wanted.gpu_type, gpu.type)
        ]
        return not known or min(known) >= int(wanted.gpu_memory)

    def port(self) -> int | None:
        """Return the next free rendezvous port, or None.

        Ports are used one after the other, so that one just released is not reused while the
        operating system may still hold it.
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
        """Give an attempt its CPUs, memory and port.

        Args:
            attempt: The attempt.
            holding: What it holds on this node.

        Raises:
            AssertionError: It holds something here already.
        """
        assert attempt not in self.holdings, attempt
        self.cpus_free -= holding.cpus
        self.memory_free -= holding.memory
        self.changed = True
        self._pass_by(holding.port)
        self.holdings[attempt] = holding

    def _pass_by(self, port: int) -> None:
        if port:
            first, last = self.joined.ports
            self.next_port = port + 1 if port < last else first

    def alter(self, attempt: Attempt, holding: Holding) -> None:
        """Replace what an attempt holds here.

        Args:
            attempt: An attempt that holds something here.
            holding: What it holds from now on.
        """
        before = self.holdings[attempt]
        self.cpus_free += before.cpus - holding.cpus
        self.memory_free += before.memory - holding.memory
        self.changed = True
        self.holdings[attempt] = holding

    def meet(self, attempt: Attempt, port: int) -> None:
        """Give an attempt the port on which its ranks meet when their number changes."""
        held = self.holdings[attempt]
        if held.meets != port:
            self._pass_by(port)
            self.holdings[attempt] = msgspec.structs.replace(held, meets=port)

    def release(self, attempt: Attempt) -> None:
        """Free what an attempt held."""
        holding = self.holdings.pop(attempt)
        self.cpus_free += holding.cpus
        self.memory_free += holding.memory
        self.changed = True

    def suspend(self, attempt: Attempt, *, suspended: bool) -> None:
        """Note that an attempt has released its GPUs, or has them again; it keeps the rest.

        Args:
            attempt: An attempt that holds something here.
            suspended: Whether it has released its GPUs.
        """
        held = self.holdings[attempt]
        self.holdings[attempt] = msgspec.structs.replace(held, suspended=suspended)

    def has_orphan(self, attempt: Attempt, identity: str, order: int) -> bool:
        """Return whether an agent's report is about a part of an orphan.

        Args:
            attempt: The attempt that the report names.
            identity: The identity of the agent.
            order: The order by which the part began.
        """
        return (
            attempt in self.ghosts
            and identity == self.joined.identity
            and self.means(attempt, order)
        )

    def means(self, attempt: Attempt, order: int) -> bool:
        """Return whether a report about a part is about the present part of the attempt.

        Args:
            attempt: The attempt.
            order: The order by which the part of the report began.
        """
        held = self.holdings.get(attempt)
        return held is None or held.came in (0, order)

    def settled(self, order: int) -> int:
        """Return the highest order up to which this node has answered all commands.

        Args:
            order: The latest order.
        """
        return min(self.open_orders.values(), default=order + 1) - 1

    def check(self) -> None:
        """Assert that every GPU is held once, except by guests, and that the counts are right.

        Raises:
            AssertionError: One of these does not hold.
        """
        own = [each for each in self.holdings.values() if not each.guest]
        held = [device for each in own for device in each.devices]
        assert len(held) == len(dict.fromkeys(held)), f"{self.joined.node}: a GPU is held twice"
        assert self.cpus_free == self.joined.cpus - sum(h.cpus for h in self.holdings.values())
        for attempt in self.ghosts:
            assert attempt in self.holdings, f"{self.joined.node}: ghost {attempt} holds nothing"
