"""Run the allocator service."""

from __future__ import annotations

import secrets
from typing import Any

from skep.machines.allocator import HEARD_OF_ADMISSION, AllocatorMachine, Kept
from skep.wire import subjects
from skep.wire.facts import AllocatorFact
from skep_services.adapters.clock import SystemClock
from skep_services.adapters.wiring import Log, serve
from skep_services.service import Settings, run
from skep_services.shell import Follow
from skep_services.what_if import Drafter

FOLLOW = (
    Follow(subjects.ADMIN),
    Follow(subjects.NODE),
    Follow(subjects.ADMISSION, facts=HEARD_OF_ADMISSION),
)
LISTEN = (
    subjects.HEARTBEATS,
    subjects.ADVICE_QUEUE,
    subjects.ADVICE_OUTLOOK,
    subjects.ADVICE_LEARNED,
    subjects.JUDGED,
    subjects.SLOWED,
    subjects.LATE,
)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    keeps = Log(subjects.ALLOC, subjects.ALLOC_FACTS, AllocatorFact, Kept)
    machine = AllocatorMachine()
    machine.settings.key = secrets.token_bytes(32)
    await serve(
        chosen,
        log,
        machine,
        follow=FOLLOW,
        listen=LISTEN,
        keeps=keeps,
        answers=lambda bus: Drafter(machine, bus, SystemClock()).answer,
    )


if __name__ == "__main__":
    run("allocator", main)
