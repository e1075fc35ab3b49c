"""What a step of a decision works on: the state it reads, and the one way to change it."""

from __future__ import annotations

from typing import assert_never

from skep.cells.decide import bad_cells
from skep.ids import job_and_number
from skep.ledger import fold
from skep.ledger.delta import UNCHANGED
from skep.ledger.job_state import IllegalTransitionError
from skep.ledger.snapshot import Kept
from skep.ledger.state import ClusterState
from skep.machines.allocator import caches, stages
from skep.machines.allocator.settings import Settings
from skep.machines.allocator.soft import Soft
from skep.machines.allocator.stages import Progress, Report, Stage
from skep.machines.base import Effect, Record
from skep.wire.bearing import BadCellBound, BadCellReturned, SetLed
from skep.wire.changes import MemberLearned
from skep.wire.facts import (
    AllocatorFact,
    JobDeferred,
    JobEligible,
    JobQueued,
    JobRan,
    JobWaits,
    MemberRan,
)
from skep.wire.following import AdviceFollowed

ASIDE = frozenset(
    (
        JobQueued,
        JobDeferred,
        JobEligible,
        JobWaits,
        MemberRan,
        JobRan,
        MemberLearned,
        AdviceFollowed,
    )
)
"""Facts that change nothing about cells."""


class Transaction:
    """One decision of the allocator at a time, from its event to its effects.

    Attributes:
        state: What the facts tell. Read it; only `record` changes it.
        soft: What a crash may forget.
        settings: What a simulation may have otherwise.
        effects: The facts and messages of this decision, in order.
        progress: What stages of this decision spent, where that is not nothing.
        weighty: The facts of this decision that may change something about cells.
    """

    def __init__(self) -> None:
        """Start with no nodes and no jobs."""
        self.state = ClusterState()
        self.soft = Soft()
        self.settings = Settings()
        self.effects: list[Effect] = []
        self.progress: dict[Stage, Progress] = {}
        self.weighty: list[AllocatorFact] = []
        self._marks: list[tuple[Stage, int]] = []

    def begin(self) -> None:
        """Begin a decision, with the intake of its event."""
        self.effects, self.progress, self.weighty = [], {}, []
        self._marks = [(Stage.INTAKE, 0)]

    def enter(self, stage: Stage) -> None:
        """Begin the next stage of the decision."""
        self._marks.append((stage, len(self.effects)))

    @property
    def stage(self) -> Stage:
        """Return the stage that the decision is in."""
        return self._marks[-1][0]

    def reports(self) -> list[Report]:
        """Return what each stage of the latest decision came to, in their order."""
        return stages.reports(self._marks, self.effects, self.progress)

    def record(self, fact: AllocatorFact) -> None:
        """Apply a fact and ask for it to be made durable, with what has to follow for the cells.

        Which VC bears bad hardware, and which attempt leads a set, is decided in the same record.
        """
        self._record(fact)
        if self.state.cells.undecided:
            for step in bad_cells.next_steps(self.state.cells):
                self._record(_fact_of(step))

    def _record(self, fact: AllocatorFact) -> None:
        """Apply one fact, and have it made durable."""
        self.apply(fact)
        self.effects.append(Record(fact))
        self.soft.story.append(fact)
        if type(fact) not in ASIDE:
            self.weighty.append(fact)
            self.soft.may_promote = True
        elif type(fact) is JobDeferred or (type(fact) is JobWaits and fact.aside):
            self.soft.may_promote = True  # No job waits behind it any more.

    def apply(self, fact: AllocatorFact | Kept) -> None:
        """Take over one fact, or one piece of a snapshot.

        Raises:
            IllegalTransitionError: It cannot follow for its job. The notes are the latest facts
                about the job.
        """
        if self.soft.planned:
            caches.touch(self.soft, fact)
        try:
            delta = fold.apply(self.state, fact)
        except IllegalTransitionError as error:
            for line in self.soft.story_of([error.job]):
                error.add_note(line)
            raise
        if delta is not UNCHANGED:
            caches.follow(self.state.jobs, self.soft, delta)


def _fact_of(step: bad_cells.Step) -> BadCellBound | BadCellReturned | SetLed:
    """Return the fact of what has to follow for the cells."""
    match step:
        case bad_cells.Bear(cell):
            return BadCellBound(cell=cell)
        case bad_cells.Relieve(cell):
            return BadCellReturned(cell=cell)
        case bad_cells.Lead(name, leader):
            (job, attempt), (before, earlier) = job_and_number(leader), job_and_number(name)
            return SetLed(job=job, attempt=attempt, before=before, attempt_before=earlier)
        case _:
            assert_never(step)
