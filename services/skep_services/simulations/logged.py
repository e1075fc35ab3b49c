"""The log of a simulated run as an export, for what reads logs: reports, blame, replays of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skep.units import Instant
from skep.wire import subjects
from skep.wire.bearing import RULES
from skep.wire.facts import AllocatorFact, EpochBegan
from skep_services.adapters import exported
from skep_services.adapters.records import Chain
from skep_services.ports import Delivery

FACTS_MAX = 256
"""Facts of one record: far below what a record may weigh."""


class LoggedRun:
    """Writes what the allocator of a simulation decides as its log, record by record."""

    def __init__(self, path: Path) -> None:
        """Begin the file; it is packed if its name ends in .gz.

        Raises:
            OSError: The file cannot be written.
        """
        self._file = exported.Writer(path)
        self._chain = Chain("simulated log", AllocatorFact)
        self.records = 0

    def __call__(self, world: Any, facts: Sequence[Any]) -> None:
        """Take a decision: this is the judge of a run."""
        for first in range(0, len(facts), FACTS_MAX):
            self._write(tuple(facts[first : first + FACTS_MAX]), world.now)

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, facts: tuple[Any, ...], now: Instant) -> None:
        if not self.records:
            facts = (EpochBegan(epoch=1, owner="simulation", rules=RULES), *facts)
        record, payload = self._chain.encode(facts, {}, now, 1)
        self._chain.advance(record, payload)
        self.records += 1
        [subject] = subjects.STREAMS[subjects.ALLOC]
        self._file.write(Delivery(subject, payload, {}, subjects.ALLOC, self.records, now))
