"""The agent's fact log on disk: torn ends, damage, ownership, compaction."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep.units import Instant
from skep.wire.bearing import RULES
from skep.wire.facts import EpochBegan
from skep_services.adapters.journal import FRAME, MAGIC, JournalFactLog
from skep_services.adapters.records import RECORD_BYTES_MAX
from skep_services.ports import CorruptLogError, LogRecord, MissingLogError, SupersededError
from tests.adapters.worlds import Freed, Placed

pytestmark = pytest.mark.asyncio

AT = Instant(1_800_000_000_000_000_000)


async def read(path: Path) -> list[LogRecord]:
    log = JournalFactLog(path, Placed | Freed)
    try:
        return [record async for record in log.replay()]
    finally:
        log.close()


async def opened(path: Path) -> JournalFactLog:
    log = JournalFactLog(path, Placed | Freed)
    async for _ in log.replay():
        pass
    await log.begin_epoch("o1", AT)
    return log


async def written(path: Path, count: int = 3) -> list[int]:
    """Write `count` records behind the epoch's and return where each record of the file begins."""
    log = await opened(path)
    starts = [len(MAGIC)]
    for number in range(count):
        starts.append(log.size)
        await log.append([Placed(f"j{number}")], {"S": number}, AT)
    log.close()
    return starts


async def test_a_record_cut_anywhere_is_cut_off_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal"
    starts = await written(path)
    whole = path.read_bytes()
    assert starts[-1] < len(whole)
    for end in range(starts[-1] + 1, len(whole)):
        path.write_bytes(whole[:end])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            records = await read(path)
        assert [record.counter for record in records] == [1, 2, 3]
        assert path.stat().st_size == starts[-1]
        assert "cut off" in caplog.text
    # What was cut off is written anew in its place.
    log = await opened(path)
    assert (await log.append([Freed("a")], {}, AT)).counter == 5
    log.close()
    assert len(await read(path)) == 5


async def test_a_last_record_of_garbage_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    starts = await written(path)
    whole = bytearray(path.read_bytes())
    for garbage in (bytes(len(whole) - starts[-1]), os.urandom(100)):
        path.write_bytes(bytes(whole[: starts[-1]]) + garbage)
        assert len(await read(path)) == 3


async def test_a_flipped_bit_before_the_last_record_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    starts = await written(path)
    whole = path.read_bytes()
    for position in range(starts[-1]):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptLogError):
            await read(path)


async def test_more_left_over_than_one_append_writes_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await written(path)
    with path.open("ab") as file:
        file.write(b"\0" * (FRAME.size + RECORD_BYTES_MAX + 1))
    with pytest.raises(CorruptLogError, match="before its end"):
        await read(path)


async def test_only_one_process_owns_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    log = await opened(path)
    with pytest.raises(SupersededError, match="another process"):
        await read(path)
    log.close()
    assert len(await read(path)) == 1


async def test_a_journal_that_existed_must_not_be_gone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await written(path)
    path.unlink()
    with pytest.raises(MissingLogError, match="restore"):
        await read(path)
    path.with_name("journal.lock").unlink()
    assert await read(path) == []


async def test_a_crash_while_the_journal_is_created_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.with_name("journal.part").write_bytes(MAGIC[:3])
    path.with_name("journal.lock").write_bytes(b"")
    assert await read(path) == []
    assert path.read_bytes() == MAGIC


async def test_another_file_is_not_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("some notes")
    with pytest.raises(CorruptLogError, match="does not begin"):
        await read(path)


async def test_compaction_keeps_epoch_positions_and_the_facts_given(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await written(path, count=200)
    log = await opened(path)
    await log.append([Freed("x")], {"T": 5}, Instant(AT + 7))
    before = log.size
    await log.compact([Placed("only")])
    assert log.size == path.stat().st_size < before
    record = await log.append([Freed("only")], {}, AT)
    assert (record.counter, record.epoch) == (2, 2)
    log.close()
    assert await read(path) == [
        LogRecord(1, 2, Instant(AT + 7), {"S": 199, "T": 5}, (Placed("only"),)),
        record,
    ]
    again = JournalFactLog(path, Placed | Freed)
    async for _ in again.replay():
        pass
    began = await again.begin_epoch("o3", AT)
    assert began == LogRecord(3, 3, AT, {}, (EpochBegan(epoch=3, owner="o3", rules=RULES),))
    again.close()


async def test_compaction_splits_what_is_too_large_for_one_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    log = await opened(path)
    facts = [Placed(f"j{number}", "x" * 20_000) for number in range(100)]
    await log.compact(facts)
    await log.compact(facts)
    log.close()
    records = await read(path)
    assert len(records) == 8
    assert [fact for record in records for fact in record.facts] == facts


async def test_compaction_to_nothing_keeps_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    log = await opened(path)
    await log.compact([])
    log.close()
    assert await read(path) == [LogRecord(1, 1, AT, {}, ())]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
async def test_compaction_that_fails_leaves_the_old_journal(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    log = await opened(path)
    await log.append([Placed("kept")], {}, AT)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space"):
        await log.compact([Placed("other")])
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        await log.append([Placed("b")], {}, AT)
    log.close()
    assert (await read(path))[1].facts == (Placed("kept"),)


async def test_an_append_that_fails_closes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may forget a failed write, so a second sync would succeed and lie."""
    path = tmp_path / "journal"
    log = await opened(path)

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output"):
        await log.append([Placed("a")], {}, AT)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        await log.append([Placed("a")], {}, AT)
    log.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from skep.units import Instant
from skep_services.adapters.journal import JournalFactLog
from tests.adapters.worlds import Freed, Placed

async def main():
    log = JournalFactLog(Path(sys.argv[1]), Placed | Freed)
    async for _ in log.replay():
        pass
    await log.begin_epoch("o", Instant(1))
    number = 0
    while True:
        await log.append([Placed(f"j{number}")], {}, Instant(1))
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


async def test_a_killed_process_loses_nothing_it_was_told_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for life in range(1, 4):
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(path), stdout=subprocess.PIPE, env=environment
        )
        assert writer.stdout is not None
        said = [int(await writer.stdout.readline()) for _ in range(50)]
        writer.kill()
        said += [int(line) for line in (await writer.stdout.read()).splitlines()]
        await writer.wait()
        records = await read(path)
        kept = [record.facts[0] for record in records if record.epoch == life][1:]
        assert kept[: len(said)] == [Placed(f"j{number}") for number in said]
        assert len(kept) <= len(said) + 1
