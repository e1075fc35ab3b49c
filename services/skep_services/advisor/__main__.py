"""Run the advisor service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skep.machines.advisor import AdvisorMachine
from skep.wire import subjects
from skep.wire.changes import JobPrioritised
from skep.wire.facts import (
    CellsSet,
    EpochBegan,
    JobBound,
    JobEnded,
    JobQueued,
    JobRequeued,
    NodeAdded,
)
from skep.wire.following import AdviceFollowed
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.packs import GpusShared
from skep.wire.profile import AdvisorFact
from skep.wire.resizes import GangNarrowed, GangWidened
from skep_services.adapters.wiring import Log, serve
from skep_services.advisor.models import ModelFolder
from skep_services.learning.registry import folder_of
from skep_services.service import Settings, run
from skep_services.shell import Follow

FACTS = (
    JobQueued,
    JobPrioritised,
    JobBound,
    JobRequeued,
    JobEnded,
    NodeAdded,
    CellsSet,
    EpochBegan,
    SuccessorBound,
    SuccessorDropped,
    JobMoved,
    GangWidened,
    GangNarrowed,
    GpusShared,
    AdviceFollowed,
)
FOLLOW = (
    Follow(subjects.ALLOC, facts=FACTS, anew=True),
    Follow(subjects.ADMISSION, facts=(EpochBegan,)),
)
LISTEN = (subjects.FINDINGS, subjects.SIGHTS)


def _models(chosen: Settings) -> Path:
    """Return the folder of the learned models."""
    return folder_of(chosen.environment.get("SKEP_HOME", ""))


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    keeps = Log(subjects.PROFILES, subjects.PROFILE_FACTS, AdvisorFact, AdvisorFact)
    await serve(
        chosen,
        log,
        AdvisorMachine(judges=True, models=ModelFolder(_models(chosen), log), guards=True),
        follow=FOLLOW,
        listen=LISTEN,
        keeps=keeps,
        notes=False,
    )


if __name__ == "__main__":
    run("advisor", main)
