"""Run the advisor service."""

from __future__ import annotations

from typing import Any

from skep.machines.advisor import AdvisorMachine
from skep.wire import subjects
from skep.wire.facts import JobBound, JobEnded, JobQueued, JobRequeued
from skep_services.adapters.wiring import serve
from skep_services.service import Settings, run
from skep_services.shell import Follow

FOLLOW = (Follow(subjects.ALLOC, facts=(JobQueued, JobBound, JobRequeued, JobEnded)),)
LISTEN = (subjects.FINDINGS,)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    await serve(chosen, log, AdvisorMachine(), follow=FOLLOW, listen=LISTEN)


if __name__ == "__main__":
    run("advisor", main)
