"""What a job consists of at one moment: servers, workers, and the server of each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from skep_ps.assign import Chunk, Segment, cut
from skep_ps.wire import Message


class Spec(NamedTuple):
    """What every process must agree on, as the workers' optimizers have it."""

    segments: tuple[Segment, ...]
    elements: int  # of a chunk, at most
    momentum: bool  # chunks carry a momentum buffer
    asynchronous: bool
    average: bool  # the sum of the gradients is divided by the number of workers
    digest: str  # of the parameters' shapes, in order

    def chunks(self) -> list[Chunk]:
        """Return the chunks; their numbers are their places."""
        return cut(self.segments, self.elements)

    def to_wire(self) -> Message:
        """Return it as JSON."""
        return {**self._asdict(), "segments": [list(segment) for segment in self.segments]}

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Spec:
        """Return what `to_wire` gave."""
        return cls(**{**wire, "segments": tuple(Segment(*each) for each in wire["segments"])})


class Placement(NamedTuple):
    """The members and the map of one generation. Every scaling makes the next one."""

    generation: int
    servers: dict[int, tuple[str, int]]
    workers: tuple[int, ...]  # in ascending order, which is the order of every sum
    chunks: tuple[int, ...]  # the server of each chunk

    def of_server(self, server: int) -> list[int]:
        """Return the chunks of `server`, ascending: the order of every payload."""
        return [chunk for chunk, at in enumerate(self.chunks) if at == server]

    def without(self, worker: int) -> Placement:
        """Return it after a worker's end."""
        return self._replace(workers=tuple(each for each in self.workers if each != worker))

    def to_wire(self) -> Message:
        """Return it as JSON."""
        return {
            "generation": self.generation,
            "servers": [[server, *at] for server, at in self.servers.items()],
            "workers": list(self.workers),
            "chunks": list(self.chunks),
        }

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Placement:
        """Return what `to_wire` gave."""
        servers: Sequence[tuple[int, str, int]] = wire["servers"]
        return cls(
            generation=int(wire["generation"]),
            servers={int(server): (str(host), int(port)) for server, host, port in servers},
            workers=tuple(wire["workers"]),
            chunks=tuple(wire["chunks"]),
        )
