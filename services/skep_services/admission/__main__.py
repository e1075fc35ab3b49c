"""Run the admission service."""

from __future__ import annotations

from typing import Any

from skep.access.roles import HEARD as HEARD_OF_PEOPLE
from skep.machines.admission import HEARD_OF_ALLOC, AdmissionMachine, Kept
from skep.wire import subjects
from skep.wire.facts import AdmissionFact
from skep_services.adapters.compaction import keep_small
from skep_services.adapters.wiring import Log, serve
from skep_services.service import Settings, run
from skep_services.shell import Follow
from skep_services.what_if import JudgeOnly

FOLLOW = (
    Follow(subjects.ACCESS, facts=HEARD_OF_PEOPLE),
    Follow(subjects.ADMIN),
    Follow(subjects.ALLOC, facts=HEARD_OF_ALLOC),
    Follow(subjects.SUBMIT),
)
LISTEN = (subjects.ADVICE_OUTLOOK,)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    keeps = Log(subjects.ADMISSION, subjects.ADMISSION_FACTS, AdmissionFact, Kept)
    machine = AdmissionMachine()
    await serve(
        chosen,
        log,
        machine,
        follow=FOLLOW,
        listen=LISTEN,
        keeps=keeps,
        answers=lambda bus: JudgeOnly(machine, bus).answer,
        beside=keep_small,
    )


if __name__ == "__main__":
    run("admission", main)
