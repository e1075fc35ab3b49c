"""Frames of sessions, and the windows that bound what is under way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.wire import codec, terminal
from skep.wire.terminal import (
    DATA_BYTES_MAX,
    FRAME_COST,
    WINDOW_BYTES,
    Frame,
    Kind,
    Open,
    Window,
    cost,
)


def test_a_frame_is_read_as_it_was_sent() -> None:
    frame = Frame(Kind.INPUT, b"\x00\xffls\n", "0123456789abcdef" * 2, 7)
    assert terminal.unpack_from_bus(terminal.pack_for_bus(frame)) == frame
    assert terminal.unpack(terminal.pack(frame)) == Frame(Kind.INPUT, b"\x00\xffls\n")


@given(st.binary(max_size=64))
def test_what_is_no_frame_is_none(data: bytes) -> None:
    for read in (terminal.unpack(data), terminal.unpack_from_bus(data)):
        assert read is None or read.kind in Kind
    assert terminal.unpack(b"i" + bytes(DATA_BYTES_MAX + 1)) is None


@pytest.mark.parametrize(
    "wanted, why",
    [
        ({}, "there is no command to run"),
        ({"argv": [""]}, "there is no command to run"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"argv": ["x" * 70_000]}, "cannot be read"),
        ({"argv": ["x" * 60_000, "y" * 60_000]}, "put it into a file"),
        ({"argv": ["x"] * 2000}, "cannot be read"),
        ({"argv": ["ls"], "rank": -1}, "cannot be read"),
        ({"argv": ["ls"], "rows": 10**6}, "cannot be read"),
        ({"argv": ["ls"], "asker": "gateway.>"}, "cannot be read"),
        ({"what": "forward"}, "there is no port"),
        ({"what": "forward", "port": 70_000}, "cannot be read"),
        ({"what": "dance"}, "cannot be read"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(wanted: dict[str, object], why: str) -> None:
    told = terminal.read_open(codec.encode(wanted))
    assert isinstance(told, str)
    assert why in told
    assert "\n" not in told


def test_what_can_run_is_read() -> None:
    assert terminal.read_open(codec.encode(Open(argv=("ls", "-l"), rank=3))) == Open(
        argv=("ls", "-l"), rank=3
    )
    assert isinstance(terminal.read_open(b'{"what":"attach"}'), Open)


@given(st.lists(st.tuples(st.sampled_from("suc"), st.integers(0, DATA_BYTES_MAX)), max_size=200))
def test_two_ends_that_keep_to_their_windows_never_refuse_one_another(
    steps: list[tuple[str, int]],
) -> None:
    """`s` sends, `u` uses what came first, `c` has the other end hear how much."""
    ours, theirs = Window(), Window()
    waiting: list[bytes] = []
    told: list[bytes] = []
    for step, size in steps:
        body = bytes(min(size, ours.room))
        if step == "s" and ours.room:
            ours.send(body)
            assert theirs.receive(body)
            waiting.append(body)
        elif step == "u" and waiting:
            theirs.use(waiting.pop(0))
            if (due := theirs.due()) is not None:
                told.append(due)
        elif step == "c" and told:
            assert ours.confirm(told.pop(0))
        for end in (ours, theirs):
            end.check()
        assert sum(map(cost, waiting)) <= WINDOW_BYTES
    while waiting:
        theirs.use(waiting.pop(0))
        if (due := theirs.due()) is not None:
            told.append(due)
    assert all(ours.confirm(each) for each in told)
    assert ours.room == DATA_BYTES_MAX, "what was all used is all confirmed"


def test_an_end_that_does_not_keep_to_it_is_seen() -> None:
    window = Window()
    assert not window.confirm(terminal.USED.pack(1))
    assert not window.confirm(b"")
    for _ in range(WINDOW_BYTES // FRAME_COST):
        assert window.receive(b"")
    assert not window.receive(b"")
