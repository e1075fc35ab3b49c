"""Which server keeps which chunk: balance, and nothing moved that need not be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from skep_ps.assign import (
    CHUNK_MAX,
    CHUNK_MIN,
    Segment,
    chunk_elements,
    cut,
    moves,
    rebalance,
    spread,
)

SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=40)


def loads(sizes: Sequence[int], placed: Sequence[int], servers: Sequence[int]) -> list[int]:
    return [sum(s for s, at in zip(sizes, placed, strict=True) if at == each) for each in servers]


def apart(sizes: Sequence[int], placed: Sequence[int], servers: Sequence[int]) -> int:
    load = loads(sizes, placed, servers)
    return max(load) - min(load)


def moved(sizes: Sequence[int], before: Sequence[int], after: Sequence[int]) -> int:
    return sum(sizes[move.chunk] for move in moves(before, after))


@given(sizes=SIZES, first=st.integers(1, 4), history=st.lists(st.integers(0, 5), max_size=8))
@example(sizes=[1, 1, 4], first=4, history=[1, 5])
def test_servers_come_and_go_in_balance(sizes: list[int], first: int, history: list[int]) -> None:
    servers, following = list(range(first)), first
    placed = spread(sizes, servers)
    assert apart(sizes, placed, servers) <= max(sizes)
    for step in history:
        before = placed
        if step == 5 or len(servers) == 1:
            servers.append(following)
            following += 1
            placed = rebalance(sizes, before, servers)
            # A server that had stayed empty may have its first chunk now, too.
            assert all(move.target not in before for move in moves(before, placed))
        else:
            left = servers.pop(step % len(servers))
            placed = rebalance(sizes, before, servers)
            for move in moves(before, placed):
                assert move.source == left or move.target not in before
            assert left not in placed
        assert set(placed) <= set(servers)
        assert apart(sizes, placed, servers) <= max(sizes)


@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=7), first=st.integers(1, 2))
def test_adding_a_server_moves_hardly_more_than_the_least_that_balances_as_well(
    sizes: list[int], first: int
) -> None:
    servers = list(range(first))
    before = spread(sizes, servers)
    servers.append(first)
    ours = rebalance(sizes, before, servers)
    width = apart(sizes, ours, servers)
    least = min(
        moved(sizes, before, after)
        for after in itertools.product(servers, repeat=len(sizes))
        if apart(sizes, after, servers) <= width
    )
    assert least <= moved(sizes, before, ours) <= least + max(sizes)


@given(count=st.integers(1, 64), first=st.integers(1, 6))
def test_equal_chunks_move_exactly_as_little_as_they_can(count: int, first: int) -> None:
    servers = list(range(first))
    sizes = [7] * count
    before = spread(sizes, servers)
    ours = rebalance(sizes, before, [*servers, first])
    assert moved(sizes, before, ours) == count // (first + 1) * 7


@given(counts=st.lists(st.integers(1, 3 * CHUNK_MAX), min_size=1, max_size=4))
def test_chunks_cover_every_element_once(counts: list[int]) -> None:
    segments = [Segment(number, "float32", count) for number, count in enumerate(counts)]
    elements = chunk_elements(sum(counts))
    assert CHUNK_MIN <= elements <= CHUNK_MAX
    at = [0] * len(segments)
    for chunk in cut(segments, elements):
        assert chunk.begin == at[chunk.segment]
        assert 0 < chunk.elements <= elements
        at[chunk.segment] = chunk.end
    assert at == counts
