"""Which rank keeps a gang that makes no mini-batches: from stacks and torch's Flight Recorder."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep.perf.hang import NAMED_MAX, Blame, blame
from skep.wire.standing import Hang, Standing
from skep_job.observe import standstill
from skep_job.observe.flight_record import FlightRecord

WAITS = Standing(line="t.py:9 in step", collective="gloo:all_reduce", entered=6, waits=True)
LOADS = Standing(line="t.py:4 in load", collective="gloo:all_reduce", entered=5)


@pytest.mark.parametrize(
    "stands, expected",
    [
        ({0: None, 1: None}, None),
        ({0: Standing()}, None),
        (
            {0: WAITS, 1: LOADS, 2: WAITS},
            Blame(
                Hang.BEHIND,
                (1,),
                "rank 1 has not entered collective 6 (gloo:all_reduce), in which 2 ranks wait; "
                "at t.py:4 in load",
            ),
        ),
        (
            {0: WAITS, **dict.fromkeys(range(1, 11), LOADS)},
            Blame(
                Hang.BEHIND,
                tuple(range(1, NAMED_MAX + 1)),
                "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more have not entered collective 6 "
                "(gloo:all_reduce), in which 1 rank waits; at t.py:4 in load",
            ),
        ),
        (
            {0: WAITS, 1: None},
            Blame(
                Hang.MUTE, (1,), "rank 1 has not said where it stands: its process runs no Python"
            ),
        ),
        (
            {0: WAITS, 1: WAITS},
            Blame(
                Hang.TOGETHER,
                (),
                "all 2 ranks wait in collective 6 (gloo:all_reduce); at t.py:9 in step",
            ),
        ),
        (
            {0: WAITS, 1: msgspec.structs.replace(WAITS, collective="gloo:broadcast"), 2: WAITS},
            Blame(
                Hang.TOGETHER,
                (),
                "all 3 ranks wait in collective 6, and not in the same one: rank 0 in "
                "gloo:all_reduce, rank 1 in gloo:broadcast; at t.py:9 in step",
            ),
        ),
        ({0: LOADS}, Blame(Hang.ALONE, (0,), "it stands at t.py:4 in load")),
        (
            {0: msgspec.structs.replace(WAITS, record="/c/j1/hang-a00001-r0.json"), 1: None},
            Blame(
                Hang.MUTE,
                (1,),
                "rank 1 has not said where it stands: its process runs no Python; "
                "recorded in /c/j1/hang-a00001-r0.json",
            ),
        ),
        ({0: LOADS, 1: LOADS}, None),
    ],
)
def test_who_is_to_blame(stands: dict[int, Standing | None], expected: Blame | None) -> None:
    assert blame(stands) == expected


def test_the_line_is_that_of_the_script() -> None:
    held, go = threading.Event(), threading.Event()

    def stands_here() -> None:
        held.set()
        go.wait()

    thread = threading.Thread(target=stands_here)
    thread.start()
    held.wait()
    try:
        line = standstill.standing(thread.ident or 0).line
    finally:
        go.set()
        thread.join()
    assert line.startswith("test_hang.py:")
    assert line.endswith(" in stands_here")
    assert standstill.line_of(None) == ""


DUMP: dict[str, Any] = {
    "entries": [
        {"process_group": ["0", "default_pg"], "profiling_name": "gloo:all\x1b_reduce"},
        {"process_group": ["1", "other"], "profiling_name": "gloo:barrier"},
    ],
    "pg_status": {"0": {"last_enqueued_collective": "6", "last_completed_collective": "5"}},
}


def test_the_collective_is_that_of_the_first_group() -> None:
    found = standstill.collective_of(DUMP)
    assert found == {"collective": "gloo:all_reduce", "entered": 6, "waits": True}
    assert Standing(**found, line="") == msgspec.convert({**found}, Standing)


@pytest.mark.parametrize("dump", [b"", b"{}", b'{"entries": [1], "pg_status": {}}', b"[]"])
def test_a_dump_of_another_form_says_nothing(dump: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Distributed:
        """Whatever torch will be one day."""

        @staticmethod
        def is_initialized() -> bool:
            return True

        @staticmethod
        def _dump_fr_trace_json() -> bytes:
            return dump

    modules: Any = sys.modules
    monkeypatch.setitem(modules, "torch.distributed", Distributed)
    monkeypatch.setitem(modules, "torch._C._distributed_c10d", Distributed)
    assert standstill._collective(standstill._recorded()) == {}


def test_what_torch_recorded_is_a_file_of_the_job(tmp_path: Path) -> None:
    record, file = FlightRecord(str(tmp_path / "j1"), 1, 3), tmp_path / "j1/hang-a00001-r3.json"
    for text, over, expected in (
        ("", False, ""),  # No process group.
        ("{}", False, "{}"),
        ("[1]", False, "{}"),  # It still stands.
        ("[2]", True, "[2]"),
    ):
        if over:
            record.over()
        record.keep(text)
        record.wait()
        assert (file.read_text() if record.path else "") == expected
    assert record.path == str(file)
    assert [each.name for each in (tmp_path / "j1").iterdir()] == [file.name]


def test_a_record_that_cannot_be_written_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("", str(tmp_path / "file")):
        record = FlightRecord(folder, 1, 0)
        record.keep("{}")
        record.wait()
        assert record.path == ""


def test_a_line_that_would_write_to_a_terminal_is_refused() -> None:
    for line in ("\x1b[2J", "a\nb", "x" * 121):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"line": line}, Standing)
