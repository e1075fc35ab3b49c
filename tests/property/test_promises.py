"""The book of promises against a plain search, and what holds whatever is promised."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from skep.promises.book import Book
from skep.promises.cells import Kind
from skep.promises.judge import judge
from skep.promises.length import TOLD, Unknown, ways
from skep.units import Duration, Instant, seconds
from skep.wire.promises import Answer, Place
from skep.wire.spec import JobSpec, Resources, SizeHint
from tests import effort

KIND = Kind("v100")
HORIZON = 40

sizes = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4)
asks = st.tuples(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 10),
    st.integers(1, HORIZON),
    st.booleans(),
)
"""GPUs of a piece, pieces, for how long, from when on, until when, and whether late."""


def free_at(parts: list[int], places: Iterable[Place], time: int) -> list[int]:
    """Return what is free of each part in a unit of time."""
    free = list(parts)
    for place in places:
        if place.begin <= time < place.end:
            for number, gpus in place.nodes:
                free[number] -= gpus
    return free


def fits(parts: list[int], places: list[Place], gpus: int, workers: int, span: range) -> bool:
    """Return whether so many pieces fit throughout a span, each on one part."""
    least = [
        min(column) for column in zip(*(free_at(parts, places, at) for at in span), strict=True)
    ]
    return bool(sum(free // gpus for free in least) >= workers)


@settings(max_examples=effort.examples(200))
@given(sizes, st.lists(st.tuples(asks, st.booleans()), max_size=14))
def test_places_are_those_of_a_plain_search(
    drawn: list[int], asked: list[tuple[tuple[int, int, int, int, int, bool], bool]]
) -> None:
    parts = sorted(drawn, reverse=True)
    book = Book({KIND: tuple(parts)})
    for number, ((gpus, workers, lasts, begin, due, late), takes) in enumerate(asked):
        place = book.find(
            KIND, (gpus, workers), Duration(lasts), Instant(begin), Instant(due), late=late
        )
        places = list(book.places.values())
        able = [
            at
            for at in range(begin, due - lasts + 1)
            if fits(parts, places, gpus, workers, range(at, at + lasts))
        ]
        assert (place is None) == (not able), (place, able)
        if place is not None:
            assert place.begin == (able[-1] if late else able[0])
            assert book.fits(place)
            assert sum(each for _, each in place.nodes) == gpus * workers
            assert all(each % gpus == 0 for _, each in place.nodes)
            book.put(f"j{number}", place)
            book.check()
        if takes and book.places:
            book.take(next(iter(book.places)))
            book.check()


jobs = st.tuples(
    st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.integers(60, 7200), st.floats(0.5, 8)
)


@settings(max_examples=effort.examples(100))
@given(sizes, st.lists(jobs, max_size=25))
def test_the_book_never_promises_more_than_the_cells(
    drawn: list[int], asked: list[tuple[int, int, int, float]]
) -> None:
    parts = tuple(sorted(drawn, reverse=True))
    book, now = Book({KIND: parts}), Instant(seconds(1_000_000))
    for number, (gpus, workers, lasts_s, slack) in enumerate(asked):
        spec = JobSpec(
            name="x",
            vc="a",
            command="true",
            resources=Resources(gpus=gpus, workers=workers),
            size=SizeHint(run_time=lasts_s),
        )
        found, why = ways(spec, [KIND], {KIND: parts[0]}, Unknown(), TOLD)
        due = Instant(now + seconds(round(lasts_s * slack)))
        before = dict(book.places)
        ruling = judge(book, spec, found, why, due, now)
        assert book.places == before
        assert ruling == judge(book, spec, found, why, due, now)
        assert (ruling.place is not None) == (ruling.judged.answer is Answer.ACCEPTED)
        if ruling.place is not None:
            assert now <= ruling.place.begin
            assert ruling.place.end <= due
            book.put(f"j{number}", ruling.place)
            book.check()
        elif ruling.judged.answer is Answer.AT_RISK:
            assert ruling.judged.p50 <= due < ruling.judged.p90
