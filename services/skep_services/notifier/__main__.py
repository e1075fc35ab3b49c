"""Run the notifier: one process in a cluster, where the operator's file of targets is."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from skep.machines.notifier import NotifierMachine
from skep.units import MIB, Instant
from skep.wire import subjects
from skep.wire.changes import JobChanged
from skep.wire.facts import JobEnded, JobQueued, JobRan
from skep.wire.notices import NotifierFact
from skep_services import durable
from skep_services.adapters.journal import JournalFactLog
from skep_services.adapters.wiring import connect, drive
from skep_services.notifier.delivering import Answers, Sending, hosts_of
from skep_services.notifier.settings import VARIABLE, read
from skep_services.ports import LogRecord
from skep_services.service import ConfigurationError, Fatal, Settings, run
from skep_services.shell import Follow

FOLLOW = (Follow(subjects.ALLOC, facts=(JobQueued, JobRan, JobChanged, JobEnded)),)
COMPACT_ABOVE = MIB


class NotifierJournal(JournalFactLog):
    """The notifier's journal, compacted when it starts to what its machine still needs."""

    def __init__(self, path: Path, machine: NotifierMachine) -> None:
        """Keep `machine`'s facts in `path`."""
        super().__init__(path, NotifierFact)
        self._machine = machine

    async def begin_epoch(self, owner: str, at: Instant) -> LogRecord:
        """Begin the epoch; here the replayed facts can be compacted."""
        record = await super().begin_epoch(owner, at)
        if self.size > COMPACT_ABOVE:
            await self.compact(self._machine.snapshot())
        return record


def _name(state: Path) -> str:
    """Return the name of this journal, made with it: its messages' numbers begin at 1."""
    path = state / "name"
    if not path.exists():
        durable.write(str(path), uuid.uuid4().hex[:12].encode())
    return path.read_text(encoding="ascii", errors="replace").strip()


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled; what waits is sent by the next process.

    Raises:
        ConfigurationError: The file of targets is not named, or cannot be used.
    """
    named = chosen.environment.get(VARIABLE, "")
    if not named:
        text = f"{VARIABLE} is not set: it must hold the path of the operator's file of targets"
        raise ConfigurationError(text)
    config = await asyncio.to_thread(read, Path(named))
    machine = NotifierMachine()
    fatal = Fatal()
    bus = await connect(chosen, fatal)
    sending = Sending(config, _name(chosen.state), hosts_of(chosen.nats_url), log)
    journal = NotifierJournal(chosen.state / "journal", machine)

    async def prepare(_: Any) -> None:
        answers = Answers(bus, config, sending, machine)
        await bus.listen(subjects.NOTIFIER_ASKED, answers.heard)

    try:
        await drive(
            chosen,
            log,
            machine,
            bus,
            fatal,
            facts=journal,
            calls=sending,
            follow=FOLLOW,
            prepare=prepare,
        )
    finally:
        await sending.close()
        journal.close()


if __name__ == "__main__":
    run("notifier", main)
