"""How parameters are cut into chunks, and which server keeps which chunk. Pure.

The best-fit rule is DL2's (section 5, step 2): "move part of the parameters on each existing PS to
the new PS, such that all PSs maintain nearly the same number of parameters, while minimizing
parameter movement". What moves, moves once, and only to a newcomer or away from a leaver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CHUNKS_WANTED = 64
"""Chunks a model is cut into: with 64 equal chunks, 2 to 8 servers differ by at most an eighth."""
CHUNK_MIN, CHUNK_MAX = 1024, 512 * 1024
"""Elements of a chunk. Below, headers and calls cost more than the copy; above, servers of a large
model are out of balance (1 M elements: 0.51 / 0.39 / 0.14 of 25 M on three servers)."""


class Segment(NamedTuple):
    """The parameters of one group that share a type, end to end; `elements` in all."""

    group: int
    dtype: str  # "float32" or "float64"
    elements: int


class Chunk(NamedTuple):
    """Elements `begin` to `end` of segment `segment`; its number is its place in the list."""

    segment: int
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Return how many elements it has."""
        return self.end - self.begin


class Move(NamedTuple):
    """One chunk's way from a server to another."""

    chunk: int
    source: int
    target: int


def chunk_elements(total: int) -> int:
    """Return the elements per chunk for a model of `total` elements."""
    wanted = -(-total // CHUNKS_WANTED)
    return min(max(-(-wanted // CHUNK_MIN) * CHUNK_MIN, CHUNK_MIN), CHUNK_MAX)


def cut(segments: Sequence[Segment], elements: int) -> list[Chunk]:
    """Return the chunks of `segments`, in order, each of at most `elements` elements."""
    assert elements > 0
    return [
        Chunk(number, begin, min(begin + elements, segment.elements))
        for number, segment in enumerate(segments)
        for begin in range(0, segment.elements, elements)
    ]


def spread(sizes: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Return the server of each chunk for a job that begins: the largest first, to the emptiest.

    Args:
        sizes: The elements of each chunk.
        servers: The ids of the servers.
    """
    return rebalance(sizes, [-1] * len(sizes), servers)


def rebalance(sizes: Sequence[int], held: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Return the server of each chunk once exactly `servers` keep them.

    Chunks of servers that are not in `servers` go, the largest first, to the emptiest one. Each
    server without a chunk is then filled from the fullest, by the largest chunk that fits what that
    one has above total / n; and, once none fits, by what still brings the two closer. If the loads
    differed by at most the largest chunk before, they do afterwards.

    Args:
        sizes: The elements of each chunk.
        held: The server of each chunk so far; -1: none.
        servers: The ids of the servers.
    """
    assert servers, "parameters need a server"
    placed = list(held)
    load = dict.fromkeys(sorted(servers), 0)
    for chunk, server in enumerate(placed):
        if server in load:
            load[server] += sizes[chunk]
    newcomers = [server for server in load if server not in held]
    kept = [server for server in load if server in held] or newcomers
    homeless = [chunk for chunk, server in enumerate(placed) if server not in load]
    for chunk in sorted(homeless, key=lambda chunk: (-sizes[chunk], chunk)):
        target = min(kept, key=lambda server: (load[server], server))
        placed[chunk] = target
        load[target] += sizes[chunk]
    if kept is not newcomers:
        for newcomer in newcomers:
            _fill(newcomer, sizes, placed, load)
    return placed


def moves(before: Sequence[int], after: Sequence[int]) -> list[Move]:
    """Return what must move, by chunk.

    Args:
        before: The server of each chunk so far.
        after: The server of each chunk afterwards.
    """
    return [
        Move(chunk, source, target)
        for chunk, (source, target) in enumerate(zip(before, after, strict=True))
        if source != target
    ]


def _fill(newcomer: int, sizes: Sequence[int], placed: list[int], load: dict[int, int]) -> None:
    share = sum(load.values()) // len(load)
    while True:
        others = sorted(
            (server for server in load if server != newcomer),
            key=lambda server: (-load[server], server),
        )
        found = next(
            (
                chunk
                for server in others
                if (chunk := _largest(sizes, placed, server, load[server] - share)) is not None
                and sizes[chunk] < load[server] - load[newcomer]
            ),
            None,
        )
        if found is None:
            gap = load[others[0]] - load[newcomer]
            # Half the gap brings the two closest; a little more still does, up to the gap itself.
            found = _largest(sizes, placed, others[0], gap // 2)
            if found is None:
                found = _smallest(sizes, placed, others[0])
            if found is None or sizes[found] >= gap:
                return
        load[placed[found]] -= sizes[found]
        load[newcomer] += sizes[found]
        placed[found] = newcomer


def _largest(sizes: Sequence[int], placed: Sequence[int], server: int, most: int) -> int | None:
    fitting = [c for c, at in enumerate(placed) if at == server and 0 < sizes[c] <= most]
    return max(fitting, key=lambda chunk: (sizes[chunk], -chunk), default=None)


def _smallest(sizes: Sequence[int], placed: Sequence[int], server: int) -> int | None:
    there = [chunk for chunk, at in enumerate(placed) if at == server and sizes[chunk]]
    return min(there, key=lambda chunk: (sizes[chunk], chunk), default=None)
