"""Run the service of searches."""

from __future__ import annotations

from typing import Any

from skep.machines.searches import SearchesMachine
from skep.machines.searches.machine import Kept
from skep.wire import subjects
from skep.wire.changes import AskOver, ChangeAsked, JobChanged
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    Refused,
    RolesSeen,
)
from skep.wire.search_facts import SearchFact
from skep_services.adapters.wiring import Log, serve
from skep_services.service import Settings, run
from skep_services.shell import Follow

FOLLOW = (
    Follow(subjects.SUBMIT, subjects=(subjects.SEARCH_REQUESTS,)),
    Follow(subjects.ADMISSION, facts=(Admitted, CancelAsked, ChangeAsked, Refused, RolesSeen)),
    Follow(subjects.ALLOC, facts=(AskOver, JobChanged, JobEnded, JobQueued, JobRan, JobRequeued)),
)
LISTEN = (subjects.MEASURED, subjects.SERVED)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    keeps = Log(subjects.SEARCH, subjects.SEARCH_FACTS, SearchFact, Kept)
    await serve(chosen, log, SearchesMachine(), follow=FOLLOW, listen=LISTEN, keeps=keeps)


if __name__ == "__main__":
    run("searches", main)
