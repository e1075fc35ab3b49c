"""Which attempts train on which GPUs: a job's speed depends on its neighbours."""

from __future__ import annotations

import msgspec

from skep.wire.cluster import Cluster
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation


class Run(msgspec.Struct, eq=False):
    """The processes of one attempt."""

    name: str
    number: int
    job: TraceJob
    nodes: int
    """The number of parts with which it begins."""
    parts: dict[str, Part]
    """By node."""
    awaits: bool = False
    """It is a successor, and has not been resumed yet."""
    trains: bool = False
    begins: bool = False
    """It is about to train, after the costs of that."""
    servers: int = 0

    @property
    def workers(self) -> int:
        """Return how many ranks train together."""
        return sum(part.ranks for part in self.parts.values() if part.joined)

    @property
    def devices(self) -> dict[str, tuple[int, ...]]:
        """Return its GPUs on each node."""
        return {node: part.devices for node, part in self.parts.items()}


class Part(msgspec.Struct, eq=False):
    """The part of an attempt on one node."""

    node: str
    identity: str
    devices: tuple[int, ...]
    ranks: int
    began: int
    came: int = 0
    """The order by which it joined a gang; 0: it was there from the beginning."""
    joined: bool = True
    """Whether it trains with the others, or is still to join."""
    stands: bool = False
    order: int = 0
    """The latest change that was sent to it."""
    answer: object = None
    """Its answer to that; None: there is none yet."""
    stopping: bool = False

    def is_at(self, order: int) -> bool:
        """Return whether it still carries out an order: no later one came, and no stop."""
        return self.order == order and not self.stopping


class Floor:
    """All nodes, and the attempts that train on them."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin without attempts."""
        self._types: dict[str, str] = {}
        self._racks: dict[str, tuple[str, int]] = {}
        for name, chain in cluster.chains.items():
            levels = [level.name for level in chain.levels]
            above = chain.levels[levels.index(chain.node_level) + 1 :][:1]
            rack = above[0].fanout if above else len(chain.nodes)
            for index, cell in enumerate(chain.nodes):
                for device in cell.devices or ("",):
                    self._types[f"{cell.node} {device}"] = chain.gpu
                self._racks[cell.node] = name, index // rack
        self._on: dict[str, dict[Run, None]] = {node: {} for node in self._racks}

    def gpu_type(self, node: str, device: int) -> str:
        """Return the type of a GPU."""
        found = self._types.get(f"{node} ")
        return found if found is not None else self._types[f"{node} {device}"]

    def types(self, run: Run) -> list[str]:
        """Return the types of the GPUs of an attempt, each once; several if its gang is mixed."""
        return list(
            dict.fromkeys(
                self.gpu_type(node, gpus[0]) for node, gpus in run.devices.items() if gpus
            )
        )

    def enter(self, run: Run) -> None:
        """Note that an attempt trains on its GPUs."""
        for node in run.parts:
            self._on[node][run] = None

    def leave(self, run: Run) -> None:
        """Note that an attempt has ceased to train."""
        for node in run.parts:
            self._on[node].pop(run, None)

    def beside(self, run: Run) -> dict[Run, None]:
        """Return the other attempts that train on a node of an attempt."""
        found: dict[Run, None] = {}
        for node in run.parts:
            found.update(self._on[node])
        found.pop(run, None)
        return found

    def situation(self, run: Run) -> Situation:
        """Return where an attempt runs, and beside which models.

        Neighbours are other attempts that span nodes, if the attempt does.
        """
        devices = run.devices
        first, on = next((node, gpus) for node, gpus in devices.items() if gpus)
        partners, neighbours = [], []
        for other in self.beside(run):
            other_devices = other.devices
            if any(set(gpus) & set(other_devices.get(node, ())) for node, gpus in devices.items()):
                partners.append(other.job.model)
            elif len(devices) > 1 and len(other_devices) > 1:
                neighbours.append(other.job.model)
        gpus = sum(map(len, devices.values()))
        return Situation(
            gpu_type=self.gpu_type(first, on[0]),
            spread=tuple(sorted(map(len, devices.values()), reverse=True)),
            workers=sum(part.ranks for part in run.parts.values()) if run.job.workers else gpus,
            servers=run.servers,
            partners=tuple(sorted(partners)),
            neighbours=tuple(sorted(neighbours)),
            racks=len(dict.fromkeys(self._racks[node] for node in devices)),
        )
