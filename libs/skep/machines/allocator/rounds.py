"""The common mini-batch of a gang on several nodes: which one is named to all, round by round.

No clock is shared. The first one named is almost always past, and a rank that is past it says where
it is; the next is counted from there (the two-phase clock; DL2, section 4.2).
"""

from __future__ import annotations

from skep.ledger.job_state import OpenChange

FIRST_STEP = 1
"""The mini-batch first named to a gang on several nodes: almost always past, and a rank that is
past it says where it is, which is what the next one is counted from."""
MARGIN = 2
MARGIN_GROWS = 4
ROUNDS_MAX = 7
"""Rounds of one suspension: the last one leaves 2,048 mini-batches for a command to arrive in."""


def later(change: OpenChange) -> int | None:
    """Return the mini-batch to name in the next round, or None after the last one."""
    if change.round >= ROUNDS_MAX:
        return None
    margin: int = MARGIN * MARGIN_GROWS ** (change.round - 1)
    return change.far + margin
