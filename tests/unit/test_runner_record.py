"""The runner's record: what it says is what was written, whatever happened to the file."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from skep_services.agent import runner_record
from skep_services.agent.runner_record import Known, Record


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "runner.jsonl")


def written(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line]


def facts(record: Record) -> list[tuple[object, ...]]:
    return [tuple(vars(known).values()) for known in record.runs.values()]


def test_everything_comes_back(path: str) -> None:
    record = Record(path, "boot")
    first = record.began("a", 7, "/logs/a", 10)
    record.started(first, 17, 18, 19)
    first.asked = True
    first.exceeded = "scratch-exceeded: it is large"
    record.exited(first, -9, 2, 20, ["5: sleep"])
    record.started(second := record.began("b", 7, "/logs/b", 11), 27, 28, 29)
    record.frozen(second, "/group")
    third = record.began("c", 7, "/logs/c", 12, {"uid": 5000})
    record.frozen(third, "/other")
    record.thawed(third)
    record.signalled(third, 6)
    record.began("d", 7, "/logs/d", 13)
    record.not_started("d")
    record.exited(record.began("e", 7, "/logs/e", 14), None, 0, 30)
    record.began("f", 7, "/logs/f", 15)
    record.forgot("f")
    over = first.exceeded
    expected = [
        ("a", 7, "/logs/a", 10, 17, 18, 19, -9, 2, True, 20, False, "", 0, ["5: sleep"], over, {}),
        ("b", 7, "/logs/b", 11, 27, 28, 29, None, 0, False, 0, True, "/group", 0, [], "", {}),
        (
            "c",
            7,
            "/logs/c",
            12,
            0,
            0,
            0,
            None,
            0,
            False,
            0,
            False,
            "/other",
            6,
            [],
            "",
            {"uid": 5000},
        ),
        ("e", 7, "/logs/e", 14, 0, 0, 0, None, 0, False, 30, False, "", 0, [], "", {}),
    ]
    assert facts(record) == expected
    record.close()
    for _ in range(2):
        again = Record(path, "boot")
        assert facts(again) == expected
        again.close()


def test_pids_of_another_boot_mean_nothing(path: str) -> None:
    record = Record(path, "boot")
    record.started(known := record.began("a", 7, "/logs/a", 10), 17, 18, 19)
    record.frozen(known, "/group")
    record.close()
    record = Record(path, "later")
    expected: tuple[object, ...] = (
        "a",
        7,
        "/logs/a",
        10,
        0,
        18,
        19,
        None,
        0,
        False,
        0,
        False,
        "",
        0,
        [],
        "",
        {},
    )
    assert facts(record) == [expected]
    record.close()
    assert written(path)[0] == {"boot": "later"}


def test_lines_that_make_no_sense_are_skipped(path: str) -> None:
    lines = [
        '{"boot": "boot"}',
        '{"began": "a", "mark": 7, "log": "/logs/a", "log_bytes_max": 10}',
        '{"started": "unheard-of", "pid": 1, "ticks": 2, "at": 3}',
        '{"began": "b"}',
        "",
        "17",
        '{"exited": "a", "co',
    ]
    Path(path).write_text("\n".join(lines))
    record = Record(path, "boot")
    assert list(record.runs) == ["a"]
    assert record.runs["a"].ended_at == 0
    record.close()


def test_file_stays_small(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_record, "LINES_SPARE_MAX", 20)
    record = Record(path, "boot")
    stays = record.began("stays", 7, "/logs/stays", 10)
    for number in range(100):
        token = f"t{number}"
        record.exited(record.began(token, 7, "/logs", 10), 0, 0, 1)
        record.forgot(token)
        assert len(written(path)) <= 20 + 2 * runner_record.LINES_PER_RUN
    record.exited(stays, 0, 0, 1)
    record.close()
    record = Record(path, "boot")
    assert list(record.runs) == ["stays"]
    record.close()


def test_torn_line_spoils_no_other(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(path, "boot")
    write = os.write

    def full(file: int, text: bytes) -> int:
        return write(file, text[: len(text) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left") as raised:
        record.began("a", 7, "/logs/a", 10)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == path
    monkeypatch.undo()
    record.began("b", 7, "/logs/b", 10)
    record.close()
    record = Record(path, "boot")
    assert list(record.runs) == ["b"]
    record.close()


def test_known_run_without_pid_has_no_started_line() -> None:
    assert Known("a", 7, "/logs/a", 10).lines() == [
        {"began": "a", "mark": 7, "log": "/logs/a", "log_bytes_max": 10}
    ]


def test_a_full_disk_ends_no_runner(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have filled it: the record goes on in the file that there is, old or new."""
    monkeypatch.setattr(runner_record, "LINES_SPARE_MAX", 0)
    record = Record(path, "boot")
    record.started(record.began("a", 7, "/logs/a", 10), 17, 18, 19)
    record.exited(record.began("b", 7, "/logs/b", 10), 0, 0, 20)
    opened = open
    monkeypatch.setattr(runner_record, "open", no_room, raising=False)
    with pytest.raises(OSError, match="No space left"):
        record.forgot("b")
    assert os.fstat(record._file).st_ino == os.stat(path).st_ino, "not closed, not another's"
    again = Record.__new__(Record)
    monkeypatch.setattr(runner_record, "open", lambda *a, **k: no_room(*a, read=opened, **k))
    again.__init__(path, "boot")  # type: ignore[misc]
    assert list(again.runs) == ["a"]
    monkeypatch.undo()
    again.exited(again.runs["a"], 0, 0, 30)
    assert Record(path, "boot").runs["a"].ended_at == 30
    monkeypatch.setattr(
        runner_record, "open", lambda *a, **k: no_room(*a, read=opened, **k), raising=False
    )
    with pytest.raises(OSError, match="No space left"):
        Record(path, "another boot")


def no_room(name: str, mode: str = "r", *, read: Any = None, **more: Any) -> Any:
    if "w" in mode or read is None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    return read(name, mode, **more)
