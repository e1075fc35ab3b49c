"""What comes of an attempt to do something for a job.

A change that is asked for begins, or is `Refused`. A job that is offered GPUs gets a place
(`Done`), has to wait (`BLOCKED`), comes first in the next decision (`DEFERRED`), or has yet to
leave the GPUs that it uses (`LEAVING`).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from skep.wire.reasons import Reason


class Refused(NamedTuple):
    """A change does not begin: why, and what is the matter in words."""

    why: Reason
    detail: str = ""


class Done(NamedTuple):
    """A job was given what it was offered.

    `cost` is what that takes of one decision: the parts of gangs that were bound, and the victims
    that were named or stopped. It is at least 1.
    """

    cost: int


class Not(enum.Enum):
    """A job was not given what it was offered."""

    BLOCKED = "it has to wait"
    DEFERRED = "this decision has no room for it"
    LEAVING = "it has yet to leave the GPUs that it uses"


BLOCKED, DEFERRED, LEAVING = Not.BLOCKED, Not.DEFERRED, Not.LEAVING
Outcome = Done | Not


def done(cost: int) -> Outcome:
    """Return `Done` for what has a cost, and `BLOCKED` for what has none.

    Args:
        cost: The parts bound, and the victims named or stopped; 0: none.
    """
    return Done(cost) if cost else BLOCKED


def cost(outcome: Outcome) -> int:
    """Return what an outcome takes of a decision: 0 unless it is `Done`."""
    return outcome.cost if isinstance(outcome, Done) else 0
