"""Which messages of a fact stream are records, judged from the beginning and from the middle."""

from __future__ import annotations

import msgspec
import pytest

from skep_services.links import REPORTED_MAX, Followed, ForeignSeen, Links, digest_of
from skep_services.ports import CorruptLogError
from tests.kit import RecordWriter


def forged(n: int, prev: str = "0" * 64) -> bytes:
    return msgspec.json.encode({"v": 1, "n": n, "prev": prev, "epoch": 1, "facts": []})


def records(count: int) -> list[bytes]:
    writer = RecordWriter()
    return [writer.record(()) for _ in range(count)]


def read(stream: list[bytes], position: int = 0) -> tuple[list[bytes], list[int]]:
    """Return what a follower behind `position` takes, and which sequences are foreign."""
    foreign: list[int] = []
    followed = Followed("ALLOC", position, lambda _, sequence, __: foreign.append(sequence))
    taken = [
        payload
        for sequence, payload in enumerate(stream, 1)
        if sequence > followed.begin and followed.takes(payload, sequence)
    ]
    return taken, foreign


def test_only_records_are_taken() -> None:
    one, two, three = records(3)
    stream = [b"?", one, one, forged(2), two, forged(9), b"", three, b"{}"]
    assert read(stream) == ([one, two, three], [1, 3, 4, 6, 7, 9])


@pytest.mark.parametrize("position", [1, 64, 65, 150, 199, 200])
def test_a_follower_goes_on_from_anywhere(position: int) -> None:
    mine = records(300)
    stream = [message for each in mine for message in (each, b"foreign")]
    taken, foreign = read(stream, position)
    assert taken == [each for index, each in enumerate(mine) if index * 2 + 1 > position]
    assert not [each for each in foreign if each % 2]


def test_forged_messages_before_its_position_do_not_deceive_a_follower() -> None:
    mine = records(200)
    stream = mine.copy()
    first = forged(70)
    stream[70:72] = first, forged(71, digest_of(first))
    assert read(stream, 100) == (mine[100:], [])


def test_behind_a_position_without_a_record_the_next_one_is_believed() -> None:
    mine = records(2)
    stream = [b"?"] * 100 + mine
    assert read([mine[0], *stream], 101)[0] == mine


@pytest.mark.parametrize("number", [2, 3, 10**9])
def test_a_follower_passes_over_two_that_continue_each_other_and_ends_at_a_third(
    number: int,
) -> None:
    mine = records(3)
    first = forged(number)
    second = forged(number + 1, digest_of(first))
    assert read([mine[0], first, second, *mine[1:]]) == (mine, [2, 3])
    assert read([mine[0], first, second, *mine[1:]], 1) == (mine[1:], [2, 3])
    third = forged(number + 2, digest_of(second))
    told = f"records {number + 1} and {number + 2} at sequences 3 and 4"
    with pytest.raises(CorruptLogError, match=told):
        read([mine[0], first, second, third])


def test_a_chain_of_its_own_ends_the_reading_of_the_owner() -> None:
    links, (one,), first = Links("log"), records(1), forged(2)
    links.took(1, digest_of(one), 1)
    assert links.foreign(first, 2)
    with pytest.raises(CorruptLogError, match="records 2 and 3 at sequences 2 and 3"):
        links.foreign(forged(3, digest_of(first)), 3)


def test_doubt_ends_with_the_next_record() -> None:
    links, (one, two) = Links("log"), records(2)
    assert links.foreign(one, 1) == ""
    links.took(1, digest_of(one), 1)
    assert "does not continue record 1" in links.foreign(forged(2), 2)
    assert "sequence 2: it says that it is record 2" in links.doubt()
    assert links.foreign(b"?", 3) == "it is no record"
    assert links.doubt()
    assert links.foreign(two, 4) == ""
    links.took(2, digest_of(two), 4)
    assert links.doubt() == ""


@pytest.mark.parametrize("n", [-1, 0, 1, 3, 10**30])
def test_a_number_without_a_place_is_no_doubt(n: int) -> None:
    links, (one,) = Links("log"), records(1)
    links.took(1, digest_of(one), 1)
    assert links.foreign(forged(n), 2)
    assert links.doubt() == ""


def test_a_flood_is_counted_and_not_told_one_by_one() -> None:
    told: list[object] = []
    seen = ForeignSeen(lambda what, **about: told.append(about["count"]))
    for number in range(10 * REPORTED_MAX):
        seen("ALLOC", number, "it is no record")
    assert (seen.count, len(told)) == (10 * REPORTED_MAX, REPORTED_MAX + 9)
