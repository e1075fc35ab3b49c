"""Run the introspector service."""

from __future__ import annotations

from typing import Any

from skep.machines.introspector import IntrospectorMachine
from skep.wire import subjects
from skep_services.adapters.wiring import serve
from skep_services.service import Settings, run

LISTEN = (subjects.REPORTS, subjects.TRIALS_OPEN)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    await serve(chosen, log, IntrospectorMachine(), listen=LISTEN)


if __name__ == "__main__":
    run("introspector", main)
