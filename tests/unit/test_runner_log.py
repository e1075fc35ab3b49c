"""A run's log within its bound."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skep_services.agent.runner_log import LOG_BYTES_MIN, LOG_TAIL_BYTES, RunLog

BOUND = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunLog]:
    one = RunLog(str(tmp_path / "some" / "folder" / "log"), BOUND)
    yield one
    one.close()
    one.close()


def write(log: RunLog, text: bytes) -> None:
    file = log.open_for_process()
    assert os.write(file, text) == len(text)
    os.close(file)


def test_small_log_is_left_alone(log: RunLog) -> None:
    write(log, b"x" * BOUND)
    assert not log.check()
    assert Path(log.path).read_bytes() == b"x" * BOUND


def test_large_log_keeps_its_beginning_and_its_end(log: RunLog) -> None:
    lines = [f"line {number:010}\n".encode() for number in range(200_000)]
    text = b"".join(lines)
    write(log, text)
    assert log.check()
    kept = Path(log.path).read_bytes()
    dropped = len(text) - BOUND // 2 - LOG_TAIL_BYTES
    note = f"\n[skep] log limit reached: {dropped} bytes dropped\n".encode()
    assert kept == text[: BOUND // 2] + note + text[-LOG_TAIL_BYTES:]
    assert not log.check()


def test_writer_goes_on_where_the_log_was_cut(log: RunLog) -> None:
    file = log.open_for_process()
    os.write(file, b"a" * (2 * BOUND))
    assert log.check()
    os.write(file, b"and on")
    os.close(file)
    assert Path(log.path).read_bytes().endswith(b"aaaand on")


def test_what_is_written_while_the_end_is_read_is_kept(
    log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, b"flood " * BOUND)
    read, late = os.pread, [b"almost\n", b"last line\n"]

    def slowly(file: int, size: int, at: int) -> bytes:
        found = read(file, size, at)
        if late:
            write(log, late.pop(0))
        return found

    monkeypatch.setattr(os, "pread", slowly)
    assert log.check()
    assert Path(log.path).read_bytes().endswith(b"almost\nlast line\n")


def test_bytes_dropped_add_up(log: RunLog) -> None:
    total = 0
    for _ in range(3):
        write(log, b"b" * (2 * BOUND))
        total += 2 * BOUND
        assert log.check()
    kept = Path(log.path).read_bytes()
    assert kept.count(b"[skep]") == 1
    note = kept[BOUND // 2 : -LOG_TAIL_BYTES]
    assert f" {log.bytes_dropped} bytes dropped".encode() in note
    # Earlier notes are dropped and counted as well, each shorter than 100 bytes.
    assert 0 <= log.bytes_dropped - (total - BOUND // 2 - LOG_TAIL_BYTES) < 200


def test_tiny_bound_is_raised_to_the_smallest(tmp_path: Path) -> None:
    log = RunLog(str(tmp_path / "log"), 0)
    write(log, b"x" * LOG_BYTES_MIN)
    assert not log.check()
    write(log, b"x")
    assert log.check()
    assert Path(log.path).stat().st_size < LOG_BYTES_MIN
    log.close()


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("other"), os.mkfifo])
def test_what_is_in_the_place_of_a_log_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A job can write to the folder of its logs, and what it puts there is opened by the agent."""
    other = tmp_path / "other"
    other.write_bytes(b"x" * 2 * LOG_BYTES_MIN)
    make(tmp_path / "log")
    with pytest.raises(OSError, match=r"symbolic links|not a file"):
        RunLog(str(tmp_path / "log"), LOG_BYTES_MIN).check()
    assert other.stat().st_size == 2 * LOG_BYTES_MIN


def test_a_word_for_a_log_on_a_full_disk_is_lost_and_no_more(
    log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", no_room)
    log.say("scratch limit reached")
