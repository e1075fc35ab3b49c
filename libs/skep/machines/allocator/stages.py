"""The stages of a decision: what each is for, and what it reports.

    intake -> trials -> sharing -> returns -> reservations -> shares -> policies -> guaranteed
           -> suspended -> lending -> idle -> opportunistic -> promotion -> probes
           -> verdicts -> sights -> checks

A stage reads the state, records facts, and spends of the decision's room: the parts of gangs that
may be bound and the victims that may be named, so that one decision fits one record of the log.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.machines.base import Effect, Record


class Stage(enum.Enum):
    """The stages in their order, each with what it does."""

    INTAKE = "take in the event, and what follows at once"
    TRIALS = "end trials that are over"
    ADVICE = "drop an order of the queues that expired"
    SHARING = "tell jobs what part of a GPU's memory is theirs"
    RETURNS = "let suspended jobs go on for which others left GPUs"
    RESERVATIONS = "bind reservations whose victims are gone"
    SHARES = "put jobs that ask for a share of a GPU on GPUs with room for it"
    POLICIES = "carry out the plans of VCs with a policy"
    GUARANTEED = "serve the guaranteed queues from their VC's cells"
    SUSPENDED = "let suspended jobs go on where their nodes have idle GPUs"
    LENDING = "lend idle GPUs to jobs that a policy leaves waiting"
    IDLE = "lend idle GPUs to jobs that wait in VCs without a policy"
    OPPORTUNISTIC = "serve the opportunistic queues from idle GPUs"
    PROMOTION = "let jobs that borrow have the cells of their VC"
    PROBES = "measure other sizes of elastic jobs with GPUs that no job could have"
    VERDICTS = "end trials whose jobs changed in this decision, and say which are open"
    SIGHTS = "tell models what the policies that they advise see"
    CHECKS = "check the cells, a slice at a time"


class Progress(NamedTuple):
    """What a stage spent of the decision's room; `full`: the rest is for the next decision."""

    spent: int = 0
    full: bool = False


NONE = Progress()


class Report(NamedTuple):
    """What one stage of a decision came to: the facts it recorded, and its progress."""

    stage: Stage
    facts: tuple[Any, ...]
    progress: Progress


def spending(spent: int) -> Progress:
    """Return the progress of a stage that came to its end, having spent so much.

    Args:
        spent: The parts bound, and the victims named or stopped.
    """
    return Progress(spent) if spent else NONE


def reports(
    marks: Sequence[tuple[Stage, int]], effects: Sequence[Effect], progress: dict[Stage, Progress]
) -> list[Report]:
    """Return the reports of the stages that a decision went through, in their order.

    Args:
        marks: The stages, each with the number of effects before it.
        effects: The effects of the whole decision.
        progress: What stages spent, where that is not nothing.
    """
    ends = [start for _, start in marks[1:]] + [len(effects)]
    return [
        Report(
            stage,
            tuple(each.fact for each in effects[start:end] if isinstance(each, Record)),
            progress.get(stage, NONE),
        )
        for (stage, start), end in zip(marks, ends, strict=True)
    ]
