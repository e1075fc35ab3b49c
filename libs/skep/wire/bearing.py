"""Facts about cells that no job asked for: carried holds, bad cells, and the leader of a set.

Each says what was decided, and nothing is left to be chosen when it is applied.
"""

from __future__ import annotations

from enum import StrEnum

from skep.wire.message import Message

RULES = 2
"""The version of the rules by which facts of a new epoch are applied.

1: applying a fact chose who bears bad hardware, who leads a set, and what becomes of each hold when
the cells change. 2: facts say all of it.
"""


class BadCell(Message, frozen=True):
    """A cell with bad GPUs that a VC has to bear: the cell is bound, although no job needs it."""

    chain: str
    vc: str
    level: int
    index: int


class BadCellBound(Message, frozen=True, tag="bad-cell-bound"):
    """A VC has to bear a bad cell: its free cells would need it otherwise."""

    cell: BadCell


class BadCellReturned(Message, frozen=True, tag="bad-cell-returned"):
    """A VC no longer bears a cell that was bound for its bad GPUs."""

    cell: BadCell


class SetLed(Message, frozen=True, tag="set-led"):
    """Of jobs that share GPUs, an attempt gives its name to what they hold.

    `before` and `attempt_before` say under which name the cells knew it until then.
    """

    job: str
    attempt: int
    before: str
    attempt_before: int


class RulesRaised(Message, frozen=True, tag="rules-raised"):
    """From here on facts say everything that earlier rules left to the code that applied them.

    `bad_cells` are all cells that VCs bear at this point.
    """

    rules: int
    bad_cells: tuple[BadCell, ...] = ()


class Fate(StrEnum):
    """What a change of the cells means for a hold."""

    KEPT = "kept"
    """Cells of its VC cover it."""
    DEMOTED = "demoted"
    """It goes on where it is, opportunistically."""
    OPPORTUNISTIC = "opportunistic"
    """As before."""
    RELEASED = "released"
    """It was a reservation, and is planned anew."""


class CarriedHold(Message, frozen=True):
    """What a change of the cells makes of one hold, which `job` and `attempt` name before it.

    It is in `chain` then ("": in none), with those of its GPUs that are there; others are astray.
    `levels` are the levels of the VC's cells that cover its spots, in their order; none: it is
    opportunistic. `leads` names the job that leads it where that is another one of a set. `chains`
    say of a mixed gang in which chain each of its spots is.
    """

    job: str
    attempt: int
    chain: str = ""
    levels: tuple[int, ...] = ()
    fate: Fate = Fate.KEPT
    leads: str = ""
    leads_attempt: int = 0
    chains: tuple[str, ...] = ()


BearingFact = BadCellBound | BadCellReturned | SetLed | RulesRaised
