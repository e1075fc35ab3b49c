"""Where in a log begins what was written since an instant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skep_services.agent import log_times
from skep_services.agent.environment import log_path
from skep_services.agent.log_times import LogTimes

SECOND = 1_000_000_000
KEY = ("j7", 1)


class Log:
    """A log that is written to at given times, and looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = log_path(folder, *KEY, 0)
        self.path.parent.mkdir(parents=True)
        self.times = LogTimes(folder, folder / "log-times")

    def write(self, second: int, size: int, *, look: bool = True) -> None:
        """Have the log be of a size, and look at it a moment later."""
        self.path.write_bytes(b"x" * size)
        os.utime(self.path, ns=(second * SECOND, second * SECOND))
        if look:
            self.times.look([KEY], second * SECOND)

    def begin(self, second: float) -> int:
        return self.times.begin(*KEY, 0, int(second * SECOND))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_it_begins_at_the_size_that_was_seen_last_before(log: Log) -> None:
    assert log.begin(1) == 0
    log.write(10, 100)
    log.write(20, 100)
    log.write(30, 300)
    log.write(33, 350, look=False)
    assert [log.begin(second) for second in (5, 10, 25, 30, 32)] == [0, 100, 100, 300, 300]
    # Nothing was written since.
    assert log.begin(33) == log.begin(99) == 350
    # Another process of the agent goes on with what was seen.
    log.times = LogTimes(log.folder, log.folder / "log-times")
    assert log.begin(25) == 100


def test_of_a_log_that_was_cut_nothing_is_left_out(log: Log) -> None:
    log.write(10, 10_000_000)
    log.write(20, 20_000_000)
    log.write(30, 5_100_000)
    log.write(40, 5_200_000)
    kept = 5_100_000 - 64 * 1024 - 4096
    assert log.begin(15) == log.begin(25) == kept
    assert log.begin(35) == kept
    assert log.begin(40) == 5_200_000


def test_what_is_kept_has_a_bound_and_goes_with_the_log(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_times, "SEEN_MAX", 10)
    for second in range(1, 100):
        log.write(second, second * 10)
    kept = log.folder / "log-times" / "j7" / "1" / "rank0.log"
    assert kept.stat().st_size < 10 * 16
    assert log.begin(97) <= 970
    assert log.begin(50) <= 500
    log.times.prune()
    assert kept.exists()
    log.path.unlink()
    log.path.parent.rmdir()
    log.times.prune()
    assert not (log.folder / "log-times" / "j7").exists()


def test_a_full_disk_and_a_broken_file_cost_exactness_only(log: Log) -> None:
    (log.folder / "log-times").write_bytes(b"")  # Nothing can be written below it.
    log.write(10, 100)
    assert log.begin(9) == 0
    (log.folder / "log-times").unlink()
    log.times = LogTimes(log.folder, log.folder / "log-times")
    log.write(20, 200)
    path = log.folder / "log-times" / "j7" / "1" / "rank0.log"
    path.write_bytes(path.read_bytes() + b"odd")
    log.write(30, 300, look=False)
    assert log.begin(25) == 200
