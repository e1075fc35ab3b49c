"""Samples of the cluster over time, taken only where it has changed."""

from __future__ import annotations

from skep.machines.allocator import AllocatorMachine
from skep.units import Duration, Instant, seconds
from skep_lab.outcome import Sample
from skep_lab.simulator.agents import GPU, Agents
from skep_lab.simulator.ledger import BEGIN, Ledger
from skep_lab.simulator.settings import Settings


class Samples:
    """Samples the state before each step of the clock, at equal times from the beginning."""

    def __init__(
        self, settings: Settings, allocator: AllocatorMachine, ledger: Ledger, agents: Agents
    ) -> None:
        """Begin without samples.

        Args:
            settings: How often to sample.
            allocator: Read for the cells.
            ledger: Read for jobs.
            agents: Read for what is busy.
        """
        self._every = seconds(settings.sample_every_s)
        self._by_vc = settings.samples_by_vc
        self._allocator, self._ledger, self._agents = allocator, ledger, agents
        self._due = BEGIN
        self._seen = (-1, -1)
        """What was busy and useful at the latest sample."""
        self.taken: list[Sample] = []

    def until(self, now: Instant) -> None:
        """Take the samples that are due before `now`: nothing has happened since the last step."""
        if not self._every or now <= self._due:
            return
        state = self._agents.busy, self._agents.useful
        if self._ledger.changed or state != self._seen:
            self._ledger.changed, self._seen = False, state
            self.taken.append(self._look(self._due))
        missed = (now - self._due + self._every - 1) // self._every
        self._due = Instant(self._due + missed * self._every)

    def _look(self, at: Instant) -> Sample:
        allocated = free = whole = parted = 0
        for chain in self._allocator.state.cells.chains.values():
            shape = chain.topology
            busy = chain.forest.busy[shape.node_level]
            allocated += sum(busy)
            free += shape.leaves - sum(busy)
            empty = busy.count(0)
            whole += empty
            parted += len(busy) - empty - busy.count(shape.node_size)
        return Sample(
            at=Duration(at - BEGIN),
            allocated=allocated,
            busy=self._agents.busy / GPU,
            useful=self._agents.useful / GPU,
            waiting=self._ledger.waiting,
            running=self._ledger.running,
            free_nodes=whole,
            free=free,
            shared_nodes=parted,
            busy_gpus=self._agents.busy_gpus(),
            by_vc=self._vcs() if self._by_vc else {},
        )

    def _vcs(self) -> dict[str, int]:
        found = dict.fromkeys(self._allocator.state.cells.cluster.vcs, 0)
        for hold in self._allocator.state.cells.holds.values():
            if not hold.claims:
                found[hold.vc] = found.get(hold.vc, 0) + hold.gpus
        return found
