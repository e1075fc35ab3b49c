"""What judges a woken allocator reads an agent's journal as the agent wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skep.units import Instant
from skep.wire.facts import AgentFact, FloorRaised, StopTaken
from skep_services.adapters.journal import JournalFactLog
from tests.system.pause_allocator import command_epoch, frames

AT = Instant(1_800_000_000_000_000_000)


@pytest.mark.asyncio
async def test_the_epoch_of_every_command_taken_is_found(tmp_path: Path) -> None:
    log = JournalFactLog(tmp_path / "journal", AgentFact)
    async for _ in log.replay():
        pass
    await log.begin_epoch("o1", AT)
    stops = [StopTaken(job="j1", attempt=1, order=n, epoch=n, grace_ms=0) for n in (1, 2)]
    await log.append([stops[0], FloorRaised(order=1, event=1, epoch=7)], {}, AT)
    await log.append([stops[1]], {}, Instant(AT + 5))
    log.close()
    data = (tmp_path / "journal").read_bytes()
    found = [
        (record["at"], command_epoch(fact)) for record in frames(data) for fact in record["facts"]
    ]
    # The epoch that began is the journal's own, and a floor is no command.
    assert found == [(AT, 0), (AT, 1), (AT, 0), (AT + 5, 2)]
    assert [record["at"] for record in frames(data[:-1])] == [AT, AT]


def test_a_binding_carries_the_epoch_in_its_command() -> None:
    assert command_epoch({"type": "bind-taken", "command": {"epoch": 3}}) == 3
